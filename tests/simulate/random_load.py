"""Seeded random workloads for schedules, and a schedule as plain rows: needs no engine.

Mixed lengths, shared prefixes, exact repeats, follow-up turns with earlier outputs in them, caches from "the largest
request just fits" to twice the need. Integers are drawn by `random()` alone, whose values Python promises to keep.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.simulate.kv_tiers import Tier, TieredRules, TieredScheduler
from stepscope.simulate.policy import LiveRequest, StepPlan
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scheduler import Scheduler, SchedulerRules
from stepscope.simulate.speculation import Acceptance, Drafts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Text = tuple[Segment, ...]
Step = list[Any]  # rows [[name, query_len, context_len], ...], preempted, free blocks before and after update, ended
BLOCK_SIZE, LONGEST, MODEL_LEN = 16, 3000, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Rules and requests; `arrival_s` is the number of the schedule call before which a request is added.

    `external`: of each request the blocks of it that lie beyond the device, and how many steps their load lasts.
    """

    rules: SchedulerRules
    requests: tuple[Request, ...]
    external: dict[str, tuple[int, int]] = field(default_factory=dict)


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


def random_load(seed: int, *, is_async: bool, is_small: bool = False, num_stages: int = 1) -> Load:
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
        pipeline_parallel_size=num_stages,
    )
    return Load(rules=rules, requests=requests)


def drafting_load(seed: int, *, is_async: bool, is_small: bool = False) -> Load:
    """The workload of a seed with drafts, by a random method, and a cache that holds them too."""
    load = random_load(seed, is_async=is_async, is_small=is_small)
    draw = Draw(seed + 1_000_003)
    count = draw.of([1, 1, 2, 3, 5, 8])
    chances = [draw.up_to(0, 20) / 20 for _ in range(count)]
    drafts = Drafts(
        method=draw.of(["mtp", "eagle", "eagle3", "draft_model", "ngram", "dflash"]),
        parallel_drafting=draw.is_below(0.2),
        disable_eagle_block_drop=draw.is_below(0.2),
        acceptance=Acceptance.from_chances(chances, seed=seed),
    )
    budget = max(load.rules.max_num_batched_tokens, 1 + count + drafts.num_budget_slots(count))
    rules = replace(load.rules, max_num_batched_tokens=budget, num_speculative_tokens=count, drafts=drafts)
    before, needed = (max(each.num_blocks_needed(told) for told in load.requests) for each in (load.rules, rules))
    return replace(load, rules=replace(rules, num_blocks=load.rules.num_blocks + needed - before))


def whole_prompt_load(seed: int, *, is_async: bool) -> Load:
    """The workload of a seed without chunked prefill, which needs a budget of the longest prompt."""
    load = random_load(seed, is_async=is_async)
    rules = replace(load.rules, enable_chunked_prefill=False, max_num_batched_tokens=load.rules.max_model_len)
    return replace(load, rules=rules)


def loading_load(seed: int, *, is_small: bool = False) -> Load:
    """The workload of a seed, every third one with drafts, of which parts lie beyond the device."""
    load = (drafting_load if seed % 3 == 0 else random_load)(seed, is_async=False, is_small=is_small)
    draw = Draw(seed + 2_000_003)
    share, longest = draw.of([0.3, 0.8, 1.0]), draw.of([0, 3, 20])
    external = {
        each.request_id: (draw.up_to(1, each.num_tokens // BLOCK_SIZE + 1), draw.up_to(0, longest))
        for each in load.requests
        if draw.is_below(share)
    }
    rules = replace(load.rules, enable_prefix_caching=True)
    return replace(load, rules=rules, external=external)


class ToldLoads(TieredScheduler):
    """Loads that are told: which blocks, and for how many steps. The clock counts schedule calls."""

    def __init__(self, load: Load) -> None:
        tier = Tier(name="told", num_blocks=0, bytes_per_s=1.0)
        super().__init__(TieredRules(base=load.rules, tiers=(tier,), block_bytes=1.0, rule="always"))
        self.external = load.external

    def _worth_loading(self, live: LiveRequest, num_hits: int) -> list[int]:
        blocks, self.steps = self.external.get(live.request.request_id, (0, 0))
        return [0] * max(min(blocks, (live.num_known - 1) // self.rules.block_size) - num_hits, 0)

    def _occupy(self, place: int, count: int) -> int:
        return self.now + 1 + self.steps


def run_schedule(load: Load, on_step: Callable[[Scheduler, Step], None] | None = None) -> list[Step]:
    """A row per schedule call, in the loop of the engine's core: as many steps in flight as stages; async, one more."""
    scheduler = ToldLoads(load) if load.external else Scheduler(load.rules)
    depth = load.rules.pipeline_parallel_size + load.rules.async_scheduling
    todo, in_flight = deque(load.requests), deque[StepPlan]()
    steps: list[Step] = []
    while todo or scheduler.num_running or scheduler.num_waiting or in_flight:
        assert len(steps) < 200_000, "requests wait for ever"
        while todo and todo[0].arrival_s <= len(steps):
            scheduler.add(todo.popleft())
        if isinstance(scheduler, ToldLoads):
            scheduler.now = len(steps)
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
