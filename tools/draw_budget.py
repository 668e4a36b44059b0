"""Draw a report's budget as SVG: one bar a rank, and below it one column a step. Writes docs/budget.svg.

    python tools/draw_budget.py                  # the bundled recording
    python tools/draw_budget.py REPORT.json OUT.svg

REPORT.json is what `stepscope explain --format json` writes. Greys and fills are chosen to read on white and on dark
paper; there are no fonts or scripts to load. x, y, w, h: pixels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import stepscope
from stepscope.report.document import to_document
from stepscope.store.schema import CATEGORIES
from stepscope.units import show_fraction, show_ns

ROOT = Path(__file__).parents[1]
TRACE = "examples/vllm-cpu-tp2"
PICTURE = ROOT / "docs" / "budget.svg"
FILL = {
    "supply": "#b07d00",
    "compute": "#0072b2",
    "kv": "#00856a",
    "comm": "#b4558f",
    "host": "#c65300",
    "idle": "#4a9fcf",
    "unmatched": "#8b8b8b",
    "unknown": "#b3b3b3",
}
_LEFT, _RIGHT, _TOP = 70, 850, 78
_BAR, _COLUMNS, _GAP = 34, 92, 28
_LABEL_FITS = 64


def draw(report: dict[str, Any]) -> str:
    """The picture of a report: the same report, the same bytes."""
    totals = [row for row in report["budget"] if row["step_id"] is None]
    steps = [row for row in report["budget"] if row["step_id"] is not None]
    height = _TOP + len(totals) * (_BAR + _COLUMNS + 2 * _GAP) + 4
    longest = max((row["window_ns"] for row in totals), default=1)
    tallest = max((row["window_ns"] for row in steps), default=1)
    body = [*_head(report["source"], totals)]
    y = _TOP
    for total in totals:
        own = [row for row in steps if row["rank"] == total["rank"]]
        body += _bar(total, y, (_RIGHT - _LEFT) / longest)
        body += _steps(own, y + _BAR + 14, _COLUMNS / tallest)
        y += _BAR + _COLUMNS + 2 * _GAP
    about = f"Time budget per rank and step of {escape(report['source'])}"
    size = f"0 0 {_RIGHT + 20} {height}"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="{about}">'
    style = "<style>text{font:12px sans-serif;fill:#6e7681}.s{font-size:10px}.on{fill:#fff}.b{font-weight:bold}</style>"
    return "\n".join([svg, style, *body, "</svg>\n"])


def _head(source: str, totals: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f'<text class="b" x="{_LEFT}" y="18">{escape(source)}: each ns of a rank in exactly one category</text>'
    shown = [name for name in CATEGORIES if any(row["exclusive_ns"][name] != 0 for row in totals)]
    x = _LEFT
    for name in shown:
        withheld = any(row["exclusive_ns"][name] is None for row in totals)
        text = f"{name} withheld" if withheld else name
        yield f'<rect x="{x}" y="32" width="12" height="12" fill="{FILL[name]}"/>'
        yield f'<text x="{x + 17}" y="42">{text}</text>'
        x += 40 + 7 * len(text)
    yield f'<text x="{_LEFT}" y="64">bar: the span of a rank. Columns: its steps, height = length of the window</text>'


def _bar(total: dict[str, Any], y: int, scale: float) -> Iterator[str]:
    yield f'<text class="b" x="10" y="{y + 22}">rank {"?" if total["rank"] is None else total["rank"]}</text>'
    x = float(_LEFT)
    for name in CATEGORIES:
        ns = total["exclusive_ns"][name] or 0
        width = ns * scale
        if not ns:
            continue
        share = show_fraction(ns / total["window_ns"])
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{FILL[name]}">'
            f"<title>{name} {show_ns(ns)}, {share}</title></rect>"
        )
        if width >= _LABEL_FITS:
            middle = x + width / 2
            yield f'<text class="on" x="{middle:.1f}" y="{y + 15}" text-anchor="middle">{name}</text>'
            yield f'<text class="on" x="{middle:.1f}" y="{y + 29}" text-anchor="middle">{show_ns(ns)}</text>'
        x += width


def _steps(rows: Sequence[dict[str, Any]], y: int, scale: float) -> Iterator[str]:
    pitch = (_RIGHT - _LEFT) / max(len(rows), 1)
    yield f'<text x="10" y="{y + _COLUMNS}">steps</text>'
    for i, row in enumerate(rows):
        x, bottom = _LEFT + i * pitch, float(y + _COLUMNS)
        for name in CATEGORIES:
            part = (row["exclusive_ns"][name] or 0) * scale
            if part:
                bottom -= part
                yield (
                    f'<rect x="{x:.1f}" y="{bottom:.1f}" width="{0.7 * pitch:.1f}" height="{part:.1f}" '
                    f'fill="{FILL[name]}"/>'
                )
        label = f"{row['step_id']}: {show_ns(row['window_ns'])}"
        yield f'<text class="s" x="{x:.1f}" y="{y + _COLUMNS + 14}">{label}</text>'


def main(arguments: Sequence[str]) -> int:
    """Draw one report."""
    if arguments:
        report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        target = Path(arguments[1])
    else:
        report = to_document(stepscope.explain(ROOT / TRACE))
        report["source"] = TRACE
        target = PICTURE
    target.write_text(draw(report), encoding="utf-8")
    print(f"{target.name}: {len(report['budget'])} budget rows")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
