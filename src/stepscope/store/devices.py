"""Stores of one process that used several devices: which there are, and one of them alone.

A budget is of one device; its idle time means nothing while another device's work is laid over it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.errors import BadInput
from stepscope.store.events import NO_ID
from stepscope.store.schema import DEVICE_SCOPE, LAST_DEVICE_KIND, RUNTIME

if TYPE_CHECKING:
    from stepscope.store.events import EventStore, Mask


def device_times(store: EventStore) -> dict[str, int]:
    """Summed durations of device work in ns, by device, the busiest first."""
    e = store.events
    work = e.kind <= LAST_DEVICE_KIND
    total = np.bincount(e.track_id[work], weights=e.duration_ns[work].astype(np.float64), minlength=len(store.tracks))
    count = np.bincount(e.track_id[work], minlength=len(store.tracks))
    times: dict[str, int] = {}
    for track, ns, events in zip(store.tracks, total.tolist(), count.tolist(), strict=True):
        if events and track.device is not None:
            times[track.device] = times.get(track.device, 0) + int(ns)
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))


def only_device(store: EventStore, device: str | None = None) -> EventStore:
    """The store with the work of one device: the one that is named, else the busiest; unchanged if there is one.

    Calls that launched work on other devices alone go with it: they would look like launches without a kernel.

    Raises:
        BadInput: the named device is not there.
    """
    times = device_times(store)
    if device is not None and times and device not in times:
        raise BadInput(f"{store.origin.path}: no device {device!r}. Devices that are there: {', '.join(times)}.")
    if len(times) < 2:
        return store
    wanted = device or next(iter(times))
    other = np.array([track.is_device and track.device != wanted for track in store.tracks])
    e = store.events
    work = e.kind <= LAST_DEVICE_KIND
    drop: Mask = (work | (e.kind == DEVICE_SCOPE)) & other[e.track_id]
    gone, kept = e.correlation_id[drop & work], e.correlation_id[work & ~drop]
    drop |= (
        (e.kind == RUNTIME) & np.isin(e.correlation_id, np.setdiff1d(gone, [NO_ID])) & ~np.isin(e.correlation_id, kept)
    )
    counters = store.counters.of_events(~drop, len(drop)) if store.counters is not None else None
    return replace(store, events=store.events.take(~drop), counters=counters)
