"""Kernel families of two whole captures side by side: what can be ranked where no step of one matches the other's.

The captures may hold different amounts of work, so counts and mean durations stand beside the totals, which are sums
of recorded durations over all ranks. Nothing here speaks of idle time or of wall time, and no verdict rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stepscope.answers.account import Account
    from stepscope.budget.placement import Account as Place


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFamily:
    """One family's device events in each capture."""

    category: str
    family: str
    count_a: int
    count_b: int
    a_ns: int
    b_ns: int

    @property
    def one_a_ns(self) -> int | None:
        """Mean duration in A; None where it has none."""
        return self.a_ns // self.count_a if self.count_a else None

    @property
    def one_b_ns(self) -> int | None:
        """Mean duration in B; None where it has none."""
        return self.b_ns // self.count_b if self.count_b else None


def rank_families(a: Account, b: Account) -> tuple[WholeFamily, ...]:
    """Every family of either capture, the one with most time first."""
    sides = _sums(a), _sums(b)
    nothing = (0, 0)
    found = [
        WholeFamily(
            category=category,
            family=family,
            count_a=sides[0].get((category, family), nothing)[0],
            count_b=sides[1].get((category, family), nothing)[0],
            a_ns=sides[0].get((category, family), nothing)[1],
            b_ns=sides[1].get((category, family), nothing)[1],
        )
        for category, family in {*sides[0], *sides[1]}
    ]
    return tuple(sorted(found, key=lambda f: (-max(f.a_ns, f.b_ns), f.category, f.family)))


def _sums(account: Account) -> dict[Place, tuple[int, int]]:
    """(events, ns) by family, over all ranks."""
    sums: dict[Place, tuple[int, int]] = {}
    for rank in account.ranks:
        placements, rows = rank.budget.placements, np.flatnonzero(rank.store.device_work)
        durations, accounts = rank.store.events.duration_ns[rows], placements.account[rows]
        for label in np.unique(accounts).tolist():
            own = durations[accounts == label]
            count, ns = sums.get(placements.accounts[label], (0, 0))
            sums[placements.accounts[label]] = (count + len(own), ns + int(own.sum()))
    return sums
