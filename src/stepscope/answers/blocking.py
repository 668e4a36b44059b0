"""Blocking calls that serialise: the device ran out of work while the host stood in a call that waits for the device.

Such a call cannot launch what comes next, so the device idles after its last work until the host has returned and
launched again. What needed the call's result had to wait; whatever did not need it waited all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.partition import LAUNCH_GAP, launching_tracks
from stepscope.intervals import NOTHING, union
from stepscope.steps.windows import BLOCKING_CALL
from stepscope.store.schema import RUNTIME

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Device idle gaps that began inside blocking calls, and the call that most of their time follows."""

    num_calls: int
    num_gaps: int
    idle_ns: int
    name: str


def find_blocking(rank: RankAccount) -> Blocking | None:
    """The gaps of one rank with a device lane; None where there is none or idle time cannot be claimed."""
    gaps = rank.budget.partition.parts.get(LAUNCH_GAP, NOTHING)
    if rank.table.windows.lane != "device" or not rank.budget.coverage.idle_claimable or not len(gaps):
        return None
    e, store = rank.store.events, rank.store
    blocks = np.array([BLOCKING_CALL.search(name) is not None for name in store.names] or [False])
    rows = np.flatnonzero(
        (e.kind == RUNTIME) & blocks[e.name_id] & np.isin(e.track_id, launching_tracks(store, rank.table))
    )
    rows = rows[np.argsort(e.start_ns[rows], kind="stable")]
    calls = union(e.start_ns[rows], e.end_ns[rows])
    if not len(calls):
        return None
    place = np.maximum(np.searchsorted(calls.starts, gaps.starts, side="right") - 1, 0)
    begun = (calls.starts[place] < gaps.starts) & (gaps.starts < calls.ends[place])
    if not begun.any():
        return None
    idle = gaps.ends[begun] - gaps.starts[begun]
    at = np.maximum(np.searchsorted(e.start_ns[rows], gaps.starts[begun], side="right") - 1, 0)
    by_name = np.bincount(e.name_id[rows][at], weights=idle)
    return Blocking(
        num_calls=len(rows),
        num_gaps=int(begun.sum()),
        idle_ns=int(idle.sum()),
        name=store.names[int(by_name.argmax())],
    )
