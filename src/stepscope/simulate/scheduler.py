"""SchedulerRules: vLLM's options that decide what a step holds, under their own names; `vllm_scheduler` keeps them.

They follow vLLM 0.32's V1 scheduler. What no engine would start with, and a request that could never run, is refused
with the number that is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.simulate.speculation import NO_DRAFTS
from stepscope.simulate.vllm_scheduler import Scheduler

if TYPE_CHECKING:
    from stepscope.simulate.request import Request
    from stepscope.simulate.speculation import Drafts

__all__ = ["Scheduler", "SchedulerRules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """Names are vLLM's options; `num_blocks` is its num_gpu_blocks, of which one is never used.

    `num_speculative_tokens` drafts per decode row, 0 for none; `drafts` tells by whom, and what is accepted.

    Raises:
        BadInput: no engine would start with these.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    pipeline_parallel_size: int = 1
    enable_chunked_prefill: bool = True
    num_speculative_tokens: int = 0
    drafts: Drafts = NO_DRAFTS

    def __post_init__(self) -> None:
        for name, least in (
            ("max_num_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("max_model_len", 2),
            ("num_blocks", 2),
            ("block_size", 1),
            ("long_prefill_token_threshold", 0),
            ("pipeline_parallel_size", 1),
            ("num_speculative_tokens", 0),
        ):
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}: give {least} or more.")
        if not 0 <= self.watermark < 1:
            raise BadInput(f"watermark is {self.watermark}: it is a fraction of the blocks, 0 or more and below 1.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise BadInput(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}: "
                "a step could not give each request one token, and the engine refuses it. Raise one or lower the other."
            )
        if self.long_prefill_token_threshold > self.max_model_len:
            raise BadInput(
                f"long_prefill_token_threshold {self.long_prefill_token_threshold} is above max_model_len "
                f"{self.max_model_len}: no chunk can be as long. Give at most that, or 0 for no cap."
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise BadInput(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_model_len {self.max_model_len}: "
                "without chunked prefill a prompt runs whole, and the engine refuses it. Raise it, or allow chunks."
            )
        if self.num_speculative_tokens and self.pipeline_parallel_size > 1:
            raise BadInput(
                f"num_speculative_tokens {self.num_speculative_tokens} with pipeline_parallel_size "
                f"{self.pipeline_parallel_size}: drafts in a pipeline are not simulated. Set one of them aside."
            )
        if self.num_speculative_tokens:
            self.drafts.check(
                self.num_speculative_tokens,
                max_num_batched_tokens=self.max_num_batched_tokens,
                long_prefill_token_threshold=self.long_prefill_token_threshold,
            )

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots that each row holds beyond its tokens, for the drafter."""
        return self.drafts.num_lookahead_tokens(self.num_speculative_tokens)

    @property
    def num_budget_slots(self) -> int:
        """Tokens of the budget that each row costs beyond its own, for the drafter."""
        return self.drafts.num_budget_slots(self.num_speculative_tokens) if self.num_speculative_tokens else 0

    def num_blocks_needed(self, request: Request) -> int:
        """Blocks that a request holds at most: all its tokens but the last, and the drafts that come with that one."""
        tokens = min(request.num_tokens, self.max_model_len) - 1
        drafted = self.num_speculative_tokens + self.num_lookahead_tokens
        return -(-min(tokens + drafted, self.max_model_len) // self.block_size)

    def check_request(self, request: Request) -> None:
        """Raise BadInput for a request that would wait for ever."""
        if request.prompt_len >= self.max_model_len:
            raise BadInput(
                f"request {request.request_id!r} has a prompt of {request.prompt_len} tokens; with max_model_len "
                f"{self.max_model_len} the longest is {self.max_model_len - 1}."
            )
        needed = self.num_blocks_needed(request)
        if needed > self.num_blocks - 1:
            raise BadInput(
                f"request {request.request_id!r} needs {needed} blocks of {self.block_size} tokens and the cache has "
                f"{self.num_blocks - 1}: it can never run. Give num_blocks {needed + 1} or more, or shorten it."
            )

    def build(self) -> Scheduler:
        """A new scheduler that follows these rules."""
        return Scheduler(self)
