"""A trace -> its Account: steps, budget and signals of every rank, then the answers.

`explain` is the pipeline; every stage before it is a pure function of the stage before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.presence import note_ranks
from stepscope.budget.breakdown import RankBudget, compute_budget
from stepscope.budget.catalog import load_catalog
from stepscope.budget.signals import Signal, find_signals
from stepscope.budget.supply import split_supply
from stepscope.readers.registry import open_trace
from stepscope.steps.ranks import ArrivalSkew, find_skew
from stepscope.steps.step import StepTable, find_steps
from stepscope.store.devices import only_device
from stepscope.store.schema import LAST_DEVICE_KIND, OP
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.budget.catalog import Catalog
    from stepscope.store.events import EventStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccount:
    """One worker: its store, steps, budget and signals; `supply_causes` where another process was recorded too."""

    store: EventStore
    table: StepTable
    budget: RankBudget
    signals: tuple[Signal, ...]
    supply_causes: dict[str, int] | None

    @property
    def rank(self) -> int | None:
        """The rank, if the capture says."""
        return self.store.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All workers of a capture, the other processes beside them, and the arrival skew of their collectives."""

    source: str
    ranks: tuple[RankAccount, ...]
    others: tuple[EventStore, ...]
    skew: ArrivalSkew | str

    @property
    def is_simulated(self) -> bool:
        """Whether the simulator made it: then no number in it is more than simulated."""
        return any(rank.store.is_simulated for rank in self.ranks)


def explain(trace: Trace | str | Path, *, catalog: Catalog | None = None, device: str | None = None) -> Account:
    """Account for a capture: a Trace, or the path of one (file, directory of ranks, glob).

    Of a process that used several devices, the named one is accounted for, else the busiest.

    Raises:
        BadInput: see `open_trace`; or the device is not there.
    """
    if not isinstance(trace, Trace):
        trace = open_trace(trace)
    catalog = catalog or load_catalog()
    stores = _tell_apart([only_device(store, device) for store in trace.stores])
    tables = [(store, find_steps(store)) for store in stores]
    workers = [(store, table) for store, table in tables if _is_worker(store, table)]
    others = tuple(store for store, table in tables if not _is_worker(store, table))
    ranks = tuple(_account_rank(store, table, others, catalog) for store, table in workers)
    skew = find_skew([rank.store for rank in ranks], [_collectives(rank) for rank in ranks])
    noted = note_ranks([rank.store for rank in ranks], skew)
    return Account(
        source=trace.source,
        ranks=tuple(replace(rank, store=store) for rank, store in zip(ranks, noted, strict=True)),
        others=others,
        skew=skew,
    )


def _tell_apart(stores: list[EventStore]) -> list[EventStore]:
    """Number the workers whose rank is unknown, if there are several: their figures must not fall into one column.

    The numbers are those that no known rank has, in the order of the stores, and say that they were not recorded.
    """
    unknown = [i for i, s in enumerate(stores) if s.rank is None and bool((s.events.kind <= OP).any())]
    if len(unknown) < 2:
        return stores
    taken = {store.rank for store in stores}
    free = (number for number in count() if number not in taken)
    named = list(stores)
    for i, number in zip(unknown, free, strict=False):
        origin = replace(stores[i].origin, rank=number, rank_source="order of the captures (not recorded)")
        named[i] = replace(stores[i], origin=origin)
    return named


def _is_worker(store: EventStore, table: StepTable) -> bool:
    """Whether a process ran steps or device work; the engine's front end does neither."""
    if table.steps or len(table.work.row) or table.windows.lane == "none":
        return True
    return bool((store.events.kind == OP).any())


def _account_rank(store: EventStore, table: StepTable, others: Sequence[EventStore], catalog: Catalog) -> RankAccount:
    budget = compute_budget(store, table, catalog)
    return RankAccount(
        store=store,
        table=table,
        budget=budget,
        signals=find_signals(store, budget),
        supply_causes=split_supply(store, budget, others, catalog),
    )


def _collectives(rank: RankAccount) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of collectives in time order: device events where there is a device lane, else operations."""
    e = rank.store.events
    kind = e.kind <= LAST_DEVICE_KIND if rank.table.windows.lane == "device" else e.kind == OP
    return np.flatnonzero(kind & rank.budget.placements.of_family("collective", "dispatch_combine"))
