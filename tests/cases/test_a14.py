"""A14, vllm-project/vllm#25780: a hit rate of 32.2% on random prompts is preempted requests that come back."""

from __future__ import annotations

from stepscope.batch import BatchShape
from stepscope.simulate.engine import Simulation, simulate
from stepscope.simulate.kv_sources import Sources, sources_of, sum_sources, why_no_reuse
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules

# Random prompts of 1024 tokens and as many outputs, as in the case, scaled to a tenth of the requests and of the cache
ASKED = tuple(Request(request_id=f"r{place}", arrival_s=0.0, prompt_len=1024, output_len=1024) for place in range(100))
SHORT = SchedulerRules(max_num_batched_tokens=8192, max_num_seqs=64, max_model_len=4096, num_blocks=2500)
AMPLE = SchedulerRules(max_num_batched_tokens=8192, max_num_seqs=64, max_model_len=4096, num_blocks=9000)


def step_s(shape: BatchShape) -> float:
    return 0.01 + 1e-5 * (shape.num_scheduled_tokens or 0)


def total(found: Simulation) -> Sources:
    return sum_sources(sources_of(each) for each in found.requests)


def test_hits_of_random_prompts_come_after_preemptions_and_are_no_reuse() -> None:
    found = simulate(ASKED, SHORT, step_s)
    assert sum(each.num_preemptions for each in found.requests) > 10
    counts = total(found)
    assert counts.resumed > 0.1 * counts.prompt_len  # what a log that counts all lookups shows as a hit rate
    assert (counts.reused, counts.computed) == (0, counts.prompt_len)
    assert "not reuse, and no time to first token is gained" in (why_no_reuse(counts) or "")


def test_with_room_for_all_the_hits_are_gone() -> None:
    counts = total(simulate(ASKED, AMPLE, step_s))
    assert (counts.resumed, counts.reused) == (0, 0)
    assert why_no_reuse(counts) is None
