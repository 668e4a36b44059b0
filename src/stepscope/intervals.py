"""Half-open intervals [start_ns, end_ns) as pairs of int64 arrays: union, intersection, difference, measure.

`Spans` are sorted, disjoint and without empty or touching members; every function returns such.
All are O(n log n) in numpy; nothing here loops in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Int64: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
Bool: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Sorted, disjoint, non-empty, non-touching intervals in ns."""

    starts: Int64
    ends: Int64

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total_ns(self) -> int:
        """The length of all together."""
        return int((self.ends - self.starts).sum())


NOTHING = Spans(starts=np.empty(0, np.int64), ends=np.empty(0, np.int64))


def span(start_ns: int, end_ns: int) -> Spans:
    """One interval; nothing if it is empty."""
    if end_ns <= start_ns:
        return NOTHING
    return Spans(starts=np.array([start_ns], np.int64), ends=np.array([end_ns], np.int64))


def union(starts: Int64, ends: Int64) -> Spans:
    """The union of any intervals, in any order, overlapping or not; empty ones are left out.

    >>> union(np.array([0, 5, 20]), np.array([10, 12, 21])).total_ns
    13
    """
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return NOTHING
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.empty(len(starts), bool)
    opens[0] = True
    np.greater(starts[1:], reach[:-1], out=opens[1:])
    closes = np.append(opens[1:], True)
    return Spans(starts=starts[opens], ends=reach[closes])


def merge(parts: list[Spans]) -> Spans:
    """The union of several sets."""
    if not parts:
        return NOTHING
    return union(np.concatenate([p.starts for p in parts]), np.concatenate([p.ends for p in parts]))


def intersect(a: Spans, b: Spans) -> Spans:
    """Where both are."""
    return _combine(a, b, np.logical_and)


def subtract(a: Spans, b: Spans) -> Spans:
    """Where `a` is and `b` is not."""
    return _combine(a, b, np.greater)


def clip(a: Spans, start_ns: int, end_ns: int) -> Spans:
    """The part of `a` inside one interval."""
    return intersect(a, span(start_ns, end_ns))


def overlaps(a: Spans, starts: Int64, ends: Int64) -> Int64:
    """For each interval [starts[i], ends[i]), how many ns of it `a` covers."""
    return _covered_before(a, np.maximum(ends, starts)) - _covered_before(a, starts)


def _covered_before(a: Spans, times: Int64) -> Int64:
    """For each time, how many ns of `a` lie before it."""
    if not len(a):
        return np.zeros(len(times), np.int64)
    lengths = np.concatenate(([0], np.cumsum(a.ends - a.starts)))
    index = np.searchsorted(a.starts, times, side="right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(a.ends[last] - times, 0), 0)
    covered: Int64 = lengths[index] - beyond
    return covered


def _combine(a: Spans, b: Spans, keep: Callable[[Bool, Bool], Bool]) -> Spans:
    if not len(a):
        return NOTHING
    if not len(b):
        return a if keep(np.array([True]), np.array([False]))[0] else NOTHING
    points = np.unique(np.concatenate((a.starts, a.ends, b.starts, b.ends)))
    kept = keep(_inside(a, points[:-1]), _inside(b, points[:-1]))
    return union(points[:-1][kept], points[1:][kept])


def _inside(a: Spans, times: Int64) -> Bool:
    index = np.searchsorted(a.starts, times, side="right")
    inside: Bool = (index > 0) & (times < a.ends[np.maximum(index - 1, 0)])
    return inside
