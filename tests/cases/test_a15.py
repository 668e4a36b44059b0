"""A15, LMCache/LMCache#1109: an external cache measured on a warm local one; 3 of 15,444 tokens had to be loaded."""

from __future__ import annotations

from dataclasses import replace

from stepscope.batch import BatchShape
from stepscope.simulate.engine import SimulatedRequest, simulate
from stepscope.simulate.kv_sources import Sources, sources_of, why_no_external_benefit
from stepscope.simulate.kv_tiers import Tier, TieredRules, prefill_s
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scheduler import SchedulerRules

PROMPT = 15_444
RULES = SchedulerRules(max_num_batched_tokens=8192, max_num_seqs=8, max_model_len=32_768, num_blocks=4000)


def step_s(shape: BatchShape) -> float:
    return 0.01 + 1e-4 * (shape.num_scheduled_tokens or 0)


def ask(name: str, source: int, at: float) -> Request:
    text = (Segment(source=source, length=PROMPT + 8),)
    return Request(request_id=name, arrival_s=at, prompt_len=PROMPT, output_len=8, text=text)


def second_run(num_blocks: int) -> SimulatedRequest:
    """The same prompt once more after another one, with a device cache of so many blocks and a host tier."""
    rules = TieredRules(
        base=replace(RULES, num_blocks=num_blocks),
        tiers=(Tier(name="host", num_blocks=100_000, bytes_per_s=20e9, latency_s=1e-3),),
        block_bytes=1e6,
        recompute_s=prefill_s(step_s),
    )
    asked = [ask("first", 1, 0.0), ask("other", 2, 10.0), ask("second", 1, 20.0)]
    return simulate(asked, rules, step_s).requests[2]


def test_the_told_counts_show_nothing_of_the_external_cache() -> None:
    told = Sources(prompt_len=PROMPT, local=15_441, loaded={"external": 3})
    assert (told.external, told.computed) == (3, 0)
    assert (why_no_external_benefit(told) or "").startswith(
        "local 15,441, external 3, computed 0 of 15,444 prompt tokens: this test cannot show external-cache benefit"
    )


def test_a_warm_local_cache_leaves_nothing_to_load() -> None:
    counts = sources_of(second_run(num_blocks=4000))
    assert (counts.local, counts.external, counts.computed) == (15_440, 0, 4)
    assert "the device's own cache had nearly all" in (why_no_external_benefit(counts) or "")


def test_a_local_cache_too_small_for_both_shows_it() -> None:
    warm, cold = second_run(num_blocks=4000), second_run(num_blocks=1000)
    counts = sources_of(cold)
    assert counts.external > 0.9 * PROMPT
    assert why_no_external_benefit(counts) is None
    assert (warm.times.ttft_s or 0) < (cold.times.ttft_s or 0) < step_s(BatchShape(num_scheduled_tokens=PROMPT))
