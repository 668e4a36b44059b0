"""Rules of a scenario: an engine's options -> vLLM's or SGLang's scheduling rules, and who drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.sglang import SglangRules
from stepscope.simulate.speculation import NO_DRAFTS, Acceptance, Drafts

if TYPE_CHECKING:
    from stepscope.simulate.policy import Rules
    from stepscope.simulate.scenario import EngineOptions
    from stepscope.simulate.step_costs import Served

POLICIES = ("vllm", "sglang")


def build_rules(engine: EngineOptions, served: Served | None, num_blocks: int, max_model_len: int) -> Rules:
    """The scheduler's rules.

    SGLang: the budget is its chunked_prefill_size, seats its max_running_requests, blocks of block_size tokens its KV
    slots in pages, overlap its async scheduling.

    Raises:
        BadInput: an unknown policy, or options that no engine would start with.
    """
    if engine.policy not in POLICIES:
        raise BadInput(f"policy {engine.policy}: one of {', '.join(POLICIES)} was expected.")
    if engine.policy == "sglang":
        dp = 1 if served is None else served.deployment.plan.dp
        return SglangRules(
            max_total_tokens=num_blocks * engine.block_size,
            max_running_requests=engine.max_num_seqs * dp,
            context_length=max_model_len,
            chunked_prefill_size=engine.max_num_batched_tokens * dp,
            max_prefill_tokens=max(16384, engine.max_num_batched_tokens),
            page_size=engine.block_size,
            disable_radix_cache=not engine.enable_prefix_caching,
            disable_overlap_schedule=not engine.async_scheduling,
            dp_size=dp,
        )
    return SchedulerRules(
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=engine.block_size,
        enable_prefix_caching=engine.enable_prefix_caching,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        watermark=engine.watermark,
        async_scheduling=engine.async_scheduling,
        num_speculative_tokens=engine.speculative_tokens,
        drafts=find_drafts(engine, served),
    )


def most_tokens(engine: EngineOptions) -> int:
    """Tokens that a step can have: SGLang's decode rows stand beside its budget."""
    budget = engine.max_num_batched_tokens
    return budget + engine.max_num_seqs if engine.policy == "sglang" else budget


def find_drafts(engine: EngineOptions, served: Served | None) -> Drafts:
    """Who drafts and what is accepted: the model's own draft where it has one, else one that costs nothing.

    Raises:
        BadInput: drafts without an acceptance, or as many rates as there are not drafts.
    """
    count, given = engine.speculative_tokens, engine.acceptance
    if count < 0:
        raise BadInput(f"speculative_tokens is {count}: give 0 or more.")
    if not all(0 <= share <= 1 for share in given):
        told = "/".join(f"{share:g}" for share in given)
        raise BadInput(f"acceptance {told}: each is a share of the drafts, 0 to 1.")
    if not count:
        return NO_DRAFTS
    if count >= engine.max_num_batched_tokens:
        raise BadInput(
            f"speculative_tokens is {count}: a step of {engine.max_num_batched_tokens} tokens does not hold one row "
            "with its drafts. Give fewer."
        )
    if len(given) not in {1, count}:
        raise BadInput(
            f"{count} speculative tokens with {len(given)} acceptance rates: give one for each (the engine's "
            "per-position rates), or a single chance for all."
        )
    acceptance = Acceptance(rates=given) if len(given) == count else Acceptance.from_chances(given * count)
    has_own = served is not None and read_model(served.model).draft is not None
    return Drafts(acceptance=acceptance, method="mtp" if has_own else "ngram")
