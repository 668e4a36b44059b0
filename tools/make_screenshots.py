"""The demo's report as a browser shows its top, light and dark -> `docs/images/report-light.png`, `report-dark.png`.

Needs the html extra, playwright and Debian's chromium (as the browser tests do).

    python tools/make_screenshots.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the browser stands with the tests

from tests.browser.browsing import visiting  # noqa: E402

from stepscope.answers.account import explain  # noqa: E402
from stepscope.report.document import to_document  # noqa: E402
from stepscope.report.html import render_html  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 250_000


def main() -> None:
    """Write both pictures."""
    document = to_document(explain(ROOT / "examples" / "vllm-cpu-tp2"))
    document["source"] = "examples/vllm-cpu-tp2"  # not where it stands on this machine
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(render_html(document), encoding="utf-8")
        for scheme in ("light", "dark"):
            path = IMAGES / f"report-{scheme}.png"
            with visiting(page, color_scheme=scheme) as visit:
                visit.page.set_viewport_size({"width": 1240, "height": 1500})
                visit.page.wait_for_selector("#chart-budget-steps .role-mark path", state="attached")
                visit.page.wait_for_timeout(300)
                visit.page.screenshot(path=str(path))
            size = path.stat().st_size
            print(f"{path.relative_to(ROOT)}: {size:,} bytes")
            assert size < MAX_BYTES, f"{path} is too large for the README"


if __name__ == "__main__":
    main()
