"""EnginePool: engines that step on their own, each with a clock, a scheduler and a cache; a router sends them requests.

Events are ordered by (time, priority, sequence): what comes from outside an engine, then the ends of steps, then the
scheduling of next ones, so that engines that end a step at the same time see each other's news alike. A single engine
of a pool runs as `simulate` does. vLLM's data-parallel ranks of dense models are such a pool, those with experts are
not (`lockstep`).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stepscope.errors import BadInput, InvariantBroken
from stepscope.simulate.arrivals import Arrivals, check_workload
from stepscope.simulate.balancer import RankLoad, RoundRobin
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.journal import Journal, StepSpan
from stepscope.simulate.simulation import Options
from stepscope.simulate.stages import check_stages
from stepscope.simulate.step_time import price

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepscope.simulate.balancer import Balancer, Chooser
    from stepscope.simulate.policy import LiveRequest, Policy, Rules, StepPlan
    from stepscope.simulate.request import Request
    from stepscope.simulate.simulation import Simulation
    from stepscope.simulate.step_time import CostFunction

COMES, ENDS, BEGINS = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePool:
    """Equal engines: their rules, what a step costs each, how many, and who gets a request."""

    rules: Rules
    cost: CostFunction
    num_engines: int = 1
    router: Balancer = field(default_factory=RoundRobin)

    def __post_init__(self) -> None:
        if self.num_engines < 1:
            raise BadInput(f"a pool of {self.num_engines} engines: give 1 or more.")
        check_stages(self.rules, 1)


class Events:
    """What will happen, in a total order; times are ticks."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        self._heap: list[tuple[int, int, int, Callable[[int], None]]] = []
        self._num_pushed = 0

    def push(self, time: int, priority: int, action: Callable[[int], None]) -> None:
        """Call `action` with the time, then."""
        heapq.heappush(self._heap, (time, priority, self._num_pushed, action))
        self._num_pushed += 1

    def run(self, arrive: Callable[[Request, int], None]) -> None:
        """Until nothing is left; arrivals come before all else of their time."""
        while self._heap or self.arrivals.next is not None:
            coming = self.arrivals.next
            if coming is not None and (not self._heap or coming <= self._heap[0][0]):
                arrived = self.arrivals.take(coming)
                assert arrived is not None
                arrive(arrived[1], arrived[0])
                continue
            time, _, _, action = heapq.heappop(self._heap)
            action(time)


class Listener(Protocol):
    """Who hears what an engine's steps bring."""

    def ended(self, engine: PooledEngine, live: LiveRequest, now: int) -> None:
        """A request has its last token here."""
        ...

    def fetches(self, engine: PooledEngine, live: LiveRequest, now: int) -> None:
        """A request has got blocks for KV that is elsewhere."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class PooledEngine:
    """One engine. `num_inside`: requests sent to it that have not ended."""

    policy: Policy
    rank: int
    pool: EnginePool
    journal: Journal
    events: Events
    listener: Listener
    num_inside: int = 0
    _free: int = 0
    _num_blocks: int = 0
    _is_due: bool = False
    _in_flight: deque[tuple[StepPlan, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._num_blocks = self.policy.num_free_blocks

    @property
    def load(self) -> RankLoad:
        """What a router sees."""
        return RankLoad.of(self.policy, num_blocks=self._num_blocks, num_inside=self.num_inside)

    def wake(self, now: int) -> None:
        """Something came: schedule, unless a step is waited for."""
        if not self._in_flight and not self._is_due:
            self._is_due = True
            self.events.push(now, BEGINS, self._begin)

    def _begin(self, now: int) -> None:
        """Schedule as many steps as may be in flight."""
        self._is_due = False
        depth = 2 if self.pool.rules.async_scheduling else 1
        while len(self._in_flight) < depth and self.policy.has_work:
            plan = self.policy.schedule()
            for live in plan.loads:
                self.listener.fetches(self, live, now)
            if plan.rows or any(step.rows for step, _ in self._in_flight):
                self._in_flight.append((plan, self._run(plan, now)))
                continue
            self.policy.update(plan)
            if not plan.preempted:
                break  # nothing can run until something comes
        if self._in_flight:
            self.events.push(max(now, self._in_flight[0][1]), ENDS, self._end)

    def _run(self, plan: StepPlan, now: int) -> int:
        """Give a step to the device; when it ends."""
        if not plan.rows:
            return now
        options = self.journal.options
        shape = plan.to_shape(with_rows=options.steps == "rows")
        start = max(now + to_ticks(options.host_s), self._free)
        self._free = start + price(self.pool.cost, shape)
        self.journal.num_steps += 1
        self.journal.num_tokens += shape.num_scheduled_tokens or 0
        if options.steps != "none":
            span = StepSpan(start=start, end=self._free, rank=self.rank)
            self.journal.add_step(shape, span, self.policy, len(plan.preempted))
        return self._free

    def _end(self, now: int) -> None:
        """Deliver the oldest step."""
        plan, _ = self._in_flight.popleft()
        ended = self.policy.update(plan)
        self.journal.deliver(plan, now)
        if plan.rows:
            self.journal.end_of_run = max(self.journal.end_of_run, now)
        for live in ended:
            self.num_inside -= 1
            self.listener.ended(self, live, now)
        if not self._is_due:
            self._is_due = True
            self.events.push(now, BEGINS, self._begin)


def simulate_replicas(requests: Iterable[Request], pool: EnginePool, options: Options | None = None) -> Simulation:
    """Run a workload on engines that know nothing of each other.

    Raises:
        BadInput: as of `simulate`.
    """
    asked = tuple(requests)
    check_workload(asked, pool.rules)
    replicas = _Replicas(Arrivals(asked), pool, Journal(options or Options()))
    replicas.events.run(replicas.arrive)
    return replicas.journal.result(asked, replicas.journal.end_of_run)


def start_engines(
    pool: EnginePool, journal: Journal, events: Events, listener: Listener, first_rank: int = 0
) -> list[PooledEngine]:
    """A pool's engines, numbered from `first_rank` on."""
    return [
        PooledEngine(policy=pool.rules.build(), rank=rank, pool=pool, journal=journal, events=events, listener=listener)
        for rank in range(first_rank, first_rank + pool.num_engines)
    ]


def choose(chooser: Chooser, engines: Sequence[PooledEngine], request: Request, now: int) -> PooledEngine:
    """The engine that a request goes to; it counts as inside from now on."""
    chosen = engines[chooser.choose(request, now, [engine.load for engine in engines])]
    chosen.num_inside += 1
    return chosen


class _Replicas:
    """A pool that serves whole requests."""

    def __init__(self, arrivals: Arrivals, pool: EnginePool, journal: Journal) -> None:
        self.journal = journal
        self.events = Events(arrivals)
        self.engines = start_engines(pool, journal, self.events, self)
        self.chooser = pool.router.start(pool.num_engines)

    def arrive(self, request: Request, now: int) -> None:
        engine = choose(self.chooser, self.engines, request, now)
        self.journal.arrive(engine.policy.add(request), now, engine.rank)
        engine.wake(now)

    def ended(self, _engine: PooledEngine, live: LiveRequest, now: int) -> None:
        self.journal.end(live, now)
        self.events.arrivals.release(live.request.request_id, now)

    def fetches(self, engine: PooledEngine, live: LiveRequest, now: int) -> None:
        raise InvariantBroken(f"engine {engine.rank} fetches the KV of {live.request.request_id!r} at {now}")
