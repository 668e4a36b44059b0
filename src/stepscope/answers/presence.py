"""Ranks that are not there, and ranks whose captures are shorter than the others': health rows of the stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.steps.ranks import ArrivalSkew
from stepscope.store.health import HEALTH_CODES, HealthRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.events import EventStore

_SHOWN = 8


def note_ranks(stores: Sequence[EventStore], skew: ArrivalSkew | str) -> tuple[EventStore, ...]:
    """The stores, the first with a row for ranks that are missing, each cut one with a row of its own."""
    rows: list[list[HealthRow]] = [[] for _ in stores]
    if stores:
        rows[0] += _missing(stores)
    if isinstance(skew, ArrivalSkew):
        for store, own, short in zip(stores, rows, skew.instances.matched.short, strict=True):
            if store.rank in skew.left_out:
                own.append(_row("rank_not_placed", 1, f"rank {store.rank}"))
            elif short:
                own.append(_row("rank_cut", short, f"rank {store.rank}: {short} collectives of the others"))
    return tuple(_with(store, own) if own else store for store, own in zip(stores, rows, strict=True))


def _missing(stores: Sequence[EventStore]) -> list[HealthRow]:
    sizes = {store.origin.world_size for store in stores if store.origin.world_size is not None}
    here = {store.rank for store in stores}
    if len(sizes) != 1 or None in here:
        return []
    size = sizes.pop()
    gone = [rank for rank in range(size) if rank not in here]
    if not gone:
        return []
    shown = ", ".join(map(str, gone[:_SHOWN])) + (", ..." if len(gone) > _SHOWN else "")
    return [_row("ranks_missing", len(gone), f"of {size} ranks not here: {shown}")]


def _row(code: str, count: int, detail: str) -> HealthRow:
    return HealthRow(code=code, count=count, detail=detail)


def _with(store: EventStore, rows: Sequence[HealthRow]) -> EventStore:
    """In the order of the table of codes; a row that is there already (from a run) is not added twice."""
    codes = {row.code for row in rows}
    health = [row for row in store.health if row.code not in codes] + list(rows)
    order = {code: i for i, code in enumerate(HEALTH_CODES)}
    return replace(store, health=tuple(sorted(health, key=lambda row: order[row.code])))
