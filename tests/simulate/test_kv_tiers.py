from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.batch import BatchShape
from stepscope.errors import BadInput
from stepscope.simulate.engine import Options, Simulation, simulate
from stepscope.simulate.kv_sources import Sources, sources_of, sum_sources, why_no_external_benefit, why_no_reuse
from stepscope.simulate.kv_tiers import Tier, TieredRules, prefill_s
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scheduler import SchedulerRules
from tests.simulate.random_load import drafting_load, random_load

RULES = SchedulerRules(max_num_batched_tokens=512, max_num_seqs=4, max_model_len=512, num_blocks=21)
HOST = Tier(name="host", num_blocks=100, bytes_per_s=1e9)
REMOTE = Tier(name="remote", num_blocks=1000, bytes_per_s=1e8)
ALL = Options(steps="rows", with_gaps=True)
BLOCK_BYTES = 1e6  # 1 ms from the host, 10 ms from the remote tier


def step_s(shape: BatchShape) -> float:
    """A millisecond a token, so a block of 16 takes 16 ms to compute."""
    return 0.01 + 1e-3 * (shape.num_scheduled_tokens or 0)


def tiered(*tiers: Tier, rules: SchedulerRules = RULES, **changed: Any) -> TieredRules:
    return TieredRules(base=rules, tiers=tiers, block_bytes=BLOCK_BYTES, recompute_s=prefill_s(step_s), **changed)


def request(name: str, prompt: int, output: int, *, at: float = 0.0, source: int) -> Request:
    text = (Segment(source=source, length=prompt + output),)
    return Request(request_id=name, arrival_s=at, prompt_len=prompt, output_len=output, text=text)


# a's 16 blocks are pushed out of the device's 20 by b, and a comes again
THRASH = (
    request("a", 257, 2, source=1),
    request("b", 257, 2, at=1.0, source=2),
    request("a2", 257, 2, at=2.0, source=1),
)


def sources(found: Simulation) -> dict[str, Sources]:
    return {each.request_id: sources_of(each) for each in found.requests}


def test_what_the_device_lost_is_loaded_from_the_host() -> None:
    without = simulate(THRASH, tiered(), step_s, ALL)
    found = simulate(THRASH, tiered(HOST), step_s, ALL)
    assert sources(without)["a2"].loaded == {}
    again = sources(found)["a2"]
    assert again.loaded == {"host": 16 * 16 - again.local}
    assert again.computed == 1
    ttft = [run.requests[2].times.ttft_s or 0 for run in (without, found)]
    assert ttft[1] < ttft[0] / 5


@pytest.mark.parametrize("write_on", ["fill", "eviction"])
def test_both_ways_of_writing_keep_what_is_dropped(write_on: Any) -> None:
    found = simulate(THRASH, tiered(replace(HOST, write_on=write_on)), step_s, ALL)
    assert sources(found)["a2"].external > 0


def test_a_full_tier_drops_the_least_recently_used_to_the_next_one() -> None:
    asked = (*THRASH[:2], request("c", 257, 2, at=2.0, source=3), replace(THRASH[2], arrival_s=3.0))
    small = replace(HOST, num_blocks=16)
    assert sources(simulate(asked, tiered(small), step_s, ALL))["a2"].external == 0
    chain = tiered(small, replace(REMOTE, write_on="eviction"), rule="always")
    found = sources(simulate(asked, chain, step_s, ALL))["a2"]
    assert found.loaded["remote"] == 256


def test_what_was_used_last_stays_in_a_full_tier() -> None:
    asked = (
        *THRASH,
        request("c", 257, 2, at=3.0, source=3),
        request("a3", 257, 2, at=4.0, source=1),
        request("b2", 257, 2, at=5.0, source=2),
    )
    found = sources(simulate(asked, tiered(replace(HOST, num_blocks=32), rule="always"), step_s, ALL))
    assert found["a3"].reused == 256  # a was used again after b: c pushed out b
    assert found["b2"].reused == 0


def test_nearer_tiers_go_first() -> None:
    found = sources(simulate(THRASH, tiered(HOST, REMOTE, rule="always"), step_s, ALL))["a2"]
    assert set(found.loaded) == {"host"}


def test_load_or_compute_whichever_is_faster() -> None:
    slow = replace(REMOTE, bytes_per_s=1e7)  # 100 ms a block
    fast, always = (simulate(THRASH, tiered(slow, rule=rule), step_s, ALL) for rule in ("faster", "always"))
    assert sources(fast)["a2"].external == 0
    assert sources(always)["a2"].external > 0
    assert (always.requests[2].times.ttft_s or 0) > (fast.requests[2].times.ttft_s or 0)


def test_a_request_that_waits_for_kv_lets_others_pass() -> None:
    slow = tiered(replace(HOST, bytes_per_s=1e7), rule="always")
    asked = (*THRASH, request("d", 16, 3, at=2.001, source=4))
    found = {each.request_id: each.times for each in simulate(asked, slow, step_s, ALL).requests}
    assert (found["d"].last_token_s or 0) < (found["a2"].first_token_s or 0)
    assert (found["a2"].ttft_s or 0) == pytest.approx(1.5 + 0.011, abs=0.2)


def test_loads_of_one_tier_queue() -> None:
    wide = replace(HOST, num_blocks=1000, bytes_per_s=1e8, latency_s=0.002)
    host = tiered(wide, rules=replace(RULES, num_blocks=200), rule="always")
    asked = (
        *(request(name, 161, 1, source=place) for place, name in enumerate("ab")),
        *(request(f"big{place}", 500, 1, at=2.0 + place, source=10 + place) for place in range(7)),
        *(request(f"{name}2", 161, 1, at=20.0, source=place) for place, name in enumerate("ab")),
    )
    found = {each.request_id: each for each in simulate(asked, host, step_s, ALL).requests}
    assert [dict(found[name].loaded_tokens) for name in ("a2", "b2")] == [{"host": 160}] * 2
    # 10 blocks of 10 ms each, then a step of one token
    assert found["a2"].times.ttft_s == pytest.approx(0.102 + 0.011, abs=1e-9)
    assert found["b2"].times.ttft_s == pytest.approx(0.202 + 0.011, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_without_tiers_the_same_simulation(seed: int, is_async: bool, with_drafts: bool) -> None:
    make = drafting_load if with_drafts else random_load
    load = make(seed, is_async=is_async, is_small=True)
    asked = [replace(each, arrival_s=each.arrival_s * 0.01) for each in load.requests]
    assert simulate(asked, tiered(rules=load.rules), step_s, ALL) == simulate(asked, load.rules, step_s, ALL)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from(["fill", "eviction"]),
    st.sampled_from([0, 3, 40, 10_000]),
    st.sampled_from(["always", "faster"]),
)
def test_tokens_of_all_sources_are_the_prompt(seed: int, is_async: bool, write_on: Any, size: int, rule: Any) -> None:
    load = random_load(seed, is_async=is_async, is_small=True)
    asked = [replace(each, arrival_s=each.arrival_s * 0.01) for each in load.requests]
    rules = tiered(replace(HOST, num_blocks=size, write_on=write_on), REMOTE, rules=load.rules, rule=rule)
    found = simulate(asked, rules, step_s, ALL)
    for told, each in zip(asked, found.requests, strict=True):
        part = sources_of(each)
        assert part.local + part.external + part.computed == told.prompt_len
        assert part.computed >= 1  # the last token's output is wanted
        assert each.times.output_len == min(told.output_len, load.rules.max_model_len - told.prompt_len)
    scheduled = sum(part.computed for part in map(sources_of, found.requests))
    assert found.num_scheduled_tokens >= scheduled


def test_counts_add_up_and_are_refused_where_they_cannot() -> None:
    one = Sources(prompt_len=100, local=16, loaded={"host": 32}, resumed=5)
    two = Sources(prompt_len=50, loaded={"host": 16, "remote": 16})
    both = sum_sources([one, two])
    assert (both.loaded, both.external, both.computed, both.resumed) == ({"host": 48, "remote": 16}, 64, 70, 5)
    assert why_no_external_benefit(both) is None
    assert why_no_reuse(both) is None
    assert why_no_reuse(Sources(prompt_len=10)) is None
    assert "next to nothing was loaded" in (why_no_external_benefit(Sources(prompt_len=100)) or "")
    with pytest.raises(BadInput, match="no more are found"):
        Sources(prompt_len=10, local=11)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tier(name="host", num_blocks=-1, bytes_per_s=1.0), "KV tier 'host'"),
        (lambda: Tier(name="host", num_blocks=1, bytes_per_s=0.0), "above 0"),
        (lambda: Tier(name="host", num_blocks=1, bytes_per_s=1.0, latency_s=-1.0), "latency_s of KV tier 'host'"),
        (lambda: tiered(HOST, HOST), "a name of its own"),
        (lambda: TieredRules(base=RULES, tiers=(HOST,), block_bytes=0.0, rule="always"), "block_bytes is 0.0"),
        (lambda: TieredRules(base=RULES, tiers=(HOST,), block_bytes=1.0), "give recompute_s"),
    ],
)
def test_tiers_that_cannot_be_are_refused(make: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()
