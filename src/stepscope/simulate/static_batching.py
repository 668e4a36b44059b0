"""Static batching: what engines did before paged caches and continuous batching, to tell what each of the two brings.

Without continuous batching a batch is what waits when the engine is empty, at most max_num_seqs requests; the next is
taken when the last of it has ended. A request that ends earlier gives back its blocks and costs nothing from then on,
which flatters this: engines of that time computed its padding to the end. Without a paged cache a request holds room
for max_model_len tokens from its admission on, and nothing can be shared. All else is vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.simulate.vllm_scheduler import Scheduler

if TYPE_CHECKING:
    from stepscope.simulate.policy import LiveRequest, StepPlan
    from stepscope.simulate.request import Request
    from stepscope.simulate.scheduler import SchedulerRules


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRules:
    """vLLM's rules without what it always has.

    Attributes:
        base: all other rules; its prefix caching counts only with a paged cache.
        is_continuous: admit in any step; else only when the batch before has ended.
        is_paged: blocks as they are needed; else room for max_model_len from admission on.
    """

    base: SchedulerRules
    is_continuous: bool = True
    is_paged: bool = True

    def __post_init__(self) -> None:
        if not self.is_paged and self._blocks_per_request > self.base.num_blocks - 1:
            raise BadInput(
                f"without a paged cache each request holds {self._blocks_per_request} blocks of "
                f"{self.base.block_size} tokens (max_model_len {self.base.max_model_len}) and the cache has "
                f"{self.base.num_blocks - 1}: none fits. Give more blocks or a shorter max_model_len."
            )

    @property
    def _blocks_per_request(self) -> int:
        return -(-self.base.max_model_len // self.base.block_size)

    @property
    def async_scheduling(self) -> bool:
        """Of the base rules."""
        return self.base.async_scheduling

    @property
    def max_model_len(self) -> int:
        """Of the base rules."""
        return self.base.max_model_len

    def check_request(self, request: Request) -> None:
        """Raise BadInput for a request that would wait for ever."""
        self.base.check_request(request)

    def build(self) -> EarlierScheduler:
        """A new scheduler that follows these rules."""
        return EarlierScheduler(self)


class EarlierScheduler(Scheduler):
    """A scheduler with a batch at a time, or with whole rooms for requests, or both."""

    def __init__(self, rules: EarlierRules) -> None:
        paged = rules.base if rules.is_paged else replace(rules.base, enable_prefix_caching=False)
        super().__init__(paged)
        if not rules.is_paged:
            self._num_lookahead = paged.max_model_len  # every row asks for slots up to the end
        self._is_continuous = rules.is_continuous
        self._batch: set[LiveRequest] = set()

    @property
    def has_candidate(self) -> bool:
        """Whether a request could be admitted if it fits."""
        return bool(self.waiting) and (self._is_continuous or self.waiting[0] in self._batch)

    def schedule(self) -> StepPlan:
        """The next step; an empty engine takes the next batch first."""
        if not self._is_continuous and all(live.is_finished for live in self._batch):
            self._batch = set(islice(self.waiting, self.rules.max_num_seqs))
        return super().schedule()
