"""The document -> charts as Vega-Lite specs: each with its data, title and units, or the reason why there is none.

One spec gives the chart in the page, the PNG and the SVG. Times are ms of one step unless the axis says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.report import chart_rows
from stepscope.report.chart_rows import MAX_MARKS, Document, Row, Rows
from stepscope.report.chart_spec import (
    BAR,
    CATEGORY_COLOURS,
    CLASS_COLOURS,
    LANE_HEADER,
    PHASE_COLOURS,
    PHASE_SHAPES,
    Chart,
    Spec,
    axis,
    colour,
    plot,
    tips,
    to_standalone,
)
from stepscope.report.document import shown_grades
from stepscope.report.translate import Translator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType


def make_charts(document: Document, translate: Translator | None = None) -> list[Chart]:
    """Every chart of the report, in reading order."""
    t = translate or Translator()
    charts = [
        _total(document, t),
        _budget(document, t),
        _timeline(document, t),
        _time(document, t),
        _attention(document, t),
        _experts(document, t),
        _chunks(document, t),
        _skew(document, t),
    ]
    grades: Mapping[str, str] = shown_grades(document)
    return [replace(chart, grade=grades[chart.grade]) for chart in charts]


def write_charts(document: Document, folder: Path, translate: Translator | None = None) -> list[Path]:
    """Each chart that there is as `ID.svg` and `ID.png` (two pixels a unit); returns the files.

    Raises:
        BadInput: the folder cannot be written, or the `html` extra is not installed.
    """
    vl_convert = load_converter()
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in make_charts(document, translate):
            if chart.spec is None:
                continue
            spec = to_standalone(chart)
            for name, content in (
                (f"{chart.id}.svg", vl_convert.vegalite_to_svg(spec).encode()),
                (f"{chart.id}.png", vl_convert.vegalite_to_png(spec, scale=2)),
            ):
                (folder / name).write_bytes(content)
                written.append(folder / name)
    except OSError as error:
        raise BadInput(f"{folder}: charts cannot be written there ({error.strerror}). Choose another path.") from error
    return written


def load_converter() -> ModuleType:
    """vl-convert.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import vl_convert  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise BadInput("HTML and charts need the 'html' extra: pip install 'stepscope[html]'.") from error
    module: ModuleType = vl_convert
    return module


def _merged(rows: Rows, t: Translator) -> str:
    if rows.merged == 1:
        return ""
    text = t("More than {marks} marks: each stands for up to {count} steps, with their mean.")
    return text.format(marks=f"{MAX_MARKS:,}", count=rows.merged)


def _left_out(document: Document, t: Translator) -> str:
    ranks = len({row["rank"] for row in document["budget"]})
    shown = len(chart_rows.drawn_ranks(document))
    if ranks == shown:
        return ""
    return t("The first {shown} of {ranks} ranks are drawn.").format(shown=shown, ranks=ranks)


def _joined(*notes: str) -> str:
    return " ".join(note for note in notes if note)


def _missing(document: Document, question: str, t: Translator) -> str:
    """What the question lacks and what would record it, in words."""
    for item in document["questions"]:
        if item["id"] == question and item["missing"]:
            text = t("Not known: {missing}. To know it, {record_with}.")
            return text.format(missing=t(item["missing"][0]), record_with=t(item["record_with"][0]))
    return t("Nothing of this was recorded.")


def _total(document: Document, t: Translator) -> Chart:
    rows = chart_rows.total_rows(document)
    spec = plot(
        rows.values,
        34 * max(len(chart_rows.drawn_ranks(document)), 1),
        mark=BAR,
        encoding={
            "y": {"field": "rank", "type": "nominal", "title": None, "sort": None},
            "x": axis("ms", t("span of the rank, ms"), stack="zero"),
            "color": colour("category", CATEGORY_COLOURS, rows.values),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": tips(t, ("rank", "rank"), ("category", "category"), ("ms", "ms")),
        },
    )
    return Chart(
        id="budget-total",
        title=t("Time budget of the span"),
        about=t("Each ns of a rank's span in exactly one category."),
        grade="classified",
        spec=spec if rows.values else None,
        note=_left_out(document, t),
        refusal=t("No time was accounted for."),
    )


def _budget(document: Document, t: Translator) -> Chart:
    rows = chart_rows.budget_rows(document)
    ranks = list(dict.fromkeys(row["rank"] for row in rows.values))
    encoding: Spec = {
        "x": {
            "field": "step",
            "type": "ordinal",
            "title": t("step"),
            "axis": {"labelOverlap": True, "labelAngle": 0, "ticks": False},
        },
        "y": axis("ms", t("ms of a step"), stack="zero"),
        "color": colour("category", CATEGORY_COLOURS, rows.values),
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": tips(
            t, ("rank", "rank"), ("steps", "step"), ("category", "category"), ("ms", "ms"), ("window_ms", "window, ms")
        ),
    }
    if len(ranks) > 1:
        encoding["row"] = {"field": "rank", "type": "nominal", "sort": ranks, "spacing": 14, "header": LANE_HEADER}
    height = {1: 230, 2: 130, 3: 110, 4: 90}.get(len(ranks), 70)
    return Chart(
        id="budget-steps",
        title=t("Time budget per step"),
        about=t("Each step's window in exclusive categories; a bar is as high as the window is long."),
        grade="classified",
        spec=plot(rows.values, height, mark={"type": "bar"}, encoding=encoding) if rows.values else None,
        note=_joined(_merged(rows, t), _left_out(document, t)),
        refusal=t("No step has a window."),
        links=True,
    )


def _timeline(document: Document, t: Translator) -> Chart:
    rows = chart_rows.timeline_rows(document)
    lanes = list(dict.fromkeys((row["rank"], row["lane"]) for row in rows.values))
    values = [row | {"track": f"{row['rank']} · {t(row['lane'])}"} for row in rows.values]
    spec = plot(
        values,
        26 * max(len(lanes), 1),
        mark={**BAR, "height": {"band": 0.72}},
        encoding={
            "y": {"field": "track", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 200}},
            "x": axis("start_ms", t("ms since the first start"), scale={"nice": False}),
            "x2": {"field": "end_ms"},
            "color": colour("phase", PHASE_COLOURS, rows.values),
            "tooltip": tips(
                t, ("track", "track"), ("steps", "step"), ("phase", "phase"), ("start_ms", "start, ms"), ("ms", "ms")
            ),
        },
    )
    return Chart(
        id="timeline",
        title=t("Steps in time"),
        about=t("Each step's window, and the host range that started it, by phase."),
        grade=document["steps"]["grade"] or "refused",
        spec=spec if values else None,
        note=_joined(_merged(rows, t), _left_out(document, t)),
        refusal=t("No step has a window."),
        links=True,
    )


def _scatter(points: Sequence[Row], x_title: str, y_title: str, t: Translator) -> tuple[Spec | None, str]:
    """A chart by phase, and the note about merged points."""
    rows = chart_rows.scatter_rows(points)
    if not rows.values:
        return None, ""
    by_phase = colour("phase", PHASE_COLOURS, rows.values)
    shapes = [PHASE_SHAPES[list(PHASE_COLOURS).index(name)] for name in by_phase["scale"]["domain"]]
    encoding: Spec = {
        "x": axis("x", x_title),
        "y": axis("y", y_title),
        "color": by_phase,
        "shape": {
            "field": "phase",
            "type": "nominal",
            "scale": {"domain": by_phase["scale"]["domain"], "range": shapes},
        },
        "tooltip": tips(t, ("rank", "rank"), ("step", "step"), ("phase", "phase"), ("x", x_title), ("y", y_title)),
    }
    if rows.merged > 1:
        encoding["size"] = axis("count", t("steps"), scale={"range": [20, 400]}, legend=None)
        encoding["tooltip"].append(*tips(t, ("count", "steps")))
    mark = {"type": "point", "filled": True, "opacity": 0.75, "size": 55}
    return plot(rows.values, 240, mark=mark, encoding=encoding), _merged(rows, t)


def _time(document: Document, t: Translator) -> Chart:
    titles = {
        "less_supply": t("window less the supply wait, ms"),
        "device_busy": t("device busy time, ms"),
        "window": t("window, ms"),
    }
    y_title = titles[chart_rows.time_measure(document)]
    spec, note = _scatter(chart_rows.time_points(document), t("scheduled tokens of the step"), y_title, t)
    return Chart(
        id="time-tokens",
        title=t("Step time against scheduled tokens"),
        about=t("One point a step and rank."),
        grade="derived",
        spec=spec,
        note=note,
        refusal=_missing(document, "scaling", t),
        links=True,
    )


def _attention(document: Document, t: Translator) -> Chart:
    points = chart_rows.family_points(document, "attention", against="kv")
    spec, note = _scatter(points, t("sum of kv_len over the step's rows, tokens"), t("attention time, ms"), t)
    has_work = bool(chart_rows.family_ns(document, "attention"))
    return Chart(
        id="attention-kv",
        title=t("Attention time against kv_len"),
        about=t("Exclusive time of the attention families, one point a step and rank."),
        grade="classified",
        spec=spec,
        note=note,
        refusal=t("kv_len per step is not recorded. Record detailed step annotations (docs/capture.md).")
        if has_work
        else t("No attention kernel was recognised."),
        links=True,
    )


def _experts(document: Document, t: Translator) -> Chart:
    points = chart_rows.family_points(document, "experts", against="tokens")
    spec, note = _scatter(points, t("scheduled tokens of the step"), t("experts time, ms"), t)
    has_work = bool(chart_rows.family_ns(document, "experts"))
    proxy = t("Rows per expert are not recorded: scheduled tokens stand in for them.")
    return Chart(
        id="experts-tokens",
        title=t("Experts time against scheduled tokens"),
        about=t("Exclusive time of the experts family, one point a step and rank."),
        grade="classified",
        spec=spec,
        note=_joined(proxy, note),
        refusal=_missing(document, "scaling", t) if has_work else t("No expert kernel was recognised."),
        links=True,
    )


def _chunks(document: Document, t: Translator) -> Chart:
    chunks = chart_rows.chunk_rows(document)
    unit = t("query_len, tokens") if chunks.are_rows else t("prefill tokens of a step (rows are not recorded)")
    spec = plot(
        chunks.values,
        180,
        mark={"type": "bar", "binSpacing": 1},
        encoding={
            "x": axis("from", unit, bin={"binned": True}),
            "x2": {"field": "to"},
            "y": axis("count", t("count"), stack="zero", axis={"tickMinStep": 1, "format": "d"}),
            "color": colour("class", CLASS_COLOURS, chunks.values),
            "tooltip": tips(t, ("class", "class"), ("from", "above"), ("to", "up to"), ("count", "count")),
        },
    )
    limits = t("large: at least {half}; tail: at most {quarter} tokens. One rank.")
    return Chart(
        id="chunks",
        title=t("Prefill chunks and their tails"),
        about=limits.format(half=-(-chunks.largest // 2), quarter=chunks.largest // 4) if chunks.values else "",
        grade="recorded",
        spec=spec if chunks.values else None,
        refusal=_missing(document, "chunk_shape", t),
    )


def _skew(document: Document, t: Translator) -> Chart:
    rows, skew = chart_rows.skew_rows(document), document["skew"]
    spec = plot(
        rows.values,
        26 * max(len(rows.values), 1),
        mark={"type": "bar", "height": {"band": 0.6}, "color": CATEGORY_COLOURS["comm"]},
        encoding={
            "y": {"field": "rank", "type": "nominal", "title": None, "sort": None},
            "x": axis("ms", t("awaited by the others, ms")),
            "tooltip": tips(t, ("rank", "rank"), ("ms", "ms")),
        },
    )
    weak = "" if skew.get("is_evidence", True) else t("Within what the clocks leave open: no evidence of a late rank.")
    return Chart(
        id="skew",
        title=t("Who the others wait for"),
        about=t("Arrival skew in matched collectives, given to the rank that came last."),
        grade=skew.get("grade", "refused"),
        spec=spec if rows.values else None,
        note=weak,
        refusal=t("Withheld: {reason}.").format(reason=t(str(skew.get("refused", "")))),
    )
