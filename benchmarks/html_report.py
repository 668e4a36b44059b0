"""The HTML report of 1,000 and 5,000 steps: its size, the time to write it, and the browser's own times to show it.

The document is that of `examples/vllm-cpu-tp2` (two ranks), its steps repeated with times that differ a little. First
paint is the browser's `first-contentful-paint`; ready: the step table is there and can be used. Both count from the
start of the navigation, medians of the runs. Needs playwright and chromium.

    python benchmarks/html_report.py [--steps 1000,5000] [--runs N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # the stretched documents stand with the tests

from tests.browser.browsing import visiting
from tests.report.documents import stretched

from stepscope.report.charts import make_charts
from stepscope.report.html import render_html

_TIMES = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN,
  ready: performance.getEntriesByName("stepscope:ready")[0].startTime,
  elements: document.querySelectorAll("*").length,
})"""


def measure(steps: int, runs: int, folder: Path) -> str:
    """One line of the table."""
    document = stretched("vllm-cpu-tp2", steps)
    marks = max(chart.num_marks for chart in make_charts(document))
    started = time.perf_counter()
    html = render_html(document)
    written = time.perf_counter() - started
    path = folder / f"{steps}.html"
    path.write_text(html, encoding="utf-8")
    found = []
    for _ in range(runs):
        with visiting(path) as visit:
            visit.wait_for("performance.getEntriesByName('first-contentful-paint').length")
            found.append(visit.read(_TIMES))
    paint, ready, elements = (median(times[name] for times in found) for name in ("paint", "ready", "elements"))
    size = len(html.encode()) / 1e6
    return f"{steps:>7,} {size:>9.2f} {written:>9.2f} {paint:>15.0f} {ready:>9.0f} {elements:>9,.0f} {marks:>17,}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="1000,5000", help="steps per rank, by commas")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("  steps  size, MB  write, s  first paint, ms  ready, ms  elements  marks a chart, max")
    with tempfile.TemporaryDirectory() as folder:
        for steps in (int(text) for text in options.steps.split(",")):
            print(measure(steps, options.runs, Path(folder)))


if __name__ == "__main__":
    main()
