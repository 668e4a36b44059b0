"""What the engine was doing while a worker waited for work: the wait, split by another process's recorded activity.

Needs a second trace (the engine core's or the front end's) that overlaps in wall-clock time; both need a base time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.placement import flatten, place_events
from stepscope.intervals import Spans, intersect, merge, subtract, union
from stepscope.store.schema import FRAME, SCOPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.budget.breakdown import RankBudget
    from stepscope.budget.catalog import Catalog
    from stepscope.store.events import EventStore

NOT_IN_ACTIVITY = "in no recorded activity"
NOT_RECORDED = "not recorded"


def split_supply(
    store: EventStore, budget: RankBudget, others: Sequence[EventStore], catalog: Catalog
) -> dict[str, int] | None:
    """Ns of supply wait per activity of the other processes; None where no other process can be laid beside it."""
    waits = merge([part for (category, _), part in budget.partition.parts.items() if category == "supply"])
    base = store.origin.base_time_ns
    usable = [other for other in others if other.origin.base_time_ns is not None and len(other.events)]
    if base is None or not usable or not len(waits) or not budget.coverage.idle_claimable:
        return None
    causes: dict[str, int] = {}
    left, recorded = waits, []
    for other in usable:
        shift = (other.origin.base_time_ns or 0) - base
        e = other.events
        recorded.append(union(e.start_ns + shift, e.end_ns + shift))
        placements = place_events(other, catalog)
        rows = placements.of_category("engine") & ((e.kind == FRAME) | (e.kind == SCOPE))
        pieces = flatten(other, rows, placements.account, placements.is_weak)
        for label in np.unique(pieces.labels).tolist():
            own = pieces.labels == label
            activity = union(pieces.starts[own] + shift, pieces.ends[own] + shift)
            family = placements.accounts[label][1]
            causes[family] = causes.get(family, 0) + intersect(left, activity).total_ns
            left = subtract(left, activity)
    seen: Spans = merge(recorded)
    causes[NOT_IN_ACTIVITY] = intersect(left, seen).total_ns
    causes[NOT_RECORDED] = subtract(left, seen).total_ns
    return {name: ns for name, ns in causes.items() if ns}
