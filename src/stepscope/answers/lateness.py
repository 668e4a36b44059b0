"""Why a rank is late at collectives, what waiting for it costs, and which rank carries each step.

Between leaving one collective and arriving at the next, each rank has a stretch of its own. What a late rank spent
there beyond the mean of all ranks, account by account of its budget, is its lateness; these sum to what balance would
gain (the last arrival less the mean one) where the ranks left the collective before together. Where the stretch shows
neither device work nor host work that caused it, the cause is not instrumented, and none is named.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.steps.ranks import NOBODY, ArrivalSkew, Instances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.budget.placement import Account as Family
    from stepscope.intervals import Int64
    from stepscope.steps.clock import Float64
    from stepscope.store.events import Mask

# time that says where a rank was not, but not what it did
_NOT_A_CAUSE = ("idle", "unknown")
_NO_STEP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """One late rank: how often and how long it was awaited, and by what it was behind the mean of all, largest first.

    `uninstrumented_ns` is what of it no recorded work explains.
    """

    rank: int
    num_instances: int
    awaited_ns: int
    behind_ns: int
    causes: tuple[tuple[Family, int], ...]
    uninstrumented_ns: int

    @property
    def cause(self) -> Family | None:
        """What it was in beyond the mean, mostly; None where most of it is not instrumented."""
        if not self.causes or 2 * self.uninstrumented_ns > self.behind_ns:
            return None
        return self.causes[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkew:
    """One step's collectives: its critical path is `own_ns` on the last to arrive each time, then `transfer_ns`.

    `busiest_rank` is the one that the path runs over most; `balance_ns` is what even work would gain.
    """

    step_id: int | None
    num_collectives: int
    skew_ns: int
    transfer_ns: int
    own_ns: int
    balance_ns: int
    busiest_rank: int


def explain_lateness(account: Account) -> tuple[Lateness, ...]:
    """Late ranks with their causes, the most awaited first."""
    skew = account.skew
    if not isinstance(skew, ArrivalSkew):
        return ()
    found = skew.instances
    measured = [_stretches(rank, found, i) for i, rank in enumerate(account.ranks)]
    families = sorted({family for own in measured for family in own})
    number = {family: i for i, family in enumerate(families)}
    spent = np.zeros((len(families), *found.matched.row.shape))
    for i, own in enumerate(measured):
        for family, values in own.items():
            spent[number[family], i] = values
    held = found.matched.present
    mean = np.where(held, spent, 0.0).sum(axis=1) / held.sum(axis=0)
    late = [
        _lateness(rank.rank or 0, found, found.late == i, _behind(spent[:, i] - mean, found.late == i, families))
        for i, rank in enumerate(account.ranks)
        if (found.late == i).any()
    ]
    return tuple(sorted(late, key=lambda one: (-one.awaited_ns, one.rank)))


def _stretches(rank: RankAccount, found: Instances, index: int) -> dict[Family, Int64]:
    """Per account, its ns of each instance's stretch; none before a capture's first collective."""
    rows, held = found.matched.row[index], found.matched.present[index]
    events = rank.store.events
    number = held.shape[0]
    start, end = (np.zeros(number, np.int64) for _ in range(2))
    arrived, left = events.start_ns[rows[held]], events.end_ns[rows[held]]
    span_start = rank.table.windows.span[0]
    end[held] = arrived
    start[held] = np.minimum(np.concatenate([[span_start], left[:-1]]), arrived)
    return rank.budget.partition.measure(start, end)


def _behind(more: Float64, chosen: Mask, families: Sequence[Family]) -> dict[Family, int]:
    """What a rank spent beyond the mean in the chosen instances, by account."""
    totals = more[:, chosen].sum(axis=1)
    return {family: round(float(ns)) for family, ns in zip(families, totals, strict=True) if round(float(ns))}


def _lateness(rank: int, found: Instances, chosen: Mask, behind: dict[Family, int]) -> Lateness:
    causes = {family: ns for family, ns in behind.items() if family[0] not in _NOT_A_CAUSE and ns > 0}
    total = int(found.balance_ns[chosen].sum())
    return Lateness(
        rank=rank,
        num_instances=int(chosen.sum()),
        awaited_ns=int(found.skew_ns[chosen].sum()),
        behind_ns=total,
        causes=tuple(sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
        uninstrumented_ns=max(total - sum(causes.values()), 0),
    )


def skew_by_step(account: Account) -> tuple[StepSkew, ...]:
    """The collectives of each step of the first rank; `step_id` None: outside every step."""
    skew = account.skew
    if not isinstance(skew, ArrivalSkew) or not account.ranks:
        return ()
    found = skew.instances
    own, carrier = _critical_path(found)
    steps: dict[int, list[int]] = defaultdict(list)
    for instance, step in enumerate(_steps_of(account, found).tolist()):
        steps[step].append(instance)
    return tuple(
        StepSkew(
            step_id=None if step == _NO_STEP else step,
            num_collectives=len(chosen),
            skew_ns=int(found.skew_ns[chosen].sum()),
            transfer_ns=int(found.transfer_ns[chosen].sum()),
            own_ns=int(own[chosen].sum()),
            balance_ns=int(found.balance_ns[chosen].sum()),
            busiest_rank=account.ranks[_most(carrier[chosen], own[chosen])].rank or 0,
        )
        for step, chosen in sorted(steps.items())
    )


def _critical_path(found: Instances) -> tuple[Int64, Int64]:
    """Per instance, the last to arrive's time since the instance before ended, and who that is."""
    held = found.matched.present
    arrival = np.where(held, found.arrival_ns, -np.inf)
    last = arrival.max(axis=0)
    ends = last + found.transfer_ns
    own = np.maximum(last[1:] - ends[:-1], 0)
    return np.concatenate([[0], np.rint(own).astype(np.int64)]), arrival.argmax(axis=0)


def _most(carrier: Int64, own: Int64) -> int:
    return int(np.bincount(carrier, weights=own + 1).argmax())  # + 1: of equal paths, the more frequent carrier's


def _steps_of(account: Account, found: Instances) -> Int64:
    """The step that each instance belongs to, by the windows of the first rank that holds it."""
    step = np.full(found.matched.row.shape[1], _NO_STEP, np.int64)
    for index, rank in enumerate(account.ranks):
        windows = [(*s.window, s.step_id) for s in rank.table.counted if s.window is not None]
        rows = found.matched.row[index]
        unknown = (step == _NO_STEP) & (rows >= 0)
        if not windows or not unknown.any():
            continue
        start, end, number = (np.array(column, np.int64) for column in zip(*windows, strict=True))
        times = rank.store.events.start_ns[rows[unknown]]
        place = np.searchsorted(start, times, side="right") - 1
        inside = (place >= 0) & (times < end[np.maximum(place, 0)])
        step[unknown] = np.where(inside, number[np.maximum(place, 0)], _NO_STEP)
    return step


def total_balance_ns(skew: ArrivalSkew) -> int:
    """What even work would gain over all instances whose lateness is beyond the clocks' doubt."""
    return int(skew.instances.balance_ns[skew.instances.late != NOBODY].sum())
