"""Scheduler: which tokens of which requests run in the next engine step, by the rules of vLLM's V1 scheduler.

Held against vLLM 0.32's Scheduler and AsyncScheduler step for step (docs/simulate.md). First come, first served; one
group of full attention; no drafts, no LoRA. `schedule` advances the requests at once, `update` delivers what a step
sampled, in the order of the steps. In async scheduling the next step is scheduled before the tokens of the one in
flight are known: a placeholder stands for each of them; in a pipeline a request then decodes in every
pipeline_parallel_size-th step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.chunks import chunk_len
from stepscope.errors import BadInput, InvariantBroken
from stepscope.simulate.kv_cache import KvCache
from stepscope.simulate.policy import LiveRequest, StepPlan
from stepscope.simulate.remote_kv import RemoteKv
from stepscope.simulate.request import block_keys

if TYPE_CHECKING:
    from stepscope.simulate.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """Names are vLLM's options; `num_blocks` is its num_gpu_blocks, of which one is never used.

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

    def __post_init__(self) -> None:
        for name, least in (
            ("max_num_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("max_model_len", 2),
            ("num_blocks", 2),
            ("block_size", 1),
            ("long_prefill_token_threshold", 0),
            ("pipeline_parallel_size", 1),
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

    def check_request(self, request: Request) -> None:
        """Raise BadInput for a request that would wait for ever."""
        if request.prompt_len >= self.max_model_len:
            raise BadInput(
                f"request {request.request_id!r} has a prompt of {request.prompt_len} tokens; with max_model_len "
                f"{self.max_model_len} the longest is {self.max_model_len - 1}."
            )
        needed = -(-(min(request.num_tokens, self.max_model_len) - 1) // self.block_size)
        if needed > self.num_blocks - 1:
            raise BadInput(
                f"request {request.request_id!r} needs {needed} blocks of {self.block_size} tokens and the cache has "
                f"{self.num_blocks - 1}: it can never run. Give num_blocks {needed + 1} or more, or shorten it."
            )

    def build(self) -> Scheduler:
        """A new scheduler that follows these rules."""
        return Scheduler(self)


class Scheduler:
    """The requests of one engine. `running` is in order of admission; `waiting` begins with the next to be admitted."""

    def __init__(self, rules: SchedulerRules) -> None:
        self.rules = rules
        self.cache = KvCache(num_blocks=rules.num_blocks, block_size=rules.block_size)
        self.running: list[LiveRequest] = []
        self.waiting: deque[LiveRequest] = deque()
        self.remote = RemoteKv()
        self._watermark_blocks = int(rules.watermark * rules.num_blocks)
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
        is_alone = len(self.running) + len(self.waiting) <= 1
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
        for live, _, _, is_sampled, num_preemptions in plan.rows:
            if live.num_stale:
                live.num_stale -= 1
            if live.is_finished or not is_sampled:
                continue
            live.num_known += 1
            if live.placeholders and live.num_preemptions == num_preemptions:
                live.placeholders -= 1
            if live.is_running and self.rules.async_scheduling:
                self.enter_full_blocks(live, live.num_computed - live.placeholders)
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
        inside = (*self.running, *self.waiting, *self.remote.loading, *self.remote.loaded)
        self.cache.check([live.table for live in (*inside, *self.remote.kept)])
        for live in inside:
            if live.num_computed > live.num_known + live.placeholders:
                raise InvariantBroken(f"{live.num_computed} tokens computed of {live.num_known} that are known")
            least = -(-live.num_computed // self.rules.block_size)
            if len(live.table) not in (least, max(least, -(-live.remote_tokens // self.rules.block_size))):
                raise InvariantBroken(f"{len(live.table)} blocks for {live.num_computed} tokens")

    def _schedule_running(self, plan: StepPlan, cap: int) -> int:
        """Rows for running requests; the budget that is left."""
        budget, limit, block_size = self.rules.max_num_batched_tokens, self.rules.max_model_len, self.rules.block_size
        index = 0
        while index < len(self.running) and budget:
            live = self.running[index]
            index += 1
            computed, coming = live.num_computed, live.placeholders
            if coming and computed + 2 - coming >= live.request.last_len:
                continue  # its last token is on the way
            if self._num_steps < live.next_decode_step:
                continue
            query = live.num_known + coming - computed
            if query > 1:
                query = chunk_len(query, budget_left=budget, cap=cap)
            query = min(query, limit - computed - 1)
            if query < 1:
                continue
            needed = -(-(computed + query) // block_size) - len(live.table)
            if needed > 0:
                if not self._make_room(live, needed, plan):
                    break
                self.cache.take(live.table, needed)
            self._plan(live, query, plan)
            budget -= query
        return budget

    def _make_room(self, live: LiveRequest, needed: int, plan: StepPlan) -> bool:
        """Preempt the latest admitted until the blocks are there; False where that was `live` itself."""
        while needed > self.cache.num_free:
            victim = self.running.pop()
            self.cache.release(victim.table)
            victim.num_computed = victim.placeholders = victim.num_entered = victim.remote_tokens = 0
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
        while budget and self.waiting and len(self.running) < self.rules.max_num_seqs:
            live = self.waiting[0]
            if live.num_stale:
                stale.append(self.waiting.popleft())
                continue
            hits: list[int] = []
            if self.rules.enable_prefix_caching:
                hits = self.cache.find(self._keys(live), (live.num_known - 1) // self.rules.block_size)
            hit_tokens = len(hits) * self.rules.block_size
            query = chunk_len(live.num_known - hit_tokens, budget_left=budget, cap=cap)
            end = live.remote_tokens or hit_tokens + query
            if not self._has_room(live, hits, end):
                break
            if live.remote_tokens:
                self._fetch(self.waiting.popleft(), hits, plan)
                continue
            self.running.append(self.waiting.popleft())
            self.cache.adopt(live.table, hits)
            self.cache.take(live.table, -(-end // self.rules.block_size) - len(hits))
            live.num_computed = live.prefix_hit_tokens = hit_tokens
            if live.first_hit_tokens is None:
                live.first_hit_tokens = hit_tokens
            live.num_entered = len(hits)
            live.prefill_end = live.num_known
            live.is_running = True
            self._plan(live, query, plan)
            budget -= query
        self.waiting.extendleft(reversed(stale))

    def _fetch(self, live: LiveRequest, hits: list[int], plan: StepPlan) -> None:
        """Give a request whose KV is elsewhere all its blocks; what this cache holds already is not sent again."""
        self.cache.adopt(live.table, hits)
        self.cache.take(live.table, -(-live.remote_tokens // self.rules.block_size) - len(hits))
        live.num_entered = len(hits)
        live.prefix_hit_tokens = len(hits) * self.rules.block_size
        self.remote.loading.append(live)
        plan.loads.append(live)

    def _has_room(self, live: LiveRequest, hits: list[int], tokens: int) -> bool:
        """Whether a waiting request's first chunk, and with scheduler_reserve_full_isl all it knows, fits now."""
        spare = self._watermark_blocks if self.running else 0
        asked = max(tokens, live.num_known) if self.rules.scheduler_reserve_full_isl else tokens
        needed = -(-asked // self.rules.block_size) - len(hits)
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
        is_sampled = end >= known + live.placeholders
        plan.rows.append((live, query, context, is_sampled, live.num_preemptions))
        if is_sampled and self.rules.async_scheduling:
            live.placeholders += 1
            live.next_decode_step = self._num_steps + self._stagger

    def _keys(self, live: LiveRequest) -> list[int]:
        if live.keys is None:
            spans = [(part.source, part.start, part.length) for part in live.request.text]
            own = [(-3 - live.place, 0, live.request.num_tokens)]  # -1 and -2 have the same hash
            live.keys = block_keys(spans or own, self.rules.block_size)
        return live.keys
