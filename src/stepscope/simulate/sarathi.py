"""Sarathi: which tokens of which requests run in the next step, by the rules of Vidur's Sarathi-Serve scheduler.

Held against Vidur (commit 7d47513) request for request (docs/simulate.md). A step takes one token of every request that
decodes, whatever the chunk size, and fills up to `chunk_size` tokens with prompts, those begun first. A prompt's blocks
are all taken at admission. A decode asks for a free block whether it needs one or not; where there is none, the request
that stands last gives up its blocks and computes all that it knows again. One pipeline stage; no prefix cache.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import BadInput, InvariantBroken
from stepscope.simulate.policy import LiveRequest, StepPlan

if TYPE_CHECKING:
    from stepscope.simulate.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SarathiRules:
    """Names are Vidur's options; `max_model_len` is the longest request that it is asked to run.

    Raises:
        BadInput: no engine would start with these.
    """

    chunk_size: int
    batch_size_cap: int
    num_blocks: int
    max_model_len: int
    block_size: int = 16
    watermark_blocks_fraction: float = 0.01

    def __post_init__(self) -> None:
        for name in ("chunk_size", "batch_size_cap", "num_blocks", "max_model_len", "block_size"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}: give 1 or more.")
        if not 0 <= self.watermark_blocks_fraction < 1:
            raise BadInput(
                f"watermark_blocks_fraction is {self.watermark_blocks_fraction}: it is a fraction of the blocks, "
                "0 or more and below 1."
            )

    @property
    def async_scheduling(self) -> bool:
        """Never: a step is scheduled when the one before it has ended."""
        return False

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free."""
        return int(self.watermark_blocks_fraction * self.num_blocks)

    def check_request(self, request: Request) -> None:
        """Raise BadInput for a request that would wait for ever."""
        name, tokens = f"request {request.request_id!r}", request.num_tokens
        if tokens > self.max_model_len:
            raise BadInput(f"{name} has {tokens} tokens of prompt and output; max_model_len is {self.max_model_len}.")
        needed = -(-(tokens - 1) // self.block_size) + self.watermark_blocks
        if needed > self.num_blocks:
            raise BadInput(
                f"{name} needs {needed} blocks of {self.block_size} tokens, watermark included, and the cache has "
                f"{self.num_blocks}: it can never run. Give num_blocks {needed} or more, or shorten it."
            )

    def build(self) -> SarathiScheduler:
        """A new scheduler that follows these rules."""
        return SarathiScheduler(self)


class SarathiScheduler:
    """The requests of one engine.

    `running` hold blocks: those that the last step left out, by arrival, then the last step's in the order of its rows.
    `waiting` begins with the next to be admitted.
    """

    def __init__(self, rules: SarathiRules) -> None:
        self.rules = rules
        self.running: list[LiveRequest] = []
        self.waiting: deque[LiveRequest] = deque()
        self._num_used = 0
        self._blocks: dict[LiveRequest, int] = {}
        self._num_added = 0

    @property
    def has_work(self) -> bool:
        """Requests are in it."""
        return bool(self.running or self.waiting)

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
        return self.rules.num_blocks - self._num_used

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
        """The next step: decodes, prompts that have begun, then waiting requests while tokens and blocks last."""
        plan = StepPlan()
        begun = self._schedule_decodes(plan)
        left_out = []
        for live in begun:
            query = min(live.prefill_end - live.num_computed, self.rules.chunk_size - _num_tokens(plan))
            if query > 0:
                self._plan(live, query, plan)
            else:
                left_out.append(live)
        self._admit_waiting(plan, len(left_out))
        self.running = sorted(left_out, key=lambda live: live.place) + [row[0] for row in plan.rows]
        return plan

    def update(self, plan: StepPlan) -> list[LiveRequest]:
        """Deliver a step's tokens, in the order of its rows; those requests that ended, their blocks freed."""
        ended: list[LiveRequest] = []
        for live, _, _, is_sampled, _ in plan.rows:
            if not is_sampled:
                continue
            live.num_known += 1
            if live.output_len >= live.request.output_len:
                live.is_finished = True
                self._release(live)
                ended.append(live)
        if ended:
            self.running = [live for live in self.running if not live.is_finished]
        return ended

    def check(self) -> None:
        """Every block is counted once, and no request computed more than is known.

        Raises:
            InvariantBroken: one of them does not hold.
        """
        if sum(self._blocks.values()) != self._num_used or self._num_used > self.rules.num_blocks:
            raise InvariantBroken(f"{self._num_used} blocks used of {self.rules.num_blocks}, {self._blocks} held")
        for live in self.running:
            blocks = max(-(-live.prefill_end // self.rules.block_size), -(-live.num_computed // self.rules.block_size))
            if live.num_computed > live.num_known or self._blocks.get(live) != blocks:
                raise InvariantBroken(f"{self._blocks.get(live)} blocks for {live.num_computed} tokens")

    def _schedule_decodes(self, plan: StepPlan) -> list[LiveRequest]:
        """Rows for requests past their prompt; the others, in their order."""
        left, begun = deque(self.running), []
        while left:
            live = left.popleft()
            if live.num_computed < live.prefill_end:
                begun.append(live)
                continue
            while self.num_free_blocks < 1:
                victim = left.pop() if left else live
                self._preempt(victim, plan)
                if victim is live:
                    break
            else:
                self._take(live, -(-(live.num_computed + 1) // self.rules.block_size) - self._blocks[live])
                self._plan(live, 1, plan)
        return begun

    def _admit_waiting(self, plan: StepPlan, num_left_out: int) -> None:
        """Rows for waiting requests, from the head, until one does not fit."""
        while self.waiting and len(plan.rows) + num_left_out < self.rules.batch_size_cap:
            live = self.waiting[0]
            needed = -(-live.num_known // self.rules.block_size)
            query = min(live.num_known, self.rules.chunk_size - _num_tokens(plan))
            if self.num_free_blocks - needed < self.rules.watermark_blocks or query < 1:
                return
            self.waiting.popleft()
            self._blocks[live] = 0
            self._take(live, needed)
            live.prefill_end, live.is_running = live.num_known, True
            self._plan(live, query, plan)

    def _plan(self, live: LiveRequest, query: int, plan: StepPlan) -> None:
        """Add a row and advance the request."""
        context = live.num_computed
        live.num_computed += query
        plan.rows.append((live, query, context, live.num_computed >= live.num_known, live.num_preemptions))

    def _preempt(self, live: LiveRequest, plan: StepPlan) -> None:
        self._release(live)
        live.num_computed, live.is_running = 0, False
        live.num_preemptions += 1
        self.waiting.appendleft(live)
        plan.preempted.append(live)

    def _take(self, live: LiveRequest, count: int) -> None:
        self._num_used += max(count, 0)
        self._blocks[live] += max(count, 0)

    def _release(self, live: LiveRequest) -> None:
        self._num_used -= self._blocks.pop(live)


def _num_tokens(plan: StepPlan) -> int:
    return sum(row[1] for row in plan.rows)
