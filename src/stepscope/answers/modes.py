"""Steps of one shape that take one of two times: how many are slow, by how much, and where the added time lies.

Two modes are told where the gap between the slowest fast step and the fastest slow one is larger than the spread of
either group, there are at least two slow steps, and the slow ones are fewer. Cold steps are set aside. No cause follows
from it: what a slow step was beside is another question.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.matching import COLD
from stepscope.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import RankAccount
    from stepscope.budget.placement import Account

LEAST_STEPS = 12
_LEAST_SLOW = 2
_MOST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """Two groups of steps of one shape, medians in ns; `account` holds most of the added time, None: no single one."""

    label: Message
    num_fast: int
    fast_ns: int
    slow_ns: int
    slow_steps: tuple[int, ...]
    account: Account | None

    @property
    def added_ns(self) -> int:
        """What a slow step takes more."""
        return self.slow_ns - self.fast_ns


def split_modes(values: Sequence[int]) -> int | None:
    """Of sorted values, how many are in the lower of two modes; None: there are not two.

    >>> split_modes([10, 10, 11, 11, 12, 12, 12, 13, 13, 14, 30, 31])
    10
    """
    if len(values) < LEAST_STEPS:
        return None
    gaps = np.diff(np.asarray(values, np.int64))
    at = int(gaps.argmax()) + 1
    slow = len(values) - at
    spread = max(values[at - 1] - values[0], values[-1] - values[at])
    if not _LEAST_SLOW <= slow < len(values) / 2 or gaps[at - 1] <= spread:
        return None
    return at


def find_modes(rank: RankAccount) -> list[Modes]:
    """The shapes of one rank whose steps take one of two times."""
    compiled = rank.budget.step_families.get(("host", "compile"))
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, step in enumerate(rank.table.counted):
        shape = step.boundary.shape
        window = rank.budget.windows[place].window_ns
        if step.phase is None or shape.num_scheduled_tokens is None or (compiled and compiled[place] >= COLD * window):
            continue
        groups[step.phase, shape.prefill.num_requests, shape.decode.num_requests, shape.num_scheduled_tokens].append(
            place
        )
    found = []
    for (phase, *_, tokens), places in groups.items():
        places.sort(key=lambda place: rank.budget.windows[place].window_ns)
        at = split_modes([rank.budget.windows[place].window_ns for place in places])
        if at is not None:
            label = say("{phase} steps of {tokens} tokens", phase=phase, tokens=tokens)
            found.append(_modes(rank, label, places[:at], places[at:]))
    return found


def _modes(rank: RankAccount, label: Message, fast: Sequence[int], slow: Sequence[int]) -> Modes:
    windows = np.array([window.window_ns for window in rank.budget.windows], np.int64)
    fast_ns, slow_ns = int(np.median(windows[fast])), int(np.median(windows[slow]))
    added = {
        account: float(np.median(np.array(ns)[slow]) - np.median(np.array(ns)[fast]))
        for account, ns in rank.budget.step_families.items()
    }
    account = max(added, key=lambda each: (added[each], each), default=None)
    if account is not None and added[account] < _MOST * (slow_ns - fast_ns):
        account = None
    steps = tuple(sorted(rank.table.counted[place].step_id for place in slow))
    return Modes(label=label, num_fast=len(fast), fast_ns=fast_ns, slow_ns=slow_ns, slow_steps=steps, account=account)
