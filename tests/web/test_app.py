"""The web API: the command line's documents, bounded uploads, and nothing outside its folder."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

from stepscope.answers.account import explain
from stepscope.report.document import to_document
from stepscope.web.app import make_app
from stepscope.web.library import Library

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "vllm-cpu-tp2"
OWN = {"X-Stepscope": "1"}
MIB = 1 << 20
LOCAL = "http://127.0.0.1:8765"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(folder=tmp_path / "uploads", max_bytes=2 * MIB)


@pytest.fixture
def client(library: Library) -> Iterator[TestClient]:
    with TestClient(make_app(library), base_url=LOCAL) as client:
        yield client


def upload(client: TestClient, files: dict[str, bytes]) -> str:
    """Send a capture and start reading it; returns its id."""
    capture_id = str(client.post("/api/captures", params={"name": "mine"}, headers=OWN).json()["id"])
    for name, data in files.items():
        answer = client.put(f"/api/captures/{capture_id}/files/{name}", content=data, headers=OWN)
        assert answer.status_code == 200, answer.text
    assert client.post(f"/api/captures/{capture_id}/explain", headers=OWN).status_code == 202
    return capture_id


def wait(client: TestClient, capture_id: str) -> dict[str, Any]:
    """Until it is read, or has failed."""
    for _ in range(600):
        state: dict[str, Any] = client.get(f"/api/captures/{capture_id}").json()
        if state["state"] in ("done", "failed"):
            return state
        time.sleep(0.05)
    raise AssertionError(state)


def example_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(EXAMPLE.glob("*.json.gz"))}


def test_an_upload_gives_the_document_of_the_command_line(client: TestClient, library: Library) -> None:
    capture_id = upload(client, example_files())
    assert wait(client, capture_id)["state"] == "done"
    served = client.get(f"/api/captures/{capture_id}/document").json()
    assert served == json.loads(json.dumps(to_document(explain(library.folder / capture_id))))


def test_a_run_named_at_the_start_is_read_where_it_is(library: Library) -> None:
    library.open_paths([str(EXAMPLE)])
    with TestClient(make_app(library), base_url=LOCAL) as client:
        (listed,) = client.get("/api/captures").json()
        assert wait(client, listed["id"])["state"] == "done"
        assert client.delete(f"/api/captures/{listed['id']}", headers=OWN).status_code == 200
    assert len(list(EXAMPLE.glob("*.json.gz"))) == 2


def test_the_report_page_and_a_comparison_are_served(client: TestClient) -> None:
    first, second = upload(client, example_files()), upload(client, example_files())
    for capture_id in (first, second):
        wait(client, capture_id)
    page = client.get(f"/captures/{first}")
    assert page.status_code == 200
    assert "Where did the time go?" in page.text
    comparison = client.get("/api/compare", params={"a": first, "b": second}).json()
    assert comparison["schema"] == "stepscope.comparison/1"
    assert client.get("/api/compare/text", params={"a": first, "b": second}).status_code == 200


def test_a_file_that_is_no_trace_gives_a_readable_error(client: TestClient) -> None:
    capture_id = upload(client, {"broken.json": b"this is no trace"})
    state = wait(client, capture_id)
    assert state["state"] == "failed"
    assert "no format that a reader knows" in state["error"]
    answer = client.get(f"/api/captures/{capture_id}/document")
    assert answer.status_code == 400
    assert "no format that a reader knows" in answer.json()["error"]


@pytest.mark.parametrize("declared", [True, False])
def test_a_too_large_upload_is_refused_and_removed(client: TestClient, library: Library, *, declared: bool) -> None:
    capture_id = client.post("/api/captures", headers=OWN).json()["id"]
    data = b"x" * (2 * MIB + 1)
    content: Any = data if declared else (data[i : i + 65536] for i in range(0, len(data), 65536))
    answer = client.put(f"/api/captures/{capture_id}/files/big.json", content=content, headers=OWN)
    assert answer.status_code == 413
    assert "--max-upload" in answer.json()["error"]
    assert not (library.folder / capture_id).exists()


@pytest.mark.parametrize(
    "name",
    [
        "..%2F..%2Fescape.json",
        "%2e%2e%2fx.json",
        ".hidden.json",
        "a%00b.json",
        "notes.txt",
        "a b.json",
        "a.json%0A",
        "manifest.json",  # would make the upload a run, whose manifest names folders
    ],
)
def test_no_file_name_leaves_the_folder(client: TestClient, library: Library, name: str) -> None:
    capture_id = client.post("/api/captures", headers=OWN).json()["id"]
    answer = client.put(f"/api/captures/{capture_id}/files/{name}", content=b"{}", headers=OWN)
    assert answer.status_code in (400, 404, 405)
    assert not list((library.folder / capture_id).iterdir())
    assert not list(library.folder.parent.glob("*.json"))


@pytest.mark.parametrize("capture_id", ["0" * 16, "..", "%2e%2e", "A" * 16])
def test_an_unknown_capture_is_not_found(client: TestClient, capture_id: str) -> None:
    assert client.get(f"/api/captures/{capture_id}/document").status_code in (404, 405)


def test_a_sender_that_breaks_off_leaves_no_half_file_behind(client: TestClient, library: Library) -> None:
    capture = library.begin_upload("mine")
    with pytest.raises(EOFError), library.open_file(capture, "a.json") as out:
        out.write(b'{"traceEvents": [')
        answer = client.post(f"/api/captures/{capture.id}/explain", headers=OWN)
        assert answer.status_code == 400
        assert "a.json: still being received" in answer.json()["error"]
        raise EOFError
    assert list(capture.path.iterdir()) == []


def test_a_capture_is_read_once(client: TestClient) -> None:
    capture_id = upload(client, example_files())
    assert client.post(f"/api/captures/{capture_id}/explain", headers=OWN).status_code == 400


def test_captures_are_bounded_in_number(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.web.library.MAX_CAPTURES", 2)
    codes = [client.post("/api/captures", headers=OWN).status_code for _ in range(3)]
    assert codes == [201, 201, 400]


@pytest.mark.parametrize("host", ["evil.example", "testserver", "127.0.0.1.evil.example"])
def test_a_name_that_a_foreign_page_can_own_is_no_host_of_ours(client: TestClient, host: str) -> None:
    assert client.get("/api/captures", headers={"Host": host}).status_code == 400


def test_requests_of_foreign_pages_are_refused(client: TestClient) -> None:
    assert client.post("/api/captures").status_code == 403
    assert client.get("/api/captures", headers={"Host": "evil.example"}).status_code == 400


def test_a_file_cannot_be_replaced_or_added_after_the_start(client: TestClient) -> None:
    capture_id = client.post("/api/captures", headers=OWN).json()["id"]
    url = f"/api/captures/{capture_id}/files/a.json.gz"
    trace = gzip.compress(b'{"traceEvents": []}', mtime=0)
    assert client.put(url, content=trace, headers=OWN).status_code == 200
    assert client.put(url, content=trace, headers=OWN).status_code == 400
    client.post(f"/api/captures/{capture_id}/explain", headers=OWN)
    assert client.put(url.replace("a.json", "b.json"), content=trace, headers=OWN).status_code == 400


def test_an_empty_capture_cannot_be_read(client: TestClient) -> None:
    capture_id = client.post("/api/captures", headers=OWN).json()["id"]
    answer = client.post(f"/api/captures/{capture_id}/explain", headers=OWN)
    assert answer.status_code == 400
    assert "no file yet" in answer.json()["error"]


def test_the_start_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
