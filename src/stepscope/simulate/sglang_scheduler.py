"""SglangScheduler: which rows run in the next engine step, by the rules of SGLang's scheduler.

Follows SGLang 0.5.23 (2026-10-30): get_next_batch_to_run and what it calls, with PrefillAdder and the radix cache.
Prefill comes first: as long as something can be admitted, steps hold prompts only (and decode rows in mixed chunks);
else all running requests decode. One request at a time is computed in chunks over several steps. Where slots run out
the requests with the fewest outputs are retracted. With the overlap scheduler a step is planned before the one in
flight is delivered. Plain attention, one rank, no drafts, no LoRA, no priorities, no disaggregation.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stepscope.errors import InvariantBroken
from stepscope.simulate.policy import LiveRequest, StepPlan
from stepscope.simulate.radix_cache import RadixCache
from stepscope.simulate.sglang_memory import SglangMemory, SglangRequest, text_of
from stepscope.simulate.sglang_prefill import PrefillBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.simulate.request import Request
    from stepscope.simulate.sglang import SglangRules

RETRACT_STEPS = 20  # environ.py, SGLANG_RETRACT_DECODE_STEPS: decode steps for which a retraction makes room
SORTED_MOST, REFRESH_EVERY = 128, 32  # schedule_policy.py: a longer queue is not sorted; how often heads are kept warm
SHARED_LEAST = 32  # schedule_policy.py, IN_BATCH_PREFIX_CACHING_*


class SglangScheduler:
    """The requests of one engine. `running` decode; `waiting` begins with the next to be admitted."""

    def __init__(self, rules: SglangRules) -> None:
        self.rules = rules
        self.memory = SglangMemory(
            num_slots=rules.max_total_tokens, page_size=rules.page_size, is_cached=not rules.disable_radix_cache
        )
        self.running: list[SglangRequest] = []
        self.waiting: list[SglangRequest] = []
        self.new_token_ratio = rules.first_ratio
        self._chunked: SglangRequest | None = None
        self._last: list[SglangRequest] = []  # rows of the step before, where it was prefill
        self._held: dict[LiveRequest, SglangRequest] = {}
        self._in_flight: deque[StepPlan] = deque()
        self._is_full = False
        self._num_added = self._num_sorted = self._num_prefills = self._decodes_due = 0
        self._steps_to_idle = 0

    @property
    def has_work(self) -> bool:
        """Requests are in it, or it has not yet looked around and found nothing to do, which resets the ratio."""
        return bool(self._held or self._steps_to_idle)

    @property
    def num_running(self) -> int:
        """Requests that hold slots."""
        return self.memory.num_rows

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a seat."""
        return len(self.waiting)

    @property
    def num_free_blocks(self) -> int:
        """KV slots that neither a request nor the cache holds."""
        return self.memory.num_free

    def add(self, request: Request) -> LiveRequest:
        """Queue a request.

        Raises:
            BadInput: it could never run.
        """
        self.rules.check_request(request)
        live = LiveRequest(request=request, place=self._num_added, num_known=request.prompt_len)
        self._num_added += 1
        asked = SglangRequest(live=live, text=text_of(live), max_new=self.rules.max_new(request))
        self._held[live] = asked
        self.waiting.append(asked)
        return live

    def schedule(self) -> StepPlan:
        """The next step: a prefill step if there can be one, else a decode step.

        Raises:
            BadInput: the slots run out in a way that stops SGLang itself.
        """
        plan = StepPlan()
        chunked = self._chunked
        if chunked is not None and chunked.end > chunked.context_len:
            self.memory.checkpoint(chunked, chunked.end)
            chunked.context_len = chunked.end
        self._merge()
        rows = [] if self._must_decode() else self._prefill(plan)
        if rows:
            self._num_prefills += 1
            self._decodes_due = self.rules.prefill_decode_interval
        else:
            self._decode(plan)
            self._num_prefills = 0 if plan.rows else self._num_prefills
        self._last = rows
        if plan.rows:
            self._in_flight.append(plan)
            self._steps_to_idle = 2 if self.rules.async_scheduling else 1
        elif self._steps_to_idle:
            self._steps_to_idle -= 1
            if not (self._steps_to_idle or self._held):
                self.new_token_ratio = self.rules.first_ratio
        return plan

    def update(self, plan: StepPlan) -> list[LiveRequest]:
        """Deliver a step's tokens; those requests that ended. What a retracted request had in flight is dropped."""
        if self._in_flight and self._in_flight[0] is plan:
            self._in_flight.popleft()
        ended: list[LiveRequest] = []
        delivered = []
        for row in plan.rows:
            live, query, context, is_sampled, num_preemptions = row
            if live.is_finished or live.num_preemptions != num_preemptions:
                continue
            delivered.append(row)
            if not is_sampled:
                continue
            live.num_known += 1
            held = self._held[live]
            if live.output_len >= min(live.request.output_len, max(held.max_new, 1)):
                live.is_finished = True
                self.memory.release(held, keeps=True)
                del self._held[live]
                ended.append(live)
            elif context < live.prefill_end:
                self.memory.checkpoint(held, context + query)
        plan.rows[:] = delivered
        return ended

    def check(self) -> None:
        """The laws that hold between steps: slots (SglangMemory.check), seats, and nobody in two places.

        Raises:
            InvariantBroken: one of them does not hold.
        """
        self.memory.check(self._held.values())
        if self.memory.num_rows > self.rules.num_seats:
            raise InvariantBroken(f"{self.memory.num_rows} requests on {self.rules.num_seats} seats")
        if any(asked.allocated for asked in self.waiting):
            raise InvariantBroken("a waiting request holds slots")

    def _merge(self) -> None:
        """Requests whose prompt is computed join the running ones; those that ended leave."""
        joining = [row for row in self._last if not row.live.is_finished and row is not self._chunked]
        if len(joining) < len(self._last):
            self._is_full = False
        if joining and not self.running:
            self._is_full = False
        staying = [row for row in self.running if not row.live.is_finished]
        if len(staying) < len(self.running):
            self._is_full = False
        self.running = staying + joining

    def _must_decode(self) -> bool:
        """Whether decode steps are due before the next prefill step."""
        if self._decodes_due:
            if len(self.running) >= self.rules.prefill_decode_interval_min_bs:
                self._decodes_due -= 1
                return True
            self._decodes_due = 0
        most = self.rules.max_consecutive_prefill_batches
        return bool(self.running) and 0 < most <= self._num_prefills

    def _prefill(self, plan: StepPlan) -> list[SglangRequest]:
        """Rows of a prefill step, mixed ones among them; none where nothing can be admitted."""
        if not self.running:
            self._is_full = False
        if (self._is_full or not self.waiting) and self._chunked is None:
            return []
        if self._seats_left(0) <= 0 and self._chunked is None:
            self._is_full = True
            return []
        self._sort_waiting()
        budget = PrefillBudget(self.rules, self.memory, self.running, self.new_token_ratio)
        if self._chunked is not None and budget.resume(self._chunked):
            self._chunked = None
        self._admit(budget)
        if not budget.rows:
            return []
        admitted = set(map(id, budget.rows))
        self.waiting = [asked for asked in self.waiting if id(asked) not in admitted]
        if budget.chunked is not None:
            self._chunked = budget.chunked
        self.memory.extend(budget.rows)
        for row in budget.rows:
            self._plan_prefill(row, plan)
        return budget.rows + self._mix(plan)

    def _admit(self, budget: PrefillBudget) -> None:
        """Waiting requests, from the head, until one does not fit."""
        for asked in self.waiting:
            if budget.verdict == "spent":
                return
            held = sum(row.allocated > 0 for row in budget.rows)
            if len(budget.rows) >= self._seats_left(held):
                self._is_full = True
            if self._is_full:
                return
            self.memory.find(asked, asked.live.num_known - 1)
            verdict = budget.admit(asked)
            if verdict == "slots":
                self._is_full = bool(budget.rows or self.running)
            if verdict != "more":
                return

    def _plan_prefill(self, row: SglangRequest, plan: StepPlan) -> None:
        live = row.live
        if not live.is_running:
            live.is_running = True
            live.prefill_end = live.num_known
            live.prefix_hit_tokens = row.context_len
            if live.first_hit_tokens is None:
                live.first_hit_tokens = row.context_len
        live.num_computed = row.end
        query = row.end - row.context_len
        plan.rows.append((live, query, row.context_len, row is not self._chunked, live.num_preemptions))

    def _mix(self, plan: StepPlan) -> list[SglangRequest]:
        """Decode rows that join a prefill step, if all of them fit."""
        if not (self.rules.enable_mixed_chunk and self.rules.chunk_len is not None and self.running):
            return []
        self._drop_ending()
        rows = self.running
        if not rows or not self.memory.fits_decode(rows):
            return []
        self._plan_decode(rows, plan)
        self.running = []
        return rows

    def _decode(self, plan: StepPlan) -> None:
        """Rows of all running requests; where slots run out the shortest are retracted first."""
        count = len(self.running)
        are_ending = self._drop_ending()
        if not self.running:
            self._is_full = self._is_full and not count
            return
        if not self.memory.fits_decode(self.running):
            if are_ending:
                return  # their slots come free with the step in flight
            self._retract(plan)
        else:
            self.new_token_ratio = max(self.new_token_ratio - self.rules.ratio_decay, self.rules.least_ratio)
        if len(self.running) < count:
            self._is_full = False
        self._plan_decode(self.running, plan)

    def _plan_decode(self, rows: Sequence[SglangRequest], plan: StepPlan) -> None:
        self.memory.decode(rows)
        for row in rows:
            live = row.live
            live.num_computed = row.allocated
            plan.rows.append((live, 1, row.allocated - 1, True, live.num_preemptions))

    def _drop_ending(self) -> bool:
        """Take those off `running` whose last output is in flight; whether there are any."""
        if not (self.rules.async_scheduling and self._in_flight):
            return False
        in_flight = {row[0] for row in self._in_flight[0].rows}
        staying = [row for row in self.running if row.outputs_left > 1 or row.live not in in_flight]
        are_ending = len(staying) < len(self.running)
        if are_ending:
            self._is_full = False
        self.running = staying
        return are_ending

    def _retract(self, plan: StepPlan) -> None:
        """Take slots from the requests with the fewest outputs (longest prompts first) until the others can decode."""
        order = sorted(self.running, key=lambda row: (row.live.output_len, -row.live.request.prompt_len), reverse=True)
        while len(order) > 1:
            row = order.pop()
            self.memory.retract(row, len(order) * RETRACT_STEPS)
            row.live.num_preemptions += 1
            row.live.is_running = False
            row.live.num_computed = row.context_len = 0
            plan.preempted.append(row.live)
            self.waiting.append(row)
            if self.memory.fits_decode(order):
                break
        self.running = order
        outputs = sum(row.live.output_len for row in order) + RETRACT_STEPS * len(order)
        self.new_token_ratio = min(1.0, outputs / (sum(row.max_new for row in order) + 1))

    def _seats_left(self, held: int) -> int:
        """Rows that a prefill step may hold, if `held` of them have their slots already."""
        seats = self.rules.num_seats
        return min(seats - len(self.running), seats - self.memory.num_rows + held)

    def _sort_waiting(self) -> None:
        """The longest prefix hits first under lpm; under fcfs now and then the cached heads are kept from ageing."""
        if self.rules.disable_radix_cache:
            return
        if self.rules.schedule_policy == "lpm" and len(self.waiting) <= SORTED_MOST:
            self._sort_by_hits()
            return
        if self.waiting:
            if self._num_sorted % REFRESH_EVERY == 0:
                for asked in reversed(self.waiting[:SORTED_MOST]):
                    self.memory.cache.find(asked.text, asked.live.num_known)
            self._num_sorted += 1

    def _sort_by_hits(self) -> None:
        """Of requests that share a head which is not cached, only the first is not put last."""
        seen = RadixCache()
        last: set[int] = set()
        for asked in self.waiting:
            known = asked.live.num_known
            self.memory.find(asked, known)
            asked.hit_len = min(asked.context_len, known - 1)
            if asked.context_len <= SHARED_LEAST:
                if seen.find(asked.text, known)[1] >= SHARED_LEAST:
                    last.add(id(asked))
                else:
                    seen.enter(asked.text, known)
        self.waiting.sort(key=lambda asked: float("inf") if id(asked) in last else -asked.hit_len)
