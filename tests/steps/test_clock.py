"""Ranks on one clock: injected offsets and drifts come out again, a late rank is named, a shorter capture is placed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.steps.clock import find_place, fit_clocks, match_collectives
from stepscope.steps.ranks import ArrivalSkew, find_skew
from tests.ranks import collective_store, composed_ranks, make_late, shift_clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore

US = 1_000
SECOND = 1_000_000_000


def rows(stores: Sequence[EventStore]) -> list[Int64]:
    return [np.arange(len(store.events)) for store in stores]


def skew(stores: Sequence[EventStore]) -> ArrivalSkew:
    found = find_skew(stores, rows(stores))
    assert isinstance(found, ArrivalSkew), found
    return found


def offsets(stores: Sequence[EventStore]) -> Int64:
    """Of each rank's clock against the first one's, as fitted."""
    matched = match_collectives(stores, rows(stores))
    base = np.array(matched.base_ns, np.int64)
    against: Int64 = np.rint(fit_clocks(matched).offset_ns).astype(np.int64) + base - base[0]
    return against


def test_injected_offsets_of_64_ranks_come_out_again() -> None:
    generator = np.random.default_rng(7)
    plain = composed_ranks(generator, ranks=64, instances=60, scatter_ns=4 * US)
    injected = generator.integers(-20 * SECOND, 20 * SECOND, 64)
    injected[0] = 0
    shifted = [shift_clock(store, int(by)) for store, by in zip(plain, injected, strict=True)]
    assert np.abs(offsets(shifted) - offsets(plain) - injected).max() <= 2 * US


def test_a_drift_is_found_where_the_capture_is_long_enough_to_show_it() -> None:
    generator = np.random.default_rng(8)
    plain = composed_ranks(generator, ranks=3, instances=2000, scatter_ns=2 * US)
    shifted = [plain[0], shift_clock(plain[1], 5 * SECOND, 30e-6), shift_clock(plain[2], -SECOND)]
    found = skew(shifted)
    assert found.drift_ppm[1] == pytest.approx(30, abs=1)  # 1 ppm of 2 s is 2 us: what the ends scatter
    assert found.drift_ppm[2] == pytest.approx(0, abs=1)
    assert found.residual_ns <= 3 * US


@pytest.mark.parametrize("seed", range(20))
def test_an_injected_late_rank_is_named_whatever_the_clocks(seed: int) -> None:
    generator = np.random.default_rng(seed)
    plain = composed_ranks(generator, ranks=64, instances=40, scatter_ns=4 * US)
    late = int(generator.integers(0, 64))
    at = generator.choice(40, 8, replace=False).tolist()
    delayed = make_late(plain, late, sorted(at), 300 * US)
    shifted = [
        shift_clock(store, int(generator.integers(-SECOND, SECOND)), float(generator.uniform(-2e-5, 2e-5)))
        for store in delayed
    ]
    found = skew(shifted)
    assert found.method == "fitted to the ends of collectives"
    assert (found.is_evidence, found.late_rank, found.largest_late_rank) == (True, late, late)
    assert found.residual_ns < 10 * US < 100 * US < found.largest_skew_ns


def test_an_offset_larger_than_the_skew_is_fitted_not_believed() -> None:
    """hw-native-sys/simpler#2099: 11.56 s between two ranks' clocks, 1.60 ms of true skew."""
    starts, ends = np.arange(1, 7) * 10_000 * US, np.arange(1, 7) * 10_000 * US + 2_000 * US
    names = ("AllReduce",)
    kind = np.zeros(6, np.int64)
    first = collective_store(0, starts, ends, kind, names)
    second = collective_store(1, starts + 1_600 * US, ends, kind, names)
    origin = replace(second.origin, base_time_ns=11_560_000 * US)
    clocked = [replace(first, origin=replace(first.origin, base_time_ns=0)), replace(second, origin=origin)]
    found = skew(clocked)
    assert found.method == "fitted to the ends of collectives"
    assert found.offset_ns == {0: 0, 1: 11_560_000 * US}
    assert (found.largest_skew_ns, found.late_rank, found.residual_ns) == (1_600 * US, 1, 0)
    few = skew([replace(store, events=store.events.take(np.arange(2))) for store in clocked])
    assert few.method == "recorded clocks"  # two collectives cannot check a fit
    assert (few.is_evidence, few.residual_ns) == (False, 11_560_000 * US)


def test_recorded_clocks_that_agree_are_kept() -> None:
    plain = composed_ranks(np.random.default_rng(3), ranks=4, instances=30, scatter_ns=4 * US)
    clocked = [replace(store, origin=replace(store.origin, base_time_ns=SECOND)) for store in plain]
    found = skew(clocked)
    assert found.method == "recorded clocks"
    assert set(found.offset_ns.values()) == {0}


@pytest.mark.parametrize(("begin", "end"), [(0, 30), (7, 40), (5, 33)])
def test_a_rank_cut_shorter_is_placed_and_counted(begin: int, end: int) -> None:
    plain = composed_ranks(np.random.default_rng(5), ranks=4, instances=40, scatter_ns=4 * US)
    cut = replace(plain[2], events=plain[2].events.take(np.arange(begin, end)))
    stores = [plain[0], plain[1], shift_clock(cut, SECOND), plain[3]]
    matched = match_collectives(stores, rows(stores))
    assert matched.row.shape == (4, 40)
    assert np.flatnonzero(matched.present[2]).tolist() == list(range(begin, end))
    assert matched.short == (0, 0, 40 - (end - begin), 0)
    assert skew(stores).left_out == ()


def test_a_rank_that_fits_nowhere_is_left_out_and_named() -> None:
    plain = composed_ranks(np.random.default_rng(6), ranks=3, instances=40, scatter_ns=4 * US)
    kept = np.delete(np.arange(40), [5, 11, 17, 23, 29])
    holed = replace(plain[1], events=plain[1].events.take(kept))
    assert skew([plain[0], holed, plain[2]]).left_out == (1,)


def test_stages_of_a_pipeline_are_not_matched_with_each_other() -> None:
    generator = np.random.default_rng(9)
    pairs = [composed_ranks(generator, ranks=2, instances=20, scatter_ns=2 * US) for _ in range(2)]
    stores = [
        replace(store, origin=replace(store.origin, rank=2 * stage + i, parallel={"pp": stage, "tp": i}))
        for stage, pair in enumerate(pairs)
        for i, store in enumerate(pair)
    ]
    matched = match_collectives(stores, rows(stores))
    assert matched.row.shape == (4, 40)
    assert set(map(tuple, matched.present.T.tolist())) == {(True, True, False, False), (False, False, True, True)}
    assert skew(stores).residual_ns <= 4 * US


@given(
    gaps=st.lists(st.integers(1_000, 10**9), min_size=8, max_size=40, unique=True),
    cut=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    offset=st.integers(-(10**15), 10**15),
)
def test_a_part_is_found_where_it_was_taken_from(gaps: list[int], cut: tuple[int, int], offset: int) -> None:
    long = np.cumsum(np.array(gaps, np.int64))
    part = long[cut[0] : len(long) - cut[1]] + offset
    place = find_place(long, part)
    assert place in (cut[0], None)  # None: another place fits as well
    if cut == (0, 0):
        assert place == 0


@given(by=st.lists(st.integers(-(10**12), 10**12), min_size=5, max_size=5))
def test_skew_and_transfer_do_not_depend_on_the_ranks_clocks(by: list[int]) -> None:
    plain = composed_ranks(np.random.default_rng(11), ranks=5, instances=12, scatter_ns=2 * US)
    shifted = [shift_clock(store, offset) for store, offset in zip(plain, by, strict=True)]
    ours, theirs = skew(plain), skew(shifted)
    assert ours.awaited_ns == theirs.awaited_ns
    assert np.array_equal(ours.instances.transfer_ns, theirs.instances.transfer_ns)
