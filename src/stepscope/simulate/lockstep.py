"""Lockstep: data-parallel ranks that share experts, each with a scheduler of its own, all in one step at a time.

Every step each rank schedules; one without a row runs a dummy, for the others' collectives wait for it; the step ends
for all at once. Ranks sleep when none has work, which they look for after the first and each dp_sync_interval-th step
of a wave. Source: vLLM 0.32, v1/engine/core.py, DPEngineCoreProc.run_busy_loop and _has_global_unfinished_reqs (0.16
to 0.28: every 32nd step and not after the first); a dummy is one decode token (gpu_worker.execute_dummy_batch).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stepscope.batch import BatchShape, Row
from stepscope.errors import BadInput, InvariantBroken
from stepscope.simulate.arrivals import Arrivals, check_workload
from stepscope.simulate.balancer import RankLoad, RoundRobin
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.journal import Journal, StepSpan
from stepscope.simulate.policy import StepPlan
from stepscope.simulate.simulation import Options
from stepscope.simulate.stages import check_stages
from stepscope.simulate.step_time import checked_ticks, price

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepscope.simulate.balancer import Balancer, Chooser
    from stepscope.simulate.policy import Policy, Rules
    from stepscope.simulate.request import Request
    from stepscope.simulate.simulation import Simulation
    from stepscope.simulate.step_time import CostFunction

DUMMY = BatchShape.from_rows((Row(query_len=1, context_len=0, phase="decode"),))


@runtime_checkable
class GroupCost(Protocol):
    """What one step of the whole group takes."""

    def group_ticks(self, shapes: Sequence[BatchShape | None]) -> int:
        """Ticks, from each rank's shape; None: that rank runs a dummy."""
        ...


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The longest of the ranks' own times. `dummy_s`: a dummy's; None: that of one decode token by the same cost."""

    cost: CostFunction
    dummy_s: float | None = None

    def group_ticks(self, shapes: Sequence[BatchShape | None]) -> int:
        """Of one step."""
        dummy = self.dummy_s
        told = [price(self.cost, shape) for shape in shapes if shape is not None]
        if len(told) < len(shapes):
            told.append(price(self.cost, DUMMY) if dummy is None else to_ticks(dummy, "dummy_s"))
        return max(told)


@dataclass(frozen=True, slots=True)
class GroupFunction:
    """Any function of the ranks' shapes to seconds: experts see the tokens of all."""

    seconds: Callable[[Sequence[BatchShape | None]], float]

    def group_ticks(self, shapes: Sequence[BatchShape | None]) -> int:
        """Of one step."""
        return checked_ticks(self.seconds(shapes), shapes)


def simulate_ranks(
    requests: Iterable[Request],
    rules: Rules,
    cost: CostFunction | GroupCost,
    num_ranks: int,
    router: Balancer | None = None,
    options: Options | None = None,
) -> Simulation:
    """Run a workload on ranks in lockstep; each follows the rules with a cache and a queue of its own.

    A plain cost function counts as SlowestRank(cost). `router` is round robin where it is left out. With one rank
    there is no dummy: the same as `simulate`.

    Raises:
        BadInput: no rank, a workload that cannot run (before any step), or a cost that is no number of 0 or more.
    """
    asked = tuple(requests)
    if num_ranks < 1:
        raise BadInput(f"{num_ranks} ranks: a group has at least one.")
    check_stages(rules, 1)
    check_workload(asked, rules)
    group_cost = cost if isinstance(cost, GroupCost) else SlowestRank(cost)
    balancer = (router or RoundRobin()).start(num_ranks)
    group = _Group(asked, [_Rank(rules.build()) for _ in range(num_ranks)], balancer, options or Options())
    group.run(group_cost, depth=2 if rules.async_scheduling else 1)
    return group.journal.result(asked, group.journal.end_of_run)


@dataclass(slots=True, eq=False)
class _Rank:
    """One scheduler, and when its host is where."""

    policy: Policy
    now: int = 0
    num_inside: int = 0
    num_blocks: int = 0
    in_flight: deque[tuple[StepPlan | None, int]] = field(default_factory=deque)  # None: a dummy
    queue: deque[tuple[int, Request]] = field(default_factory=deque)  # sent to it, by arrival, and not seen yet

    def __post_init__(self) -> None:
        self.num_blocks = self.policy.num_free_blocks

    @property
    def is_unfinished(self) -> bool:
        """It has requests, or the result of a row is on the way."""
        policy = self.policy
        return bool(
            self.queue
            or policy.num_running
            or policy.num_waiting
            or any(plan and plan.rows for plan, _ in self.in_flight)
        )

    def load(self) -> RankLoad:
        """What its scheduler reports."""
        return RankLoad.of(self.policy, num_blocks=self.num_blocks, num_inside=self.num_inside)

    def schedule(self, journal: Journal, rank: int) -> StepPlan | None:
        """Its share of the next step, with the requests that have come by its own time; None where it has none."""
        while self.queue and self.queue[0][0] <= self.now:
            arrival, request = self.queue.popleft()
            journal.arrive(self.policy.add(request), arrival, rank)
        return self.policy.schedule() if self.policy.has_work else None

    def check_admission(self, plan: StepPlan) -> None:
        """Somebody must move where somebody waits."""
        is_busy = plan.rows or plan.preempted or any(other and other.rows for other, _ in self.in_flight)
        if self.policy.num_waiting and not (is_busy or self.policy.num_running):
            raise InvariantBroken(f"{self.policy.num_waiting} requests wait and none is admitted")


class _Group:
    """Ranks that step together; times are ticks."""

    def __init__(self, requests: Sequence[Request], ranks: list[_Rank], chooser: Chooser, options: Options) -> None:
        self.arrivals = Arrivals(requests)
        self.ranks = ranks
        self.chooser = chooser
        self.options = options
        self.journal = Journal(options)
        self.host = to_ticks(options.host_s)
        self.free = 0  # when the devices have done what they were given
        self.num_wave_steps = 0  # since the ranks woke; 0: they sleep

    def run(self, cost: GroupCost, depth: int) -> None:
        """Until nothing is left to come, to run or in flight."""
        while True:
            self._route(max(rank.now for rank in self.ranks))
            if not any(rank.is_unfinished for rank in self.ranks):
                coming = self.arrivals.next
                if coming is None:
                    return
                if not self.num_wave_steps:
                    self._meet(coming)
                    continue
            self._step(cost)
            for rank in self.ranks:
                self._deliver(rank, depth)
            if len(self.ranks) > 1:
                self._look_for_work()

    def _route(self, now: int) -> None:
        """Send the requests that have come by now to their ranks."""
        while (arrived := self.arrivals.take(now)) is not None:
            loads = [rank.load() for rank in self.ranks]
            chosen = self.ranks[self.chooser.choose(arrived[1], arrived[0], loads)]
            chosen.queue.append(arrived)
            chosen.num_inside += 1

    def _step(self, cost: GroupCost) -> None:
        """One step of all ranks; a single rank without a row takes no time, several run dummies."""
        plans = [rank.schedule(self.journal, index) for index, rank in enumerate(self.ranks)]
        if len(plans) == 1 and not (plans[0] and plans[0].rows):
            self.ranks[0].in_flight.append((plans[0], self.ranks[0].now))
            return
        with_rows = self.options.steps == "rows"
        shapes = [plan.to_shape(with_rows=with_rows) if plan and plan.rows else None for plan in plans]
        start = max(max(rank.now for rank in self.ranks) + self.host, self.free)
        self.free = end = start + cost.group_ticks(shapes)
        num_dummy = shapes.count(None)
        if num_dummy == len(shapes):
            self.journal.num_dummy_steps += 1
        else:
            self.journal.num_steps += 1
        for index, (rank, plan, shape) in enumerate(zip(self.ranks, plans, shapes, strict=True)):
            rank.in_flight.append((plan, end))
            if plan is None or shape is None:
                continue
            self.journal.num_tokens += shape.num_scheduled_tokens or 0
            if self.options.steps != "none":
                span = StepSpan(start=start, end=end, rank=index, num_dummy=num_dummy)
                self.journal.add_step(shape, span, rank.policy, len(plan.preempted))

    def _deliver(self, rank: _Rank, depth: int) -> None:
        """A rank with as many steps in flight as it may have waits for the oldest."""
        if len(rank.in_flight) < depth:
            return
        plan, end = rank.in_flight.popleft()
        rank.now = max(rank.now, end)
        if plan is None:
            return
        if plan.rows:
            self.journal.end_of_run = max(self.journal.end_of_run, rank.now)
        ended = rank.policy.update(plan)
        self.journal.deliver(plan, rank.now)
        for live in ended:
            rank.num_inside -= 1
            self.journal.end(live, rank.now)
            self.arrivals.release(live.request.request_id, rank.now)
        rank.check_admission(plan)

    def _look_for_work(self) -> None:
        """After a wave's first and each dp_sync_interval-th step; all sleep where none has any."""
        self.num_wave_steps += 1
        if self.num_wave_steps != 1 and self.num_wave_steps % self.options.dp_sync_interval:
            return
        if not any(rank.is_unfinished for rank in self.ranks):
            self.num_wave_steps = 0
            self._meet(self.free)

    def _meet(self, time: int) -> None:
        """All ranks are idle: none is ahead of the others, dummies in flight have no result, and workers hear news."""
        now = max(time, *(rank.now for rank in self.ranks))
        for rank in self.ranks:
            for plan, _ in rank.in_flight:
                if plan is not None:
                    rank.policy.update(plan)
            rank.in_flight.clear()
            rank.now = now
            if rank.policy.has_work:
                rank.policy.update(rank.policy.schedule())
