"""The document -> the rows that a chart draws, at most `MAX_MARKS` of them; what is merged is counted and said.

Times leave here in ms, for display. A row that stands for a step carries `anchor`, the id of the step's row.
Withheld and unknown numbers make no row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stepscope.batch import PhaseSums
from stepscope.report.details import unpack
from stepscope.store.schema import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Document = dict[str, Any]
Row = dict[str, Any]
StepKey = tuple[int | None, int]
TimeMeasure = Literal["less_supply", "device_busy", "window"]

MAX_MARKS = 2_000
MAX_RANKS = 8  # drawn beside each other; more cannot be read
NS_PER_MS = 1_000_000
_GRID_X, _GRID_Y = 25, 20  # cells of a merged scatter: times four phases that is MAX_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What is drawn; `merged` is how many steps one mark stands for at most (1: none merged)."""

    values: list[Row]
    merged: int = 1


def rank_name(rank: int | None) -> str:
    """As the text report writes it."""
    return "rank ?" if rank is None else f"rank {rank}"


def anchor_of(rank: int | None, step_id: int) -> str:
    """The id of a step's row in the page."""
    return f"step-{'x' if rank is None else rank}-{step_id}"


def drawn_ranks(document: Document) -> list[int | None]:
    """The first ranks, as many as a chart can hold."""
    return list({row["rank"]: None for row in document["budget"]})[:MAX_RANKS]


def counted_steps(document: Document, ranks: Iterable[int | None] | None = None) -> list[Row]:
    """Steps that ran tokens and have a window, in the order of the document."""
    chosen = None if ranks is None else set(ranks)
    return [
        row
        for row in document["steps"]["rows"]
        if row["window_ns"] is not None and (chosen is None or row["rank"] in chosen)
    ]


def kv_sum(step: Row) -> int | None:
    """Sum of kv_len over the rows of the step."""
    prefill, decode = step["prefill_kv_sum"], step["decode_kv_sum"]
    return None if prefill is None or decode is None else prefill + decode


def family_ns(document: Document, prefix: str) -> dict[StepKey, int]:
    """Exclusive ns per step of the compute families whose name starts so."""
    found: dict[StepKey, int] = defaultdict(int)
    for row in unpack(document["step_families"]):
        if row["category"] == "compute" and row["family"].startswith(prefix):
            found[row["rank"], row["step_id"]] += row["exclusive_ns"]
    return dict(found)


def budget_rows(document: Document) -> Rows:
    """One row a step (or run of steps) and category: the mean ms of one step."""
    ranks = drawn_ranks(document)
    steps = {rank: counted_steps(document, [rank]) for rank in ranks}
    kinds = sum(any(row[f"exclusive_{name}_ns"] for of in steps.values() for row in of) for name in CATEGORIES)
    longest = max((len(of) for of in steps.values()), default=0)
    size = _run_length(longest, MAX_MARKS // max(kinds * len(ranks), 1))
    values = [
        _budget_row(rank, run, name, number)
        for rank, of in steps.items()
        for run in _runs(of, size)
        for number, name in enumerate(CATEGORIES)
        if any(row[f"exclusive_{name}_ns"] for row in run)
    ]
    return Rows(values=values, merged=size)


def _budget_row(rank: int | None, run: Sequence[Row], category: str, order: int) -> Row:
    known = sum(row[f"exclusive_{category}_ns"] or 0 for row in run)
    window = sum(row["window_ns"] for row in run)
    return {
        "rank": rank_name(rank),
        "step": run[0]["step_id"],
        "steps": _steps_text(run),
        "category": category,
        "order": order,
        "ms": known / len(run) / NS_PER_MS,
        "window_ms": window / len(run) / NS_PER_MS,
        "anchor": anchor_of(rank, run[0]["step_id"]),
    }


def total_rows(document: Document) -> Rows:
    """One row a rank and category: ms of the rank's whole span."""
    totals = [row for row in document["budget"] if row["step_id"] is None and row["rank"] in drawn_ranks(document)]
    values = [
        {"rank": rank_name(row["rank"]), "category": name, "order": i, "ms": row["exclusive_ns"][name] / NS_PER_MS}
        for row in totals
        for i, name in enumerate(CATEGORIES)
        if row["exclusive_ns"][name]
    ]
    return Rows(values=values)


def scatter_rows(points: Sequence[Row]) -> Rows:
    """Points with x, y and phase as they are, or, when there are too many, the cells of a grid with their counts."""
    if len(points) <= MAX_MARKS:
        return Rows(values=[point | {"count": 1} for point in points])
    x_max, y_max = (max(point[name] for point in points) or 1 for name in ("x", "y"))
    cells: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for point in points:
        across = min(int(point["x"] / x_max * _GRID_X), _GRID_X - 1)
        up = min(int(point["y"] / y_max * _GRID_Y), _GRID_Y - 1)
        cells[point["phase"], across, up].append(point)
    values = [
        {
            **members[0],
            "x": sum(m["x"] for m in members) / len(members),
            "y": sum(m["y"] for m in members) / len(members),
            "count": len(members),
        }
        for members in cells.values()
    ]
    return Rows(values=values, merged=max(len(members) for members in cells.values()))


def time_measure(document: Document) -> TimeMeasure:
    """What step time can be set against tokens: where a rank's supply wait is unknown, it cannot be taken off."""
    totals = [row["exclusive_ns"] for row in document["budget"] if row["step_id"] is None]
    if all(ns["supply"] is not None for ns in totals):
        return "less_supply"
    has_device = any(step["device_busy_ns"] is not None for step in counted_steps(document))
    return "device_busy" if has_device or not document["coverage"]["idle_claimable"] else "window"


def time_points(document: Document) -> list[Row]:
    """x: scheduled tokens; y: ms of the step's time by `time_measure`."""
    measure = time_measure(document)
    points = []
    for step in counted_steps(document):
        ns: int | None = step["device_busy_ns"]
        if measure != "device_busy":
            ns = step["window_ns"] - (step["exclusive_supply_ns"] if measure == "less_supply" else 0)
        points.append(_point(step, step["num_scheduled_tokens"], ns))
    return [point for point in points if point is not None]


def family_points(document: Document, prefix: str, *, against: str) -> list[Row]:
    """x: `kv` or `tokens` of the step; y: ms of the families whose name starts so, where there is any."""
    spent = family_ns(document, prefix)
    points = []
    for step in counted_steps(document):
        x = kv_sum(step) if against == "kv" else step["num_scheduled_tokens"]
        points.append(_point(step, x, spent.get((step["rank"], step["step_id"]))))
    return [point for point in points if point is not None]


def _point(step: Row, x: int | None, ns: int | None) -> Row | None:
    if x is None or ns is None:
        return None
    return {
        "x": x,
        "y": ns / NS_PER_MS,
        "phase": step["phase"] or "unknown",
        "rank": rank_name(step["rank"]),
        "step": step["step_id"],
        "anchor": anchor_of(step["rank"], step["step_id"]),
    }


def timeline_rows(document: Document) -> Rows:
    """Windows (and host ranges, where all steps have one) on each rank's own clock."""
    ranks = drawn_ranks(document)
    steps = {rank: counted_steps(document, [rank]) for rank in ranks}
    has_host = all(row["host_start_ns"] is not None for of in steps.values() for row in of)
    lanes = len(ranks) * (2 if has_host else 1)
    size = _run_length(max((len(of) for of in steps.values()), default=0), MAX_MARKS // max(lanes, 1))
    starts = ["start_ns", "host_start_ns"] if has_host else ["start_ns"]
    origin = min((row[name] for of in steps.values() for row in of for name in starts), default=0)
    values = []
    for rank, of in steps.items():
        for run in _runs(of, size):
            first, last = run[0], run[-1]
            row = {
                "phase": Counter(step["phase"] or "unknown" for step in run).most_common(1)[0][0],
                "step": first["step_id"],
                "steps": _steps_text(run),
                "anchor": anchor_of(rank, first["step_id"]),
            }
            values.append(row | _bar(rank, "window", first["start_ns"], last["start_ns"] + last["window_ns"], origin))
            if has_host:
                end = last["host_start_ns"] + last["host_duration_ns"]
                values.append(row | _bar(rank, "host range", first["host_start_ns"], end, origin))
    return Rows(values=values, merged=size)


def _bar(rank: int | None, lane: str, start_ns: int, end_ns: int, origin_ns: int) -> Row:
    start, end = (start_ns - origin_ns) / NS_PER_MS, (end_ns - origin_ns) / NS_PER_MS
    return {"rank": rank_name(rank), "lane": lane, "start_ms": start, "end_ms": end, "ms": end - start}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Prefill query_len of the first rank's steps, in classes; `are_rows`: per request, not per step."""

    values: list[Row]
    are_rows: bool
    largest: int


def chunk_rows(document: Document) -> Chunks:
    """A histogram with 32 equal bins; large: at least half of the largest, tail: at most a quarter."""
    ranks = drawn_ranks(document)
    steps = [s for s in document["steps"]["rows"] if ranks and s["rank"] == ranks[0] and s["prefill_query_sum"]]
    rows = [_query_lens(step) for step in steps]
    are_rows = bool(rows) and None not in rows
    sizes = [q for of in rows for q in of or ()] if are_rows else [step["prefill_query_sum"] for step in steps]
    if not sizes:
        return Chunks(values=[], are_rows=False, largest=0)
    largest, bins = max(sizes), 32
    width = max(-(-largest // bins), 1)
    counts = Counter((min((size - 1) // width, bins - 1), _class_of(size, largest)) for size in sizes)
    values = [
        {"from": index * width, "to": (index + 1) * width, "class": name, "count": count}
        for (index, name), count in sorted(counts.items())
    ]
    return Chunks(values=values, are_rows=are_rows, largest=largest)


def _query_lens(step: Row) -> tuple[int, ...] | None:
    return PhaseSums(
        num_requests=step["num_prefill_requests"],
        query_sum=step["prefill_query_sum"],
        query_sq_sum=step["prefill_query_sq_sum"],
    ).query_lens()


def _class_of(size: int, largest: int) -> str:
    if 2 * size >= largest:
        return "large"
    return "tail" if 4 * size <= largest else "between"


def skew_rows(document: Document) -> Rows:
    """One row a rank: how long the others waited for it."""
    awaited = document["skew"].get("awaited_ns", {})
    ranked = sorted(awaited.items(), key=lambda item: int(item[0]))[:MAX_MARKS]
    return Rows(values=[{"rank": f"rank {rank}", "ms": ns / NS_PER_MS} for rank, ns in ranked])


def _run_length(count: int, most: int) -> int:
    """How many steps one mark has to stand for."""
    return max(-(-count // max(most, 1)), 1)


def _runs(steps: Sequence[Row], size: int) -> list[Sequence[Row]]:
    return [steps[i : i + size] for i in range(0, len(steps), size)]


def _steps_text(run: Sequence[Row]) -> str:
    first, last = run[0]["step_id"], run[-1]["step_id"]
    return str(first) if first == last else f"{first}-{last}"
