"""Compressed: requests, rules and a StepTime -> the times of every request by the event loop, or why it cannot.

It holds for requests that come in order, share no text that the cache could find, and are never preempted. Its answer
is the engine's to the tick; where it has none, the engine simulates. `RequestColumns` are made once for many runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from stepscope.latency import RequestTimes, Spread, spread_of_ascending
from stepscope.simulate.clock import TICKS_PER_S, to_seconds, to_ticks
from stepscope.simulate.compiled import Sizes, last_tick, load_loop
from stepscope.simulate.event_loop import DONE, REASONS, TOO_LONG, Demand, Found, LoopRules, run_events
from stepscope.simulate.request import block_keys
from stepscope.simulate.sarathi import SarathiRules
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.simulation import SimulatedRequest, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.simulate.policy import Rules
    from stepscope.simulate.request import Request
    from stepscope.simulate.step_time import StepTime

    Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
    Seconds: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

COMPILED_FROM = 20_000  # requests from which on the compiled loop is worth loading numba (a second or two)
_ANY_TICKS = 1 << 100  # beyond any run, for Python's integers


class RequestColumns:
    """A workload as columns, for as many runs as one likes; who follows whom must be known to be no circle."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.requests = tuple(requests)
        self._prompt = np.array([request.prompt_len for request in self.requests], dtype=np.int64)
        self._output = np.array([request.output_len for request in self.requests], dtype=np.int64)
        told = [request.max_tokens or request.output_len for request in self.requests]
        self._told = np.array(told, dtype=np.int64)
        self._arrival = _ticks([request.arrival_s for request in self.requests])
        self._is_follower = np.array([request.after is not None for request in self.requests], dtype=bool)
        self._followers = self._find_followers()
        self._demands: dict[tuple[int, bool], Demand] = {}
        self.sizes = Sizes(
            count=len(self.requests),
            num_tokens=int(self._prompt.sum() + self._told.sum()),
            longest=int((self._prompt + self._told).max(initial=0)),
            latest=int(self._arrival.max(initial=0)),
            longest_wait=int(self._arrival[self._is_follower].max(initial=0)),
        )

    def demand(self, max_model_len: int, *, are_arrays: bool) -> Demand:
        """What the event loop is given: lengths end at the model's limit. Arrays of 64-bit integers, or lists."""
        limit = min(max_model_len, self.sizes.longest)
        found = self._demands.get((limit, are_arrays))
        if found is None:
            arrays = self._demand(limit)
            found = arrays if are_arrays else Demand(*(column.tolist() for column in arrays))
            self._demands[limit, are_arrays] = found
        return found

    def shares_text(self, block_size: int) -> bool:
        """Whether two of them begin with the same full block, so that a cache could find one's text for the other."""
        seen: set[int] = set()
        for request in self.requests:
            if not request.text:
                continue
            spans, left = [], block_size
            for part in request.text:
                spans.append((part.source, part.start, min(part.length, left)))
                left -= spans[-1][2]
            keys = block_keys(spans, block_size)
            if keys and keys[0] in seen:
                return True
            seen.update(keys)
        return False

    def _demand(self, limit: int) -> Demand:
        room = limit - self._prompt
        output = np.minimum(self._output, room)
        leads = np.flatnonzero(~self._is_follower)
        order = leads[np.argsort(self._arrival[leads], kind="stable")]
        return Demand(
            arrival=self._arrival,
            prompt=self._prompt,
            output=output,
            is_foreseen=(output == np.minimum(self._told, room)).astype(np.int64),
            order=np.append(order, -1),
            first_follower=self._followers[0],
            next_follower=self._followers[1],
        )

    def _find_followers(self) -> Integers:
        """Of each request the first that follows it, and the next that follows the same one."""
        found = np.full((2, len(self.requests)), -1, dtype=np.int64)
        followers = np.flatnonzero(self._is_follower).tolist()
        places = {request.request_id: place for place, request in enumerate(self.requests)} if followers else {}
        for place in followers:
            leader = places[self.requests[place].after or ""]
            found[1, place], found[0, leader] = found[0, leader], place
        return found


def _ticks(seconds: list[float]) -> Any:
    """`to_ticks` of each; as Python's integers where 64 bits do not hold them."""
    ticks = np.rint(np.array(seconds, dtype=np.float64) * TICKS_PER_S)
    if ticks.max(initial=0) < 2.0**63:
        return ticks.astype(np.int64)
    return np.array([to_ticks(each) for each in seconds], dtype=object)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedRun:
    """Every request's times, in ticks and in the order of the workload."""

    arrival: Sequence[int]
    first: Sequence[int]
    last: Sequence[int]
    output_len: Sequence[int]
    num_steps: int
    num_scheduled_tokens: int
    end: int

    def to_lists(self) -> tuple[list[float], list[float], list[float], list[int]]:
        """Arrivals, first and last tokens in seconds, and tokens put out, as Python's own numbers."""
        arrival, first, last = (_seconds(column).tolist() for column in (self.arrival, self.first, self.last))
        return arrival, first, last, np.asarray(self.output_len).tolist()

    def to_simulation(self, requests: Sequence[Request]) -> Simulation:
        """The result of a simulation that kept no steps."""
        arrival, first, last, output_len = self.to_lists()
        return Simulation(
            requests=tuple(
                SimulatedRequest(
                    request_id=request.request_id,
                    prompt_len=request.prompt_len,
                    prefix_hit_tokens=0,
                    num_preemptions=0,
                    times=RequestTimes(
                        arrival_s=arrival[i], first_token_s=first[i], last_token_s=last[i], output_len=output_len[i]
                    ),
                )
                for i, request in enumerate(requests)
            ),
            steps=(),
            num_steps=self.num_steps,
            num_scheduled_tokens=self.num_scheduled_tokens,
            end_s=to_seconds(self.end),
        )

    def spreads(self) -> dict[str, Spread | None]:
        """TTFT, TPOT and E2EL (s), as `latency.spread` gives them of the requests one by one."""
        arrival, first, last = (_seconds(column) for column in (self.arrival, self.first, self.last))
        output = np.asarray(self.output_len, dtype=np.int64)
        is_long = output > 1
        tpot = (last[is_long] - first[is_long]) / (output[is_long] - 1)
        values = {"ttft_s": first - arrival, "tpot_s": tpot, "e2el_s": last - arrival}
        return {name: spread_of_ascending(np.sort(each).tolist()) for name, each in values.items()}


def run_columns(
    columns: RequestColumns, rules: Rules, cost: StepTime, *, host: int = 0, compiled: bool | None = None
) -> CompressedRun | str:
    """The outcome, or why the engine has to simulate request by request.

    Args:
        columns: requests that the rules have accepted (`engine.check_workload`).
        rules: vLLM's or Sarathi's.
        cost: ticks of a step.
        host: ticks of the host's work per step.
        compiled: use the compiled loop; None: where numba is installed and the workload is large.
    """
    loop_rules = _to_loop_rules(columns, rules, host)
    if isinstance(loop_rules, str):
        return loop_rules
    count = len(columns.requests)
    status = TOO_LONG
    if count >= COMPILED_FROM if compiled is None else compiled:
        status, found = _run_compiled(columns, rules, cost, loop_rules)
    if status == TOO_LONG:
        found = Found([0] * count, [0] * count, [0] * count, [0, 0, 0])
        demand, times = (
            columns.demand(rules.max_model_len, are_arrays=False),
            cost.columns(min(loop_rules.seats, count)),
        )
        status = run_events(demand, loop_rules, times, found)
    if status != DONE:
        return REASONS[status]
    num_steps, num_tokens, end = (int(total) for total in found.totals)
    return CompressedRun(
        arrival=found.arrival,
        first=found.first,
        last=found.last,
        output_len=columns.demand(rules.max_model_len, are_arrays=True).output,
        num_steps=num_steps,
        num_scheduled_tokens=num_tokens,
        end=end,
    )


def _run_compiled(columns: RequestColumns, rules: Rules, cost: StepTime, loop_rules: LoopRules) -> tuple[int, Found]:
    """The compiled loop's status; TOO_LONG also where there is none."""
    count = len(columns.requests)
    most_rows = min(loop_rules.seats, count)
    found = Found(*(np.zeros(size, dtype=np.int64) for size in (count, count, count, 3)))
    last = last_tick(loop_rules, cost.columns(most_rows), columns.sizes)
    loop = load_loop() if last >= 0 else None
    if loop is None:
        return TOO_LONG, found
    demand, times = columns.demand(rules.max_model_len, are_arrays=True), cost.columns(most_rows, are_arrays=True)
    return loop(demand, loop_rules._replace(never=last), times, found), found


def _to_loop_rules(columns: RequestColumns, rules: Rules, host: int) -> LoopRules | str:
    if isinstance(rules, SarathiRules):
        return LoopRules(
            budget=rules.chunk_size,
            seats=rules.batch_size_cap,
            block_size=rules.block_size,
            num_blocks=rules.num_blocks,
            watermark_blocks=rules.watermark_blocks,
            is_sarathi=1,
            asks_for_whole_prompt=1,
            depth=1,
            host=host,
            never=_ANY_TICKS,
        )
    if not isinstance(rules, SchedulerRules):
        return f"{type(rules).__name__} has no event loop"
    if rules.pipeline_parallel_size > 1 or rules.num_speculative_tokens or not rules.enable_chunked_prefill:
        return "pipelines, drafts and whole prompts have no event loop"
    if rules.long_prefill_token_threshold:
        return "long_prefill_token_threshold lets several prompts wait half done"
    if rules.enable_prefix_caching and columns.shares_text(rules.block_size):
        return "requests share a text that the cache may find"
    return LoopRules(
        budget=rules.max_num_batched_tokens,
        seats=rules.max_num_seqs,
        block_size=rules.block_size,
        num_blocks=rules.num_blocks - 1,
        watermark_blocks=int(rules.watermark * rules.num_blocks),
        is_sarathi=0,
        asks_for_whole_prompt=int(rules.scheduler_reserve_full_isl),
        depth=2 if rules.async_scheduling else 1,
        host=host,
        never=_ANY_TICKS,
    )


def _seconds(ticks: Sequence[int]) -> Seconds:
    return np.asarray(ticks, dtype=np.float64) / TICKS_PER_S
