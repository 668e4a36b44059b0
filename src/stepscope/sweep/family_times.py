"""Family times: a torch trace of a few of a cell's steps -> the time of each family, by the budget's own rules.

Of each family the least time over the profiled steps is taken: a profiler and a shared machine only ever add time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.breakdown import compute_budget
from stepscope.budget.catalog import load_catalog
from stepscope.errors import BadInput
from stepscope.readers.registry import open_trace
from stepscope.steps.step import find_steps
from stepscope.sweep.figure import FAMILY_FIGURES, Figure, known, unknown
from stepscope.sweep.model_driver import is_of_cell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.budget.breakdown import RankBudget
    from stepscope.steps.step import StepTable
    from stepscope.sweep.plan import Cell

# the catalog's families; those of device work that are not named here are other work
_FIGURE = {
    "gemm": "dense_gemm_s",
    "experts": "experts_s",
    "attention": "attention_s",
    "attention_mla": "attention_s",
    "attention_sparse": "attention_s",
    "indexer": "indexer_s",
    "topk_selection": "indexer_s",
    "compressor": "compressor_s",
    "collective": "collective_s",
    "dispatch_combine": "collective_s",
}
_WORK = ("compute", "kv", "comm")
_NS = 1e-9


def read_profile(traces: Sequence[Path], cell: Cell, *, asked: bool) -> dict[str, Figure]:
    """Time by family and the host's gap, of rank 0 (or the only one), or why they are not known."""
    if not traces:
        return _none("not profiled in this sweep" if not asked else "the engine's profiler left no trace")
    try:
        stores = [store for path in traces for store in open_trace(path).stores]
    except BadInput as error:
        return _none(f"the profile cannot be read: {error}")
    tables = [(store, find_steps(store)) for store in sorted(stores, key=lambda store: store.rank or 0)]
    for store, table in tables:
        places = [i for i, step in enumerate(table.counted) if is_of_cell(cell, step.boundary.shape)]
        if places:
            return _families(compute_budget(store, table, load_catalog()), table, places)
    return _none("no profiled step has the cell's shape")


def _none(why: str) -> dict[str, Figure]:
    return {name: unknown(why) for name in (*FAMILY_FIGURES, "host_gap_s")}


def _families(budget: RankBudget, table: StepTable, places: list[int]) -> dict[str, Figure]:
    works = {account: ns for account, ns in budget.step_families.items() if account[0] in _WORK}
    totals = {name: np.zeros(len(places)) for name in FAMILY_FIGURES}
    for (_, family), ns in works.items():
        totals[_FIGURE.get(family, "other_s")] += np.array([ns[place] for place in places]) * _NS
    found = {
        name: known(float(total.min()), "classified") if total.any() else unknown("no such work in the profiled steps")
        for name, total in totals.items()
    }
    return found | {"host_gap_s": _host_gap(budget, table, places)}


def _host_gap(budget: RankBudget, table: StepTable, places: list[int]) -> Figure:
    if table.windows.lane != "device":
        return unknown("the engine's thread is the device: there is no gap between them")
    gaps = [budget.windows[place].exclusive_ns["host"] for place in places if place < len(budget.windows)]
    ns = [gap for gap in gaps if gap is not None]
    if not ns or len(ns) < len(gaps):
        return unknown("the profile does not carry a claim about idle time")
    return known(float(np.median(ns)) * _NS, "classified")
