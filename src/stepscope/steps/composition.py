"""Which device work belongs to which step, and what each step ran.

Work belongs to the step whose host range launched it (by correlation id), never to the one that its timestamp happens
to fall in. A launch after one step's annotation and before the next one's belongs to the earlier: sampling follows
the forward. What an empty step launches inside its own range (a dummy batch) is that step's. Where the capture has no
ids at all, work inside a step's own host range is taken, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.intervals import union
from stepscope.store.launches import NO_LAUNCH, find_launches

if TYPE_CHECKING:
    from stepscope.intervals import Int64
    from stepscope.steps.boundaries import Boundary
    from stepscope.store.events import EventStore, Mask

NO_STEP = -1
GraphMode = Literal["eager", "piecewise", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Device events of one store: `row` in its events, `launch` row or NO_LAUNCH, `boundary` index or NO_STEP."""

    row: Int64
    launch: Int64
    boundary: Int64
    is_graph: Mask

    def of_step(self, index: int) -> Int64:
        """Rows of one step's device work."""
        rows: Int64 = self.row[self.boundary == index]
        return rows

    @property
    def num_assigned(self) -> int:
        """How many belong to a step."""
        return int((self.boundary != NO_STEP).sum())


def assign_work(store: EventStore, boundaries: tuple[Boundary, ...]) -> DeviceWork:
    """Every device event with its launch and its step. Law: assigned + unassigned = read."""
    row, launch = find_launches(store.events)
    linked = launch != NO_LAUNCH
    graph_names = np.array([name.endswith("GraphLaunch") for name in store.names] or [False])
    is_graph = np.zeros(len(row), bool)
    is_graph[linked] = graph_names[store.events.name_id[launch[linked]]]
    ran = [i for i, b in enumerate(boundaries) if not b.is_empty]
    boundary = np.full(len(row), NO_STEP, np.int64)
    if ran:
        places = np.array(ran, np.int64)
        starts = np.array([boundaries[i].start_ns for i in ran], np.int64)
        ends = np.array([boundaries[i].end_ns for i in ran], np.int64)
        if boundaries[ran[0]].first_work is not None:
            boundary = _by_position(row, [boundaries[i].first_work for i in ran], places)
        elif linked.any():
            called = store.events.start_ns[launch[linked]]
            boundary[linked] = _at(called, starts, places)
            dummy = _in_empty(called, boundaries)
            boundary[linked] = np.where(dummy == NO_STEP, boundary[linked], dummy)
        else:
            boundary = _inside(store.events.start_ns[row], starts, ends, places)
    return DeviceWork(row=row, launch=launch, boundary=boundary, is_graph=is_graph)


def _at(times: Int64, starts: Int64, places: Int64) -> Int64:
    """The last step that had begun."""
    index = np.searchsorted(starts, times, side="right") - 1
    return np.where(index >= 0, places[np.maximum(index, 0)], NO_STEP)


def _inside(times: Int64, starts: Int64, ends: Int64, places: Int64) -> Int64:
    index = np.searchsorted(starts, times, side="right") - 1
    last = np.maximum(index, 0)
    return np.where((index >= 0) & (times < ends[last]), places[last], NO_STEP)


def _in_empty(times: Int64, boundaries: tuple[Boundary, ...]) -> Int64:
    """The empty step in whose host range each time lies."""
    places = np.array([i for i, b in enumerate(boundaries) if b.is_empty], np.int64)
    if not len(places):
        return np.full(len(times), NO_STEP, np.int64)
    starts = np.array([boundaries[i].start_ns for i in places.tolist()], np.int64)
    ends = np.array([boundaries[i].end_ns for i in places.tolist()], np.int64)
    return _inside(times, starts, ends, places)


def _by_position(row: Int64, first: list[int | None], places: Int64) -> Int64:
    return _at(row, np.array(first, np.int64), places)


def graph_mode(work: DeviceWork, index: int, num_graph_launches: int) -> GraphMode | None:
    """How a step's kernels were launched; None where a step has none to tell from."""
    own = work.boundary == index
    # a launch after the step's own range counts where there is none in it: sampling may have a graph of its own
    graphs = num_graph_launches or len(np.unique(work.launch[own & work.is_graph]))
    if graphs:
        return "full" if graphs == 1 else "piecewise"
    return "eager" if (own & (work.launch != NO_LAUNCH)).any() else None


def busy_ns(store: EventStore, rows: Int64) -> int:
    """The union of some device events: overlapping ones (programmatic dependent launch, streams) count once."""
    e = store.events
    return union(e.start_ns[rows], e.end_ns[rows]).total_ns
