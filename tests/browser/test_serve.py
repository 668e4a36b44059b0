"""The served page in a browser: a dropped capture becomes the command line's report; what cannot be read says why."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("uvicorn", reason="needs the web extra")

import uvicorn

from stepscope.answers.account import explain
from stepscope.report.document import to_document
from stepscope.web.app import make_app
from stepscope.web.library import Library
from tests.browser.browsing import CHROMIUM, FLAGS, Visit, needs_browser, playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.browser, needs_browser]

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm-cpu-tp2"
MIB = 1 << 20


@contextmanager
def serving(library: Library) -> Iterator[str]:
    """The application on a free port of 127.0.0.1; its address."""
    server = uvicorn.Server(uvicorn.Config(make_app(library), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(200):
        if server.started:
            break
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


@contextmanager
def browsing(url: str) -> Iterator[Visit]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            visit = Visit(browser.new_page())
            visit.page.on("request", lambda request: visit.requests.append(request.url))
            visit.page.on("console", lambda message: visit.complaints.append(f"{message.type}: {message.text}"))
            visit.page.on("pageerror", lambda error: visit.complaints.append(f"error: {error}"))
            visit.page.goto(url)
            yield visit
        finally:
            browser.close()


def test_an_upload_becomes_the_report_of_the_command_line(tmp_path: Path) -> None:
    library = Library(folder=tmp_path, max_bytes=64 * MIB)
    with serving(library) as url, browsing(url) as visit:
        visit.page.set_input_files("#files", [str(path) for path in sorted(EXAMPLE.glob("*.json.gz"))])
        visit.page.wait_for_selector("#list tr[data-state=done]", timeout=60_000)
        capture_id = visit.page.get_attribute("#list tr", "data-id")
        document = visit.page.evaluate(f"fetch('/api/captures/{capture_id}/document').then((answer) => answer.json())")
        assert document == json.loads(json.dumps(to_document(explain(tmp_path / capture_id))))
        visit.page.click("#list tr a >> nth=0")
        visit.page.wait_for_selector("html[data-ready]")
        marks = visit.show_charts()
        assert marks
        assert all(marks.values())
        assert visit.complaints == []
        assert all(request.startswith(url) for request in visit.requests)


@pytest.mark.parametrize(
    ("data", "said"), [(b"this is no trace", "no format that a reader knows"), (b"x" * (2 * MIB), "larger than 1 MiB")]
)
def test_what_cannot_be_read_says_why(tmp_path: Path, data: bytes, said: str) -> None:
    broken = tmp_path / "broken.json"
    broken.write_bytes(data)
    library = Library(folder=tmp_path / "uploads", max_bytes=MIB)
    with serving(library) as url, browsing(url) as visit:
        visit.page.set_input_files("#files", str(broken))
        visit.page.wait_for_selector(f"text={said}", timeout=30_000)


def test_two_captures_are_compared_on_the_page(tmp_path: Path) -> None:
    library = Library(folder=tmp_path, max_bytes=64 * MIB)
    library.open_paths([str(EXAMPLE), str(EXAMPLE)])
    with serving(library) as url, browsing(url) as visit:
        visit.wait_for("document.querySelectorAll('#list tr[data-state=done]').length === 2")
        visit.page.select_option("#a", index=0)
        visit.page.select_option("#b", index=1)
        visit.page.click("#compare")
        visit.page.wait_for_selector("#comparison pre", timeout=30_000)
        assert "No difference beyond noise" in visit.page.inner_text("#comparison")
        assert visit.complaints == []
