from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.batch import BatchShape
from stepscope.cost.step_cost import price_step
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.step import step_operators
from stepscope.simulate.engine import Options, Simulation, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.synthetic import Conversations, Lengths, closed_loop, conversations, poisson_arrivals
from tests.simulate.random_load import random_load

RULES = SchedulerRules(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512, num_blocks=101)
ALL = Options(steps="rows", with_gaps=True, is_exact=True)


def request(name: str, prompt: int, output: int, *, at: float = 0.0, after: str | None = None) -> Request:
    return Request(request_id=name, arrival_s=at, prompt_len=prompt, output_len=output, after=after)


def one_second(_shape: BatchShape) -> float:
    return 1.0


def affine(shape: BatchShape) -> float:
    """A cost with long decimals, so that another order of additions would show."""
    assert shape.num_scheduled_tokens is not None
    assert shape.decode.kv_sum is not None
    assert shape.prefill.query_kv_sum is not None
    return (
        1.1e-3 + 7.3e-6 * shape.num_scheduled_tokens + 3.1e-9 * shape.decode.kv_sum + 1e-10 * shape.prefill.query_kv_sum
    )


def times(found: Simulation) -> list[tuple[float, float | None, float | None]]:
    return [(each.times.arrival_s, each.times.first_token_s, each.times.last_token_s) for each in found.requests]


def test_a_request_waits_for_the_step_that_runs_when_it_comes() -> None:
    found = simulate([request("a", 100, 3), request("b", 10, 2, at=0.5)], RULES, one_second, ALL)
    # steps: a 64 | a 36 + b 10 | a 1 + b 1 | a 1
    assert times(found) == [(0.0, 2.0, 4.0), (0.5, 2.0, 3.0)]
    assert [step.shape.num_scheduled_tokens for step in found.steps] == [64, 46, 2, 1]
    assert [step.shape.phase for step in found.steps] == ["prefill", "prefill", "decode", "decode"]
    assert found.requests[0].times.gaps_s == (1.0, 1.0)
    assert found.requests[0].times.tpot_s == 1.0
    assert (found.num_steps, found.num_scheduled_tokens, found.end_s) == (4, 113, 4.0)


def test_an_idle_engine_starts_when_the_next_request_comes() -> None:
    found = simulate([request("a", 10, 1), request("b", 10, 1, at=7.25)], RULES, one_second)
    assert times(found) == [(0.0, 1.0, 1.0), (7.25, 8.25, 8.25)]


def test_host_work_adds_to_each_synchronous_step_and_hides_behind_async_ones() -> None:
    alone = [request("a", 10, 4)]
    host = replace(ALL, host_s=0.25)
    assert simulate(alone, RULES, one_second, host).end_s == 5.0
    ahead = replace(RULES, async_scheduling=True)
    assert simulate(alone, ahead, one_second, host).end_s == 4.25


def test_async_admits_a_step_later() -> None:
    asked = [request("a", 10, 6), request("b", 10, 1, at=1.5)]
    synchronous = simulate(asked, RULES, one_second, ALL)
    ahead = simulate(asked, replace(RULES, async_scheduling=True), one_second, ALL)
    assert times(synchronous)[1] == (1.5, 3.0, 3.0)  # joins the step of 2 to 3
    assert times(ahead)[1] == (1.5, 4.0, 4.0)  # that step was scheduled at 1


def test_a_follow_up_comes_after_its_turn_ended() -> None:
    asked = [request("b", 10, 1, at=2.0, after="a"), request("a", 10, 3)]
    assert times(simulate(asked, RULES, one_second)) == [(5.0, 6.0, 6.0), (0.0, 1.0, 3.0)]


def test_requests_of_one_time_come_in_the_order_of_the_workload() -> None:
    asked = [request(name, 10, 1, at=1.0) for name in "zyx"]
    found = simulate(asked, RULES, one_second, ALL)
    assert [row.request_id for row in found.steps[0].shape.rows or ()] == ["z", "y", "x"]
    follow = [request("a", 10, 1), request("c", 10, 1, at=1.0), request("b", 10, 1, after="a")]
    found = simulate(follow, RULES, one_second, ALL)
    assert [row.request_id for row in found.steps[1].shape.rows or ()] == ["b", "c"]


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_stretches_equal_single_steps_exactly(seed: int, is_async: bool, spacing: float) -> None:
    load = random_load(seed, is_async=is_async)
    asked = [replace(each, arrival_s=each.arrival_s * spacing) for each in load.requests]
    kept = Options(steps="sums", with_gaps=True, host_s=1e-4)
    assert simulate(asked, load.rules, affine, kept) == simulate(
        asked, load.rules, affine, replace(kept, is_exact=True)
    )


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans())
def test_laws_hold_on_random_workloads(seed: int, is_async: bool) -> None:
    load = random_load(seed, is_async=is_async)
    asked = [replace(each, arrival_s=each.arrival_s * 1e-3) for each in load.requests]
    found = simulate(asked, load.rules, affine, ALL)
    assert [each.request_id for each in found.requests] == [each.request_id for each in asked]
    assert all(a.end_s <= b.start_s for a, b in pairwise(found.steps))
    for step in found.steps:
        step.shape.check()
    assert found.num_scheduled_tokens == sum(step.shape.num_scheduled_tokens or 0 for step in found.steps)
    for told, each in zip(asked, found.requests, strict=True):
        assert each.times.first_token_s is not None
        assert each.times.last_token_s is not None
        assert each.times.arrival_s < each.times.first_token_s <= each.times.last_token_s
        assert each.times.output_len == min(told.output_len, load.rules.max_model_len - told.prompt_len)
        assert len(each.times.gaps_s or ()) == each.times.output_len - 1
    if not is_async and not any(each.num_preemptions for each in found.requests):
        needed = (
            each.prompt_len - each.prefix_hit_tokens + (each.times.output_len or 0) - 1 for each in found.requests
        )
        assert found.num_scheduled_tokens == sum(needed)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans())
def test_tokens_are_conserved_through_chunks_and_preemptions(seed: int, is_async: bool) -> None:
    load = random_load(seed, is_async=is_async)
    found = simulate(load.requests, load.rules, affine, ALL)
    computed, dropped, reached = Counter[str](), Counter[str](), dict[str, int]()
    for row in (row for step in found.steps for row in step.shape.rows or ()):
        name = row.request_id or ""
        computed[name] += row.query_len
        dropped[name] += reached.get(name, row.context_len) - row.context_len  # given up, less what was found again
        reached[name] = row.context_len + row.query_len
    for told, each in zip(load.requests, found.requests, strict=True):
        outputs = each.times.output_len or 0
        needed = told.prompt_len - each.prefix_hit_tokens + outputs - 1  # the last output is never an input
        late = int(is_async and told.max_tokens is not None)  # a stop token that is learned of one decode late
        assert needed <= computed[told.request_id] - dropped[told.request_id] <= needed + late
        assert each.num_preemptions or not dropped[told.request_id]


def test_same_seed_same_bytes() -> None:
    talk = Conversations(
        turns=Lengths(median=3, sigma=0.5),
        question=Lengths(median=40, sigma=1.0, most=200),
        answer=Lengths(median=20, sigma=1.0, most=100),
        think_s=0.1,
    )
    rules = replace(RULES, max_model_len=4096, num_blocks=400)
    told = []
    for _ in range(2):
        rng = Random(11)
        asked = conversations(rng, poisson_arrivals(rng, rate_per_s=20.0, count=30), talk).requests
        told.append(repr(simulate(asked, rules, affine, replace(ALL, steps="sums"))))
    assert told[0] == told[1]
    assert "prefix_hit_tokens=48" in told[0]  # follow-up turns find the conversation so far


def test_a_closed_loop_has_no_more_requests_inside_than_clients() -> None:
    asked = closed_loop([request(f"r{place}", 20, 10) for place in range(12)], clients=3).requests
    found = simulate(asked, RULES, one_second, ALL)
    assert max(step.shape.num_requests or 0 for step in found.steps) == 3
    assert found.num_scheduled_tokens == 12 * (20 + 9)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([request("a", 1, 1), request("a", 1, 1)], "2 requests have 1 names"),
        ([request("a", 1, 1, after="b")], "follows 'b', which is not in the workload"),
        ([request("a", 1, 1, after="b"), request("b", 1, 1, after="a")], "in a circle: a after b after a"),
        ([request("a", 1, 1), request("b", 512, 1)], "the longest is 511"),
    ],
)
def test_an_impossible_workload_is_refused_before_any_step(asked: list[Request], words: str) -> None:
    def never(shape: BatchShape) -> float:
        raise AssertionError(shape)

    with pytest.raises(BadInput, match=words):
        simulate(asked, RULES, never)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_is_no_duration_is_refused(seconds: float) -> None:
    with pytest.raises(BadInput, match="must give 0 or more seconds"):
        simulate([request("a", 1, 1)], RULES, lambda _: seconds)
    with pytest.raises(BadInput, match="host_s"):
        Options(host_s=seconds)


def test_the_cost_wing_prices_simulated_steps() -> None:
    model = read_model("llama-3.1-8b")

    def predicted(shape: BatchShape) -> float:
        seconds = price_step(step_operators(model, shape), "h200", ParallelPlan()).time_s
        assert seconds is not None
        return float(seconds)

    asked = [request("a", 2000, 4), request("b", 1000, 4)]
    rules = SchedulerRules(max_num_batched_tokens=2048, max_num_seqs=8, max_model_len=8192, num_blocks=1000)
    found = simulate(asked, rules, predicted, ALL)
    assert [step.shape.phase for step in found.steps] == ["prefill", "mixed", *["decode"] * 3]
    assert found.end_s == pytest.approx(sum(predicted(step.shape) for step in found.steps), abs=1e-12)
    assert found.steps[0].end_s > 2 * (found.steps[2].end_s - found.steps[2].start_s)


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for example in examples:  # each goes on from the one before
        exec(example, names)
    printed = capsys.readouterr().out
    assert "Spread(count=200," in printed
    assert "3 1 227" in printed.splitlines()
    lines = [line for line in printed.splitlines() if "Spread(count=200," in line]
    assert lines[0] == lines[1]  # steps and TTFT, by the engine and by the event loop


def test_an_empty_workload_takes_no_time() -> None:
    assert simulate([], RULES, one_second) == Simulation(
        requests=(), steps=(), num_steps=0, num_scheduled_tokens=0, end_s=0.0
    )
