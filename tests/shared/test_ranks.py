"""64 ranks made of recorded ones: clocks shifted by what is known come out again, and the late rank is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.answers.account import RankAccount
from stepscope.steps.clock import fit_clocks, match_collectives
from stepscope.steps.ranks import ArrivalSkew, find_skew
from stepscope.store.schema import LAST_DEVICE_KIND, OP
from tests.ranks import make_late, only_collectives, shift_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.answers.account import Account
    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore

pytestmark = pytest.mark.shared

CAPTURES = ("public/param/dlrm-8ranks", "vllm-cpu/dense-tp2-small", "vllm-cpu/moe-tp2-small")
RANKS = 64
SECOND = 1_000_000_000


def collectives(rank: RankAccount) -> Int64:
    e = rank.store.events
    on_lane = e.kind <= LAST_DEVICE_KIND if rank.table.windows.lane == "device" else e.kind == OP
    return np.flatnonzero(on_lane & rank.budget.placements.of_family("collective"))


@pytest.fixture(scope="module", params=CAPTURES)
def plain(request: pytest.FixtureRequest, account: Callable[[str], Account]) -> list[EventStore]:
    """The recorded ranks, copied in turn until there are 64."""
    recorded = account(request.param).ranks
    return [
        only_collectives(rank.store, collectives(rank), number)
        for number in range(RANKS)
        for rank in (recorded[number % len(recorded)],)
    ]


def rows(stores: list[EventStore]) -> list[Int64]:
    return [np.arange(len(store.events)) for store in stores]


def offsets(stores: list[EventStore]) -> Int64:
    matched = match_collectives(stores, rows(stores))
    base = np.array(matched.base_ns, np.int64)
    against: Int64 = np.rint(fit_clocks(matched).offset_ns).astype(np.int64) + base - base[0]
    return against


def test_injected_offsets_come_out_within_2_us_of_the_unshifted_estimate(plain: list[EventStore]) -> None:
    generator = np.random.default_rng(64)
    injected = generator.integers(-100 * SECOND, 100 * SECOND, RANKS)
    injected[0] = 0
    shifted = [shift_clock(store, int(by)) for store, by in zip(plain, injected, strict=True)]
    assert np.abs(offsets(shifted) - offsets(plain) - injected).max() <= 2_000


def test_an_injected_late_rank_is_named_in_each_of_20_trials(plain: list[EventStore]) -> None:
    for seed in range(20):
        generator = np.random.default_rng(seed)
        number = len(plain[0].events)
        late, at = int(generator.integers(0, RANKS)), generator.choice(number, max(number // 4, 2), replace=False)
        delayed = make_late(plain, late, sorted(at.tolist()), 100_000_000)
        by = generator.integers(-SECOND, SECOND, RANKS).tolist()
        shifted = [shift_clock(store, offset) for store, offset in zip(delayed, by, strict=True)]
        found = find_skew(shifted, rows(shifted))
        assert isinstance(found, ArrivalSkew)
        assert (found.is_evidence, found.late_rank, found.largest_late_rank) == (True, late, late), seed
