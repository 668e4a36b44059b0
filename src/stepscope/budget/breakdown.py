"""A rank's budget: the exclusive partition and the busy view, per step's window and over the whole span.

Where the gate (`coverage`) says no, supply, host and idle are withheld: None, and their ns go to `unknown`.
Without Python stacks of the worker thread no wait of it can be seen: supply and idle are None, not zero. Without any
host lane host is None too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.coverage import Coverage, check_coverage
from stepscope.budget.partition import Partition, partition, sees_waits
from stepscope.budget.placement import Account, Placements, place_events
from stepscope.errors import InvariantBroken
from stepscope.intervals import overlaps
from stepscope.store.schema import CATEGORIES, DEVICE_SCOPE, LAST_DEVICE_KIND

if TYPE_CHECKING:
    from stepscope.budget.catalog import Catalog
    from stepscope.intervals import Int64
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore

WITHHELD = ("supply", "host", "idle")
UNSEEN_WITHOUT_STACKS = ("supply", "idle")
BUSY = ("supply", "compute", "kv", "comm", "unmatched")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBudget:
    """One window's time in ns. `step_id` None: the rank's whole span. A withheld category is None."""

    rank: int | None
    step_id: int | None
    start_ns: int
    window_ns: int
    exclusive_ns: dict[str, int | None]
    busy_ns: dict[str, int | None]

    def check(self) -> None:
        """The exclusive categories sum to the window, to the ns."""
        total = sum(value for value in self.exclusive_ns.values() if value is not None)
        if total != self.window_ns:
            raise InvariantBroken(f"exclusive categories sum to {total} ns, the window is {self.window_ns} ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBudget:
    """Everything that the budget stage knows of one store."""

    coverage: Coverage
    placements: Placements
    partition: Partition
    total: WindowBudget
    windows: tuple[WindowBudget, ...]
    step_families: dict[Account, tuple[int, ...]]  # exclusive ns per counted step, in step order


def compute_budget(store: EventStore, table: StepTable, catalog: Catalog) -> RankBudget:
    """Coverage first, then the partition, then both views per window."""
    placements = place_events(store, catalog)
    coverage = check_coverage(store, table, placements)
    parts = partition(store, table, placements)
    counted = table.counted
    edges = [step.window for step in counted if step.window is not None] + [table.windows.span]
    starts = np.array([edge[0] for edge in edges], np.int64)
    ends = np.array([edge[1] for edge in edges], np.int64)
    measured = parts.measure(starts, ends)
    withheld = _withheld(store, table, coverage)
    busy = {name: overlaps(parts.busy[name], starts, ends) for name in BUSY if name in parts.busy}
    budgets = []
    for i, (start, end) in enumerate(edges):
        budget = WindowBudget(
            rank=store.rank,
            step_id=counted[i].step_id if i < len(counted) else None,
            start_ns=start,
            window_ns=end - start,
            exclusive_ns=_exclusive(measured, i, withheld),
            busy_ns=_busy(busy, i, withheld),
        )
        budget.check()
        budgets.append(budget)
    return RankBudget(
        coverage=_with_matched(coverage, budgets[-1], table),
        placements=placements,
        partition=parts,
        total=budgets[-1],
        windows=tuple(budgets[:-1]),
        step_families={account: tuple(values[:-1].tolist()) for account, values in measured.items()},
    )


def _withheld(store: EventStore, table: StepTable, coverage: Coverage) -> tuple[str, ...]:
    """What cannot be claimed: without a host lane no cause of idle time is known, and zero would be a claim."""
    e = store.events
    has_host = bool(((e.kind > LAST_DEVICE_KIND) & (e.kind != DEVICE_SCOPE)).any())
    if not coverage.idle_claimable or not has_host:
        return WITHHELD
    return () if sees_waits(store, table) else UNSEEN_WITHOUT_STACKS


def _exclusive(measured: dict[Account, Int64], window: int, withheld: tuple[str, ...]) -> dict[str, int | None]:
    ns: dict[str, int | None] = dict.fromkeys(CATEGORIES, 0)
    for (category, _), values in measured.items():
        key = "unknown" if category in withheld else category
        ns[key] = (ns[key] or 0) + int(values[window])
    ns.update(dict.fromkeys(withheld))
    return ns


def _busy(busy: dict[str, Int64], window: int, withheld: tuple[str, ...]) -> dict[str, int | None]:
    ns: dict[str, int | None] = {name: int(busy[name][window]) if name in busy else None for name in BUSY}
    ns.update({name: None for name in BUSY if name in withheld})
    return ns


def _with_matched(coverage: Coverage, total: WindowBudget, table: StepTable) -> Coverage:
    """On a CPU backend the matched fraction is that of the worker thread's operations."""
    if table.windows.lane != "host":
        return coverage
    placed = sum(total.exclusive_ns[name] or 0 for name in ("compute", "kv", "comm"))
    unmatched = total.exclusive_ns["unmatched"] or 0
    return Coverage(
        reasons=coverage.reasons,
        num_kernels=coverage.num_kernels,
        num_in_steps=coverage.num_in_steps,
        matched_fraction=placed / (placed + unmatched) if placed + unmatched else None,
    )
