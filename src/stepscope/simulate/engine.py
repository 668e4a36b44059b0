"""Engine: a clock around the scheduler; requests, rules and a cost per step become timed steps and latencies.

Synchronous: schedule, run, deliver, and the host's work between steps adds to each. Async: as the engine's core does,
the next step is scheduled while one is in flight, so the host's work hides behind it and a request waits up to one step
longer to get in. The clock counts ticks (`clock`), arrivals have a total order (`arrivals`). Stretches of equal decode
steps need no scheduling (`stretch`); where only requests' times are kept, all may go by the event loop (`compressed`);
with `is_exact` every step is scheduled, to the same result.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.errors import InvariantBroken
from stepscope.simulate.arrivals import Arrivals, check_workload
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.compressed import CompressedRun, RequestColumns, run_columns
from stepscope.simulate.journal import Journal, StepSpan
from stepscope.simulate.policy import TimedPolicy
from stepscope.simulate.simulation import Detail, Options, SimulatedRequest, SimulatedStep, Simulation
from stepscope.simulate.stages import Pipeline, Stages, check_stages
from stepscope.simulate.step_time import StepTime, price
from stepscope.simulate.stretch import find_stretch
from stepscope.simulate.vllm_scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.batch import BatchShape
    from stepscope.simulate.policy import Rules, StepPlan
    from stepscope.simulate.request import Request
    from stepscope.simulate.step_time import CostFunction

__all__ = ["Detail", "Options", "SimulatedRequest", "SimulatedStep", "Simulation", "check_workload", "simulate"]

ONE_STAGE = Stages()


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
        run = run_columns(RequestColumns(asked), rules, cost, host=to_ticks(options.host_s), compiled=options.compiled)
        if isinstance(run, CompressedRun):
            return run.to_simulation(asked)
    engine = Engine(asked, rules, cost, options)
    engine.run()
    return engine.result()


class Engine:
    """Clock, scheduler and device of one simulation; times are ticks. More than one stage is a pipeline."""

    def __init__(
        self,
        requests: Sequence[Request],
        rules: Rules,
        cost: CostFunction,
        options: Options,
        stages: Stages = ONE_STAGE,
    ) -> None:
        check_stages(rules, len(stages.shares))
        self.requests = requests
        self.scheduler = rules.build()
        self.timed = self.scheduler if isinstance(self.scheduler, TimedPolicy) else None
        self.arrivals = Arrivals(requests)
        self.journal = Journal(options)
        self.cost = cost
        self.options = options
        self.host = to_ticks(options.host_s)
        self.with_rows = options.steps == "rows" or (isinstance(cost, StepTime) and cost.needs_rows)
        self.depth = len(stages.shares) + (1 if rules.async_scheduling else 0)
        self.device = Pipeline(stages)
        self.now = 0
        self.in_flight: deque[tuple[StepPlan, int]] = deque()

    def run(self) -> None:
        """Until nothing is left to come, to run or in flight."""
        while True:
            while (arrived := self.arrivals.take(self.now)) is not None:
                self.journal.arrive(self.scheduler.add(arrived[1]), arrived[0])
            if self.scheduler.has_work:
                if not self.options.is_exact and self._skip():
                    continue
                if self.timed:
                    self.timed.now = self.now
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
            if self.scheduler.num_waiting and not is_busy and not self._await_event():
                raise InvariantBroken(f"{self.scheduler.num_waiting} requests wait and none is admitted")

    def result(self) -> Simulation:
        """What is kept of a run that has ended."""
        return self.journal.result(self.requests, self.now, self.device.times())

    def _await_event(self) -> bool:
        """Move an idle engine's clock to what ends by itself, or to the next arrival before; False: nothing will."""
        event = self.timed.next_event if self.timed else None
        if event is None:
            return False
        coming = self.arrivals.next
        self.now = max(self.now, event if coming is None else min(event, coming))
        return True

    def _start(self, plan: StepPlan) -> int:
        """Give a step to the device; when it ends."""
        if not plan.rows:
            return self.now
        return self._advance(plan.to_shape(with_rows=self.with_rows), plan)

    def _advance(self, shape: BatchShape, plan: StepPlan | None) -> int:
        start, end = self.device.run(self.now + self.host, price(self.cost, shape))
        self.journal.num_steps += 1
        self.journal.num_tokens += shape.num_scheduled_tokens or 0
        if self.options.steps != "none":
            span = StepSpan(start=start, end=end)
            kept = shape if self.options.steps == "rows" else replace(shape, rows=None)
            self.journal.add_step(kept, span, self.scheduler, len(plan.preempted) if plan else 0)
        return end

    def _deliver(self, plan: StepPlan) -> None:
        ended = self.scheduler.update(plan)
        self.journal.deliver(plan, self.now)
        for live in ended:
            self.journal.end(live, self.now)
            self.arrivals.release(live.request.request_id, self.now)

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
            end = self._advance(stretch.advance(), None)
            if plan:
                pending, end = end, pending
            self.now = max(self.now, end)
            ends.append(self.now)
        last = stretch.close()
        if plan:
            self.in_flight[0] = (last, pending)
        if self.options.with_gaps:
            for row in last.rows:
                self.journal.progress[row[0]].outputs += ends
        return bool(ends)
