"""Interval arithmetic against a boolean for every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.intervals import NOTHING, Bool, Int64, Spans, clip, intersect, merge, overlaps, span, subtract, union

_LAST_NS = 60
Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, _LAST_NS), st.integers(0, _LAST_NS)), max_size=8)


def spans(pairs: Pairs) -> Spans:
    return union(*columns(pairs))


def columns(pairs: Pairs) -> tuple[Int64, Int64]:
    return np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)


def naive(pairs: Pairs) -> Bool:
    """Whether each of the nanoseconds is inside; pairs that end before they start are empty."""
    inside = np.zeros(_LAST_NS, np.bool_)
    for start, end in pairs:
        inside[start:end] = True
    return inside


def as_booleans(found: Spans) -> Bool:
    """Back again; and the promise that every result keeps: sorted, disjoint, not empty, not touching."""
    assert (found.ends > found.starts).all()
    assert (found.starts[1:] > found.ends[:-1]).all()
    assert len(found) == len(found.starts) == len(found.ends)
    inside = naive(list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)))
    assert found.total_ns == inside.sum()
    return inside


@given(PAIRS)
def test_union_covers_what_any_covers(a: Pairs) -> None:
    assert (as_booleans(spans(a)) == naive(a)).all()


@given(st.lists(PAIRS, max_size=4))
def test_merge_covers_what_any_set_covers(sets: list[Pairs]) -> None:
    everything = [pair for pairs in sets for pair in pairs]
    assert (as_booleans(merge([spans(pairs) for pairs in sets])) == naive(everything)).all()


@given(PAIRS, PAIRS)
def test_intersection_and_difference_split_the_first(a: Pairs, b: Pairs) -> None:
    both, only = intersect(spans(a), spans(b)), subtract(spans(a), spans(b))
    assert (as_booleans(both) == (naive(a) & naive(b))).all()
    assert (as_booleans(only) == (naive(a) & ~naive(b))).all()
    assert both.total_ns + only.total_ns == spans(a).total_ns


@given(PAIRS, st.integers(0, _LAST_NS), st.integers(0, _LAST_NS))
def test_clip_keeps_the_inside_of_one_interval(a: Pairs, start: int, end: int) -> None:
    assert (as_booleans(clip(spans(a), start, end)) == (naive(a) & naive([(start, end)]))).all()
    assert (as_booleans(span(start, end)) == naive([(start, end)])).all()


@given(PAIRS, PAIRS)
def test_overlaps_measure_each_interval_by_itself(a: Pairs, asked: Pairs) -> None:
    inside = naive(a)
    expected = [int(inside[start:end].sum()) for start, end in asked]
    assert overlaps(spans(a), *columns(asked)).tolist() == expected


@given(PAIRS)
def test_order_and_repetition_do_not_matter(a: Pairs) -> None:
    again = spans(a[::-1] + a)
    assert (again.starts.tolist(), again.ends.tolist()) == (spans(a).starts.tolist(), spans(a).ends.tolist())


def test_union_of_two_that_touch_is_one() -> None:
    found = spans([(10, 20), (0, 10), (5, 12), (30, 30)])
    assert (found.starts.tolist(), found.ends.tolist()) == ([0], [20])


def test_wall_clock_nanoseconds_do_not_lose_a_digit() -> None:
    now_ns = 1_778_000_000_000_000_001
    found = subtract(span(now_ns, now_ns + 5), span(now_ns + 1, now_ns + 3))
    assert (found.starts - now_ns).tolist() == [0, 3]
    assert found.total_ns == 3


def test_nothing_is_neutral() -> None:
    some = span(3, 7)
    assert subtract(some, NOTHING).total_ns == merge([some, NOTHING]).total_ns == 4
    assert intersect(some, NOTHING).total_ns == subtract(NOTHING, some).total_ns == merge([]).total_ns == 0
    assert overlaps(NOTHING, some.starts, some.ends).tolist() == [0]
