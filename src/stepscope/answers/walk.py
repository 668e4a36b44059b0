"""Walk: the times of every node of a run's dependencies when some durations are changed.

Nodes are taken in recorded order, in which whatever a node waits for comes before it; a node begins when the last of it
is there. A collective ends on every rank when the last one has come and the transfer is done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.dependencies import MARK
from stepscope.errors import BadInput
from stepscope.steps.composition import NO_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.answers.dependencies import Dependencies, Edge, Thread
    from stepscope.budget.placement import Account
    from stepscope.intervals import Int64

    Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

_MOST_FACTOR = 1e6
# what lies between two nodes that an edge of this kind joins
_BETWEEN = {
    "launch": "launch latency",
    "stream": "gap",
    "other stream": "gap",
    "waited for": "return",
    "blocked": "host",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Factors on recorded durations: of budget categories, of families, of what has a text in its name, of host work.

    A name wins over a family, a family over its category.
    """

    categories: Mapping[str, float] = field(default_factory=dict)
    families: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, float] = field(default_factory=dict)
    host: float = 1.0

    def __post_init__(self) -> None:
        named = (*self.categories.items(), *self.families.items(), *self.names.items())
        for name, factor in (*named, ("host", self.host)):
            if not 0 <= factor <= _MOST_FACTOR:
                raise BadInput(
                    f"{name}={factor}: give a factor of 0 to {_MOST_FACTOR:g}; 1 changes nothing, 0 takes it away."
                )

    def factor(self, account: Account, name: str = "") -> float:
        """On a duration that is booked to this account, of something with this name."""
        for text, factor in self.names.items():
            if name and text.lower() in name.lower():
                return factor
        category, family = account
        found = self.families.get(family, self.categories.get(category, 1.0))
        return found * self.host if category in ("host", "idle") else found


NOTHING_CHANGED = Changes()
HOST_WORK: Account = ("host", "host_work")  # what a launching thread does between its calls


class Walk:
    """Some ranks' graphs side by side; nodes are numbered rank after rank, times are on the first rank's clock."""

    def __init__(self, graphs: Sequence[Dependencies], base_times_ns: Sequence[int], changes: Changes) -> None:
        self.graphs = graphs
        self.changes = changes
        self._shifts = [base - base_times_ns[0] for base in base_times_ns]
        self._first = [0]
        for graph in graphs:
            self._first.append(self._first[-1] + len(graph.start_ns))
        self._recorded = [
            (start + shift, end + shift)
            for graph, shift in zip(graphs, self._shifts, strict=True)
            for start, end in zip(graph.start_ns.tolist(), graph.end_ns.tolist(), strict=True)
        ]
        self._factors: dict[tuple[int, int, int], float] = {}
        self._thread_ns = [ns for graph in graphs for ns in _thread_ns(graph, changes)]
        self._start = [0] * len(self._recorded)
        self._end: list[int | None] = [None] * len(self._recorded)
        self._held: dict[int, Edge] = {}  # the edge that a node waited for longest
        self._instances = _instances(graphs, self._first) if len(graphs) > 1 else {}
        self._to_come = {id(members): len(members) for members in self._instances.values()}
        self._last: dict[int, int] = {}  # of a collective's node, the one that came last
        for node in sorted(range(len(self._recorded)), key=lambda node: (*self._recorded[node], node)):
            self._place(node)

    def moved(self, place: int, at: int) -> int:
        """A rank's recorded time on the common clock."""
        return at + self._shifts[place]

    def span_end(self, place: int) -> int:
        """When the last node of a rank's span ends."""
        return self._end_of(self._last_node(place)) if self._nodes(place) else 0

    def step_ends(self, place: int) -> dict[int, int]:
        """Per step, when its last work ends."""
        ends: dict[int, int] = {}
        for node, step in zip(self._nodes(place), self.graphs[place].step.tolist(), strict=True):
            if step != NO_STEP:
                ends[step] = max(ends.get(step, 0), self._end_of(node))
        return ends

    def critical(self, place: int, start: int) -> dict[str, int]:
        """The chain that ends last, from `start` on: ns by category, and by what lies between works."""
        found: dict[str, int] = defaultdict(int)
        node = self._last_node(place)
        while True:
            graph, local = self._locate(node)
            if graph.kind[local] != MARK:
                last = self._last.get(node, node)
                found[graph.accounts[int(graph.account[local])][0]] += self._end_of(node) - self._start[last]
                node = last
            held = self._held.get(node)
            if held is None:
                found["before"] += self._start[node] - start
                return {name: ns for name, ns in found.items() if ns}
            before, lag, kind = held
            if kind == "thread":
                for category, ns in self._thread_parts(before, node).items():
                    found[category] += ns
            else:
                found[_BETWEEN[kind]] += lag
            node = before

    def _place(self, node: int) -> None:
        """Begin a node when all that it waits for is there, and end it."""
        graph, local = self._locate(node)
        base = node - local
        edges = [(base + source, lag, kind) for source, lag, kind in graph.edges[local]]
        if graph.previous[local] >= 0:
            edges.append((base + int(graph.previous[local]), self._thread_ns[node], "thread"))
        if edges:
            held = max(edges, key=lambda edge: self._end_of(edge[0]) + edge[1])
            self._held[node] = held
            self._start[node] = self._end_of(held[0]) + held[1]
        else:
            self._start[node] = self._recorded[node][0]
        members = self._instances.get(node)
        if members is None:
            recorded_start, recorded_end = self._recorded[node]
            self._end[node] = self._start[node] + round(self._factor(graph, local) * (recorded_end - recorded_start))
            return
        self._to_come[id(members)] -= 1
        if not self._to_come[id(members)]:
            self._end_together(members)

    def _end_together(self, members: Sequence[int]) -> None:
        """A collective ends on each rank its own transfer after the last arrival."""
        last = max(members, key=self._start.__getitem__)
        came = max(self._recorded[member][0] for member in members)
        for member in members:
            graph, local = self._locate(member)
            transfer = max(self._recorded[member][1] - came, 0)
            self._end[member] = self._start[last] + round(self._factor(graph, local) * transfer)
            self._last[member] = last

    def _factor(self, graph: Dependencies, local: int) -> float:
        label, name = int(graph.account[local]), int(graph.name[local])
        if label < 0:
            return 1.0
        key = (id(graph), label, name)
        if key not in self._factors:
            self._factors[key] = self.changes.factor(graph.accounts[label], graph.names[name])
        return self._factors[key]

    def _end_of(self, node: int) -> int:
        found = self._end[node]
        if found is None:  # a collective whose last rank is still to come, by clocks that are a little apart
            return self._start[node] + self._recorded[node][1] - self._recorded[node][0]
        return found

    def _thread_parts(self, before: int, node: int) -> dict[str, int]:
        """What a thread did between two of its moments, changed, by category; what is left of the ns is host work."""
        graph, local = self._locate(node)
        shift = self._shifts[self.graphs.index(graph)]
        thread, start, end = graph.threads[int(graph.thread[local])], self._recorded[before][1], self._recorded[node][0]
        parts: dict[str, int] = defaultdict(int)
        for piece in range(int(np.searchsorted(thread.ends, start - shift)), len(thread.ends)):
            inside = min(int(thread.ends[piece]), end - shift) - max(int(thread.starts[piece]), start - shift)
            if int(thread.starts[piece]) >= end - shift:
                break
            account = thread.accounts[piece]
            parts[account[0]] += round(self.changes.factor(account) * max(inside, 0))
        parts["host"] += self._thread_ns[node] - sum(parts.values())
        return parts

    def _last_node(self, place: int) -> int:
        """Of device work and the ends of windows; what the host does after them is not in the span."""
        graph = self.graphs[place]
        closing = [
            node
            for node, kind, step in zip(self._nodes(place), graph.kind.tolist(), graph.step.tolist(), strict=True)
            if kind != MARK or step != NO_STEP
        ]
        return max(closing or self._nodes(place), key=self._end_of)

    def _nodes(self, place: int) -> range:
        return range(self._first[place], self._first[place + 1])

    def _locate(self, node: int) -> tuple[Dependencies, int]:
        rank = bisect_right(self._first, node) - 1
        return self.graphs[rank], node - self._first[rank]


def _instances(graphs: Sequence[Dependencies], first: Sequence[int]) -> dict[int, list[int]]:
    """Of each collective's node, the nodes of the same collective on all ranks: the k-th of each."""
    found: dict[int, list[int]] = {}
    for each in zip(*(graph.collectives.tolist() for graph in graphs), strict=True):
        members = [base + local for base, local in zip(first, each, strict=False)]
        found.update(dict.fromkeys(members, members))
    return found


def _thread_ns(graph: Dependencies, changes: Changes) -> list[int]:
    """Per node, what its thread does between the moment before and this one, changed; 0 where there is none before."""
    amounts = np.zeros(len(graph.start_ns), np.int64)
    for place, thread in enumerate(graph.threads):
        nodes = np.flatnonzero((graph.thread == place) & (graph.previous >= 0))
        begin, end = graph.end_ns[graph.previous[nodes]], graph.start_ns[nodes]
        amounts[nodes] = np.rint(_changed(thread, end, changes) - _changed(thread, begin, changes)).astype(np.int64)
    return amounts.tolist()


def _changed(thread: Thread, times: Int64, changes: Changes) -> Floats:
    """How far a thread has come by some times, changed: host work runs at its factor, booked pieces at theirs."""
    host = changes.factor(HOST_WORK)
    found = host * times.astype(np.float64)
    if not len(thread.starts):
        return found
    factors = {account: changes.factor(account) - host for account in set(thread.accounts)}
    more = np.array([factors[account] for account in thread.accounts])
    edges = np.column_stack((thread.starts, thread.ends)).ravel()
    reached = np.column_stack((np.zeros(len(more)), more * (thread.ends - thread.starts))).ravel().cumsum()
    return np.asarray(found + np.interp(times, edges, reached))
