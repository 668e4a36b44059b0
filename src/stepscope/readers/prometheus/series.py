"""Snapshots -> what a series says over a window: gauges, counter deltas, histogram percentiles with their bucket error.

Series of one name differ in labels; a *source* is one labelled series (an engine of a pod). Counts of sources add up;
fractions do not: they are averaged, by capacity where that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import TYPE_CHECKING

from stepscope.readers.prometheus.aliases import FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.readers.prometheus.aliases import Alias
    from stepscope.readers.prometheus.reader import MetricsLog, Snapshot
    from stepscope.readers.prometheus.text import Labels

_SUFFIX = {"gauge": ("",), "counter": ("_total", ""), "histogram": ("_bucket",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The series under which a figure was found: `name` as exported, without a histogram's suffix."""

    figure: str
    alias: Alias
    name: str


def find_series(log: MetricsLog, figure: str) -> Exported | None:
    """How a figure is exported here; None where it is not exported."""
    names = log.names
    declared = FIGURES[figure]
    for alias in declared.aliases:
        for suffix in _SUFFIX[declared.kind]:
            if alias.series + suffix in names:
                name = alias.series if declared.kind == "histogram" else alias.series + suffix
                return Exported(figure=figure, alias=alias, name=name)
    return None


def gauge(snapshot: Snapshot, name: str) -> dict[Labels, float]:
    """Each source's value; NaN is left out."""
    return {labels: value for (n, labels), value in snapshot.values.items() if n == name and isfinite(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a counter grew by over a window; `num_resets` restarts were seen, each losing what grew before it unseen."""

    value: float
    num_resets: int


def counter_deltas(snapshots: Sequence[Snapshot], name: str) -> dict[Labels, Delta]:
    """Growth per source, from the first snapshot that has it. A source that appears later began at 0."""
    keys = {key for snapshot in snapshots for key in snapshot.values if key[0] == name}
    found = {}
    for key in sorted(keys):
        points = [s.values[key] for s in snapshots if key in s.values and isfinite(s.values[key])]
        if not points:
            continue
        starts_late = bool(snapshots) and key not in snapshots[0].values
        points = [0.0, *points] if starts_late else points
        total, resets = 0.0, 0
        for before, after in pairwise(points):
            total += after - before if after >= before else after
            resets += after < before
        found[key[1]] = Delta(value=total, num_resets=resets)
    return found


def duration_ns(snapshots: Sequence[Snapshot]) -> int | None:
    """From the first to the last snapshot; None where either has no time, or they have different clocks."""
    if len(snapshots) < 2:
        return None
    first, last = snapshots[0], snapshots[-1]
    if first.time_ns is None or last.time_ns is None or first.is_relative != last.is_relative:
        return None
    return last.time_ns - first.time_ns or None


def timed_part(snapshots: Sequence[Snapshot]) -> tuple[Snapshot, ...]:
    """The longest run of snapshots with times of one clock: rates need it."""
    best: tuple[Snapshot, ...] = ()
    run: list[Snapshot] = []
    for snapshot in snapshots:
        if snapshot.time_ns is None or (run and run[-1].is_relative != snapshot.is_relative):
            run = []
        if snapshot.time_ns is not None:
            run.append(snapshot)
        best = tuple(run) if len(run) > len(best) else best
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts per bucket over a window, all sources together; bucket i holds (bounds[i-1], bounds[i]]."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float | None
    count: float

    @property
    def mean(self) -> float | None:
        """Exact: sum over count."""
        return None if self.sum is None or not self.count else self.sum / self.count


def find_histogram(snapshots: Sequence[Snapshot], name: str) -> Histogram | None:
    """A histogram's growth over a window; with one snapshot, since the server started. None where it is not there."""
    window = snapshots if len(snapshots) > 1 else snapshots[-1:]
    grown = _growth(window, f"{name}_bucket")
    by_bound: dict[float, float] = {}
    for labels, value in grown.items():
        bound = _bound(labels)
        if bound is not None:
            by_bound[bound] = by_bound.get(bound, 0.0) + value
    if not by_bound:
        return None
    bounds = tuple(sorted(by_bound))
    running = [by_bound[bound] for bound in bounds]
    counts = tuple(max(b - a, 0.0) for a, b in zip([0.0, *running[:-1]], running, strict=True))
    totals = _growth(window, f"{name}_sum")
    return Histogram(bounds=bounds, counts=counts, sum=sum(totals.values()) if totals else None, count=sum(counts))


def _growth(snapshots: Sequence[Snapshot], name: str) -> dict[Labels, float]:
    if len(snapshots) == 1:
        return gauge(snapshots[0], name)
    return {labels: delta.value for labels, delta in counter_deltas(snapshots, name).items()}


def _bound(labels: Labels) -> float | None:
    try:
        return float(dict(labels).get("le", "").replace("Inf", "inf"))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """A percentile lies above `low` and at or below `high`; `estimate` is linear in between. high inf: open-ended."""

    low: float
    high: float
    estimate: float | None


def bucket_percentile(histogram: Histogram, fraction: float) -> Bracket | None:
    """The bucket that holds a percentile, and no more than that is known. None for an empty histogram.

    The percentile is the smallest value that at least `fraction` of the observations do not exceed.
    """
    total = sum(histogram.counts)
    if not total:
        return None
    wanted, below, low = fraction * total, 0.0, 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        if count and below + count >= wanted:
            inside = max(wanted - below, 0.0) / count
            estimate = None if bound == inf else low + (bound - low) * inside
            return Bracket(low=low, high=bound, estimate=estimate)
        below += count
        low = bound
    return Bracket(low=histogram.bounds[-1], high=inf, estimate=None)


def mean_fraction(values: Mapping[Labels, float], weights: Mapping[Labels, float] | None = None) -> float | None:
    """The mean of fractions over sources, by capacity where every source's is known. Never the sum.

    >>> mean_fraction({(("pod", "a"),): 0.4, (("pod", "b"),): 0.4})
    0.4
    """
    if not values:
        return None
    by_capacity = weights is not None and all(weights.get(labels, 0.0) > 0 for labels in values)
    weight = {labels: weights[labels] if by_capacity and weights else 1.0 for labels in values}
    return sum(value * weight[labels] for labels, value in values.items()) / sum(weight.values())
