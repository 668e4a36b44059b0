"""Seeded random workloads for SGLang's scheduler, and a schedule as plain rows: needs no engine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stepscope.simulate.sglang import SglangRules, SglangScheduler
from tests.simulate.random_load import Draw, random_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.simulate.policy import LiveRequest, StepPlan
    from stepscope.simulate.request import Request

# rows [[name, query_len, context_len], ...], retracted, free slots and new-token ratio after scheduling, free slots and
# unused cached slots after delivery, ended
Step = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangLoad:
    """Rules and requests; `arrival_s` is the number of the schedule call before which a request is added."""

    rules: SglangRules
    requests: tuple[Request, ...]


def random_load(seed: int, *, is_async: bool, is_small: bool = False) -> SglangLoad:
    """The workload of a seed; small ones for what is kept in a file."""
    draw = Draw(seed)
    longest = draw.of([40, 40, 300]) if is_small else draw.of([40, 40, 300, 3000])
    count = draw.up_to(3, 12 if is_small else 30)
    ignores = draw.is_below(0.2)
    asked = random_requests(draw, longest, count, is_stopped=not ignores and draw.is_below(0.5))
    times, pace = draw.of([1, 6] if is_small else [1, 4]), draw.of([0.0, 0.1, 1.0])
    requests = tuple(_longer(draw, request, times, pace) for request in asked)
    page = draw.of([1, 1, 1, 16])
    largest = max(request.last_len for request in requests) + 3 * page + 12
    total = sum(request.last_len for request in requests)
    slots = largest + draw.of([0, 5, largest // 4, largest, largest, 2 * largest, total // 4, total])
    chunk = draw.of([-1, 16, 64, 512, 4096])
    rules = SglangRules(
        max_total_tokens=slots // page * page,
        max_running_requests=draw.of([1, 4, 16, 16, 128]),
        context_length=draw.of([8192, 8192, largest - 8]),
        chunked_prefill_size=chunk,
        max_prefill_tokens=draw.of([64, 512, 16384]),
        enable_mixed_chunk=draw.is_below(0.3),
        page_size=page,
        schedule_policy="lpm" if draw.is_below(0.3) else "fcfs",
        schedule_conservativeness=draw.of([0.01, 0.01, 0.1, 0.3, 1.0, 1.3]),
        disable_radix_cache=draw.is_below(0.2),
        disable_overlap_schedule=not is_async,
        prefill_max_requests=draw.of([None, None, None, 2]),
        prefill_decode_interval=draw.of([0, 0, 0, 1, 3]),
        prefill_decode_interval_min_bs=draw.of([0, 2]),
        ignore_eos=ignores,
    )
    if rules.max_total_tokens < 2 * rules.max_running_requests:
        rules = replace(rules, max_running_requests=max(rules.max_total_tokens // 2, 1))
    return SglangLoad(rules=rules, requests=requests)


def _longer(draw: Draw, request: Request, times: int, pace: float) -> Request:
    """With `times` as many outputs, and sooner: what makes slots run out."""
    more = (times - 1) * request.output_len
    return replace(
        request,
        arrival_s=float(int(request.arrival_s * pace)),
        output_len=request.output_len + more,
        max_tokens=None if request.max_tokens is None else request.max_tokens + more,
        text=request.text + draw.fresh(more),
    )


def run_schedule(load: SglangLoad, on_step: Callable[[SglangScheduler, Step], None] | None = None) -> list[Step]:
    """A row per turn of the engine's loop; with the overlap scheduler a step is delivered one turn later."""
    scheduler = SglangScheduler(load.rules)
    todo, waits = deque(load.requests), 2 if load.rules.async_scheduling else 1
    in_flight: deque[StepPlan] = deque()
    steps: list[Step] = []
    while todo or scheduler.has_work or any(plan.rows for plan in in_flight):
        assert len(steps) < 100_000, "requests wait for ever"
        while todo and todo[0].arrival_s <= len(steps):
            scheduler.add(todo.popleft())
        plan = scheduler.schedule()
        in_flight.append(plan)
        rows = [[live.request.request_id, query, context] for live, query, context, _, _ in plan.rows]
        after = [scheduler.num_free_blocks, f"{scheduler.new_token_ratio:.9f}"]
        ended = scheduler.update(in_flight.popleft()) if len(in_flight) == waits else []
        idle = scheduler.memory.cache.num_idle
        steps.append([rows, _names(plan.preempted), *after, scheduler.num_free_blocks, idle, _names(ended)])
        if on_step:
            on_step(scheduler, steps[-1])
    return steps


def _names(requests: list[LiveRequest]) -> list[str]:
    return sorted(live.request.request_id for live in requests)
