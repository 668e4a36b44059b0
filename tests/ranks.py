"""Many ranks from few: collectives alone, copied, with clocks shifted and a rank made late as a late rank would be.

A rank that comes later keeps its own transfer; the others wait longer, and all that follows, on every rank, moves by
what the last arrival moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.store.events import EventCounts, Events, EventStore, Origin, Track
from stepscope.store.schema import KERNEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.store.events import Int32

TRACK = Track(process="0", thread="7", is_device=True)


def collective_store(rank: int, start: Int64, end: Int64, name_id: Int64 | Int32, names: Sequence[str]) -> EventStore:
    """A capture of collectives alone, in order, without a wall clock."""
    number = len(start)
    events = Events(
        start_ns=start.astype(np.int64),
        duration_ns=(end - start).astype(np.int64),
        name_id=name_id.astype(np.int32),
        kind=np.full(number, KERNEL, np.int8),
        track_id=np.zeros(number, np.int32),
        correlation_id=np.arange(number, dtype=np.int64),
    )
    return EventStore(
        origin=Origin(path=f"rank{rank}", reader="test", rank=rank),
        events=events,
        names=tuple(names),
        tracks=(TRACK,),
        counts=EventCounts(intact=number, recovered=0, lost=0),
        health=(),
    )


def only_collectives(store: EventStore, rows: Int64, rank: int) -> EventStore:
    """A store's collectives under another rank."""
    e = store.events
    return collective_store(rank, e.start_ns[rows], e.end_ns[rows], e.name_id[rows], store.names)


def composed_ranks(generator: np.random.Generator, *, ranks: int, instances: int, scatter_ns: int) -> list[EventStore]:
    """Steps of about 1 ms; arrivals spread over 50 us, ends over `scatter_ns` with an outlier of 5 ms now and then."""
    arrival = np.cumsum(generator.integers(800_000, 1_200_000, instances))
    start = arrival + generator.integers(0, 50_000, (ranks, instances))
    end = start.max(axis=0) + 40_000 + generator.integers(0, scatter_ns + 1, (ranks, instances))
    rare = generator.random((ranks, instances)) < 0.02
    end = np.where(rare, end + generator.integers(100_000, 500_000, (ranks, instances)), end)
    names = ("AllGather", "AllReduce")
    kind = generator.integers(0, 2, instances)
    return [collective_store(i, start[i], end[i], kind, names) for i in range(ranks)]


def shift_clock(store: EventStore, offset_ns: int, drift: float = 0.0) -> EventStore:
    """The same capture by a clock that is `offset_ns` ahead at its first event, and runs faster by `drift`."""
    e = store.events
    first = int(e.start_ns[0])
    start, end = (t + offset_ns + np.rint((t - first) * drift).astype(np.int64) for t in (e.start_ns, e.end_ns))
    return replace(store, events=replace(e, start_ns=start, duration_ns=end - start))


def make_late(stores: Sequence[EventStore], late: int, at: Sequence[int], delay_ns: int) -> list[EventStore]:
    """Rank `late` comes `delay_ns` later at the instances `at`; all stores share one clock and hold the same ones."""
    start = np.stack([store.events.start_ns for store in stores])
    end = np.stack([store.events.end_ns for store in stores])
    for k in at:
        moved = max(int(start[late, k]) + delay_ns - int(start[:, k].max()), 0)
        start[late, k] += delay_ns
        end[:, k:] += moved
        start[:, k + 1 :] += moved
    return [
        replace(store, events=replace(store.events, start_ns=start[i], duration_ns=end[i] - start[i]))
        for i, store in enumerate(stores)
    ]
