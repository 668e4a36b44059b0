"""Dependencies: what each piece of a recorded run had to wait for, as far as the recording tells.

Nodes are moments of host threads (launch calls, blocking calls, ends of windows) and device work. An edge says "not
before": the thread's own order, the launch, the stream's order, a blocking call and the work that it waits for, and a
collective's last arrival among the ranks. What an edge leaves over (launch latency, the gap between two kernels) is a
lag and is kept, up to a limit for its kind; what lies beyond no recorded dependency explains, and `unexplained_ns` adds
it up. Where a kernel starts late and work of another stream ended just before, that order is taken for a dependency
(inferred: traces name no event waits).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from stepscope.budget.partition import launching_tracks, worker_track
from stepscope.intervals import NOTHING
from stepscope.steps.composition import NO_STEP
from stepscope.steps.windows import BLOCKING_CALL
from stepscope.store.launches import NO_LAUNCH
from stepscope.store.schema import OP, RUNTIME

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount
    from stepscope.budget.placement import Account
    from stepscope.intervals import Int64, Spans

# longest lags that a recorded dependency explains; figures: docs/retime.md
LAUNCH_LAG_NS = 50_000  # a launch call's start -> its work's
STREAM_LAG_NS = 20_000  # the end of a stream's work -> its next, at least; `queued_gap` looks at the capture's own
QUEUED_NS = 200_000  # a work that was launched so long before it ran stood in the queue
GRAPH_LAG_NS = 200_000  # the same between two works of one graph launch: no host takes part
SYNC_LAG_NS = 100_000  # the end of the work -> the return of the call that waited for it
BLOCKED_NS = 5_000  # a blocking call that finds nothing to wait for
SLOW_CALL_NS = 20_000  # a launch call longer than this (of a graph) may give its work to the device at its end
WORK, MARK = 0, 1

# (the node whose end is waited for, lag in ns, kind); a mark ends where it begins
Edge: TypeAlias = tuple[int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A host thread's time as disjoint pieces in order, and the account of each; what lies between is host work."""

    starts: Int64
    ends: Int64
    accounts: tuple[Account, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """One rank's graph. Per node: times in ns, kind, account and name (positions in `accounts` and `names`), and edges.

    Attributes:
        step: of device work the position of its step's boundary, of a window's end its step_id; else NO_STEP.
        thread, previous: of a moment of a thread, which thread and which node came before it there; else -1.
        edges: of every node, without its thread's order.
        collectives: nodes of collectives in time order.
        num_inferred: edges between streams that only times suggest.
        unexplained_ns: device and host waiting beyond the lags.
    """

    rank: int | None
    accounts: tuple[Account, ...]
    names: tuple[str, ...]
    start_ns: Int64
    end_ns: Int64
    kind: Int64
    account: Int64
    name: Int64
    step: Int64
    thread: Int64
    previous: Int64
    edges: tuple[tuple[Edge, ...], ...]
    threads: tuple[Thread, ...]
    collectives: Int64
    num_inferred: int
    unexplained_ns: int

    def held_accounts(self) -> set[Account]:
        """Accounts of work and of threads' pieces; host work between calls has one too."""
        works = {self.accounts[label] for label in np.unique(self.account[self.account >= 0]).tolist()}
        return works.union(("host", "host_work") for _ in self.threads[:1]).union(*(t.accounts for t in self.threads))

    def held_names(self) -> set[str]:
        """Names of work."""
        return {self.names[name] for name in np.unique(self.name[self.name >= 0]).tolist()}


def find_dependencies(rank: RankAccount) -> Dependencies:
    """The graph of one rank, on the device's lane or, on a CPU backend, on the worker thread."""
    builder = _Builder(rank)
    if rank.table.windows.lane == "device":
        builder.add_device()
    else:
        builder.add_worker()
    return builder.build()


class _Builder:
    """Collects nodes; they are sorted by time at the end."""

    def __init__(self, rank: RankAccount) -> None:
        self.rank = rank
        self.events = rank.store.events
        self.accounts: list[Account] = list(rank.budget.placements.accounts)
        self.nodes: list[tuple[int, int, int, int, int]] = []  # start, end, kind, account, step
        self.name: list[int] = []
        self.thread: list[int] = []
        self.previous: list[int] = []
        self.edges: list[list[Edge]] = []
        self.threads: list[Thread] = []
        self.collectives: list[int] = []
        self.stream_lag = STREAM_LAG_NS
        self.launched_by: dict[int, int] = {}  # device work -> the node of its launch
        self.num_inferred = self.unexplained_ns = 0

    def add(self, start: int, end: int, *, account: int = -1, name: int = -1, step: int = NO_STEP) -> int:
        """A node; one with an account is work, else it is a mark."""
        kind = MARK if account < 0 else WORK
        self.nodes.append((start, end, kind, account, step))
        self.name.append(name)
        self.thread.append(-1)
        self.previous.append(-1)
        self.edges.append([])
        return len(self.nodes) - 1

    def label(self, account: Account) -> int:
        if account not in self.accounts:
            self.accounts.append(account)
        return self.accounts.index(account)

    def explain(self, lag: int, limit: int) -> int:
        """A lag that its kind of edge may have; the rest is counted."""
        self.unexplained_ns += max(lag - limit, 0)
        return min(lag, limit)

    def add_device(self) -> None:
        """Launch and blocking calls of the launching threads, then the device's work."""
        begun: dict[int, tuple[int, ...]] = {}  # row of a call -> its node, and that of its return where it is slow
        returns: list[tuple[int, int]] = []  # of blocking calls: the node of the call, and of its return
        supply = self.rank.budget.partition.busy.get("supply", NOTHING)
        for track, rows in self.calls().items():
            marks: list[int] = []
            for row, is_blocking in rows:
                start, end = int(self.events.start_ns[row]), int(self.events.end_ns[row])
                call = [self.add(start, start)]
                if is_blocking or end - start > SLOW_CALL_NS:
                    call.append(self.add(end, end))
                if is_blocking:
                    returns.append((call[0], call[1]))
                begun[row] = tuple(call)
                marks += call
            waits = supply if track == worker_track(self.rank.store, self.rank.table) else NOTHING
            self.add_thread(marks, {("supply", "dequeue"): waits})
        works = self.add_works(begun)
        for _, back in returns:
            self.previous[back] = -1  # not the thread's own work but what the call waits for
        self.add_returns(returns, works)

    def calls(self) -> dict[int, list[tuple[int, bool]]]:
        """Per launching thread, the rows of its launches and blocking calls in order, and which of them block."""
        e, launch = self.events, self.rank.table.work.launch
        blocking = np.array([bool(BLOCKING_CALL.match(name)) for name in self.rank.store.names] or [False])
        is_blocking = (e.kind == RUNTIME) & blocking[e.name_id]
        rows = np.unique(np.concatenate((launch[launch != NO_LAUNCH], np.flatnonzero(is_blocking))))
        found: dict[int, list[tuple[int, bool]]] = {}
        for track in launching_tracks(self.rank.store, self.rank.table).tolist():
            last_end, own = -1, []
            for row in rows[e.track_id[rows] == track].tolist():
                is_new = int(e.start_ns[row]) >= last_end  # a call inside a blocking one is part of it
                if is_blocking[row] and is_new:
                    last_end = int(e.end_ns[row])
                own.append((row, bool(is_blocking[row]) and is_new))
            found[track] = own
        return found

    def add_thread(self, marks: list[int], parts: dict[Account, Spans]) -> None:
        """Chain the marks of a thread in the order of time."""
        marks.sort(key=lambda node: self.nodes[node][:2])
        for before, node in pairwise(marks):
            self.previous[node] = before
        for node in marks:
            self.thread[node] = len(self.threads)
        rows = sorted(
            (start, end, account)
            for account, spans in parts.items()
            for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
        )
        times = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2)
        accounts = tuple(row[2] for row in rows)
        self.threads.append(Thread(starts=times[:, 0], ends=times[:, 1], accounts=accounts))

    def queued_gap(self) -> int:
        """What this device leaves between two queued works of a stream: the gap that 95 % of them stay below.

        A few us on GPUs, 0.1 ms on NPUs under their profiler. No longer than GRAPH_LAG_NS.
        """
        e, work = self.events, self.rank.table.work
        own = work.launch != NO_LAUNCH
        rows, launch = work.row[own], work.launch[own]
        order = np.lexsort((e.start_ns[rows], e.track_id[rows]))
        rows, launch = rows[order], launch[order]
        gap = e.start_ns[rows][1:] - e.end_ns[rows][:-1]
        queued = (e.start_ns[rows] - e.start_ns[launch])[1:] > QUEUED_NS
        queued &= (e.track_id[rows][1:] == e.track_id[rows][:-1]) & (gap >= 0)
        usual = int(np.quantile(gap[queued], 0.95)) if queued.any() else 0
        return min(max(usual, STREAM_LAG_NS), GRAPH_LAG_NS)

    def add_works(self, begun: dict[int, tuple[int, ...]]) -> list[int]:
        """Device work in order of its start, each with its launch, what its stream ran before, and other streams."""
        e, work, placements = self.events, self.rank.table.work, self.rank.budget.placements
        first, last = self.rank.table.windows.span
        collective = placements.of_family("collective", "dispatch_combine")
        self.stream_lag = self.queued_gap()
        order = np.lexsort((e.end_ns[work.row], e.start_ns[work.row]))
        ended: dict[int, list[int]] = {}  # stream -> nodes by end
        nodes: list[int] = []
        for place in order.tolist():
            row = int(work.row[place])
            start, end = int(e.start_ns[row]), int(e.end_ns[row])
            if start < first or end > last:
                continue
            account, name, step = int(placements.account[row]), int(e.name_id[row]), int(work.boundary[place])
            node = self.add(start, end, account=account, name=name, step=step)
            if collective[row]:
                self.collectives.append(node)
            self.link(node, begun.get(int(work.launch[place]), ()), int(e.track_id[row]), ended)
            nodes.append(node)
        return nodes

    def link(self, node: int, call: tuple[int, ...], stream: int, ended: dict[int, list[int]]) -> None:
        """What a work waited for: its launch, its stream, and where neither held it up, another stream."""
        start = self.nodes[node][0]
        found: list[tuple[int, Edge, int]] = []  # (when, edge, longest lag)
        if call:
            called = max((each for each in call if self.nodes[each][0] <= start), default=call[0])
            found.append((self.nodes[called][0], (called, 0, "launch"), LAUNCH_LAG_NS))
        before = self.last_ended(ended.get(stream, ()), start)
        if before is not None:
            is_replay = bool(call) and self.launched_by.get(before) == call[0]
            found.append((self.nodes[before][1], (before, 0, "stream"), GRAPH_LAG_NS if is_replay else self.stream_lag))
        at, _, limit = max(found, default=(start, (0, 0, ""), 0), key=lambda each: each[0])
        if not found or start - at > limit:
            others = [self.last_ended(own, start) for name, own in ended.items() if name != stream]
            near = [other for other in others if other is not None and start - self.nodes[other][1] <= STREAM_LAG_NS]
            if near:
                other = max(near, key=lambda each: self.nodes[each][1])
                found.append((self.nodes[other][1], (other, 0, "other stream"), STREAM_LAG_NS))
                self.num_inferred += 1
        if found and ended:
            self.edges[node] = self.with_lags(start, found)
        if call:
            self.launched_by[node] = call[0]
        # without edges: the first work of the capture, as recorded: what the device did before is not
        ended.setdefault(stream, []).append(node)

    def with_lags(self, start: int, found: list[tuple[int, Edge, int]]) -> list[Edge]:
        """The latest dependency keeps its lag; the others, which did not hold the node up, have none."""
        binding = max(range(len(found)), key=lambda place: found[place][0])
        edges = []
        for place, (at, (source, _, kind), limit) in enumerate(found):
            edges.append((source, self.explain(start - at, limit) if place == binding else min(start - at, 0), kind))
        return edges

    def last_ended(self, nodes: tuple[int, ...] | list[int], at: int) -> int | None:
        """Of a stream's latest works, the one that ended last before `at`: replays overlap within a stream."""
        ends = [(self.nodes[node][1], node) for node in nodes[-8:] if self.nodes[node][1] <= at]
        return max(ends)[1] if ends else None

    def add_returns(self, returns: list[tuple[int, int]], works: list[int]) -> None:
        """A blocking call returns after the work that ended last before it did, where any ended during it."""
        by_end = sorted(works, key=lambda node: self.nodes[node][1])
        ends = np.array([self.nodes[node][1] for node in by_end], np.int64)
        for called, back in returns:
            start, end = self.nodes[called][0], self.nodes[back][0]
            place = int(np.searchsorted(ends, end + 1_000, side="right")) - 1
            if place < 0 or ends[place] <= start:
                self.edges[back].append((called, self.explain(end - start, SYNC_LAG_NS), "blocked"))
                continue
            self.edges[back].append((called, min(end - start, BLOCKED_NS), "blocked"))
            lag = self.explain(max(end - int(ends[place]), 0), SYNC_LAG_NS)
            self.edges[back].append((by_end[place], lag, "waited for"))

    def add_worker(self) -> None:
        """The worker thread of a CPU backend: its budget's pieces, collectives and the ends of windows as marks."""
        e, partition = self.events, self.rank.budget.partition
        first, last = partition.span
        collective = self.rank.budget.placements.of_family("collective", "dispatch_combine")
        worker = worker_track(self.rank.store, self.rank.table)
        rows = np.flatnonzero(collective & (e.kind == OP) & (e.track_id == worker))
        marks = [self.add(first, first)]
        ends = {step.window[1]: step.step_id for step in self.rank.table.counted if step.window is not None}
        for row in rows.tolist():
            start, end = int(e.start_ns[row]), int(e.end_ns[row])
            if start < self.nodes[marks[-1]][1] or end > last:
                continue
            node = self.add(start, end, account=self.label(("comm", "collective")), name=int(e.name_id[row]))
            self.collectives.append(node)
            marks.append(node)
        marks += [self.add(at, at, step=step) for at, step in ends.items()]
        if last not in ends:
            marks.append(self.add(last, last, step=len(ends)))
        self.add_thread(marks, partition.parts)

    def build(self) -> Dependencies:
        columns = np.array(self.nodes, np.int64).reshape(-1, 5)
        return Dependencies(
            rank=self.rank.rank,
            accounts=tuple(self.accounts),
            names=self.rank.store.names,
            start_ns=columns[:, 0],
            end_ns=columns[:, 1],
            kind=columns[:, 2],
            account=columns[:, 3],
            name=np.array(self.name, np.int64),
            step=columns[:, 4],
            thread=np.array(self.thread, np.int64),
            previous=np.array(self.previous, np.int64),
            edges=tuple(tuple(edges) for edges in self.edges),
            threads=tuple(self.threads),
            collectives=np.array(self.collectives, np.int64),
            num_inferred=self.num_inferred,
            unexplained_ns=self.unexplained_ns,
        )
