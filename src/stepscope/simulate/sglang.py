"""SglangRules: SGLang's server arguments that decide what a step holds, under the names of the command line.

They follow SGLang 0.5.23 (released 2026-10-30). A data-parallel engine is simulated one rank at a time: with `dp_size`
the arguments stay those of the command line and the rank's share of them is what `chunk_len`, `num_seats` and
`first_ratio` give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.errors import BadInput
from stepscope.simulate.sglang_scheduler import SglangScheduler

if TYPE_CHECKING:
    from stepscope.simulate.request import Request

__all__ = ["SglangRules", "SglangScheduler"]

INIT_RATIO, LEAST_RATIO_FACTOR, DECAY_STEPS = 0.7, 0.14, 600  # environ.py, SGLANG_*NEW_TOKEN_RATIO*
DP_CONSERVATIVENESS = 0.3  # arg_groups/parallel_hook.py
PROMPT_MARGIN = 5  # tp_worker.py: max_req_input_len = max_req_len - 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangRules:
    """Names are SGLang's server arguments, but for the last two.

    Attributes:
        max_total_tokens: KV slots of one rank, as the engine logs them (max_total_num_tokens).
        max_running_requests: over all ranks, as on the command line.
        context_length: the longest sequence, in tokens.
        chunked_prefill_size: tokens of a prefill step, over all ranks; -1: no chunks.
        max_prefill_tokens: no further prompt is admitted to a step once this many tokens are in it.
        prefill_decode_interval: decode steps after every prefill step, as far as there is something to decode.
        dp_size: ranks of DP attention.
        max_consecutive_prefill_batches: a decode step after as many prefill steps; proposed, not in 0.5.23; 0: never.
        ignore_eos: whether clients send it, as SGLang's own benchmark does; then all of max_new_tokens is reserved.
        holds_whole_prompts: up to 0.5.12, a prompt that max_prefill_tokens has no room for waits, chunks or not.

    Raises:
        BadInput: no engine would start with these.
    """

    max_total_tokens: int
    max_running_requests: int
    context_length: int
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False
    page_size: int = 1
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    schedule_conservativeness: float = 1.0
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    prefill_max_requests: int | None = None
    prefill_decode_interval: int = 0
    prefill_decode_interval_min_bs: int = 0
    dp_size: int = 1
    max_consecutive_prefill_batches: int = 0
    ignore_eos: bool = False
    holds_whole_prompts: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("max_total_tokens", 2),
            ("max_running_requests", 1),
            ("context_length", 8),
            ("chunked_prefill_size", -1),
            ("max_prefill_tokens", 1),
            ("page_size", 1),
            ("prefill_decode_interval", 0),
            ("prefill_decode_interval_min_bs", 0),
            ("dp_size", 1),
            ("max_consecutive_prefill_batches", 0),
        ):
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}: give {least} or more.")
        if self.prefill_max_requests is not None and self.prefill_max_requests < 1:
            raise BadInput(f"prefill_max_requests is {self.prefill_max_requests}: give 1 or more, or none.")
        if self.schedule_policy not in ("fcfs", "lpm"):
            raise BadInput(f"schedule_policy {self.schedule_policy!r} is not simulated: give fcfs or lpm.")
        if not self.schedule_conservativeness >= 0:
            raise BadInput(f"schedule_conservativeness is {self.schedule_conservativeness}: give 0 or more.")
        if self.max_total_tokens < 2 * self.page_size:
            raise BadInput(
                f"max_total_tokens {self.max_total_tokens} is below two pages of {self.page_size}: nothing can run."
            )
        chunk = self.chunk_len
        if chunk is not None and chunk < self.page_size:
            raise BadInput(
                f"chunked_prefill_size {self.chunked_prefill_size} over {self.dp_size} ranks is {chunk}, below the "
                f"page_size {self.page_size}: a prompt longer than that would never be scheduled. Raise it."
            )

    @property
    def async_scheduling(self) -> bool:
        """Whether the next step is scheduled while one is in flight (the overlap scheduler)."""
        return not self.disable_overlap_schedule

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return self.context_length

    @property
    def chunk_len(self) -> int | None:
        """Tokens that one rank computes in a prefill step; None: as many as admitted."""
        return self.chunked_prefill_size // self.dp_size if self.chunked_prefill_size > 0 else None

    @property
    def num_seats(self) -> int:
        """Requests that one rank runs at most."""
        return min(max(self.max_running_requests // self.dp_size, 1), self.max_total_tokens // 2)

    @property
    def first_ratio(self) -> float:
        """Share of max_new_tokens that is reserved for a running request at first."""
        factor = DP_CONSERVATIVENESS if self.dp_size > 1 else 1.0
        return min(INIT_RATIO * (self.schedule_conservativeness * factor), 1.0)

    @property
    def least_ratio(self) -> float:
        """What it falls to while no request is retracted."""
        return min(self.first_ratio * LEAST_RATIO_FACTOR, 1.0)

    @property
    def ratio_decay(self) -> float:
        """By how much it falls with each decode step."""
        return (self.first_ratio - self.least_ratio) / DECAY_STEPS

    def max_new(self, request: Request) -> int:
        """Outputs that the engine lets a request have; 0 still gives one."""
        longest = min(self.context_length, self.max_total_tokens) - 1
        asked = min(request.max_tokens or request.output_len, longest - request.prompt_len - 1)
        pages = -(-request.prompt_len // self.page_size) * self.page_size
        return max(0, min(asked, self.max_total_tokens - pages - self.page_size - 1))

    def check_request(self, request: Request) -> None:
        """Raise BadInput for a request that the engine refuses or that would wait for ever."""
        longest = min(self.context_length, self.max_total_tokens) - 1 - PROMPT_MARGIN
        if request.prompt_len >= longest:
            raise BadInput(
                f"request {request.request_id!r} has a prompt of {request.prompt_len} tokens; with context_length "
                f"{self.context_length} and max_total_tokens {self.max_total_tokens} the longest is {longest - 1}."
            )
        needed = request.prompt_len + self.max_new(request) + self.page_size
        if self.ignore_eos and self.disable_radix_cache:
            needed += 1 + -request.prompt_len % self.page_size
        usable = self.max_total_tokens // self.page_size * self.page_size
        if needed >= usable:
            raise BadInput(
                f"request {request.request_id!r} needs {needed} KV slots and a page of {self.page_size}, and there are "
                f"{usable}: it would wait for ever. Raise max_total_tokens or shorten it."
            )

    def build(self) -> SglangScheduler:
        """A new scheduler that follows these rules."""
        return SglangScheduler(self)
