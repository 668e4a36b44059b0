"""Seeded random workloads for schedules, and a schedule as plain rows: needs no engine.

Mixed lengths, shared prefixes, exact repeats, follow-up turns with earlier outputs in them, caches from "the largest
request just fits" to twice the need. Integers are drawn by `random()` alone, whose values Python promises to keep.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.simulate.policy import LiveRequest, StepPlan
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scheduler import Scheduler, SchedulerRules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Text = tuple[Segment, ...]
Step = list[Any]  # rows [[name, query_len, context_len], ...], preempted, free blocks before and after update, ended
BLOCK_SIZE, LONGEST, MODEL_LEN = 16, 3000, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Rules and requests; `arrival_s` is the number of the schedule call before which a request is added."""

    rules: SchedulerRules
    requests: tuple[Request, ...]


class Draw:
    """Integers and choices."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._sources = 0

    def up_to(self, least: int, most: int) -> int:
        return least + int(self._random.random() * (most - least + 1))

    def of(self, items: Sequence[Item]) -> Item:
        return items[self.up_to(0, len(items) - 1)]

    def is_below(self, share: float) -> bool:
        return self._random.random() < share

    def fresh(self, length: int) -> Text:
        """A text that nothing else holds."""
        self._sources += 1
        return (Segment(source=self._sources, length=length),) if length else ()


def cut(text: Text, length: int) -> Text:
    """The first `length` tokens."""
    kept = []
    for part in text:
        taken = min(part.length, length)
        if taken:
            kept.append(Segment(source=part.source, length=taken, start=part.start))
        length -= taken
    return tuple(kept)


def len_of(text: Text) -> int:
    return sum(part.length for part in text)


def _prompt(draw: Draw, longest: int, prefixes: list[Text], before: list[Request]) -> tuple[Text, Text | None]:
    """A prompt, and the output text where it must be an earlier one's."""
    kind = draw.of(["repeat"] * 3 + ["follow-up"] * 4 + ["shared"] * 8 + ["own"] * 5)
    if kind in ("repeat", "follow-up") and before:
        source = draw.of(before)
        if kind == "repeat":
            return cut(source.text, source.prompt_len), source.text
        return cut(source.text + draw.fresh(draw.up_to(1, 60)), LONGEST), None
    if kind == "shared":
        prefix = draw.of(prefixes)
        tail = draw.fresh(draw.of([0, 0, 5, 50]))
        return cut(cut(prefix, draw.up_to(1, len_of(prefix))) + tail, longest), None
    return draw.fresh(draw.up_to(1, longest)), None


def random_requests(draw: Draw, longest: int, count: int, *, is_stopped: bool) -> tuple[Request, ...]:
    """Their `arrival_s` counts schedule calls."""
    prefixes = [draw.fresh(draw.up_to(1, longest)) for _ in range(draw.up_to(1, 4))]
    made: list[Request] = []
    step = 0
    for index in range(count):
        output = draw.up_to(1, draw.of([3, 40, 120]))
        prompt, told = _prompt(draw, longest, prefixes, made)
        needed = len_of(prompt) + output
        text = cut(told or prompt, needed)
        text += draw.fresh(needed - len_of(text))
        made.append(
            Request(
                request_id=f"r{index}",
                arrival_s=float(step),
                prompt_len=len_of(prompt),
                output_len=output,
                max_tokens=output + 5 if is_stopped else None,
                text=text,
            )
        )
        step += draw.of([0, 0, 0, 1, 2, 5, 30])
    return tuple(made)


def random_load(seed: int, *, is_async: bool, is_small: bool = False) -> Load:
    """The workload of a seed; small ones for what is kept in a file."""
    draw = Draw(seed)
    budget = draw.of([16, 64] if is_small else [16, 64, 512, 2048, 8192])
    seats = draw.of([seats for seats in (1, 4, 16, 128) if seats <= budget])
    few = is_small or budget <= 64
    longest = draw.of([40, 300]) if few else draw.of([40, 300, 3000])
    count = draw.up_to(3, 8 if is_small else 12 if few else 60)
    requests = random_requests(draw, longest, count, is_stopped=draw.is_below(0.2))
    model_len = MODEL_LEN
    if draw.is_below(0.1):  # some requests are cut off by the model's limit
        model_len = max(request.prompt_len for request in requests) + draw.up_to(2, 20)
    sizes = [-(-request.last_len // BLOCK_SIZE) for request in requests]
    total = sum(sizes)
    extra = draw.of([0, 0, 1, 3, max(sizes) // 2, max(sizes), total // 3, total, 2 * total])
    rules = SchedulerRules(
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        max_model_len=model_len,
        num_blocks=1 + max(sizes) + extra,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=draw.is_below(0.85),
        long_prefill_token_threshold=min(draw.of([0, 0, 32, 100, 512]), model_len),
        watermark=draw.of([0.0, 0.0, 0.05, 0.2]),
        scheduler_reserve_full_isl=draw.is_below(0.8),
        async_scheduling=is_async,
    )
    return Load(rules=rules, requests=requests)


def run_schedule(load: Load, on_step: Callable[[Scheduler, Step], None] | None = None) -> list[Step]:
    """A row per schedule call, in the loop of the engine's core: async keeps one step in flight."""
    scheduler = Scheduler(load.rules)
    depth = 2 if load.rules.async_scheduling else 1
    todo, in_flight = deque(load.requests), deque[StepPlan]()
    steps: list[Step] = []
    while todo or scheduler.running or scheduler.waiting or in_flight:
        assert len(steps) < 200_000, "requests wait for ever"
        while todo and todo[0].arrival_s <= len(steps):
            scheduler.add(todo.popleft())
        plan = StepPlan()
        if scheduler.has_work:
            plan = scheduler.schedule()
            in_flight.append(plan)
        free = scheduler.cache.num_free
        rows = [[live.request.request_id, query, context] for live, query, context, _, _ in plan.rows]
        ended: list[LiveRequest] = []
        if in_flight and (len(in_flight) == depth or not (plan.rows or scheduler.has_work)):
            ended = scheduler.update(in_flight.popleft())
        steps.append([rows, _names(plan.preempted), free, scheduler.cache.num_free, _names(ended)])
        if on_step:
            on_step(scheduler, steps[-1])
    return steps


def _names(requests: list[LiveRequest]) -> list[str]:
    return sorted(live.request.request_id for live in requests)
