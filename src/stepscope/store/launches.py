"""Joins device work with the host call that launched it, by correlation id.

All kernels of a graph launch share their launch's id. Where ids are missing, or all the same, there is no join, and
the caller falls back on time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.store.events import NO_ID, Events
from stepscope.store.schema import LAST_DEVICE_KIND, RUNTIME

if TYPE_CHECKING:
    from stepscope.intervals import Int64

NO_LAUNCH = -1


def find_launches(events: Events) -> tuple[Int64, Int64]:
    """(rows of device work, for each the row of its launch or NO_LAUNCH); rows are positions in `events`."""
    work = np.flatnonzero(events.kind <= LAST_DEVICE_KIND)
    calls = np.flatnonzero((events.kind == RUNTIME) & (events.correlation_id != NO_ID))
    call_ids = events.correlation_id[calls]
    launch = np.full(len(work), NO_LAUNCH, np.int64)
    if not len(work) or has_constant_ids(call_ids):
        return work, launch
    order = np.argsort(call_ids, kind="stable")
    call_ids, calls = call_ids[order], calls[order]
    ids = events.correlation_id[work]
    place = np.minimum(np.searchsorted(call_ids, ids), max(len(call_ids) - 1, 0))
    if len(call_ids):
        found = (call_ids[place] == ids) & (ids != NO_ID)
        launch[found] = calls[place[found]]
    return work, launch


def has_constant_ids(call_ids: Int64) -> bool:
    """Whether ids carry no information: several calls, one id."""
    return len(call_ids) > 1 and bool((call_ids == call_ids[0]).all())
