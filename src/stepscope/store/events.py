"""EventStore: what was read from one capture of one process, as immutable columns.

Events are in a total order (start, longest first, kind, name, track, correlation), so that shuffling the file changes
nothing. Names are interned: `name_id` is a position in `names`, which is sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from stepscope.errors import InvariantBroken
from stepscope.intervals import Int64
from stepscope.store.schema import FRAME, LAST_DEVICE_KIND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.store.counters import Counters
    from stepscope.store.health import HealthRow
    from stepscope.store.op_inputs import OpInputs

Int32: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int32]]"
Int8: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int8]]"
Column: TypeAlias = "Int64 | Int32 | Int8"
Mask: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

SIMULATION = "simulation"  # the reader of a store that nothing was recorded of

# stands for "none recorded" inside the correlation column; tables show it as null
NO_ID = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Columns of equal length, one row an event."""

    start_ns: Int64
    duration_ns: Int64
    name_id: Int32
    kind: Int8
    track_id: Int32
    correlation_id: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64:
        """When each ends."""
        return self.start_ns + self.duration_ns

    def take(self, rows: Mask | Int64) -> Events:
        """Some rows, by mask or by position."""
        return Events(
            start_ns=self.start_ns[rows],
            duration_ns=self.duration_ns[rows],
            name_id=self.name_id[rows],
            kind=self.kind[rows],
            track_id=self.track_id[rows],
            correlation_id=self.correlation_id[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A host thread or a device stream, as the trace names it."""

    process: str
    thread: str
    is_device: bool
    device: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounts:
    """Events of the file: present = intact + recovered + lost. Read = intact + recovered."""

    intact: int
    recovered: int
    lost: int

    @property
    def read(self) -> int:
        """Events whose fields are known, repaired ones among them."""
        return self.intact + self.recovered

    @property
    def present(self) -> int:
        """Everything that the file shows traces of."""
        return self.read + self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a capture is from. None: the capture does not say."""

    path: str
    reader: str
    rank: int | None = None
    rank_source: str = "unknown"
    world_size: int | None = None
    parallel: Mapping[str, int] = field(default_factory=dict)
    base_time_ns: int | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStore:
    """One process's events with their names, tracks, origin, counts and health.

    `counters` and `op_inputs` where any were recorded.
    """

    origin: Origin
    events: Events
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    counts: EventCounts
    health: tuple[HealthRow, ...]
    counters: Counters | None = None
    op_inputs: OpInputs | None = None

    @property
    def rank(self) -> int | None:
        """The rank, if the capture says."""
        return self.origin.rank

    @property
    def is_simulated(self) -> bool:
        """Whether the simulator made it: nothing in it was recorded."""
        return self.origin.reader == SIMULATION

    @property
    def device_work(self) -> Mask:
        """Which events are device work: kernels, copies, fills."""
        work: Mask = self.events.kind <= LAST_DEVICE_KIND
        return work

    @property
    def has_frames(self) -> bool:
        """Whether Python stacks were recorded."""
        return bool((self.events.kind == FRAME).any())

    def name(self, name_id: int) -> str:
        """One interned name."""
        return self.names[name_id]

    def check(self) -> None:
        """Laws that every store keeps."""
        e = self.events
        if len(e) > 1 and bool((np.diff(e.start_ns) < 0).any()):
            raise InvariantBroken("events are not in the order of their start")
        if bool((e.duration_ns < 0).any()):
            raise InvariantBroken("an event has a negative duration")
        if len(e) and (int(e.name_id.max()) >= len(self.names) or int(e.track_id.max()) >= len(self.tracks)):
            raise InvariantBroken("an event refers to a name or track that is not there")
        if self.counters is not None:
            self.counters.check(len(e))


def order_events(events: Events, names: Sequence[str], tracks: Sequence[Track]) -> EventStoreParts:
    """Put events into the total order, and names and tracks into sorted order, ids following.

    The columns are the caller's to give away: they are reordered in place, one at a time, since a second copy of
    everything would be the peak of a reader's memory.
    """
    name_order = sorted(range(len(names)), key=names.__getitem__)
    track_order = sorted(range(len(tracks)), key=lambda i: _track_key(tracks[i]))
    events = Events(
        start_ns=events.start_ns,
        duration_ns=events.duration_ns,
        name_id=_ranks(name_order)[events.name_id],
        kind=events.kind,
        track_id=_ranks(track_order)[events.track_id],
        correlation_id=events.correlation_id,
    )
    order = _total_order(events)
    columns: tuple[Column, ...] = (
        events.start_ns,
        events.duration_ns,
        events.name_id,
        events.kind,
        events.track_id,
        events.correlation_id,
    )
    for column in columns:
        column[:] = column[order]
    return EventStoreParts(
        events=events,
        order=order,
        names=tuple(names[i] for i in name_order),
        tracks=tuple(tracks[i] for i in track_order),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStoreParts:
    """The parts of a store that are put in order together; `order`: where each event stood before."""

    events: Events
    order: Int64
    names: tuple[str, ...]
    tracks: tuple[Track, ...]


def _track_key(track: Track) -> tuple[bool, str, str]:
    return (track.is_device, track.process, track.thread)


def _ranks(order: list[int]) -> Int32:
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks


def _total_order(e: Events) -> Int64:
    """Sort by start alone, then settle the ties: most starts differ, and six keys for all would cost six sorts."""
    order = np.argsort(e.start_ns, kind="stable")
    starts = e.start_ns[order]
    same = starts[1:] == starts[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if len(tied):
        rows = order[tied]
        keys = (e.correlation_id, e.track_id, e.name_id, e.kind, -e.duration_ns, e.start_ns)
        order[tied] = rows[np.lexsort(tuple(key[rows] for key in keys))]
    return order
