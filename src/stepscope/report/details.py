"""What each step spent its time on, packed: families and largest kernels per step, names once.

A thousand steps have twenty thousand such rows, so they are lists with a legend, not objects: `unpack` gives objects.
On a CPU backend the worker thread's operations stand for kernels.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.budget.breakdown import WITHHELD
from stepscope.budget.placement import NO_ACCOUNT, UNMATCHED
from stepscope.store.schema import OP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.answers.account import Account, RankAccount
    from stepscope.budget.placement import Account as Place
    from stepscope.intervals import Int64

Packed = dict[str, Any]

FAMILY_COLUMNS = ("rank", "step_id", "account", "exclusive_ns")
KERNEL_COLUMNS = ("rank", "step_id", "account", "name", "count", "sum_ns")
_LARGEST = 12  # kernels per step


def step_families(account: Account) -> Packed:
    """Exclusive ns per step and family; `account` is a position in `accounts`. Withheld ones are left out."""
    accounts: dict[Place, int] = {}
    rows: list[list[Any]] = []
    for rank in account.ranks:
        claimable = rank.budget.coverage.idle_claimable
        for place, values in rank.budget.step_families.items():
            if not claimable and place[0] in WITHHELD:
                continue
            number = accounts.setdefault(place, len(accounts))
            for step, ns in zip(rank.table.counted, values, strict=True):
                if ns:
                    rows.append([rank.rank, step.step_id, number, ns])
    return {"columns": list(FAMILY_COLUMNS), "accounts": [list(a) for a in accounts], "rows": rows}


def step_kernels(account: Account) -> Packed:
    """The largest kernels of each step by summed duration; `name` is a position in `names`."""
    accounts: dict[Place, int] = {}
    names: dict[str, int] = {}
    rows: list[list[Any]] = []
    for rank in account.ranks:
        for step_id, place, name, count, total in _largest(rank):
            number = accounts.setdefault(place, len(accounts))
            rows.append([rank.rank, step_id, number, names.setdefault(name, len(names)), count, total])
    return {
        "columns": list(KERNEL_COLUMNS),
        "accounts": [list(a) for a in accounts],
        "names": list(names),
        "rows": rows,
        "largest": _LARGEST,
    }


def _largest(rank: RankAccount) -> Iterator[tuple[int, Place, str, int, int]]:
    e, placements = rank.store.events, rank.budget.placements
    work, step = _work(rank)
    kept = step >= 0
    work, step = work[kept], step[kept]
    groups: dict[int, dict[tuple[int, int], list[int]]] = defaultdict(dict)
    columns = (step, e.name_id[work], placements.account[work], e.duration_ns[work])
    for index, name_id, place, duration in zip(*(column.tolist() for column in columns), strict=True):
        entry = groups[index].setdefault((name_id, place), [0, 0])
        entry[0] += 1
        entry[1] += duration
    for index, kernels in sorted(groups.items()):
        largest = sorted(kernels.items(), key=lambda item: (-item[1][1], item[0]))[:_LARGEST]
        for (name_id, place), (count, total) in largest:
            where = UNMATCHED if place == NO_ACCOUNT else placements.accounts[place]
            yield rank.table.steps[index].step_id, where, rank.store.names[name_id], count, total


def _work(rank: RankAccount) -> tuple[Int64, Int64]:
    """(rows, index of their step or -1)."""
    if rank.table.windows.lane != "host":
        return rank.table.work.row, rank.table.work.boundary
    e = rank.store.events
    rows = np.flatnonzero(e.kind == OP)
    windows = [(i, step.window) for i, step in enumerate(rank.table.steps) if step.window is not None]
    starts = np.array([window[0] for _, window in windows], np.int64)
    ends = np.array([window[1] for _, window in windows], np.int64)
    places = np.array([i for i, _ in windows] or [-1], np.int64)
    at = np.searchsorted(starts, e.start_ns[rows], side="right") - 1
    last = np.maximum(at, 0)
    inside = (at >= 0) & (e.start_ns[rows] < ends[last]) if windows else np.zeros(len(rows), bool)
    return rows, np.where(inside, places[last], -1)


def unpack(packed: Packed) -> Iterator[dict[str, Any]]:
    """The rows as objects, with category, family and name in words."""
    for row in packed["rows"]:
        entry = dict(zip(packed["columns"], row, strict=True))
        entry["category"], entry["family"] = packed["accounts"][entry.pop("account")]
        if "name" in entry:
            entry["name"] = packed["names"][entry["name"]]
        yield entry
