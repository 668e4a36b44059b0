"""Engine: a clock around the scheduler; requests, rules and a cost per step become timed steps and latencies.

Synchronous: schedule, run, deliver, and the host's work between steps adds to each. Async: as the engine's core does,
the next step is scheduled while one is in flight, so the host's work hides behind it and a request waits up to one step
longer to get in. The clock counts ticks (`clock`). Events are ordered by (time, priority, sequence): follow-ups before
arrivals of the same time, each in the order of the workload. Stretches of equal decode steps need no scheduling
(`stretch`); where only requests' times are kept, all may go by the event loop (`compressed`); with `is_exact` every
step is scheduled, to the same result.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

from stepscope.errors import BadInput, InvariantBroken
from stepscope.latency import RequestTimes
from stepscope.simulate.clock import to_seconds, to_ticks
from stepscope.simulate.compressed import Columns, Outcome, run_columns
from stepscope.simulate.scheduler import Scheduler
from stepscope.simulate.step_time import StepTime
from stepscope.simulate.stretch import find_stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepscope.batch import BatchShape
    from stepscope.simulate.policy import LiveRequest, Rules, StepPlan
    from stepscope.simulate.request import Request

    CostFunction: TypeAlias = Callable[[BatchShape], float]

Detail = Literal["none", "sums", "rows"]
_FOLLOWS, _ARRIVES = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to keep, and the host's share.

    Attributes:
        steps: keep no steps, their sums, or their rows. The cost function sees rows only with "rows".
        with_gaps: keep every request's times between outputs (memory grows with the tokens).
        host_s: host work per step: between steps, or in async scheduling beside the step in flight.
        is_exact: schedule every single step.
        compiled: where nothing but requests' times is kept, run compiled (extra `fast`); None: where it pays.
    """

    steps: Detail = "sums"
    with_gaps: bool = False
    host_s: float = 0.0
    is_exact: bool = False
    compiled: bool | None = None

    def __post_init__(self) -> None:
        to_ticks(self.host_s, "host_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """One step: what it computed and when. Free blocks and waiting requests are those after scheduling it."""

    start_s: float
    end_s: float
    shape: BatchShape
    num_free_blocks: int
    num_waiting: int
    num_preempted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """One request that has ended. `prefix_hit_tokens` is of its first admission."""

    request_id: str
    prompt_len: int
    prefix_hit_tokens: int
    num_preemptions: int
    times: RequestTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The result: requests in the order of the workload, steps in order (none where none were kept)."""

    requests: tuple[SimulatedRequest, ...]
    steps: tuple[SimulatedStep, ...]
    num_steps: int
    num_scheduled_tokens: int
    end_s: float


def check_workload(requests: Sequence[Request], rules: Rules) -> None:
    """Whether every request can run and every turn follows one that ends.

    Raises:
        BadInput: a name twice, a request that can never fit, a turn after an unknown request or after itself.
    """
    after = {request.request_id: request.after for request in requests}
    if len(after) < len(requests):
        raise BadInput(f"{len(requests)} requests have {len(after)} names between them: give each its own.")
    for request in requests:
        rules.check_request(request)
        if request.after is not None and request.after not in after:
            raise BadInput(f"request {request.request_id!r} follows {request.after!r}, which is not in the workload.")
    ends: set[str] = set()
    for name, leader in after.items():
        if leader is None:
            continue
        path: dict[str, None] = {}
        step: str | None = name
        while step is not None and step not in ends:
            if step in path:
                raise BadInput(f"requests follow each other in a circle: {' after '.join([*path, step])}.")
            path[step] = None
            step = after[step]
        ends.update(path)


def simulate(
    requests: Iterable[Request], rules: Rules, cost: CostFunction, options: Options | None = None
) -> Simulation:
    """Run a workload to its end. `cost` gives the seconds of a step's shape.

    Raises:
        BadInput: the workload cannot run (before any step), or the cost of a step is no number of 0 or more.
    """
    asked, options = tuple(requests), options or Options()
    check_workload(asked, rules)
    if isinstance(cost, StepTime) and options.steps == "none" and not (options.with_gaps or options.is_exact):
        outcome = run_columns(Columns(asked), rules, cost, host=to_ticks(options.host_s), compiled=options.compiled)
        if isinstance(outcome, Outcome):
            return _simulation(asked, outcome)
    engine = _Engine(asked, rules, cost, options)
    engine.run()
    return engine.result(asked)


def _simulation(requests: Sequence[Request], outcome: Outcome) -> Simulation:
    columns = zip(requests, *outcome.to_lists(), strict=True)
    return Simulation(
        requests=tuple(
            SimulatedRequest(
                request_id=request.request_id,
                prompt_len=request.prompt_len,
                prefix_hit_tokens=0,
                num_preemptions=0,
                times=RequestTimes(arrival_s=arrival, first_token_s=first, last_token_s=last, output_len=output_len),
            )
            for request, arrival, first, last, output_len in columns
        ),
        steps=(),
        num_steps=outcome.num_steps,
        num_scheduled_tokens=outcome.num_scheduled_tokens,
        end_s=to_seconds(outcome.end),
    )


class _Arrivals:
    """Requests that have not come yet, by time; those that follow another one come into it when that one ends."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._events: list[tuple[int, int, int]] = []
        self._requests = requests
        self._followers: dict[str, list[int]] = {}
        for sequence, request in enumerate(requests):
            if request.after is None:
                self._events.append((to_ticks(request.arrival_s), _ARRIVES, sequence))
            else:
                self._followers.setdefault(request.after, []).append(sequence)
        heapq.heapify(self._events)

    @property
    def next(self) -> int | None:
        """When the next one comes; None where none is known to."""
        return self._events[0][0] if self._events else None

    def take(self, now: int) -> tuple[int, Request] | None:
        """The next one that has come by now, and when; None where there is none."""
        if not self._events or self._events[0][0] > now:
            return None
        time, _, sequence = heapq.heappop(self._events)
        return time, self._requests[sequence]

    def release(self, request_id: str, end: int) -> None:
        """A request ended: set the time of those that follow it."""
        for sequence in self._followers.pop(request_id, ()):
            heapq.heappush(self._events, (end + to_ticks(self._requests[sequence].arrival_s), _FOLLOWS, sequence))


@dataclass(slots=True, kw_only=True)
class _Progress:
    """When a request came and put out tokens."""

    arrival: int
    first_token: int | None = None
    outputs: list[int] = field(default_factory=list)


class _Engine:
    """Clock and scheduler of one simulation; times are ticks."""

    def __init__(self, requests: Sequence[Request], rules: Rules, cost: CostFunction, options: Options) -> None:
        self.scheduler = rules.build()
        self.arrivals = _Arrivals(requests)
        self.cost = cost
        self.options = options
        self.host = to_ticks(options.host_s)
        self.with_rows = options.steps == "rows" or (isinstance(cost, StepTime) and cost.needs_rows)
        self.depth = 2 if rules.async_scheduling else 1
        self.now = 0
        self.free = 0  # when the device has done what it was given
        self.in_flight: deque[tuple[StepPlan, int]] = deque()
        self.progress: dict[LiveRequest, _Progress] = {}
        self.done: dict[str, SimulatedRequest] = {}
        self.steps: list[SimulatedStep] = []
        self.num_steps = self.num_tokens = 0

    def run(self) -> None:
        """Until nothing is left to come, to run or in flight."""
        while True:
            while (arrived := self.arrivals.take(self.now)) is not None:
                self.progress[self.scheduler.add(arrived[1])] = _Progress(arrival=arrived[0])
            if self.scheduler.has_work:
                if not self.options.is_exact and self._skip():
                    continue
                plan = self.scheduler.schedule()
                self.in_flight.append((plan, self._start(plan)))
                if len(self.in_flight) < self.depth and (plan.rows or self.scheduler.has_work):
                    continue
            elif not self.in_flight:
                coming = self.arrivals.next
                if coming is None:
                    return
                self.now = coming
                continue
            plan, end = self.in_flight.popleft()
            self.now = max(self.now, end)
            self._deliver(plan)
            is_busy = (
                plan.rows or plan.preempted or self.scheduler.num_running or any(p.rows for p, _ in self.in_flight)
            )
            if self.scheduler.num_waiting and not is_busy:
                raise InvariantBroken(f"{self.scheduler.num_waiting} requests wait and none is admitted")

    def _start(self, plan: StepPlan) -> int:
        """Give a step to the device; when it ends."""
        if not plan.rows:
            return self.now
        shape = plan.to_shape(with_rows=self.with_rows)
        self._advance(shape, plan)
        return self.free

    def _advance(self, shape: BatchShape, plan: StepPlan | None) -> None:
        start = max(self.now + self.host, self.free)
        self.free = start + self._ticks(shape)
        self.num_steps += 1
        self.num_tokens += shape.num_scheduled_tokens or 0
        if self.options.steps != "none":
            self.steps.append(
                SimulatedStep(
                    start_s=to_seconds(start),
                    end_s=to_seconds(self.free),
                    shape=shape if self.options.steps == "rows" else replace(shape, rows=None),
                    num_free_blocks=self.scheduler.num_free_blocks,
                    num_waiting=self.scheduler.num_waiting,
                    num_preempted=len(plan.preempted) if plan else 0,
                )
            )

    def _ticks(self, shape: BatchShape) -> int:
        if isinstance(self.cost, StepTime):
            return self.cost.ticks(shape)
        seconds = self.cost(shape)
        try:
            return to_ticks(seconds)
        except BadInput as error:
            raise BadInput(
                f"the cost function gives {seconds} s for {shape}: it must give 0 or more seconds."
            ) from error

    def _deliver(self, plan: StepPlan) -> None:
        ended = self.scheduler.update(plan)
        with_gaps = self.options.with_gaps
        for live, _, context, is_sampled, _ in plan.rows:
            if not is_sampled or (context >= live.prefill_end and not with_gaps):
                continue  # a first token comes of a prefill row
            progress = self.progress.get(live)
            if progress is None:
                continue  # it ended before, and this step was one too many
            if progress.first_token is None:
                progress.first_token = self.now
            if with_gaps:
                progress.outputs.append(self.now)
        for live in ended:
            self._end(live, self.progress.pop(live))

    def _end(self, live: LiveRequest, progress: _Progress) -> None:
        outputs = progress.outputs
        times = RequestTimes(
            arrival_s=to_seconds(progress.arrival),
            first_token_s=None if progress.first_token is None else to_seconds(progress.first_token),
            last_token_s=to_seconds(self.now),
            output_len=live.output_len,
            gaps_s=tuple(to_seconds(after - before) for before, after in pairwise(outputs)) if outputs else None,
        )
        request = live.request
        self.done[request.request_id] = SimulatedRequest(
            request_id=request.request_id,
            prompt_len=request.prompt_len,
            prefix_hit_tokens=live.first_hit_tokens or 0,
            num_preemptions=live.num_preemptions,
            times=times,
        )
        self.arrivals.release(request.request_id, self.now)

    def _skip(self) -> bool:
        """Run a stretch of equal decode steps without scheduling each; False where there is none."""
        if self.options.steps == "rows" or len(self.in_flight) != self.depth - 1:
            return False
        plan, pending = self.in_flight[0] if self.in_flight else (None, self.now)
        stretch = find_stretch(self.scheduler, plan) if isinstance(self.scheduler, Scheduler) else None
        if stretch is None:
            return False
        ends: list[int] = []
        coming = self.arrivals.next
        while stretch.has_next and (coming is None or coming > self.now):
            self._advance(stretch.advance(), None)
            pending, end = (self.free, pending) if plan else (pending, self.free)
            self.now = max(self.now, end)
            ends.append(self.now)
        last = stretch.close()
        if plan:
            self.in_flight[0] = (last, pending)
        if self.options.with_gaps:
            for row in last.rows:
                self.progress[row[0]].outputs += ends
        return bool(ends)

    def result(self, requests: Sequence[Request]) -> Simulation:
        """What is kept; every request has ended."""
        if len(self.done) != len(requests):
            raise InvariantBroken(f"{len(self.done)} requests ended of {len(requests)}")
        return Simulation(
            requests=tuple(self.done[request.request_id] for request in requests),
            steps=tuple(self.steps),
            num_steps=self.num_steps,
            num_scheduled_tokens=self.num_tokens,
            end_s=to_seconds(self.now),
        )
