"""Laws of any simulated engine: it ends, computes what was asked and no more, and its latencies make sense."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.cli.simulate_view import to_simulation_document
from stepscope.errors import BadInput
from stepscope.latency import Limits, percentile
from stepscope.simulate.request import Request
from stepscope.simulate.scenario import EngineOptions, Outcome, Scenario, run_scenario
from stepscope.simulate.settings import SETTINGS, apply_setting
from stepscope.simulate.synthetic import Lengths, closed_loop, gamma_arrivals, single_requests
from tests.simulate.loads import plain_calibration

HOST_S, STEP_S, TOKEN_S = 0.001, 0.005, 20e-6  # of plain_calibration
few = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def loads(draw: st.DrawFn) -> tuple[Request, ...]:
    rng = Random(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 30))
    rate, variation = draw(st.floats(0.1, 500)), draw(st.sampled_from([0.001, 0.5, 1.0, 3.0, 100.0]))
    question, answer = (
        Lengths(median=draw(st.integers(1, 300)), sigma=draw(st.floats(0, 2)), most=1000) for _ in range(2)
    )
    arrivals = gamma_arrivals(rng, rate_per_s=rate, variation=variation, count=count)
    load = single_requests(rng, arrivals, question=question, answer=answer)
    clients = draw(st.none() | st.integers(1, 8))
    return load.requests if clients is None else closed_loop(load.requests, clients=clients).requests


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    requests = draw(loads())
    seats, block_size = draw(st.integers(1, 40)), draw(st.sampled_from([1, 7, 16, 128]))
    longest = max(ceil((request.num_tokens + 1) / block_size) for request in requests)
    engine = EngineOptions(
        max_num_seqs=seats,
        max_num_batched_tokens=seats + draw(st.integers(0, 600)),
        block_size=block_size,
        num_blocks=longest + 1 + draw(st.integers(1, 5000)),
        enable_prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        host_s=draw(st.none() | st.sampled_from([0.0, 1e-300, 0.002, 1e6])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 1, 17])) if max(map(last, requests)) > 17 else 0,
    )
    return Scenario(requests=requests, engine=engine, calibration=plain_calibration())


def last(request: Request) -> int:
    return request.num_tokens


def scheduled_of(requests: tuple[Request, ...], hits: int) -> int:
    """Every token but the last output is an input once, less what the cache had."""
    return sum(request.num_tokens - 1 for request in requests) - hits


@few
@given(scenarios())
def test_tokens_are_conserved_and_latencies_ordered(scenario: Scenario) -> None:
    shown = run_scenario(scenario).shown
    assert [each.times.output_len for each in shown.requests] == [each.output_len for each in scenario.requests]
    needed = scheduled_of(scenario.requests, sum(each.prefix_hit_tokens for each in shown.requests))
    if any(each.num_preemptions for each in shown.requests):
        assert shown.num_scheduled_tokens >= needed
    else:
        assert shown.num_scheduled_tokens == needed
    for each in shown.requests:
        times = each.times
        assert times.ttft_s is not None
        assert times.e2el_s is not None
        assert 0 < times.ttft_s <= times.e2el_s
        assert (times.tpot_s is None) == (times.output_len == 1)
        if times.tpot_s is not None and times.output_len is not None:
            assert times.tpot_s > 0
            assert times.ttft_s + times.tpot_s * (times.output_len - 1) == pytest.approx(times.e2el_s)
    ends = [step.end_s for step in shown.steps]
    assert ends == sorted(ends)
    assert sum(step.shape.num_scheduled_tokens or 0 for step in shown.steps) == shown.num_scheduled_tokens


def document_of(outcome: Outcome) -> str:
    return json.dumps(to_simulation_document(outcome, Limits(ttft_s=0.5, tpot_s=0.05), "drawn"), allow_nan=False)


@few
@given(scenarios())
def test_the_same_scenario_gives_the_same_bytes_and_strict_json(scenario: Scenario) -> None:
    text = document_of(run_scenario(scenario))
    assert text == document_of(run_scenario(scenario))
    assert json.loads(text)["grade"] == "simulated"


@few
@given(
    prompt=st.integers(1, 4000),
    budget=st.integers(1, 2000),
    is_async=st.booleans(),
    arrival_s=st.floats(0, 1e6),
)
def test_a_request_alone_waits_for_its_own_prefill(prompt: int, budget: int, is_async: bool, arrival_s: float) -> None:
    """TTFT on an idle engine: the chunks' priced time, and the host's work before each, or before the first alone."""
    request = Request(request_id="a", arrival_s=arrival_s, prompt_len=prompt, output_len=3)
    engine = EngineOptions(max_num_batched_tokens=budget, max_num_seqs=1, num_blocks=1000, async_scheduling=is_async)
    scenario = Scenario(requests=(request,), engine=engine, calibration=plain_calibration())
    times = run_scenario(scenario).shown.requests[0].times
    chunks = ceil(prompt / budget)
    waits = 1 if is_async else chunks
    expected = chunks * STEP_S + prompt * TOKEN_S + waits * HOST_S
    assert times.ttft_s == pytest.approx(expected, rel=1e-9, abs=1e-9)


@few
@given(scenarios())
def test_no_more_requests_end_a_second_than_come(scenario: Scenario) -> None:
    shown = run_scenario(scenario).shown
    arrivals = [request.arrival_s for request in scenario.requests if request.after is None]
    ends = max(each.times.arrival_s + (each.times.e2el_s or 0.0) for each in shown.requests)
    assert ends >= max(arrivals)
    assert ends == pytest.approx(shown.end_s, rel=1e-9)
    least = STEP_S * max(request.output_len for request in scenario.requests)
    assert ends - min(arrivals) >= least * 0.99


@few
@given(loads(), st.integers(8, 64), st.sampled_from([64, 512, 4096]))
def test_denser_arrivals_wait_no_shorter(requests: tuple[Request, ...], seats: int, budget: int) -> None:
    """The same requests twice as dense: p90 TTFT falls by no more than a step or two, by which arrivals meet steps."""
    if any(request.after is not None for request in requests) or len(requests) < 2:
        return
    engine = EngineOptions(max_num_batched_tokens=budget, max_num_seqs=seats, num_blocks=100_000)
    scenario = Scenario(requests=requests, engine=engine, calibration=plain_calibration())
    shown = [run_scenario(each).shown for each in (scenario, apply_setting(scenario, "rate", "x2"))]
    plain, dense = (percentile(sorted(each.times.ttft_s or 0.0 for each in one.requests), 0.9) for one in shown)
    longest = max(step.end_s - step.start_s for one in shown for step in one.steps)
    assert dense >= plain - 2 * (longest + HOST_S)


values = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "nan",
        "inf",
        "1e300",
        "x2",
        "xnan",
        "x-1",
        "x1e300",
        "on",
        "",
        "a",
        "é",
        "0.5",
        "0.9/0.5",
        "10" * 9,
    ]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(SETTINGS)), values), min_size=1, max_size=3))
def test_any_setting_is_applied_or_refused(changes: list[tuple[str, str]]) -> None:
    request = Request(request_id="a", arrival_s=0.0, prompt_len=100, output_len=4)
    two: Any = (request, replace(request, request_id="b", arrival_s=1.0))
    scenario = Scenario(requests=two, engine=EngineOptions(num_blocks=2000), calibration=plain_calibration())
    try:
        for name, value in changes:
            scenario = apply_setting(scenario, name, value)
            if max(each.num_tokens for each in scenario.requests) > 10_000:
                return  # would end, in hours
        outcome = run_scenario(scenario)
    except BadInput as error:
        assert str(error)
        return
    document_of(outcome)
