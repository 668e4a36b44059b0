"""Pages in a real browser: started by the test, with every request and every complaint of the page written down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")

CHROMIUM = os.environ.get("STEPSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


@dataclass(slots=True)
class Visit:
    """A page, and what happened in it."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def read(self, script: str) -> Any:
        """What an expression of the page's world gives."""
        return self.page.evaluate(script)

    def wait_for(self, script: str) -> None:
        """Ask until it is true; the page's policy lets the driver not poll inside the page."""
        for _ in range(200):
            if self.read(script):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never came true: {script}")

    def show_charts(self) -> dict[str, int]:
        """Scroll to each chart that has a spec; how many marks each has then."""
        self.read("document.documentElement.style.scrollBehavior = 'auto'")
        for figure in self.page.query_selector_all("figure.chart:has(.plot)"):
            figure.scroll_into_view_if_needed()
            figure.wait_for_selector(".plot svg .role-mark path", state="attached")
        marks: dict[str, int] = self.read(_MARKS)
        return marks


_MARKS = """Object.fromEntries([...document.querySelectorAll("figure.chart:has(.plot)")].map((figure) =>
  [figure.dataset.chart, figure.querySelectorAll(
    ".plot svg .mark-rect.role-mark path, .plot svg .mark-symbol.role-mark path").length]))"""


@contextmanager
def visiting(path: Path, fragment: str = "", **options: Any) -> Iterator[Visit]:
    """Open a file; `options` are the browser context's."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = browser.new_context(viewport={"width": 1280, "height": 900}, **options).new_page()
            visit = Visit(page)
            page.on("request", lambda request: visit.requests.append(request.url))
            page.on("console", lambda message: visit.complaints.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: visit.complaints.append(f"error: {error}"))
            page.goto(path.as_uri() + fragment)
            page.wait_for_selector("html[data-ready]")
            yield visit
        finally:
            browser.close()
