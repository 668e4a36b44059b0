"""A budget's accounts told apart by the host's Python: which family's code, and which function, the time was in.

Time that the budget books as the host's, or as the worker elsewhere, goes to the family of the innermost placed Python
function around it, where stacks were recorded: the Python of a norm to `norm`, the scheduler's to `schedule`. A
function's own time is with the built-ins, operations, module wrappers and torch's own functions that it calls, without
the other Python functions that it calls. Line numbers are left out, so that two versions of a file compare.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.partition import LAUNCH_GAP, PYTHON, WORKER, worker_track
from stepscope.budget.placement import NO_ACCOUNT, flatten
from stepscope.intervals import intersect, merge, subtract, union
from stepscope.store.schema import FRAME

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount
    from stepscope.budget.placement import Account, Pieces
    from stepscope.intervals import Int64, Spans
    from stepscope.store.events import Mask

_FUNCTION = re.compile(r"^(?!(?:.*/)?torch/)(?P<file>[^<>]+\.py)\(\d+\): (?P<name>.+)$")
NO_TRACK = -1
_SPLIT = (PYTHON, WORKER, LAUNCH_GAP)


def function_name(frame: str) -> str | None:
    """File and function of a recorded frame; None: a built-in, a module's wrapper, or torch itself.

    >>> function_name("vllm/v1/core/sched/scheduler.py(300): schedule")
    'vllm/v1/core/sched/scheduler.py: schedule'
    """
    found = _FUNCTION.match(frame)
    return None if found is None else f"{found['file']}: {found['name']}"


def split_by_code(rank: RankAccount) -> dict[Account, Spans]:
    """The partition's parts, the host's among them by the family of their code; together they are the span still."""
    parts = dict(rank.budget.partition.parts)
    store, placements, track = rank.store, rank.budget.placements, worker_track(rank.store, rank.table)
    if track is None or not store.has_frames:
        return parts
    e = store.events
    rows = (e.kind == FRAME) & (e.track_id == track) & (placements.account != NO_ACCOUNT)
    pieces = flatten(store, rows, placements.account, np.zeros(len(e), bool))
    code = {}
    for label in np.unique(pieces.labels).tolist():
        own = pieces.labels == label
        code[placements.accounts[label]] = union(pieces.starts[own], pieces.ends[own])
    for account in _SPLIT:
        left = parts.pop(account, None)
        if left is None:
            continue
        for family, where in code.items():
            own_part = intersect(left, where)
            if len(own_part):
                parts[family] = merge([parts[family], own_part]) if family in parts else own_part
                left = subtract(left, own_part)
        if len(left):
            parts[account] = left
    return parts


@dataclass(frozen=True, slots=True)
class Functions:
    """The worker thread's time by Python function: disjoint pieces, labelled by place in `names`."""

    names: tuple[str, ...]
    pieces: Pieces


def find_functions(rank: RankAccount) -> Functions:
    """The functions that a rank's worker thread was in; none without stacks."""
    store, track = rank.store, worker_track(rank.store, rank.table)
    e = store.events
    names: dict[str, int] = {}
    of_name = np.array([_number(name, names) for name in store.names] or [-1], np.int32)
    rows = (e.kind == FRAME) & (of_name[e.name_id] >= 0) & (e.track_id == (NO_TRACK if track is None else track))
    return Functions(tuple(names), flatten(store, rows, of_name[e.name_id], np.zeros(len(e), bool)))


def measure_functions(rank: RankAccount, functions: Functions, where: Spans) -> dict[str, Int64]:
    """Each function's own ns in each counted step, within some spans."""
    windows = np.array([step.window or (0, 0) for step in rank.table.counted], np.int64).reshape(-1, 2)
    pieces = functions.pieces
    edges = np.unique(
        np.concatenate([pieces.starts, pieces.ends, where.starts, where.ends, windows[:, 0], windows[:, 1]])
    )
    piece, inside = _which(pieces.starts, pieces.ends, edges[:-1])
    _, wanted = _which(where.starts, where.ends, edges[:-1])
    order = np.argsort(windows[:, 0], kind="stable")
    window, counted = _which(windows[order, 0], windows[order, 1], edges[:-1])
    chosen = inside & wanted & counted
    if not chosen.any():
        return {}
    spent = np.zeros((len(functions.names), len(windows)), np.int64)
    np.add.at(spent, (pieces.labels[piece[chosen]], order[window[chosen]]), np.diff(edges)[chosen])
    return {name: own for name, own in zip(functions.names, spent, strict=True) if own.any()}


def _which(starts: Int64, ends: Int64, times: Int64) -> tuple[Int64, Mask]:
    """Of sorted disjoint ranges, the one that each time is in, and whether it is in any."""
    if not len(starts):
        return np.zeros(len(times), np.int64), np.zeros(len(times), bool)
    place = np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)
    return place, (starts[place] <= times) & (times < ends[place])


def _number(name: str, functions: dict[str, int]) -> int:
    function = function_name(name)
    return -1 if function is None else functions.setdefault(function, len(functions))
