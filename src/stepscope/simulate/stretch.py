"""Stretch: decode steps with the same rows, advanced without scheduling each row.

B rows decode one token a step until one of them would end, a request arrives, or the blocks run out. A step then needs
no decision: its sums follow from the last step's (Σk grows by B), and only the rows at a block boundary touch the
cache, B / block_size of them a step. Blocks are handed out and made findable in the same order as by the scheduler, so
everything after the stretch is the same too. In async scheduling a step of these rows is in flight throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.batch import NO_ROWS, BatchShape, PhaseSums
from stepscope.simulate.policy import StepPlan

if TYPE_CHECKING:
    from stepscope.simulate.policy import LiveRequest
    from stepscope.simulate.vllm_scheduler import Scheduler

SHORTEST = 4  # steps below which looking costs more than it saves


@dataclass(slots=True, eq=False, kw_only=True)
class Stretch:
    """At most `num_steps` decode steps of all running requests; `by_residue` holds rows by num_computed % block_size.

    `num_unknown` is how many known tokens are not computed when a step is scheduled: 1, or 0 in async scheduling, where
    the one to be computed is on its way.
    """

    scheduler: Scheduler
    num_steps: int
    num_unknown: int
    kv_sum: int
    by_residue: list[list[LiveRequest]]
    num_done: int = 0

    @property
    def has_next(self) -> bool:
        """Whether one more step is sure to have the same rows."""
        if self.num_done == self.num_steps:
            return False
        return len(self._at_boundary(self.num_done)) <= self.scheduler.cache.num_free

    def advance(self) -> BatchShape:
        """One more step; its shape."""
        scheduler, done = self.scheduler, self.num_done
        for live in self._at_boundary(done):
            scheduler.cache.take(live.table, 1)
        if scheduler.rules.enable_prefix_caching:
            for live in self._at_boundary(done + self.num_unknown):
                scheduler.enter_full_blocks(live, live.num_known + done)
        self.num_done += 1
        count = len(scheduler.running)
        self.kv_sum += count
        decode = PhaseSums(
            num_requests=count,
            query_sum=count,
            kv_sum=self.kv_sum,
            query_sq_sum=count,
            query_kv_sum=self.kv_sum,
        )
        return BatchShape(prefill=NO_ROWS, decode=decode, num_scheduled_tokens=count, num_requests=count)

    def close(self) -> StepPlan:
        """Give the rows their lengths after the last step; that step."""
        plan = StepPlan()
        for live in self.scheduler.running:
            live.num_known += self.num_done
            live.num_computed += self.num_done
            plan.rows.append((live, 1, live.num_computed - 1, True, live.num_preemptions))
        return plan

    def _at_boundary(self, steps: int) -> list[LiveRequest]:
        """Rows whose num_computed, `steps` steps on, is whole blocks."""
        return self.by_residue[-steps % len(self.by_residue)]


def find_stretch(scheduler: Scheduler, in_flight: StepPlan | None) -> Stretch | None:
    """The stretch that begins here; None where the next steps need scheduling.

    A waiting request must have no seat to hope for: else blocks that fill up on the way could become its prefix hit.
    """
    rules, running = scheduler.rules, scheduler.running
    if not running or len(running) > rules.max_num_batched_tokens or not scheduler.can_stretch:
        return None
    if scheduler.waiting and len(running) < rules.max_num_seqs:
        return None
    if in_flight is not None and len(in_flight.rows) != len(running):
        return None
    num_unknown = 0 if in_flight is not None else 1
    shortest = rules.max_model_len
    for live in running:
        known = live.num_known
        if known - live.num_computed != num_unknown or live.placeholders != 1 - num_unknown:
            return None
        left = min(live.request.num_tokens, rules.max_model_len) - known
        if left <= SHORTEST or known <= live.prefill_end:
            return None
        shortest = min(shortest, left)
    by_residue: list[list[LiveRequest]] = [[] for _ in range(rules.block_size)]
    for live in running:
        by_residue[live.num_computed % rules.block_size].append(live)
    return Stretch(
        scheduler=scheduler,
        num_steps=shortest - 1,
        num_unknown=num_unknown,
        kv_sum=sum(live.num_computed for live in running),
        by_residue=by_residue,
    )
