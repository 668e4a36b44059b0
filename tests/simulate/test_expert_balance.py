from __future__ import annotations

from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.operators.router import Router
from stepscope.simulate.expert_balance import (
    ExpertSkew,
    SkewedExperts,
    balance_experts,
    imbalance,
    place_balanced,
    place_in_order,
)
from stepscope.simulate.lockstep import SlowestRank, simulate_ranks
from tests.simulate.test_engine import RULES, affine, request

if TYPE_CHECKING:
    from stepscope.batch import BatchShape

counts = st.lists(st.integers(0, 1000), min_size=8, max_size=8)


def test_the_hottest_expert_is_copied_and_the_heaviest_slots_are_dealt_first() -> None:
    placement = place_balanced([90, 30, 20, 20], 3, num_redundant=2)
    # 90 becomes 45 + 45, then 30 + 30 + 30; of the slots of 30 the fourth goes to the first rank again
    assert placement == ((0, 0), (1, 2), (0, 3))
    assert imbalance([90, 30, 20, 20], placement) == pytest.approx(60 / (160 / 3))


def test_experts_in_order() -> None:
    assert place_in_order(6, 3) == ((0, 1), (2, 3), (4, 5))
    found = balance_experts([40, 30, 20, 10], 2)
    assert (found.before, found.after) == (70 / 50, 1.0)


def test_greedy_can_be_worse_than_the_experts_in_order() -> None:
    """Six experts that lie best in order: the heaviest are dealt apart, and the last slot is on the fuller rank."""
    found = balance_experts([3, 3, 0, 2, 2, 2], 2)
    assert (found.before, found.after) == (1.0, 7 / 6)


@given(counts, st.sampled_from([1, 2, 4]), st.sampled_from([0, 4, 8]))
def test_laws_of_a_placement(rows: list[int], num_ranks: int, num_redundant: int) -> None:
    placement = place_balanced(rows, num_ranks, num_redundant)
    slots = [expert for held in placement for expert in held]
    assert len({len(held) for held in placement}) == 1
    assert len(slots) == 8 + num_redundant
    assert set(slots) == set(range(8))
    assert 1 - 1e-12 <= imbalance(rows, placement) <= num_ranks + 1e-12


@settings(max_examples=25)
@given(st.lists(st.integers(1, 100), min_size=4, max_size=4), st.integers(0, 4))
def test_copies_make_the_fullest_slot_as_small_as_any_copies_can(rows: list[int], num_redundant: int) -> None:
    placement = place_balanced(rows, 1, num_redundant)[0]
    fullest = max(rows[expert] / placement.count(expert) for expert in range(4))
    best = min(
        max(rows[expert] / (1 + extra.count(expert)) for expert in range(4))
        for extra in combinations_with_replacement(range(4), num_redundant)
    )
    assert fullest == best


@settings(max_examples=30)
@given(st.floats(0.3, 1.5), st.integers(0, 1000), st.sampled_from([4, 8, 16]), st.sampled_from([0, 16]))
def test_skewed_routers_are_balanced(skew: float, seed: int, num_ranks: int, num_redundant: int) -> None:
    rows = Router(skew=skew, seed=seed).sample(64, 4, 4096)
    found = balance_experts(rows, num_ranks, num_redundant)
    assume(found.before > 1.05)
    assert found.after <= found.before


def test_an_even_router_with_many_tokens_needs_no_balance() -> None:
    assert ExpertSkew(num_experts=64, top_k=4, num_ranks=8).ratio(1 << 16) == pytest.approx(1.0, abs=0.02)


def test_few_tokens_are_uneven_by_chance_and_skew_adds_to_it() -> None:
    even, skewed = (ExpertSkew(num_experts=64, top_k=4, num_ranks=8, skew=skew) for skew in (0.0, 1.0))
    assert even.ratio(16) > even.ratio(4096) > 1.0
    assert skewed.ratio(4096) > 1.2 * even.ratio(4096)
    placed = ExpertSkew(num_experts=64, top_k=4, num_ranks=8, skew=1.0, has_eplb=True, num_redundant=16)
    assert placed.ratio(4096) < 1.1 < skewed.ratio(4096)


def test_between_powers_of_two_the_ratio_is_between() -> None:
    skew = ExpertSkew(num_experts=32, top_k=2, num_ranks=4, skew=0.5)
    low, middle, high = skew.ratio(64), skew.ratio(90), skew.ratio(128)
    assert min(low, high) <= middle <= max(low, high)
    assert skew.ratio(64) == ExpertSkew(num_experts=32, top_k=2, num_ranks=4, skew=0.5).ratio(64)


def test_a_groups_step_waits_for_the_fullest_rank() -> None:
    def rest(_shape: BatchShape) -> float:
        return 1.0

    skew = ExpertSkew(num_experts=32, top_k=2, num_ranks=2, skew=1.0)
    cost = SkewedExperts(rest=rest, experts_s=lambda tokens: tokens / 10, skew=skew)
    found = simulate_ranks([request("a", 30, 1), request("b", 34, 1)], RULES, cost, 2)
    assert found.end_s == pytest.approx(1.0 + 6.4 * skew.ratio(64))
    alone = SkewedExperts(rest=affine, experts_s=lambda _: 0.0, skew=skew)
    asked = [request("a", 30, 9), request("b", 34, 5)]
    assert simulate_ranks(asked, RULES, alone, 2) == simulate_ranks(asked, RULES, SlowestRank(affine), 2)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput, match="7 experts on 2 ranks"):
        place_in_order(7, 2)
    with pytest.raises(BadInput, match="8 experts and 1 copies on 2 ranks"):
        place_balanced([1] * 8, 2, num_redundant=1)
    with pytest.raises(BadInput, match="without EPLB"):
        ExpertSkew(num_experts=8, top_k=1, num_ranks=2, num_redundant=2)
