"""Times of rows as they can be used: unusable ones are left out, unfinished ones end with the capture.

Each of them is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.store.events import NO_ID
from stepscope.store.schema import DEVICE_SCOPE, LAST_DEVICE_KIND

if TYPE_CHECKING:
    from stepscope.readers.nsys.rows import Rows
    from stepscope.store.events import Mask
    from stepscope.store.health import HealthLog

_YEAR_NS = 366 * 24 * 3600 * 10**9
_FAR_NS = 2**62


def mend_times(rows: Rows, health: HealthLog) -> Rows:
    """The rows with usable times."""
    on_device = (rows.kind <= LAST_DEVICE_KIND) | (rows.kind == DEVICE_SCOPE)
    drop = _count(health, "missing_start", rows.start == NO_ID)
    drop |= _count(health, "missing_duration", ~drop & on_device & (rows.end == NO_ID))
    drop |= _count(health, "out_of_range_time", ~drop & _out_of_range(rows, drop))
    open_ended = ~drop & (rows.end == NO_ID)
    drop |= _count(health, "negative_duration", ~drop & ~open_ended & (rows.end < rows.start))
    drop |= _count(health, "zero_time_kernel", ~drop & on_device & (rows.start == 0) & (rows.end == 0))
    if open_ended.any():
        health.add("begin_without_end", count=int(open_ended.sum()))
        settled = ~drop & ~open_ended
        last = int(rows.end[settled].max()) if settled.any() else int(rows.start[open_ended].max())
        rows.end = np.where(open_ended, np.maximum(rows.start, last), rows.end)
    rows = rows.take(~drop) if drop.any() else rows
    health.add("zero_duration", count=int(((rows.kind <= LAST_DEVICE_KIND) & (rows.end == rows.start)).sum()))
    return rows


def _count(health: HealthLog, code: str, rows: Mask) -> Mask:
    health.add(code, count=int(rows.sum()))
    return rows


def _out_of_range(rows: Rows, unusable: Mask) -> Mask:
    """Times that no clock reads, or a year and more away from the capture's own median."""
    ends = np.where(rows.end == NO_ID, 0, rows.end)
    wild: Mask = (rows.start > _FAR_NS) | (rows.start < -_FAR_NS) | (ends > _FAR_NS) | (ends < -_FAR_NS)
    usable = rows.start[~unusable & ~wild]
    if len(usable) >= 3:
        middle = int(np.median(usable))
        wild |= np.abs(np.clip(rows.start, -_FAR_NS, _FAR_NS) - middle) > _YEAR_NS
        wild |= (rows.end != NO_ID) & (np.clip(ends, -_FAR_NS, _FAR_NS) - middle > _YEAR_NS)
    return wild
