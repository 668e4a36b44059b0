"""What any capture can have wrong with it, whatever its format: looked for once, when it is read.

Each doubt is a health row; nothing is changed or left out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.store.events import NO_ID, Events, Track
from stepscope.store.launches import NO_LAUNCH, find_launches, has_constant_ids
from stepscope.store.schema import DEVICE_SCOPE, FRAME, LAST_DEVICE_KIND, OP, RUNTIME, SCOPE
from stepscope.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.store.health import HealthLog

# nesting of host ranges is recorded with a microsecond's tolerance
_NESTING_NS = 1_000
# an event this many times as long as its stream's median, over at least two later ones, is no kernel that ran so long
_OUTLIER_FACTOR = 100


def find_doubts(events: Events, tracks: Sequence[Track], health: HealthLog) -> None:
    """Count devices, joins that fail, clocks that disagree, ranges that cross, and runaway durations."""
    on_device = events.kind <= LAST_DEVICE_KIND
    devices = sorted({str(tracks[i].device) for i in np.unique(events.track_id[on_device]).tolist()})
    if len(devices) > 1:
        health.add("several_devices", ", ".join(devices), len(devices))
    _doubt_joins(events, health)
    for row in find_outliers(events).tolist():
        health.add("duration_outlier", f"{show_ns(int(events.duration_ns[row]))} from {int(events.start_ns[row])} ns")
    _doubt_nesting(events, len(tracks), health)


def _doubt_joins(events: Events, health: HealthLog) -> None:
    work, launch = find_launches(events)
    health.add("missing_correlation", count=int((events.correlation_id[work] == NO_ID).sum()))
    call_ids = events.correlation_id[(events.kind == RUNTIME) & (events.correlation_id != NO_ID)]
    if has_constant_ids(call_ids):
        health.add("constant_correlation", f"every call has id {int(call_ids[0])}", len(call_ids))
    linked = launch != NO_LAUNCH
    lag = events.start_ns[work[linked]] - events.start_ns[launch[linked]]
    if (lag < 0).any():
        health.add("kernel_before_launch", f"at worst {show_ns(int(-lag.min()))} before", int((lag < 0).sum()))
    host = (events.kind > LAST_DEVICE_KIND) & (events.kind != DEVICE_SCOPE)
    if host.any():
        early = ~linked & (events.start_ns[work] < events.start_ns[host][0])
        health.add("previous_session", count=int(early.sum()))


def find_outliers(events: Events) -> Int64:
    """Rows of device events that run over at least two later ones of their own stream, for far too long."""
    rows = np.flatnonzero(events.kind <= LAST_DEVICE_KIND)
    found = []
    for track in np.unique(events.track_id[rows]).tolist():
        own = rows[events.track_id[rows] == track]
        start, duration = events.start_ns[own], events.duration_ns[own]
        inside = np.searchsorted(start, start + duration) - np.arange(len(own)) - 1
        found.append(own[(inside >= 2) & (duration > _OUTLIER_FACTOR * np.median(duration))])
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _doubt_nesting(events: Events, num_tracks: int, health: HealthLog) -> None:
    for kinds in ((FRAME,), (OP, SCOPE)):
        mask = np.isin(events.kind, kinds)
        for track in range(num_tracks):
            own = mask & (events.track_id == track)
            if not own.any():
                continue
            start, end = events.start_ns[own], (events.start_ns + events.duration_ns)[own]
            crossing = (start[1:] < end[:-1] - _NESTING_NS) & (end[1:] > end[:-1] + _NESTING_NS)
            health.add("overrunning_child", count=int(crossing.sum()))
