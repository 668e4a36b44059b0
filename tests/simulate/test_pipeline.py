from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.engine import Options, simulate
from stepscope.simulate.lockstep import simulate_ranks
from stepscope.simulate.pipeline import simulate_pipeline
from stepscope.simulate.stages import Stages
from tests.simulate.random_load import random_load
from tests.simulate.test_engine import ALL, RULES, affine, one_second, request, times

if TYPE_CHECKING:
    from stepscope.simulate.engine import Simulation

FOUR = Stages.even(4)


def four_seconds(_shape: object) -> float:
    return 4.0


def bubbles(found: Simulation) -> list[float]:
    return [stage.bubble_fraction or 0.0 for stage in found.stages]


def test_a_request_that_decodes_alone_leaves_all_stages_but_one_idle() -> None:
    found = simulate_pipeline([request("a", 10, 5)], RULES, four_seconds, FOUR, ALL)
    assert times(found) == [(0.0, 4.0, 20.0)]
    assert bubbles(found) == [0.75] * 4


def test_as_many_batches_as_stages_fill_them() -> None:
    asked = [request(name, 64, 50) for name in "abcd"]  # the budget lets each prompt into a batch of its own
    found = simulate_pipeline(asked, RULES, four_seconds, FOUR, ALL)
    # batches begin a second apart, and a batch's next token needs the last one: 4 s for 4 requests, not 16
    assert [first for _, first, _ in times(found)] == [4.0, 5.0, 6.0, 7.0]
    assert [last for _, _, last in times(found)] == [200.0, 201.0, 202.0, 203.0]
    assert bubbles(found) == [pytest.approx(1 - 200 / 203)] * 4


def test_batches_that_were_one_stay_one() -> None:
    asked = [request(name, 16, 50) for name in "abcd"]  # all prompts in one step: nothing is left for another
    assert bubbles(simulate_pipeline(asked, RULES, four_seconds, FOUR, ALL)) == [0.75] * 4


def test_chunks_of_a_prompt_follow_each_other_through_the_stages() -> None:
    found = simulate_pipeline([request("a", 256, 1)], RULES, four_seconds, FOUR, ALL)
    assert [(step.start_s, step.end_s) for step in found.steps] == [(0.0, 4.0), (1.0, 5.0), (2.0, 6.0), (3.0, 7.0)]


def test_the_longest_stage_sets_the_pace_and_a_hand_over_adds_to_each_token() -> None:
    uneven = Stages(shares=(0.25, 0.5, 0.25), hop_s=0.5)
    asked = [request(name, 64, 50) for name in "abc"]
    found = simulate_pipeline(asked, RULES, four_seconds, uneven, ALL)
    assert [first for _, first, _ in times(found)] == [5.0, 7.0, 9.0]
    assert found.requests[0].times.tpot_s == pytest.approx(6.0)  # three batches of 2 s in the middle stage
    alone = simulate_pipeline(asked[:1], RULES, four_seconds, uneven, ALL)
    assert alone.requests[0].times.tpot_s == 5.0


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_one_stage_equals_one_device(seed: int, is_async: bool, spacing: float) -> None:
    load = random_load(seed, is_async=is_async)
    asked = [replace(each, arrival_s=each.arrival_s * spacing) for each in load.requests]
    kept = Options(with_gaps=True, host_s=1e-4)
    assert simulate_pipeline(asked, load.rules, affine, Stages(), kept) == simulate(asked, load.rules, affine, kept)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 4))
def test_laws_hold_on_random_workloads(seed: int, is_async: bool, num_stages: int) -> None:
    load = random_load(seed, is_async=is_async)
    asked = [replace(each, arrival_s=each.arrival_s * 1e-3) for each in load.requests]
    found = simulate_pipeline(asked, load.rules, affine, Stages.even(num_stages), ALL)
    assert all(a.start_s < b.start_s and a.end_s < b.end_s for a, b in pairwise(found.steps))
    assert all(0 <= bubble < 1 for bubble in bubbles(found))
    busy = sum(stage.busy_s for stage in found.stages)
    assert busy == pytest.approx(sum(affine(step.shape) for step in found.steps), abs=1e-9)
    decodes: dict[str | None, list[tuple[float, float]]] = defaultdict(list)
    for step in found.steps:
        inside = sum(other.start_s <= step.start_s < other.end_s for other in found.steps)
        assert inside <= num_stages + is_async
        for row in step.shape.rows or ():
            if row.phase == "decode" and row.query_len == 1 and not is_async:
                decodes[row.request_id].append((step.start_s, step.end_s))
    for spans in decodes.values():  # a decode's input is the token before it
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    for told, each in zip(asked, found.requests, strict=True):
        assert each.times.output_len == min(told.output_len, load.rules.max_model_len - told.prompt_len)


def test_async_requests_decode_in_every_pp_th_step() -> None:
    ahead = replace(RULES, async_scheduling=True)
    found = simulate_pipeline([request(name, 64, 6) for name in "abcd"], ahead, four_seconds, FOUR, ALL)
    steps = [[row.request_id for row in step.shape.rows or ()] for step in found.steps]
    places = [place for place, names in enumerate(steps) if "a" in names]
    assert all(later - earlier >= 4 for earlier, later in pairwise(places))


def test_what_is_no_pipeline_is_refused() -> None:
    with pytest.raises(BadInput, match="add up to 1"):
        Stages(shares=(0.5, 0.6))
    with pytest.raises(BadInput, match="0 stages"):
        Stages.even(0)
    staged = replace(RULES, pipeline_parallel_size=2)
    with pytest.raises(BadInput, match="for 2 pipeline stages, and 1 are simulated"):
        simulate([], staged, one_second)
    with pytest.raises(BadInput, match="for 2 pipeline stages, and 1 are simulated"):
        simulate_ranks([], staged, one_second, 2)
