"""Whether device work can be laid beside the host: one clock, one launch per id, and steps that hold all their kernels.

The cause of idle device time is read off what the host does at that time. Two clocks that are apart, or work that is
joined with another process's launch, give a cause that was not there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.catalog import is_launch
from stepscope.messages import Message, say
from stepscope.store.events import NO_ID
from stepscope.store.launches import NO_LAUNCH, has_constant_ids
from stepscope.store.schema import RUNTIME
from stepscope.units import show_ns

if TYPE_CHECKING:
    from stepscope.budget.reason import Evidence
    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore

# times are recorded in us by some profilers, and the clocks of host and device are matched to some us
_CLOCK_NS = 10_000
_APART = 0.01  # of the joined device events, or of the syncs: fewer are single bad times
_REUSED = 0.01  # of the launches
_SHORT = 0.8  # of the median of its like: no choice of kernels for other kv lengths changes a step's count so much
_LIKE = 3  # steps, before a median says anything
# every kernel launched before such a call has ended when it returns
_WHOLE_SYNC = re.compile(r"^(?:cuda|hip|musa)DeviceSynchronize$")


def clocks_disagree(x: Evidence) -> Message | None:
    """Device work that starts before its launch, or ends after a sync that awaited it."""
    e, work = x.store.events, x.table.work
    linked = work.launch != NO_LAUNCH
    rows, launches = work.row[linked], work.launch[linked]
    lag = e.start_ns[rows] - e.start_ns[launches]
    early = lag < -_CLOCK_NS
    if len(lag) and early.mean() > _APART:
        return say(
            "{some} of {all} device events start before their launch, by up to {worst}: the clocks of host and device "
            "are apart, and what the host did while the device idled cannot be told",
            some=int(early.sum()),
            all=len(lag),
            worst=show_ns(int(-lag.min())),
        )
    beyond = _beyond_syncs(x.store, rows, launches)
    late = beyond > _CLOCK_NS
    if len(beyond) and late.mean() > _APART:
        return say(
            "device work ends up to {worst} after the return of a sync that awaited it ({some} of {all} syncs): the "
            "clocks of host and device are apart, and what the host did while the device idled cannot be told",
            worst=show_ns(int(beyond.max())),
            some=int(late.sum()),
            all=len(beyond),
        )
    return None


def _beyond_syncs(store: EventStore, rows: Int64, launches: Int64) -> Int64:
    """Per sync of the whole device, how long after its return the work launched before it ends; negative: before."""
    e = store.events
    named = np.array([bool(_WHOLE_SYNC.match(name)) for name in store.names] or [False])
    syncs = np.flatnonzero((e.kind == RUNTIME) & named[e.name_id])
    order = np.argsort(e.start_ns[launches], kind="stable")
    before = np.searchsorted(e.start_ns[launches][order], e.start_ns[syncs])
    syncs, before = syncs[before > 0], before[before > 0]
    if not len(syncs):
        return np.empty(0, np.int64)
    reach: Int64 = np.maximum.accumulate(e.end_ns[rows][order])
    return reach[before - 1] - e.end_ns[syncs]


def ids_used_twice(x: Evidence) -> Message | None:
    """Launches that share an id and are not one inside the other: which of them device work is from cannot be told."""
    e = x.store.events
    named = np.array([is_launch(name) for name in x.store.names] or [False])
    rows = np.flatnonzero((e.kind == RUNTIME) & named[e.name_id] & (e.correlation_id != NO_ID))
    ids = e.correlation_id[rows]
    if len(rows) < 2 or has_constant_ids(ids):
        return None
    order = np.lexsort((e.start_ns[rows], ids))
    rows, ids = rows[order], ids[order]
    nested = (e.track_id[rows][1:] == e.track_id[rows][:-1]) & (e.start_ns[rows][1:] < e.end_ns[rows][:-1])
    twice = (ids[1:] == ids[:-1]) & ~nested
    if twice.mean() <= _REUSED:
        return None
    processes = {x.store.tracks[i].process for i in np.unique(e.track_id[rows]).tolist()}
    return say(
        "{some} of {all} launches share their correlation id with another one ({processes} host processes launch in "
        "this file): which step their device work belongs to cannot be told",
        some=int(twice.sum()),
        all=len(rows),
        processes=len(processes),
    )


def short_steps(x: Evidence) -> tuple[int, int]:
    """(eager steps with far fewer kernels than the median of their like, eager steps that have like ones).

    The last step is left out: the capture may have ended in it.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for step in x.table.counted[:-1]:
        shape = step.boundary.shape
        if step.graph_mode == "eager" and step.num_kernels and shape.num_scheduled_tokens is not None:
            groups[step.phase, shape.num_requests, shape.num_scheduled_tokens].append(step.num_kernels)
    alike = [counts for counts in groups.values() if len(counts) >= _LIKE]
    short = sum(n < _SHORT * float(np.median(counts)) for counts in alike for n in counts)
    return short, sum(len(counts) for counts in alike)
