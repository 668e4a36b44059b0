"""What all charts share: the Chart record, colours, and the parts of a Vega-Lite spec.

Colours are Okabe and Ito's, which colour-blind readers tell apart; phases differ in shape as well. The page's style
sheet sets the colours of text and lines, so that one spec serves light, dark and paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.report.chart_rows import Row
    from stepscope.report.translate import Translator

Spec = dict[str, Any]

WIDTH = 760  # px of a chart that stands alone; the page sets its own
CATEGORY_COLOURS: dict[str, str] = {
    "supply": "#cc79a7",
    "compute": "#0072b2",
    "kv": "#009e73",
    "comm": "#e69f00",
    "host": "#d55e00",
    "idle": "#56b4e9",
    "unmatched": "#7f7f7f",
    "unknown": "#b8b8b8",
}
PHASE_COLOURS: dict[str, str] = {"prefill": "#0072b2", "mixed": "#009e73", "decode": "#e69f00", "unknown": "#7f7f7f"}
PHASE_SHAPES = ("circle", "triangle-up", "square", "diamond")
CLASS_COLOURS: dict[str, str] = {"large": "#0072b2", "between": "#56b4e9", "tail": "#d55e00"}

CONFIG: Spec = {
    "font": "system-ui, 'Segoe UI', 'Helvetica Neue', 'Noto Sans', 'Noto Sans CJK SC', sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "title": {"anchor": "start", "fontSize": 14, "fontWeight": 600, "subtitleFontSize": 11, "offset": 12},
    "axis": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "tickSize": 3, "labelPadding": 4},
    "axisX": {"grid": False, "tickCount": 8, "labelFlush": False},
    "axisY": {"domain": False, "ticks": False, "tickCount": 5},
    "legend": {"orient": "top", "title": None, "labelFontSize": 11, "symbolSize": 80, "offset": 6, "padding": 0},
    "header": {"labelFontSize": 11, "title": None},
}
ON_PAPER: Spec = {"background": "#ffffff", "padding": 14}


BAR: Spec = {"type": "bar", "stroke": "#ffffff", "strokeWidth": 0.5}  # the gap between parts
LANE_HEADER: Spec = {"labelAngle": 0, "labelAlign": "left", "labelOrient": "top", "labelAnchor": "start"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart. `spec` is None where `refusal` says why; `note` says what was merged or left out.

    `grade`: how far what it shows can be trusted; `links`: its marks lead to a step's row.
    """

    id: str
    title: str
    about: str
    grade: str
    spec: Spec | None
    note: str = ""
    refusal: str = ""
    links: bool = False

    @property
    def num_marks(self) -> int:
        """Rows of its data, each one mark."""
        return len(self.spec["data"]["values"]) if self.spec else 0


def to_standalone(chart: Chart) -> Spec:
    """The spec with its title and note in the picture, on white."""
    assert chart.spec is not None
    subtitle = [text for text in (chart.about, chart.note) if text]
    return {**chart.spec, **ON_PAPER, "title": {"text": chart.title, "subtitle": subtitle}}


def plot(values: Sequence[Row], height: int, **rest: Any) -> Spec:
    """A spec with its data; `rest` holds mark and encoding."""
    return {"width": WIDTH, "height": height, "data": {"values": list(values)}, "config": CONFIG, **rest}


def axis(field: str, title: str, **rest: Any) -> Spec:
    """A number's channel, its unit in the title."""
    return {"field": field, "type": "quantitative", "title": title, **rest}


def colour(field: str, colours: dict[str, str], values: Sequence[Row]) -> Spec:
    """The colours of what is there, always the same for the same thing."""
    there = [name for name in colours if any(row[field] == name for row in values)]
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": there, "range": [colours[name] for name in there]},
        "legend": {"columns": len(there)},
    }


def tips(t: Translator, *fields: tuple[str, str]) -> list[Spec]:
    """What a mark says when it is pointed at."""
    numbers = {"x": ",.0f", "count": ",.0f", "from": ",.0f", "to": ",.0f"}
    names = ("rank", "step", "steps", "category", "phase", "class", "track")
    return [
        {"field": field, "type": "nominal", "title": t(title)}
        if field in names
        else {"field": field, "type": "quantitative", "title": t(title), "format": numbers.get(field, ",.3f")}
        for field, title in fields
    ]
