from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.balancer import ByHand, LeastLoaded, RoundRobin
from stepscope.simulate.engine import Options, Simulation, simulate
from stepscope.simulate.lockstep import GroupFunction, SlowestRank, simulate_ranks
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.step_time import StepTime
from tests.simulate.random_load import Load, random_load
from tests.simulate.test_engine import ALL, RULES, affine, one_second, request, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import BatchShape
    from stepscope.simulate.request import Request


def by_turn(requests: Sequence[Request], num_ranks: int) -> ByHand:
    return ByHand(ranks={each.request_id: place % num_ranks for place, each in enumerate(requests)})


def spaced(load: Load, spacing: float) -> list[Request]:
    return [replace(each, arrival_s=each.arrival_s * spacing) for each in load.requests]


def test_a_step_takes_as_long_as_the_slowest_rank() -> None:
    def by_tokens(shape: BatchShape) -> float:
        return float(shape.num_scheduled_tokens or 0)

    asked = [request("a", 60, 2), request("b", 10, 2)]
    found = simulate_ranks(asked, RULES, by_tokens, 2, options=ALL)
    assert times(found) == [(0.0, 60.0, 61.0), (0.0, 60.0, 61.0)]
    assert [(step.rank, step.start_s, step.end_s) for step in found.steps] == [
        (0, 0.0, 60.0),
        (1, 0.0, 60.0),
        (0, 60.0, 61.0),
        (1, 60.0, 61.0),
    ]
    assert [each.rank for each in found.requests] == [0, 1]
    assert (found.num_steps, found.num_dummy_steps, found.num_scheduled_tokens) == (2, 0, 72)


def test_a_rank_without_work_runs_dummies_that_the_others_wait_for() -> None:
    found = simulate_ranks([request("a", 10, 3)], RULES, SlowestRank(one_second, dummy_s=4.0), 3, options=ALL)
    assert times(found) == [(0.0, 4.0, 12.0)]
    assert [(step.rank, step.num_dummy) for step in found.steps] == [(0, 2)] * 3


def test_a_dummy_costs_one_decode_token_unless_told_otherwise() -> None:
    cost = StepTime(by_tokens=(0, *[1 << 44] * 64))
    assert simulate_ranks([request("a", 10, 3)], RULES, cost, 2).end_s == 3.0


def test_idle_ranks_step_on_until_they_look_for_work() -> None:
    asked = [request("a", 10, 4), request("b", 10, 1, at=5.5)]
    found = simulate_ranks(asked, RULES, one_second, 2, options=replace(ALL, dp_sync_interval=8))
    assert times(found)[1] == (5.5, 7.0, 7.0)  # a dummy of both ranks ran from 5 to 6
    assert found.num_dummy_steps == 2
    found = simulate_ranks(asked, RULES, one_second, 2, options=replace(ALL, dp_sync_interval=4))
    assert times(found)[1] == (5.5, 6.5, 6.5)  # they slept from 4 on
    assert found.num_dummy_steps == 0


def test_a_wave_of_one_step_ends_at_once() -> None:
    asked = [request("a", 10, 1), request("b", 10, 1, at=1.5)]
    found = simulate_ranks(asked, RULES, one_second, 2, options=ALL)
    assert times(found)[1] == (1.5, 2.5, 2.5)


def test_experts_see_the_tokens_of_all_ranks() -> None:
    seen: list[list[int | None]] = []

    def by_domain(shapes: Sequence[BatchShape | None]) -> float:
        tokens = [shape.num_scheduled_tokens if shape else None for shape in shapes]
        seen.append(tokens)
        return sum(count or 1 for count in tokens) / 10

    found = simulate_ranks([request("a", 20, 1), request("b", 9, 2)], RULES, GroupFunction(by_domain), 2, options=ALL)
    assert seen == [[20, 9], [None, 1]]
    assert found.end_s == pytest.approx(3.1)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_one_rank_equals_one_engine(seed: int, is_async: bool, spacing: float) -> None:
    load = random_load(seed, is_async=is_async)
    asked = spaced(load, spacing)
    kept = replace(ALL, host_s=1e-4)
    assert simulate_ranks(asked, load.rules, affine, 1, options=kept) == simulate(asked, load.rules, affine, kept)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 5))
def test_ranks_end_no_earlier_than_engines_of_their_own(seed: int, is_async: bool, num_ranks: int) -> None:
    """All requests are there at the start: else a rank that was held up can batch more together and end earlier."""
    load = random_load(seed, is_async=is_async)
    asked = spaced(load, 0.0)
    kept = Options(steps="none", host_s=1e-4)
    found = simulate_ranks(asked, load.rules, affine, num_ranks, by_turn(asked, num_ranks), kept)
    ends = {each.request_id: each.times.last_token_s or 0.0 for each in found.requests}
    for rank in range(num_ranks):
        alone = simulate(asked[rank::num_ranks], load.rules, affine, kept)
        assert all(ends[each.request_id] >= (each.times.last_token_s or 0.0) for each in alone.requests)


@settings(max_examples=25)
@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.integers(2, 5),
    st.sampled_from([RoundRobin(), LeastLoaded(), LeastLoaded(formula="waiting_x4", refresh_s=0.0)]),
)
def test_laws_hold_on_random_workloads(
    seed: int, is_async: bool, num_ranks: int, balancer: RoundRobin | LeastLoaded
) -> None:
    load = random_load(seed, is_async=is_async)
    asked = spaced(load, 1e-3)
    found = simulate_ranks(asked, load.rules, affine, num_ranks, balancer, ALL)
    assert found == simulate_ranks(asked, load.rules, affine, num_ranks, balancer, ALL)
    assert [each.request_id for each in found.requests] == [each.request_id for each in asked]
    check_steps(found, num_ranks)
    for told, each in zip(asked, found.requests, strict=True):
        assert each.times.output_len == min(told.output_len, load.rules.max_model_len - told.prompt_len)
        assert len(each.times.gaps_s or ()) == (each.times.output_len or 0) - 1


def check_steps(found: Simulation, num_ranks: int) -> None:
    """Steps of a group begin and end together, follow each other, and last as long as the longest of their rows."""
    spans = Counter((step.start_s, step.end_s) for step in found.steps)
    assert len(spans) == found.num_steps
    ordered = sorted(spans)
    assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    for step in found.steps:
        step.shape.check()
        assert spans[step.start_s, step.end_s] == num_ranks - step.num_dummy
        assert step.end_s - step.start_s >= affine(step.shape) - 1e-12
    for rank in range(num_ranks):
        rows = {each.request_id for each in found.requests if each.rank == rank}
        ran = {row.request_id for step in found.steps if step.rank == rank for row in step.shape.rows or ()}
        assert ran == rows


def test_a_group_without_ranks_and_a_rank_that_is_not_there_are_refused() -> None:
    with pytest.raises(BadInput, match="0 ranks"):
        simulate_ranks([], RULES, one_second, 0)
    with pytest.raises(BadInput, match="sent to rank 2 of 2"):
        simulate_ranks([request("a", 1, 1)], RULES, one_second, 2, ByHand(ranks={"a": 2}))
    with pytest.raises(BadInput, match="'a' has no rank among the 0"):
        simulate_ranks([request("a", 1, 1)], RULES, one_second, 2, ByHand(ranks={}))
    with pytest.raises(BadInput, match="must give 0 or more seconds"):
        simulate_ranks([request("a", 1, 1)], RULES, GroupFunction(lambda _: -1.0), 2)
    with pytest.raises(BadInput, match="dp_sync_interval"):
        Options(dp_sync_interval=0)


def test_an_empty_workload_takes_no_time() -> None:
    rules = SchedulerRules(max_num_batched_tokens=8, max_num_seqs=1, max_model_len=64, num_blocks=9)
    assert simulate_ranks([], rules, one_second, 4).end_s == 0.0
