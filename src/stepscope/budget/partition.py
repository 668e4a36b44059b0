"""The exclusive partition of a rank's span: each ns in exactly one (category, family).

Device lane: device work wins over idle; of overlapping device work compute wins over kv over comm over unmatched, so
`comm` is exposed communication; within a category the earliest started wins. Idle ns are given by what the worker
thread is recorded to do at that time: waiting for work (`supply`), inside a step or launching (`host`; so do other
threads that launch), something else (`idle`), or nothing known (`unknown`). Idle under a host sync whose awaited work
was not recorded is `unknown`.
Host lane (CPU backend): the worker thread is the device; self times of its operations, same categories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.placement import NO_ACCOUNT, UNMATCHED, Account, Placements, flatten
from stepscope.errors import InvariantBroken
from stepscope.intervals import NOTHING, Spans, intersect, merge, overlaps, span, subtract, union
from stepscope.store.launches import NO_LAUNCH
from stepscope.store.schema import FRAME, OP, RUNTIME, SCOPE

if TYPE_CHECKING:
    from stepscope.intervals import Int64
    from stepscope.steps.step import StepTable
    from stepscope.store.events import Events, EventStore, Mask

LAUNCH_GAP: Account = ("host", "launch_gap")
PYTHON: Account = ("host", "python")
DEQUEUE: Account = ("supply", "dequeue")
WORKER: Account = ("idle", "worker_elsewhere")
NO_EVIDENCE: Account = ("unknown", "no_evidence")
TRUNCATED: Account = ("unknown", "truncated")
NOT_RECORDED: Account = ("unknown", "device_not_recorded")
OWN_FAMILIES: dict[Account, str] = {
    LAUNCH_GAP: "the device idles while the host prepares or launches",
    PYTHON: "the worker thread is in a step, in no operation that a rule places",
    DEQUEUE: "the device idles while the worker waits for its next work",
    WORKER: "the worker thread is recorded doing something that is no step",
    NO_EVIDENCE: "nothing recorded says what the worker thread was doing",
    TRUNCATED: "the host waits for device work that was not recorded",
    NOT_RECORDED: "device work was launched and not recorded",
    UNMATCHED: "device work that no rule places",
}
_PRIORITY = ("compute", "kv", "comm", "unmatched")
_HOST_ENVELOPES = ("execute_model", "sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Disjoint spans per account that together are the span; `busy` per category may overlap."""

    span: tuple[int, int]
    parts: dict[Account, Spans]
    busy: dict[str, Spans]

    def check(self) -> None:
        """The parts tile the span: their lengths add up, and no ns is in two of them."""
        length = self.span[1] - self.span[0]
        total = sum(part.total_ns for part in self.parts.values())
        covered = merge(list(self.parts.values())).total_ns
        if not total == covered == length:
            raise InvariantBroken(f"parts add up to {total} ns and cover {covered} ns of a span of {length} ns")

    def measure(self, starts: Int64, ends: Int64) -> dict[Account, Int64]:
        """Per account, its ns in each window."""
        return {account: overlaps(part, starts, ends) for account, part in self.parts.items()}


def partition(store: EventStore, table: StepTable, placements: Placements) -> Partition:
    """Partition a rank's span."""
    if table.windows.lane == "device":
        result = _device_partition(store, table, placements)
    elif table.windows.lane == "none":
        result = Partition(span=table.windows.span, parts={NOT_RECORDED: span(*table.windows.span)}, busy={})
    else:
        result = _host_partition(store, table, placements)
    result.check()
    return result


def worker_track(store: EventStore, table: StepTable) -> int | None:
    """The thread that runs the steps; without marked steps, the one with most launches or operations."""
    for step in table.steps:
        if step.boundary.track_id is not None:
            return step.boundary.track_id
    e = store.events
    for kind in (RUNTIME, OP, FRAME):
        tracks, counts = np.unique(e.track_id[e.kind == kind], return_counts=True)
        if len(tracks):
            return int(tracks[np.argmax(counts)])
    return None


def launching_tracks(store: EventStore, table: StepTable) -> Int64:
    """The threads that launched the recorded device work, and the worker thread."""
    launch = table.work.launch
    tracks: Int64 = np.unique(store.events.track_id[launch[launch != NO_LAUNCH]]).astype(np.int64)
    worker = worker_track(store, table)
    return tracks if worker is None else np.union1d(tracks, [worker])


def sees_waits(store: EventStore, table: StepTable) -> bool:
    """Whether Python stacks of the worker thread were recorded: without them no wait of it can be seen.

    In a simulation every wait is known.
    """
    if store.is_simulated:
        return True
    e, track = store.events, worker_track(store, table)
    return track is not None and bool(((e.kind == FRAME) & (e.track_id == track)).any())


def _device_partition(store: EventStore, table: StepTable, placements: Placements) -> Partition:
    e, whole = store.events, span(*table.windows.span)
    rows = table.work.row
    parts: dict[Account, Spans] = {}
    busy: dict[str, Spans] = {}
    taken = NOTHING
    for category in _PRIORITY:
        own = rows[np.isin(placements.account[rows], _places(placements, category))]
        busy[category] = intersect(union(e.start_ns[own], e.end_ns[own]), whole)
        for account, piece in _earliest_first(store, own, placements).items():
            left = subtract(intersect(piece, whole), taken)
            if len(left):
                parts[account] = left
        taken = merge([taken, busy[category]])
    busy["supply"] = intersect(_waits(store, table, placements), whole)
    parts.update(_split_idle(store, table, placements, subtract(whole, taken)))
    return Partition(span=table.windows.span, parts=parts, busy=busy)


def _places(placements: Placements, category: str) -> list[int]:
    return [i for i, (name, _) in enumerate(placements.accounts) if name == category]


def _earliest_first(store: EventStore, rows: Int64, placements: Placements) -> dict[Account, Spans]:
    """Per account, the time in which one of its events is the earliest started of those running."""
    e = store.events
    start, end, account = e.start_ns[rows], e.end_ns[rows], placements.account[rows]
    reach = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])) if len(rows) else start
    begin = np.maximum(start, reach)
    return {placements.accounts[i]: union(begin[account == i], end[account == i]) for i in np.unique(account).tolist()}


def _split_idle(store: EventStore, table: StepTable, placements: Placements, idle: Spans) -> dict[Account, Spans]:
    """Idle device time by what the worker thread is recorded to do."""
    causes = (
        (TRUNCATED, table.windows.truncated),
        (DEQUEUE, _waits(store, table, placements)),
        (LAUNCH_GAP, _in_steps(store, table, placements)),
        (WORKER, _known(store, table)),
    )
    parts: dict[Account, Spans] = {}
    for account, cause in causes:
        own = intersect(idle, cause)
        if len(own):
            parts[account] = own
        idle = subtract(idle, cause)
    if len(idle):
        parts[NO_EVIDENCE] = idle
    return parts


def _waits(store: EventStore, table: StepTable, placements: Placements) -> Spans:
    """When the worker thread waits for its next work, and no other thread of it is at work on the device's behalf."""
    e = store.events
    waits = _on_threads(e, placements.of_category("supply") & (e.kind == FRAME), worker_track(store, table))
    helpers = np.setdiff1d(launching_tracks(store, table), [worker_track(store, table)])
    return subtract(waits, _on_threads(e, (e.kind == OP) | (e.kind == RUNTIME), helpers)) if len(helpers) else waits


def _in_steps(store: EventStore, table: StepTable, placements: Placements) -> Spans:
    """When the host is in a step's range, or a launching thread in an operation or a call of the device's runtime."""
    e = store.events
    inside = placements.of_family(*_HOST_ENVELOPES) & ((e.kind == FRAME) | (e.kind == SCOPE))
    ranges = [step.boundary for step in table.counted if step.boundary.first_work is None]
    steps = union(np.array([b.start_ns for b in ranges], np.int64), np.array([b.end_ns for b in ranges], np.int64))
    tracks = launching_tracks(store, table)
    return merge([steps, _on_threads(e, inside | (e.kind == OP) | (e.kind == RUNTIME), tracks)])


def _known(store: EventStore, table: StepTable) -> Spans:
    return _on_threads(store.events, store.events.kind == FRAME, worker_track(store, table))


def _on_threads(e: Events, rows: Mask, tracks: int | Int64 | None) -> Spans:
    own = rows & np.isin(e.track_id, [] if tracks is None else tracks)
    return union(e.start_ns[own], e.end_ns[own])


def _host_partition(store: EventStore, table: StepTable, placements: Placements) -> Partition:
    e, whole = store.events, span(*table.windows.span)
    track = worker_track(store, table)
    here = e.track_id == track if track is not None else np.zeros(len(e), bool)
    parts = {name: intersect(part, whole) for name, part in _self_times(store, placements, here).items()}
    rest = subtract(whole, merge(list(parts.values())))
    for name, cause in _host_causes(store, table, placements, here):
        own = intersect(rest, cause)
        parts[name] = merge([parts.get(name, NOTHING), own])
        rest = subtract(rest, cause)
    parts[NO_EVIDENCE] = rest
    return Partition(
        span=table.windows.span,
        parts={name: part for name, part in parts.items() if len(part)},
        busy=_host_busy(store, placements, here, whole, parts),
    )


def _self_times(store: EventStore, placements: Placements, here: Mask) -> dict[Account, Spans]:
    """Self times of a thread's placed ranges.

    An operation that no rule places yields to an enclosing one. A layer's Python function tells which family generic
    operations inside belong to; its own time is Python, which a capture without stacks would also book as such.
    """
    e = store.events
    accounts = (*placements.accounts, PYTHON)
    is_op = e.kind == OP
    budgeted = placements.of_category("supply", "compute", "kv", "comm", "host")
    rows = here & (is_op | (budgeted & ((e.kind == FRAME) | (e.kind == SCOPE))))
    unplaced = is_op & (placements.account == NO_ACCOUNT)
    account = np.where(unplaced, 0, placements.account).astype(np.int32)
    layer = (e.kind == FRAME) & placements.of_category("compute")
    self_account = np.where(layer, len(accounts) - 1, account).astype(np.int32)
    pieces = flatten(store, rows, account, placements.is_weak | unplaced, self_account)
    parts: dict[Account, Spans] = {}
    for label in np.unique(pieces.labels).tolist():
        own = pieces.labels == label
        name = accounts[label]
        parts[name] = merge([parts.get(name, NOTHING), union(pieces.starts[own], pieces.ends[own])])
    return parts


def _host_causes(
    store: EventStore, table: StepTable, placements: Placements, here: Mask
) -> tuple[tuple[Account, Spans], ...]:
    """What the worker thread's remaining time is: a peer awaited on another thread, the step's own Python, the rest."""
    e = store.events
    others = ~here & placements.of_category("comm") & ((e.kind == OP) | (e.kind == SCOPE))
    collective = union(e.start_ns[others], e.end_ns[others])
    in_steps = _in_steps(store, table, placements)
    return (
        (("comm", "collective"), intersect(collective, in_steps)),
        (PYTHON, in_steps),
        (WORKER, _known(store, table)),
    )


def _host_busy(
    store: EventStore, placements: Placements, here: Mask, whole: Spans, parts: dict[Account, Spans]
) -> dict[str, Spans]:
    """Operations of any thread, and whatever the partition gives to a category; waits of the worker thread alone."""
    e = store.events
    busy = {}
    for category in ("supply", *_PRIORITY):
        kinds = here & (e.kind == FRAME) if category == "supply" else (e.kind == OP) | (e.kind == SCOPE)
        own = placements.of_category(category) & kinds
        ranges = intersect(union(e.start_ns[own], e.end_ns[own]), whole)
        busy[category] = merge([ranges, *(part for (name, _), part in parts.items() if name == category)])
    return busy
