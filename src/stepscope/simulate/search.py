"""Search: a grid over settings, each point simulated; the points that no other one beats, and what binds each.

A point is better in cost (device seconds per million output tokens) or in a latency; the frontier holds those than
which none is as good in both and better in one. Points that cannot run (the model does not fit, no engine would start)
are kept with the reason. Results are told in the order of the grid, whoever finishes first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput
from stepscope.simulate.scenario import run_scenario
from stepscope.simulate.settings import apply_setting, find_setting
from stepscope.simulate.step_shares import find_step_bound
from stepscope.simulate.summary import find_binding, find_figures, name_binding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.latency import Limits
    from stepscope.simulate.scenario import Scenario

KEPT = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("tpot", "p50"),
    ("tpot", "p99"),
    ("e2el", "p50"),
    ("output_tokens_per_device", "total"),
    ("device_s_per_million_outputs", "total"),
    ("goodput", "total"),
    ("preemptions", "total"),
)
MOST_POINTS = 100_000
COST = "device_s_per_million_outputs total"
Point = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """One point of the grid: what to set, in order, on the scenario that all share."""

    scenario: Scenario
    settings: tuple[tuple[str, str], ...]
    limits: Limits


def make_grid(scenario: Scenario, over: Sequence[tuple[str, Sequence[str]]], limits: Limits) -> list[GridPoint]:
    """Every combination, the last setting varying fastest.

    Raises:
        BadInput: nothing to vary, a setting twice, one that nobody knows, or too many points.
    """
    names = [find_setting(name).name for name, _ in over]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise BadInput(f"--over {', '.join(twice) or 'is missing'}: name each setting once, as name=value,value,...")
    count = prod(len(values) for _, values in over)
    if count > MOST_POINTS:
        raise BadInput(f"the grid has {count:,} points, and {MOST_POINTS:,} at most are searched. Vary fewer settings.")
    combinations = product(*(values for _, values in over))
    return [
        GridPoint(scenario=scenario, settings=tuple(zip(names, values, strict=True)), limits=limits)
        for values in combinations
    ]


def run_point(grid_point: GridPoint) -> Point:
    """A point's figures, or why it cannot run."""
    point: Point = {"settings": dict(grid_point.settings), "key": key_of(grid_point), "refused": None}
    empty = {f"{name} {statistic}": None for name, statistic in KEPT}
    nothing = {"figures": empty, "low": empty, "high": empty, "binding": None, "step_bound": None}
    try:
        scenario = grid_point.scenario
        for name, value in grid_point.settings:
            scenario = apply_setting(scenario, name, value)
        outcome = run_scenario(scenario)
    except BadInput as error:
        return point | nothing | {"refused": str(error)}
    figures = {(figure.name, figure.statistic): figure for figure in find_figures(outcome, grid_point.limits)}
    shares = find_binding(outcome)
    named = {f"{key[0]} {key[1]}": figures[key] for key in KEPT}
    return point | {
        "figures": {name: figure.value for name, figure in named.items()},
        "low": {name: figure.low for name, figure in named.items()},
        "high": {name: figure.high for name, figure in named.items()},
        "binding": name_binding(shares),
        "binding_shares": shares,
        "step_bound": find_step_bound(outcome),
        "num_devices": outcome.num_devices,
        "num_blocks": outcome.num_blocks,
    }


def key_of(grid_point: GridPoint) -> str:
    """The same for the same point of the same search, so that kept results can be told from others'."""
    told = repr((grid_point.scenario, grid_point.settings, grid_point.limits))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def find_frontier(points: Sequence[Point], latency: str) -> list[int]:
    """Positions of the points that no other beats in cost and this latency, cheapest first; bounds do not count."""
    known = [
        (place, point["figures"][COST], point["figures"][latency])
        for place, point in enumerate(points)
        if point["figures"][COST] is not None and point["figures"][latency] is not None
    ]
    best = [
        each
        for each in known
        if not any(
            other[1] <= each[1] and other[2] <= each[2] and (other[1] < each[1] or other[2] < each[2])
            for other in known
        )
    ]
    return [place for place, _, _ in sorted(best, key=lambda each: (each[1], each[2], each[0]))]


def keeps_limits(point: Point, limits: Limits) -> bool | None:
    """Whether p99 keeps every limit that is asked; None where a figure is not known."""
    asked = [("ttft p99", limits.ttft_s), ("tpot p99", limits.tpot_s)]
    pairs = [(point["figures"][name], limit) for name, limit in asked if limit is not None]
    if any(value is None for value, _ in pairs):
        return None
    return all(value <= limit for value, limit in pairs)
