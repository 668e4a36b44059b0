"""The kernels of matched steps in two captures: added, removed, slower, faster, by recorded name.

On a CPU backend the worker thread's outermost operations stand for kernels. A kernel is called slower where the 95 %
intervals of its two medians have no ns in common; how often it ran and its total are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.answers.noise import Estimate, estimate
from stepscope.budget.partition import worker_track
from stepscope.budget.placement import NO_ACCOUNT, UNMATCHED
from stepscope.store.schema import OP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.answers.account import RankAccount
    from stepscope.budget.placement import Account
    from stepscope.intervals import Int64

Change = Literal["added", "removed", "slower", "faster", "count", "same", "unknown"]
CHANGE_MEANING: dict[Change, str] = {
    "added": "in B only",
    "removed": "in A only",
    "slower": "the intervals of the medians are apart, B's above A's",
    "faster": "the intervals of the medians are apart, B's below A's",
    "count": "launched more or less often, each no slower or faster beyond noise",
    "same": "no difference beyond noise",
    "unknown": "fewer than six launches on a side: no bound",
}
_UNIFORM_TIME = 0.90  # of the kernel time must move together
_UNIFORM_SPREAD = 1.10  # the largest ratio over the smallest
_UNIFORM_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """One kernel name over a workload's pairs. Totals and counts over all pairs; `a`, `b`: durations of one launch."""

    name: str
    account: Account
    count_a: int
    count_b: int
    a_ns: int
    b_ns: int
    a: Estimate | None
    b: Estimate | None

    @property
    def change(self) -> Change:
        """What happened to it."""
        if self.a is None or self.b is None:
            return "added" if self.a is None else "removed"
        known = None not in (self.a.low_ns, self.b.low_ns)
        if known and (self.b.low_ns or 0) > (self.a.high_ns or 0):
            return "slower"
        if known and (self.b.high_ns or 0) < (self.a.low_ns or 0):
            return "faster"
        if self.count_a != self.count_b:
            return "count"
        return "same" if known or self.a == self.b else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """A rank's kernels (or outermost operations): name, duration, account, and place of their counted step or -1."""

    names: tuple[str, ...]
    accounts: tuple[Account, ...]
    name_id: Int64
    account: Int64
    duration_ns: Int64
    place: Int64


def find_work(rank: RankAccount) -> StepWork:
    """The kernels of each counted step."""
    rows, place = _device_rows(rank) if rank.table.windows.lane != "host" else _host_rows(rank)
    e, placements = rank.store.events, rank.budget.placements
    return StepWork(
        names=rank.store.names,
        accounts=placements.accounts,
        name_id=e.name_id[rows].astype(np.int64),
        account=placements.account[rows].astype(np.int64),
        duration_ns=e.duration_ns[rows],
        place=place,
    )


def _device_rows(rank: RankAccount) -> tuple[Int64, Int64]:
    work = rank.table.work
    place_of = np.full(len(rank.table.steps) + 1, -1, np.int64)  # the last one is NO_STEP's
    place_of[[i for i, step in enumerate(rank.table.steps) if not step.is_empty]] = np.arange(len(rank.table.counted))
    return work.row, place_of[work.boundary]


def _host_rows(rank: RankAccount) -> tuple[Int64, Int64]:
    """Operations of the worker thread that stand in no other one."""
    e = rank.store.events
    rows = np.flatnonzero((e.kind == OP) & (e.track_id == worker_track(rank.store, rank.table)))
    if len(rows):
        reach = np.maximum.accumulate(e.end_ns[rows])
        rows = rows[np.append(True, e.start_ns[rows][1:] >= reach[:-1])]
    windows = [step.window or (0, 0) for step in rank.table.counted]
    if not windows:
        return rows, np.full(len(rows), -1, np.int64)
    starts, ends = (np.array(edge, np.int64) for edge in zip(*windows, strict=True))
    at = np.searchsorted(starts, e.start_ns[rows], side="right") - 1
    inside = (at >= 0) & (e.start_ns[rows] < ends[np.maximum(at, 0)])
    return rows, np.where(inside, at, -1)


def compare_kernels(a: StepWork, b: StepWork, pairs: Sequence[tuple[int, int]]) -> tuple[KernelChange, ...]:
    """Every kernel name of the paired steps, the largest change of its total first."""
    in_a, in_b = _by_name(a, [x for x, _ in pairs]), _by_name(b, [y for _, y in pairs])
    changes = []
    for name in in_a.keys() | in_b.keys():
        account, times_a = in_a.get(name, (None, None))
        other, times_b = in_b.get(name, (None, None))
        changes.append(
            KernelChange(
                name=name,
                account=account or other or UNMATCHED,
                count_a=0 if times_a is None else len(times_a),
                count_b=0 if times_b is None else len(times_b),
                a_ns=0 if times_a is None else int(times_a.sum()),
                b_ns=0 if times_b is None else int(times_b.sum()),
                a=None if times_a is None else estimate(times_a.tolist()),
                b=None if times_b is None else estimate(times_b.tolist()),
            )
        )
    return tuple(sorted(changes, key=lambda c: (-abs(c.b_ns - c.a_ns), -(c.a_ns + c.b_ns), c.name)))


def _by_name(work: StepWork, places: list[int]) -> dict[str, tuple[Account, Int64]]:
    rows = np.flatnonzero(np.isin(work.place, places))
    if not len(rows):
        return {}
    rows = rows[np.argsort(work.name_id[rows], kind="stable")]
    ids, starts = np.unique(work.name_id[rows], return_index=True)
    found = {}
    for name_id, own in zip(ids.tolist(), np.split(rows, starts[1:]), strict=True):
        number = int(work.account[own[0]])
        account = UNMATCHED if number == NO_ACCOUNT else work.accounts[number]
        found[work.names[name_id]] = (account, work.duration_ns[own])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPath:
    """Whether two sets of kernels are one path: what part of the time, and of the launches, is not in both."""

    foreign_time_fraction: float
    foreign_count_fraction: float
    families_a: tuple[Account, ...]
    families_b: tuple[Account, ...]


def compare_path(changes: Iterable[KernelChange]) -> KernelPath:
    """How far the kernels are the same ones, and the families that one side alone has."""
    changes = list(changes)
    times = [(sum(c.a_ns for c in changes), sum(c.a_ns for c in changes if not c.count_b))]
    times += [(sum(c.b_ns for c in changes), sum(c.b_ns for c in changes if not c.count_a))]
    launches = max(sum(c.count_a for c in changes), sum(c.count_b for c in changes), 1)
    in_a, in_b = ({c.account for c in changes if c.count_a}, {c.account for c in changes if c.count_b})
    return KernelPath(
        foreign_time_fraction=max(foreign / whole if whole else 0.0 for whole, foreign in times),
        foreign_count_fraction=sum(abs(c.count_a - c.count_b) for c in changes) / launches,
        families_a=tuple(sorted(in_a - in_b)),
        families_b=tuple(sorted(in_b - in_a)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """All kernels changed by about one ratio (time in B over time in A)."""

    ratio: float
    num_names: int
    smallest_ratio: float
    largest_ratio: float


def find_uniform(changes: Iterable[KernelChange]) -> Uniform | None:
    """Whether the kernels of both sides, but for communication, all moved together beyond noise."""
    common = [c for c in changes if c.a and c.b and c.a.median_ns and c.b.median_ns and c.account[0] != "comm"]
    common.sort(key=lambda c: (-(c.a_ns + c.b_ns), c.name))
    whole = sum(c.a_ns + c.b_ns for c in common)
    kept: list[KernelChange] = []
    covered = 0
    for change in common:
        if covered >= _UNIFORM_TIME * whole and len(kept) >= _UNIFORM_NAMES:
            break
        kept.append(change)
        covered += change.a_ns + change.b_ns
    if len(kept) < _UNIFORM_NAMES or len({c.change for c in kept}) != 1 or kept[0].change not in ("slower", "faster"):
        return None
    ratios = [c.b.median_ns / c.a.median_ns for c in kept if c.a and c.b]
    if max(ratios) > _UNIFORM_SPREAD * min(ratios):
        return None
    return Uniform(
        ratio=sum(c.b_ns for c in kept) / sum(c.a_ns for c in kept),
        num_names=len(kept),
        smallest_ratio=min(ratios),
        largest_ratio=max(ratios),
    )


def infer_layers(changes: Iterable[KernelChange], num_pairs: int) -> tuple[int | None, int | None]:
    """The number of layers on each side, where attention kernels and at least two other names run that often a step."""
    changes = list(changes)
    return (
        _layers([(c.account[1], c.count_a / num_pairs) for c in changes]),
        _layers([(c.account[1], c.count_b / num_pairs) for c in changes]),
    )


def _layers(counts: list[tuple[str, float]]) -> int | None:
    attention = {count for family, count in counts if family.startswith("attention") and count}
    if len(attention) != 1:
        return None
    count = attention.pop()
    others = sum(same == count for family, same in counts if not family.startswith("attention"))
    return int(count) if count >= 2 and count == int(count) and others >= 2 else None
