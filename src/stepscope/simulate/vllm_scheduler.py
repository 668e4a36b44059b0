"""Scheduler: which tokens of which requests run in the next engine step, by the rules of vLLM's V1 scheduler.

Held against vLLM 0.32's Scheduler and AsyncScheduler step for step (docs/simulate.md). First come, first served; one
group of full attention; no LoRA. `schedule` advances the requests at once, `update` delivers what a step sampled, in
the order of the steps. In async scheduling the next step is scheduled before the tokens of the one in flight are known:
a placeholder stands for each of them; in a pipeline a request then decodes in every pipeline_parallel_size-th step.
With drafts a decode row asks for 1 + k tokens; those rejected are taken back at delivery.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stepscope.chunks import chunk_len
from stepscope.errors import InvariantBroken
from stepscope.simulate.admission import Room, first_query
from stepscope.simulate.kv_cache import KvCache
from stepscope.simulate.policy import LiveRequest, StepPlan
from stepscope.simulate.remote_kv import RemoteKv
from stepscope.simulate.request import block_keys

if TYPE_CHECKING:
    from stepscope.simulate.policy import PlannedRow
    from stepscope.simulate.request import Request
    from stepscope.simulate.scheduler import SchedulerRules


class Scheduler:
    """The requests of one engine. `running` is in order of admission; `waiting` begins with the next to be admitted."""

    def __init__(self, rules: SchedulerRules) -> None:
        self.rules = rules
        self.cache = KvCache(num_blocks=rules.num_blocks, block_size=rules.block_size)
        self.running: list[LiveRequest] = []
        self.waiting: deque[LiveRequest] = deque()
        self.remote = RemoteKv()
        self._watermark_blocks = int(rules.watermark * rules.num_blocks)
        self._num_drafts = rules.num_speculative_tokens
        self._num_lookahead = rules.num_lookahead_tokens
        self._num_slots = rules.num_budget_slots
        self._is_ahead = rules.async_scheduling or rules.num_speculative_tokens > 0
        self._num_added = 0
        self._num_steps = 0
        self._in_flight: deque[StepPlan] = deque()  # scheduled and not delivered; kept for pipelines alone
        self._is_pipeline = rules.pipeline_parallel_size > 1
        self._stagger = rules.pipeline_parallel_size if rules.async_scheduling else 1
        self._has_news = False

    @property
    def has_work(self) -> bool:
        """Requests are in it, or some ended and the workers have not been told, which takes one more (empty) step."""
        return bool(self.running or self.waiting or self.remote.loaded or self._has_news)

    @property
    def can_stretch(self) -> bool:
        """Whether rows of decodes follow from the ones before them, without scheduling."""
        return not (self._num_drafts or self._num_lookahead)

    @property
    def has_candidate(self) -> bool:
        """Whether a request could be admitted if it fits."""
        return bool(self.waiting)

    @property
    def holding(self) -> tuple[LiveRequest, ...]:
        """Requests that hold blocks and have no seat."""
        return (*self.remote.loading, *self.remote.loaded)

    @property
    def num_running(self) -> int:
        """Requests that hold a seat."""
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for one."""
        return len(self.waiting)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request uses."""
        return self.cache.num_free

    def add(self, request: Request) -> LiveRequest:
        """Queue a request.

        Raises:
            BadInput: it could never run.
        """
        self.rules.check_request(request)
        live = LiveRequest(request=request, place=self._num_added, num_known=request.prompt_len)
        self._num_added += 1
        self.waiting.append(live)
        return live

    def schedule(self) -> StepPlan:
        """The next step: running requests first, then waiting ones, unless somebody had to be preempted."""
        self._has_news = False
        self._num_steps += 1
        plan = StepPlan()
        self.remote.admit(self.running, self.rules.max_num_seqs)
        is_alone = len(self.running) + self.num_waiting <= 1
        cap = 0 if is_alone else self.rules.long_prefill_token_threshold
        budget_left = self._schedule_running(plan, cap)
        if not plan.preempted:
            self._admit_waiting(plan, budget_left, cap)
        if self._is_pipeline:
            self._in_flight.append(plan)
        return plan

    def update(self, plan: StepPlan) -> list[LiveRequest]:
        """Deliver a step's tokens, in the order of its rows; those requests that ended, their blocks freed."""
        ended: list[LiveRequest] = []
        if self._is_pipeline:
            self._in_flight.popleft()
        for row in plan.rows:
            live = row[0]
            if live.num_stale:
                live.num_stale -= 1
            if live.is_finished or not row[3]:
                continue
            self._put_out(row, plan)
            if live.output_len >= live.request.output_len or live.num_known >= self.rules.max_model_len:
                self._finish(live)
                ended.append(live)
        if ended:
            self._has_news = True
            self.running = [live for live in self.running if not live.is_finished]
            if not all(live.is_running for live in ended):
                self.waiting = deque(live for live in self.waiting if not live.is_finished)
        return ended

    def add_remote(self, request: Request, num_outputs: int) -> LiveRequest:
        """Queue a request whose prompt another engine has computed; it gets blocks, then its KV (StepPlan.loads).

        Raises:
            BadInput: it could never run.
        """
        live = self.add(request)
        live.num_known += num_outputs
        live.remote_tokens = live.prefill_end = request.prompt_len
        return live

    def receive(self, live: LiveRequest) -> None:
        """The KV of a request is there. Without an output yet, its last token is computed again, to sample one."""
        live.num_computed = min(live.remote_tokens, live.num_known - 1)
        self.enter_full_blocks(live, live.remote_tokens)
        self.remote.receive(live)

    def send(self, live: LiveRequest) -> None:
        """The KV of a request that ended here was sent: its blocks are free."""
        self.remote.kept.remove(live)
        self.cache.release(live.table)

    def _put_out(self, row: PlannedRow, plan: StepPlan) -> None:
        """Give a request the tokens that its row sampled."""
        live, _, context, _, num_preemptions = row
        count = 1
        is_current = live.num_preemptions == num_preemptions
        if plan.drafts and live in plan.drafts:
            is_padding = context < live.prefill_end
            count = self._verify(live, plan.drafts[live], is_padding=is_padding, is_current=is_current)
        live.num_known += count
        if live.placeholders and is_current:
            live.placeholders -= count
        if live.is_running and self.rules.async_scheduling:
            self.enter_full_blocks(live, live.num_computed - live.placeholders)

    def _verify(self, live: LiveRequest, num_drafts: int, *, is_padding: bool, is_current: bool) -> int:
        """Take rejected drafts back; how many tokens the row puts out. Drafts that only pad a row are all rejected."""
        accepted = 0
        if not is_padding:
            assert self.rules.drafts.acceptance is not None
            accepted = self.rules.drafts.acceptance.draw(live.request.request_id, live.output_len, num_drafts)
        if is_current:
            live.num_computed -= num_drafts - accepted
            if live.placeholders:
                live.placeholders -= num_drafts - accepted
        left = min(live.request.num_tokens, self.rules.max_model_len) - live.num_known
        return min(1 + accepted, left)

    def enter_full_blocks(self, live: LiveRequest, tokens: int) -> None:
        """Make the full blocks of a running request's first `tokens` tokens findable."""
        full = tokens // self.rules.block_size
        if full > live.num_entered and self.rules.enable_prefix_caching:
            self.cache.enter(live.table, self._keys(live), live.num_entered, full)
            live.num_entered = full

    def check(self) -> None:
        """The laws that hold between steps: blocks (KvCache.check), and no request computed more than is known.

        Raises:
            InvariantBroken: one of them does not hold.
        """
        inside = (*self.running, *self.waiting, *self.holding)
        self.cache.check([live.table for live in (*inside, *self.remote.kept)])
        size, ahead = self.rules.block_size, 2 * self._num_drafts + self._num_lookahead
        for live in inside:
            if live.num_computed > live.num_known + live.placeholders:
                raise InvariantBroken(f"{live.num_computed} tokens computed of {live.num_known} that are known")
            least = -(-live.num_computed // size)
            most = -(-(live.num_known + live.placeholders + ahead) // size) if ahead else least
            if not least <= len(live.table) <= max(most, -(-live.remote_tokens // size)):
                raise InvariantBroken(f"{len(live.table)} blocks for {live.num_computed} tokens")

    def _schedule_running(self, plan: StepPlan, cap: int) -> int:
        """Rows for running requests; the budget that is left."""
        limit, block_size, lookahead = self.rules.max_model_len, self.rules.block_size, self._num_lookahead
        extra = self._num_slots
        budget = self.rules.max_num_batched_tokens - extra  # what is left for one more row
        index = 0
        while index < len(self.running) and budget > 0:
            live = self.running[index]
            index += 1
            computed, coming = live.num_computed, live.placeholders
            if coming and computed + 2 - coming >= live.request.last_len:
                continue  # its last token is on the way
            if self._num_steps < live.next_decode_step:
                continue
            query = live.num_known + live.num_drafts + coming - computed
            if query > 1:
                query = chunk_len(query, budget_left=budget, cap=cap)
            query = min(query, limit - computed - 1)
            if query < 1:
                continue
            slots = min(computed + query + lookahead, limit) if lookahead else computed + query
            needed = -(-slots // block_size) - len(live.table)
            if needed > 0:
                if not self._make_room(live, needed, plan):
                    break
                self.cache.take(live.table, needed)
            self._plan(live, query, plan)
            budget -= query + extra
        return budget

    def _make_room(self, live: LiveRequest, needed: int, plan: StepPlan) -> bool:
        """Preempt the latest admitted until the blocks are there; False where that was `live` itself."""
        while needed > self.cache.num_free:
            victim = self.running.pop()
            self.cache.release(victim.table)
            victim.num_computed = victim.placeholders = victim.num_entered = victim.num_drafts = 0
            victim.remote_tokens = 0
            victim.num_preemptions += 1
            victim.num_stale = sum(any(row[0] is victim for row in step.rows) for step in self._in_flight)
            victim.is_running = False
            self.waiting.appendleft(victim)
            plan.preempted.append(victim)
            if victim is live:
                return False
        return True

    def _admit_waiting(self, plan: StepPlan, budget: int, cap: int) -> None:
        """Rows for waiting requests, from the head, until one does not fit; stale ones let others pass."""
        stale: list[LiveRequest] = []
        running = tuple(plan.rows) if self._num_drafts else ()
        while budget > 0 and self.has_candidate and len(self.running) < self.rules.max_num_seqs:
            if self.waiting and self.waiting[0].num_stale:
                stale.append(self.waiting.popleft())
                continue
            cost = self._admit_next(plan, Room(budget=budget, cap=cap, running=running))
            if cost is None:
                break
            budget -= cost
        self.waiting.extendleft(reversed(stale))

    def _fetch(self, live: LiveRequest, hits: list[int], plan: StepPlan) -> bool:
        """Give a request whose KV is elsewhere all its blocks; what this cache holds already is not sent again."""
        size = self.rules.block_size
        if not self._has_room(live, hits, live.remote_tokens - len(hits) * size):
            return False
        self.waiting.popleft()
        self.cache.adopt(live.table, hits)
        self.cache.take(live.table, -(-live.remote_tokens // size) - len(hits))
        live.num_entered = len(hits)
        live.prefix_hit_tokens = len(hits) * size
        self.remote.loading.append(live)
        plan.loads.append(live)
        return True

    def _admit_next(self, plan: StepPlan, room: Room) -> int | None:
        """A row for the first waiting request; the budget that it costs, None where it does not fit."""
        live = self.waiting[0]
        hits = self._find_hits(live)
        if live.remote_tokens:
            return 0 if self._fetch(live, hits, plan) else None
        query = first_query(live, len(hits) * self.rules.block_size, room, self.rules)
        if not query or not self._has_room(live, hits, query):
            return None
        self.waiting.popleft()
        self.cache.adopt(live.table, hits)
        self._note_hits(live, len(hits) * self.rules.block_size)
        live.num_entered = len(hits)
        self._admit(live, query, plan)
        return query + self._num_slots

    def _note_hits(self, live: LiveRequest, hit_tokens: int) -> None:
        live.num_computed = live.prefix_hit_tokens = hit_tokens
        if live.first_hit_tokens is None:
            live.first_hit_tokens = hit_tokens
        else:
            live.resumed_hit_tokens += hit_tokens

    def _find_hits(self, live: LiveRequest) -> list[int]:
        """Cached blocks of a request's text, never its last token's."""
        if not self.rules.enable_prefix_caching:
            return []
        hits = self.cache.find(self._keys(live), (live.num_known - 1) // self.rules.block_size)
        if hits and self._num_drafts and self.rules.drafts.drops_last_hit:
            hits.pop()
        return hits

    def _admit(self, live: LiveRequest, query: int, plan: StepPlan) -> None:
        """Seat a request whose table holds what is computed of it, and add its row."""
        self.running.append(live)
        tokens = min(live.num_computed + query + self._num_lookahead, self.rules.max_model_len)
        self.cache.take(live.table, -(-tokens // self.rules.block_size) - len(live.table))
        live.prefill_end = live.num_known
        live.is_running = True
        self._plan(live, query, plan)

    def _has_room(self, live: LiveRequest, hits: list[int], query: int) -> bool:
        """Whether a waiting request's first chunk, and with scheduler_reserve_full_isl all it knows, fits now."""
        spare = self._watermark_blocks if self.running else 0
        size = self.rules.block_size
        asked = min(len(hits) * size + query + self._num_lookahead, self.rules.max_model_len)
        if self.rules.scheduler_reserve_full_isl:
            asked = max(asked, live.num_known)
        needed = -(-asked // size) - len(hits)
        return needed + self.cache.num_idle(hits) + spare <= self.cache.num_free

    def _finish(self, live: LiveRequest) -> None:
        live.is_finished = True
        if not self.remote.keep(live):
            self.cache.release(live.table)

    def _plan(self, live: LiveRequest, query: int, plan: StepPlan) -> None:
        """Add a row and advance the request; full blocks of known tokens become findable before the step runs."""
        context, known = live.num_computed, live.num_known
        live.num_computed = end = context + query
        if (known if known < end else end) // self.rules.block_size > live.num_entered:
            self.enter_full_blocks(live, min(end, known))
        num_drafts = end - known - live.placeholders
        is_sampled = num_drafts >= 0
        plan.rows.append((live, query, context, is_sampled, live.num_preemptions))
        if is_sampled and self._is_ahead:
            self._expect(live, num_drafts, plan)

    def _expect(self, live: LiveRequest, num_drafts: int, plan: StepPlan) -> None:
        """Note the drafts that a row verifies, and what comes of it: tokens on their way, drafts for the next row."""
        if num_drafts:
            plan.drafts[live] = num_drafts
        live.num_drafts = self._num_drafts
        if self.rules.async_scheduling:
            live.placeholders += 1 + num_drafts
            live.next_decode_step = self._num_steps + self._stagger

    def _keys(self, live: LiveRequest) -> list[int]:
        if live.keys is None:
            spans = [(part.source, part.start, part.length) for part in live.request.text]
            own = [(-3 - live.place, 0, live.request.num_tokens)]  # -1 and -2 have the same hash
            live.keys = block_keys(spans or own, self.rules.block_size)
        return live.keys
