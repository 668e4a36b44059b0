"""Collectives of several ranks: who is late, how well the clocks agree, and when nothing can be said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.steps.ranks import ArrivalSkew, find_skew
from tests.traces import ALL_REDUCE, BASE_NS, kernel, to_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore

Ranges = list[tuple[int, int]]  # (start, end) in ns


def ranks(*given: Ranges, shift: Sequence[int] = ()) -> list[EventStore]:
    """One store a rank; `shift` moves a rank's base time and its own times against each other."""
    moved = tuple(shift) or (0,) * len(given)
    return [
        to_store(
            [kernel(ALL_REDUCE, start - by, end - start) for start, end in ranges], rank=i, base_time_ns=BASE_NS + by
        )
        for i, (ranges, by) in enumerate(zip(given, moved, strict=True))
    ]


def skew(stores: Sequence[EventStore]) -> ArrivalSkew | str:
    rows: list[Int64] = [np.arange(len(store.events)) for store in stores]
    return find_skew(stores, rows)


def test_the_late_rank_is_found_with_what_the_others_wait_for_it() -> None:
    found = skew(ranks([(0, 1000), (2000, 2100)], [(900, 1000), (2005, 2100)]))
    assert isinstance(found, ArrivalSkew)
    assert (found.late_rank, found.largest_late_rank, found.is_evidence) == (1, 1, True)
    assert (found.num_instances, found.total_skew_ns, found.largest_skew_ns, found.residual_ns) == (2, 905, 900, 0)
    assert found.awaited_ns == {0: 0, 1: 905}


def test_base_times_are_taken_into_account() -> None:
    plain = skew(ranks([(5000, 6000)], [(5900, 6000)]))
    shifted = skew(ranks([(5000, 6000)], [(5900, 6000)], shift=(0, 777)))
    assert plain == shifted


def test_the_spread_of_ends_is_the_residual_and_a_skew_within_it_is_no_evidence() -> None:
    found = skew(ranks([(0, 1000)], [(300, 1200)]))
    assert isinstance(found, ArrivalSkew)
    assert (found.residual_ns, found.largest_skew_ns, found.is_evidence) == (200, 300, False)


def test_each_instances_wait_is_put_to_the_rank_that_came_last() -> None:
    found = skew(ranks([(0, 500), (1400, 1500)], [(400, 500), (1000, 1500)], [(100, 500), (1100, 1500)]))
    assert isinstance(found, ArrivalSkew)
    assert found.awaited_ns == {0: 400, 1: 400, 2: 0}


def test_a_tie_is_nobodys() -> None:
    found = skew(ranks([(100, 200)], [(100, 200)]))
    assert isinstance(found, ArrivalSkew)
    assert (found.total_skew_ns, found.is_evidence, set(found.awaited_ns.values())) == (0, False, {0})


def test_two_that_come_last_together_are_neither_of_them_awaited() -> None:
    found = skew(ranks([(0, 500), (1000, 1500)], [(400, 500), (1000, 1500)], [(400, 500), (1300, 1500)]))
    assert isinstance(found, ArrivalSkew)
    assert found.awaited_ns == {0: 0, 1: 0, 2: 300}
    assert found.total_skew_ns == 700


def test_refusals_say_why() -> None:
    one = ranks([(0, 10)])
    assert skew(one) == "one rank only"
    assert skew(ranks([], [])) == "no collective is recorded"
    assert skew(ranks([(0, 10)], [(0, 10), (20, 30)])) == "the ranks hold different numbers of collectives (1, 2)"
    without_clock = [one[0], to_store([kernel(ALL_REDUCE, 0, 10)], rank=1, base_time_ns=None)]
    assert skew(without_clock) == (
        "a capture without wall-clock time, and fewer than 3 collectives to fit its clock by"
    )
    without_rank = [one[0], to_store([kernel(ALL_REDUCE, 0, 10)], rank=None)]
    assert skew(without_rank) == "a capture without rank"
    other_kind = [one[0], to_store([kernel("ncclDevKernel_AllGather_RING_LL()", 0, 10)], rank=1)]
    assert skew(other_kind) == "the ranks' collectives differ in kind or order"
