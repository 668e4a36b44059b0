"""Stretch: decode steps with the same rows, advanced without scheduling each row.

B rows decode one token a step until one of them would end, a request arrives, or the blocks run out. A step then needs
no decision: its sums follow from the last step's (Σk grows by B), and only the rows at a block boundary touch the
cache, B / block_size of them a step. Blocks are handed out and made findable in the same order as by the scheduler, so
everything after the stretch is the same too. Of synchronous scheduling only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.batch import NO_ROWS, BatchShape, PhaseSums

if TYPE_CHECKING:
    from stepscope.simulate.scheduler import LiveRequest, Scheduler

SHORTEST = 4  # steps below which looking costs more than it saves


@dataclass(slots=True, eq=False, kw_only=True)
class Stretch:
    """At most `num_steps` decode steps of all running requests; `by_residue` holds rows by context_len % block_size."""

    scheduler: Scheduler
    num_steps: int
    kv_sum: int
    by_residue: list[list[LiveRequest]]
    num_done: int = 0

    @property
    def has_next(self) -> bool:
        """Whether one more step is sure to have the same rows."""
        if self.num_done == self.num_steps:
            return False
        return len(self._starting_a_block()) <= self.scheduler.cache.num_free

    def advance(self) -> BatchShape:
        """One more step; its shape."""
        cache = self.scheduler.cache
        for live in self._starting_a_block():
            cache.take(live.table, 1)
        self.num_done += 1
        if self.scheduler.rules.enable_prefix_caching:
            for live in self._starting_a_block():  # by now: those that fill one
                self.scheduler.enter_full_blocks(live, live.num_known + self.num_done - 1)
        count = len(self.scheduler.running)
        self.kv_sum += count
        decode = PhaseSums(
            num_requests=count,
            query_sum=count,
            kv_sum=self.kv_sum,
            query_sq_sum=count,
            query_kv_sum=self.kv_sum,
        )
        return BatchShape(prefill=NO_ROWS, decode=decode, num_scheduled_tokens=count, num_requests=count)

    def close(self) -> None:
        """Give the rows their lengths after the last step."""
        for live in self.scheduler.running:
            live.num_known += self.num_done
            live.num_computed += self.num_done

    def _starting_a_block(self) -> list[LiveRequest]:
        return self.by_residue[-self.num_done % len(self.by_residue)]


def find_stretch(scheduler: Scheduler) -> Stretch | None:
    """The stretch that begins here; None where the next steps need scheduling.

    A waiting request must have no seat to hope for: else blocks that fill up on the way could become its prefix hit.
    """
    rules, running = scheduler.rules, scheduler.running
    if rules.async_scheduling or not running or len(running) > rules.max_num_batched_tokens:
        return None
    if scheduler.waiting and len(running) < rules.max_num_seqs:
        return None
    shortest = rules.max_model_len
    for live in running:
        known = live.num_known
        if known - live.num_computed != 1 or known <= live.request.prompt_len:
            return None
        left = min(live.request.num_tokens, rules.max_model_len) - known
        if left <= SHORTEST:
            return None
        shortest = min(shortest, left)
    by_residue: list[list[LiveRequest]] = [[] for _ in range(rules.block_size)]
    for live in running:
        by_residue[live.num_computed % rules.block_size].append(live)
    return Stretch(
        scheduler=scheduler,
        num_steps=shortest - 1,
        kv_sum=sum(live.num_computed for live in running),
        by_residue=by_residue,
    )
