"""A part of one capture: a host time range with the device work that belongs to it, as a mask over columns.

Host ranges that cross the edge are cut there; device work is kept by its launch, not by its time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.store.events import Events, EventStore
from stepscope.store.health import HEALTH_CODES, HealthRow
from stepscope.store.schema import DEVICE_SCOPE, LAST_DEVICE_KIND, RUNTIME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.store.events import Mask


OUTSIDE = "outside_selection"  # the health code of events that were read and not kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to keep of one store: a host time range, the device work (start, correlation), and launches to leave out."""

    start_ns: int
    end_ns: int
    device: frozenset[tuple[int, int]]
    foreign_ids: frozenset[int]
    other_steps: frozenset[tuple[int, str]]  # (start, name) of annotations of steps that are not kept

    def keep(self, e: Events, names: Sequence[str]) -> Mask:
        """Which events belong to it; a `name_id` is a position in `names`."""
        on_device = e.kind <= LAST_DEVICE_KIND
        end = e.start_ns + np.maximum(e.duration_ns, 0)
        kept: Mask = (e.start_ns < self.end_ns) & ((end > self.start_ns) | (e.start_ns >= self.start_ns))
        kept &= ~on_device & (e.kind != DEVICE_SCOPE)
        kept &= ~((e.kind == RUNTIME) & _among(e.correlation_id, self.foreign_ids))
        self._drop_other_steps(e, kept, names)
        maybe = np.flatnonzero(on_device & _among(e.start_ns, {start for start, _ in self.device}))
        keys = zip(e.start_ns[maybe].tolist(), e.correlation_id[maybe].tolist(), strict=True)
        kept[maybe] = [key in self.device for key in keys]
        return kept

    def _drop_other_steps(self, e: Events, kept: Mask, names: Sequence[str]) -> None:
        maybe = np.flatnonzero(kept & _among(e.start_ns, {start for start, _ in self.other_steps}))
        for row in maybe.tolist():
            kept[row] = (int(e.start_ns[row]), names[int(e.name_id[row])]) not in self.other_steps

    def clip(self, e: Events) -> Events:
        """Host ranges cut at the edges."""
        host = e.kind > LAST_DEVICE_KIND
        start = np.where(host, np.maximum(e.start_ns, self.start_ns), e.start_ns)
        end = np.where(host, np.minimum(e.end_ns, self.end_ns), e.end_ns)
        return replace(e, start_ns=start, duration_ns=np.maximum(end - start, 0))


def _among(values: Int64, chosen: frozenset[int] | set[int]) -> Mask:
    found: Mask = np.isin(values, np.fromiter(chosen, np.int64, len(chosen)))
    return found


def select_events(store: EventStore, selection: Selection) -> EventStore:
    """The chosen part of a store, in its order; a health row says how much stands outside it."""
    e = store.events
    kept = np.flatnonzero(selection.keep(e, store.names))
    part = selection.clip(e.take(kept))
    order = np.lexsort((part.correlation_id, part.track_id, part.name_id, part.kind, -part.duration_ns, part.start_ns))
    part, names = used_names(part.take(order), store.names)
    used, track_id = np.unique(part.track_id, return_inverse=True)
    rows = [row for row in store.health if row.code != OUTSIDE]
    rows.append(HealthRow(code=OUTSIDE, count=len(e) - len(kept), detail=HEALTH_CODES[OUTSIDE].meaning))
    codes = list(HEALTH_CODES)
    return replace(
        store,
        events=replace(part, track_id=track_id.astype(np.int32)),
        names=tuple(names),
        tracks=tuple(store.tracks[i] for i in used.tolist()),
        health=tuple(sorted((row for row in rows if row.count), key=lambda row: codes.index(row.code))),
        counters=None if store.counters is None else store.counters.of_events(kept[order], len(e)),
    )


def used_names(e: Events, names: Sequence[str]) -> tuple[Events, list[str]]:
    """Without the names that no event has."""
    used, name_id = np.unique(e.name_id, return_inverse=True)
    return replace(e, name_id=name_id.astype(np.int32)), [names[i] for i in used.tolist()]
