"""The document of a search -> sections. Nothing is computed here."""

from __future__ import annotations

from typing import Any

from stepscope.cli.simulate_view import show_number
from stepscope.report.section import Grid, Section
from stepscope.simulate.search import COST
from stepscope.simulate.summary import BINDING

Document = dict[str, Any]
_MOST_REASONS = 2
_COLUMNS = {
    COST: ">device s / M outputs",
    "output_tokens_per_device total": ">outputs/s/device",
    "ttft p50": ">TTFT p50",
    "ttft p99": ">TTFT p99",
    "tpot p50": ">TPOT p50",
    "tpot p99": ">TPOT p99",
    "goodput total": ">good/s",
}


def search_sections(document: Document) -> list[Section]:
    """The frontier, then the whole grid."""
    points, frontier = document["points"], document["frontier"]
    num_run = sum(point["refused"] is None for point in points)
    lines = [
        f"load: {document['load']['requests']:,} requests, {document['load']['source']}",
        f"grid: {', '.join(document['over'])}; fixed: {', '.join(document['fixed']) or 'nothing else'}",
        (
            f"{len(points)} points, {num_run} ran [simulated], times in seconds; the intervals of their figures: "
            "--format json"
        ),
    ]
    title = f"Search: {document['model']} on {document['hardware']}"
    best = Section(
        title=f"Frontier: cost against {document['latency']}, cheapest first",
        lines=_frontier_lines(document),
        grid=_grid(document, frontier),
    )
    whole = Section(title="Every point", lines=_refusals(points), grid=_grid(document, range(len(points))))
    return [Section(title=title, lines=tuple(lines)), best, whole]


def _frontier_lines(document: Document) -> tuple[str, ...]:
    binding = {document["points"][place]["binding"] for place in document["frontier"]}
    lines = [f"{name}: {meaning}" for name, meaning in BINDING.items() if name in binding]
    if any(limit is not None for limit in document["limits"].values()):
        lines.append("ok: p99 of TTFT and TPOT keep the limits")
    if binding & {"step", "budget"}:
        lines.append("in brackets: what the roofline says binds a typical step")
    if not document["frontier"]:
        lines.append("empty: no point has a prediction, only bounds")
    return tuple(lines)


def _grid(document: Document, places: Any) -> Grid:
    points = document["points"]
    names = list(points[0]["settings"])
    ok = {True: "ok", False: "no", None: "-"}
    rows = []
    for place in places:
        point = points[place]
        figures = tuple(_shown(point, name) for name in _COLUMNS)
        is_asked = any(limit is not None for limit in document["limits"].values())
        kept = ok[document["keeps_limits"][place]] if is_asked else "-"
        rows.append((*(point["settings"][name] for name in names), *figures, kept, _binds(point)))
    columns = (*(f">{name}" for name in names), *_COLUMNS.values(), "limits", "binds")
    return Grid(columns=columns, rows=tuple(rows))


def _binds(point: Document) -> str:
    """The resource, and what binds a step where that matters."""
    if point["refused"]:
        return "refused"
    is_step = point["binding"] in ("step", "budget") and point["step_bound"]
    return f"{point['binding']} ({point['step_bound']})" if is_step else str(point["binding"])


def _shown(point: Document, name: str) -> str:
    value, low, high = (point[part][name] for part in ("figures", "low", "high"))
    return show_number(value) if value is not None or low is None else f"{show_number(low)} to {show_number(high)}"


def _refusals(points: list[Document]) -> tuple[str, ...]:
    refused = [point for point in points if point["refused"]]
    lines = [
        f"{', '.join(f'{name} {value}' for name, value in point['settings'].items())}: {point['refused']}"
        for point in refused[:_MOST_REASONS]
    ]
    if len(refused) > _MOST_REASONS:
        lines.append(f"{len(refused) - _MOST_REASONS} more points cannot run; their reasons: --format json")
    return tuple(lines)
