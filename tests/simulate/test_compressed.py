from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.latency import spread
from stepscope.simulate.clock import TICKS_PER_S, to_ticks
from stepscope.simulate.compressed import CompressedRun, RequestColumns, run_columns
from stepscope.simulate.engine import Options, Simulation, check_workload, simulate
from stepscope.simulate.event_loop import steps_until
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.sarathi import SarathiRules
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime
from stepscope.simulate.synthetic import closed_loop
from tests.simulate.random_runs import Run, random_run

HAS_NUMBA = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
RULES = SchedulerRules(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512, num_blocks=1000)
COST = StepTime(
    by_tokens=tuple(range(1000, 1200)),
    decode=DecodeGrid(rows=(1, 8), kv_lens=(0, 100, 400), ticks=((5, 70, 90), (9, 200, 800))),
    prefill=PrefillTicks(step=3, row=5, query=7, kv=2, query_kv=1),
)


def fast(run: Run, *, compiled: bool = False) -> CompressedRun | str:
    check_workload(run.requests, run.rules)
    return run_columns(RequestColumns(run.requests), run.rules, run.cost, host=to_ticks(run.host_s), compiled=compiled)


def exact(run: Run) -> Simulation:
    return simulate(run.requests, run.rules, run.cost, Options(steps="none", host_s=run.host_s, is_exact=True))


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1_000_000), st.sampled_from(["vllm", "async", "sarathi"]))
def test_the_event_loop_equals_the_scheduler_step_by_step(seed: int, order: str) -> None:
    run = random_run(seed, order=order)
    chosen = simulate(run.requests, run.rules, run.cost, Options(steps="none", host_s=run.host_s))
    assert chosen == exact(run)
    assert repr(chosen) == repr(exact(run))  # and of the same types


def test_it_answers_wherever_nobody_is_preempted() -> None:
    answered = 0
    for seed in range(60):
        for order in ("vllm", "async"):
            run = random_run(seed, order=order)
            outcome = fast(run)
            if isinstance(outcome, str):
                assert outcome == "blocks run out, and somebody is preempted"
                assert any(each.num_preemptions for each in exact(run).requests)
            answered += isinstance(outcome, CompressedRun)
    assert answered > 80


@pytest.mark.extra
@needs_numba
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1_000_000), st.sampled_from(["vllm", "async", "sarathi"]))
def test_compiled_and_python_loops_are_the_same(seed: int, order: str) -> None:
    run = random_run(seed, order=order)
    plain, compiled = fast(run), fast(run, compiled=True)
    if isinstance(plain, str) or isinstance(compiled, str):
        assert plain == compiled
    else:
        assert plain.to_lists() == compiled.to_lists()
        assert (plain.num_steps, plain.end) == (compiled.num_steps, compiled.end)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=[needs_numba, pytest.mark.extra])])
def test_a_run_of_weeks_is_as_exact(compiled: bool) -> None:
    hour = 3600 * TICKS_PER_S
    slow = StepTime(by_tokens=tuple(hour + tokens for tokens in range(100)))
    asked = [Request(request_id=str(i), arrival_s=i * 86_400.0, prompt_len=9, output_len=200) for i in range(5)]
    options = Options(steps="none", compiled=compiled)
    found = simulate(asked, RULES, slow, options)
    assert found == simulate(asked, RULES, slow, replace(options, is_exact=True))
    assert found.end_s > 6 * 86_400


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=[needs_numba, pytest.mark.extra])])
def test_a_run_that_outgrows_its_integers_on_the_way_starts_again_with_larger_ones(compiled: bool) -> None:
    minute = 60 * TICKS_PER_S
    slow = StepTime(by_tokens=tuple(minute + tokens for tokens in range(100)))
    asked = [Request(request_id=str(i), arrival_s=0.0, prompt_len=9, output_len=500) for i in range(96)]
    found = simulate(asked, RULES, slow, Options(steps="none", compiled=compiled))
    assert found == simulate(asked, RULES, slow, Options(steps="none", is_exact=True))
    assert to_ticks(found.end_s) > 1 << 63


def test_spreads_are_those_of_the_requests_one_by_one() -> None:
    run = random_run(3, order="vllm")
    outcome = fast(run)
    assert isinstance(outcome, CompressedRun)
    times = [each.times for each in exact(run).requests]
    assert outcome.spreads() == {
        "ttft_s": spread(each.ttft_s for each in times),
        "tpot_s": spread(each.tpot_s for each in times),
        "e2el_s": spread(each.e2el_s for each in times),
    }


def test_a_closed_loop_goes_by_the_event_loop() -> None:
    asked = closed_loop(
        [Request(request_id=str(i), arrival_s=0.0, prompt_len=20 + i, output_len=1 + i) for i in range(40)], clients=3
    ).requests
    run = Run(requests=tuple(asked), rules=RULES, cost=COST, host_s=0.0)
    outcome = fast(run)
    assert isinstance(outcome, CompressedRun)
    assert outcome.to_lists()[2] == [each.times.last_token_s for each in exact(run).requests]


def shared(length: int, *, source: int = 1) -> Request:
    return Request(
        request_id=f"{source}-{length}",
        arrival_s=0.0,
        prompt_len=length,
        output_len=4,
        text=(Segment(source=source, length=length + 4),),
    )


@pytest.mark.parametrize(
    ("requests", "rules", "words"),
    [
        ((shared(40), shared(41)), RULES, "requests share a text that the cache may find"),
        ((shared(40),), replace(RULES, long_prefill_token_threshold=8), "long_prefill_token_threshold lets several"),
        ((shared(158, source=1), shared(158, source=2)), replace(RULES, num_blocks=21), "blocks run out"),
    ],
)
def test_what_it_does_not_hold_it_says(requests: tuple[Request, ...], rules: SchedulerRules, words: str) -> None:
    run = Run(requests=requests, rules=rules, cost=COST, host_s=0.0)
    told = fast(run)
    assert isinstance(told, str)
    assert words in told
    assert simulate(requests, rules, COST, Options(steps="none")) == exact(run)


def test_texts_that_no_cache_could_find_are_no_hindrance() -> None:
    alike = (shared(40), shared(41))
    assert isinstance(
        fast(Run(requests=alike, rules=replace(RULES, enable_prefix_caching=False), cost=COST, host_s=0.0)),
        CompressedRun,
    )
    apart = (shared(40), shared(40, source=2), replace(shared(9), output_len=1))  # the last has no full block
    assert isinstance(fast(Run(requests=apart, rules=RULES, cost=COST, host_s=0.0)), CompressedRun)


def test_an_empty_workload_takes_no_time() -> None:
    rules = SarathiRules(chunk_size=8, batch_size_cap=2, num_blocks=10, max_model_len=100)
    assert simulate([], rules, COST, Options(steps="none")) == simulate([], rules, COST)


@given(st.integers(1, 10**15), st.integers(1, 10**13), st.integers(-(10**9), 10**9), st.integers(1, 10_000))
def test_steps_until_is_the_least_number_that_suffices(gap: int, length: int, growth: int, most: int) -> None:
    growth = max(growth, -(length // most))
    count = steps_until(gap, length, growth, most)

    def taken(steps: int) -> int:
        return (
            sum(length + growth * place for place in range(steps))
            if steps < 50
            else (length * steps + growth * steps * (steps - 1) // 2)
        )

    assert 1 <= count <= most
    assert count == most or taken(count) >= gap
    assert count == 1 or taken(count - 1) < gap


def test_a_step_that_the_table_does_not_hold_is_refused_as_by_the_scheduler() -> None:
    asked = (Request(request_id="a", arrival_s=0.0, prompt_len=30, output_len=3),)
    short = StepTime(by_tokens=tuple(range(20)))
    assert fast(Run(requests=asked, rules=RULES, cost=short, host_s=0.0)) == (
        "a step has more tokens than the table of times"
    )
    with pytest.raises(BadInput, match="a step of 30 tokens has no time: the table ends at 19"):
        simulate(asked, RULES, short, Options(steps="none"))


def test_a_line_that_falls_below_zero_is_left_to_the_scheduler() -> None:
    falling = DecodeGrid(rows=(1,), kv_lens=(0, 40), ticks=((50, 10),))  # straight on: below 0 from 50 tokens on
    run = Run(
        requests=(Request(request_id="a", arrival_s=0.0, prompt_len=30, output_len=60),),
        rules=RULES,
        cost=StepTime(by_tokens=(0,) * 100, decode=falling, prefill=PrefillTicks(step=5)),
        host_s=0.0,
    )
    assert fast(run) == "a step takes less than no time"
