"""What each switch of scheduling changes, and in which direction: the notes' list of what an optimisation acts on."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.batch import BatchShape
from stepscope.errors import BadInput
from stepscope.latency import pooled_itl_s, spread
from stepscope.simulate.engine import Options, Simulation, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.static_batching import EarlierRules
from stepscope.simulate.synthetic import Lengths, PrefixTree, poisson_arrivals, single_requests
from tests.simulate.random_load import random_load

if TYPE_CHECKING:
    from stepscope.simulate.policy import Rules

RULES = SchedulerRules(max_num_batched_tokens=2048, max_num_seqs=32, max_model_len=2048, num_blocks=1025)
ALL = Options(steps="rows", with_gaps=True)


def step_s(shape: BatchShape) -> float:
    return 0.01 + 1e-5 * (shape.num_scheduled_tokens or 0)


def load(seed: int = 3, *, rate_per_s: float = 40.0) -> tuple[Request, ...]:
    rng = Random(seed)
    arrivals = poisson_arrivals(rng, rate_per_s=rate_per_s, count=60)
    lengths = Lengths(median=200, sigma=0.8, most=1000)
    return single_requests(rng, arrivals, question=lengths, answer=Lengths(median=60, sigma=0.8, most=400)).requests


def run(rules: Rules, asked: tuple[Request, ...] | None = None, *, host_s: float = 0.0) -> Simulation:
    return simulate(load() if asked is None else asked, rules, step_s, replace(ALL, host_s=host_s))


def most_rows(found: Simulation) -> int:
    return max(step.shape.num_requests or 0 for step in found.steps)


def mean_rows(found: Simulation) -> float:
    return sum(step.shape.num_requests or 0 for step in found.steps) / found.num_steps


def worst_gap(found: Simulation) -> float:
    return max(pooled_itl_s(each.times for each in found.requests))


def mean_ttft(found: Simulation) -> float:
    told = spread(each.times.ttft_s for each in found.requests)
    assert told is not None
    return told.mean


def outputs(found: Simulation) -> list[int | None]:
    return [each.times.output_len for each in found.requests]


def test_without_a_paged_cache_fewer_requests_fit() -> None:
    paged, whole = run(RULES), run(EarlierRules(base=RULES, is_paged=False))
    assert most_rows(whole) == 8 == (RULES.num_blocks - 1) // (RULES.max_model_len // RULES.block_size)
    assert most_rows(paged) > 2 * most_rows(whole)
    assert mean_ttft(whole) > mean_ttft(paged)
    assert whole.end_s > paged.end_s
    assert sum(each.num_preemptions for each in whole.requests) == 0  # a room once given lasts
    assert outputs(whole) == outputs(paged)


def test_without_prefix_caching_every_prompt_token_is_computed() -> None:
    rng = Random(5)
    arrivals = poisson_arrivals(rng, rate_per_s=20.0, count=40)
    asked = single_requests(
        rng,
        arrivals,
        question=Lengths(median=40),
        answer=Lengths(median=8),
        prefixes=PrefixTree(levels=((2, 128), (2, 128))),
    ).requests
    cached, uncached = run(RULES, asked), run(replace(RULES, enable_prefix_caching=False), asked)
    saved = sum(each.prefix_hit_tokens for each in cached.requests)
    assert saved > 0
    assert uncached.num_scheduled_tokens == cached.num_scheduled_tokens + saved
    assert all(each.prefix_hit_tokens == 0 for each in uncached.requests)
    assert mean_ttft(uncached) > mean_ttft(cached)
    assert outputs(cached) == outputs(uncached)


def test_without_continuous_batching_steps_hold_fewer_rows_and_requests_wait_for_a_batch() -> None:
    found, batches = run(RULES), run(EarlierRules(base=RULES, is_continuous=False))
    assert mean_rows(batches) < mean_rows(found)
    assert batches.num_steps > found.num_steps
    assert batches.num_scheduled_tokens == found.num_scheduled_tokens  # the same work, in more steps
    assert mean_ttft(batches) > mean_ttft(found)
    assert outputs(batches) == outputs(found)


def test_a_batch_ends_before_the_next_begins() -> None:
    whole = replace(RULES, max_num_seqs=8, max_num_batched_tokens=16_384)  # all prompts of a batch in one step
    found = run(EarlierRules(base=whole, is_continuous=False))
    spans: dict[str, list[int]] = {}
    for place, step in enumerate(found.steps):
        for row in step.shape.rows or ():
            spans.setdefault(row.request_id or "", []).append(place)
    begins = sorted({places[0] for places in spans.values()})
    for begin in begins:
        members = [places for places in spans.values() if places[0] == begin]
        before = [places[-1] for places in spans.values() if places[0] < begin]
        assert len(members) <= 8
        assert all(last < begin for last in before)


LONG = (
    *(Request(request_id=f"short{place}", arrival_s=0.0, prompt_len=20, output_len=100) for place in range(8)),
    Request(request_id="long", arrival_s=0.3, prompt_len=16_000, output_len=4),
)
WIDE = SchedulerRules(max_num_batched_tokens=512, max_num_seqs=16, max_model_len=16_384, num_blocks=3000)


def test_without_chunked_prefill_a_long_prompt_stops_decoding() -> None:
    chunked = run(WIDE, LONG)
    whole = run(replace(WIDE, enable_chunked_prefill=False, max_num_batched_tokens=16_384), LONG)
    assert worst_gap(chunked) < 0.016
    assert worst_gap(whole) > 0.16  # the whole prompt in one step
    assert whole.num_scheduled_tokens == chunked.num_scheduled_tokens
    long = [found.requests[-1].times.ttft_s or 0 for found in (chunked, whole)]
    assert long[1] < long[0]  # the long prompt itself is the sooner done
    assert outputs(whole) == outputs(chunked)


def test_without_chunks_a_prompt_waits_for_a_budget_that_holds_it() -> None:
    rules = replace(WIDE, enable_chunked_prefill=False, max_num_batched_tokens=16_384)
    asked = tuple(Request(request_id=name, arrival_s=0.0, prompt_len=10_000, output_len=1) for name in "ab")
    found = run(rules, asked)
    assert [[row.query_len for row in step.shape.rows or ()] for step in found.steps] == [[10_000], [10_000]]
    with pytest.raises(BadInput, match="without chunked prefill a prompt runs whole"):
        replace(WIDE, enable_chunked_prefill=False)


def test_async_scheduling_hides_the_host() -> None:
    ahead = replace(RULES, async_scheduling=True)
    alone = (Request(request_id="a", arrival_s=0.0, prompt_len=100, output_len=200),)
    found = {
        (name, host): run(rules, alone, host_s=host).end_s
        for name, rules in (("sync", RULES), ("async", ahead))
        for host in (0.0, 0.004)
    }
    assert found["sync", 0.004] - found["sync", 0.0] == pytest.approx(200 * 0.004)
    assert found["async", 0.004] - found["async", 0.0] == pytest.approx(0.004)  # only before the first step
    assert run(ahead, alone).num_scheduled_tokens == run(RULES, alone).num_scheduled_tokens


def test_rooms_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="each request holds 128 blocks"):
        EarlierRules(base=replace(RULES, num_blocks=100), is_paged=False)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.booleans(), st.booleans())
def test_any_switch_puts_out_the_same_tokens(seed: int, is_async: bool, is_paged: bool, is_continuous: bool) -> None:
    drawn = random_load(seed, is_async=is_async, is_small=True)
    longest = max(each.last_len for each in drawn.requests) + 1
    room = -(-longest // drawn.rules.block_size)
    base = replace(
        drawn.rules,
        max_model_len=longest,
        num_blocks=max(drawn.rules.num_blocks, room + 1),
        long_prefill_token_threshold=min(drawn.rules.long_prefill_token_threshold, longest),
    )
    asked = tuple(replace(each, arrival_s=each.arrival_s * 0.01) for each in drawn.requests)
    rules = EarlierRules(base=base, is_paged=is_paged, is_continuous=is_continuous)
    found, exact = run(rules, asked), simulate(asked, rules, step_s, replace(ALL, is_exact=True))
    assert found == exact
    assert outputs(found) == outputs(run(base, asked)) == [each.output_len for each in asked]
    if is_paged and is_continuous:
        assert found == run(base, asked)
    if not is_paged:
        assert sum(each.num_preemptions for each in found.requests) == 0
        assert most_rows(found) <= (base.num_blocks - 1) // room
