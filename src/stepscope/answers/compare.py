"""Two accounts -> a Comparison: what differs, which steps match, where their time differs, and a verdict or none.

All deltas are B minus A. A workload is compared by itself and never added to another. Its wall time splits into kernel
time (compute, kv, unmatched), exposed communication, idle time (supply, host, idle) and unknown, to the ns. A verdict
is refused where the two runs did not run the same path: then the numbers stand, and no conclusion is drawn from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.answers.cause import Causes, find_causes
from stepscope.answers.kernels import Uniform, compare_kernels, find_uniform, find_work
from stepscope.answers.matching import KV_TOLERANCE, match_steps
from stepscope.answers.noise import Delta, paired
from stepscope.answers.paths import Matched, find_differences
from stepscope.answers.verdict import Conclusion, Verdict, conclude, find_verdict
from stepscope.answers.whole import WholeFamily, rank_families
from stepscope.budget.breakdown import WITHHELD
from stepscope.store.schema import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.answers.kernels import KernelChange
    from stepscope.answers.matching import Unmatched, Workload
    from stepscope.answers.paths import Difference
    from stepscope.budget.placement import Account as Place
    from stepscope.evidence import Grade

PARTS: dict[str, tuple[str, ...]] = {
    "kernel": ("compute", "kv", "unmatched"),
    "comm": ("comm",),
    "idle": ("supply", "host", "idle"),
    "unknown": ("unknown",),
}
PART_MEANING: dict[str, str] = {
    "kernel": "the device works on this step: compute, kv, unmatched (on a CPU backend: operations)",
    "comm": "exposed communication",
    "idle": "the device idles: supply, host, idle",
    "unknown": "no evidence either way, and whatever was withheld",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One workload's times. A part or category is None where a side withholds it."""

    workload: Workload
    wall: Delta
    parts: dict[str, Delta | None]
    categories: dict[str, Delta | None]
    families: dict[Place, Delta]
    kernels: tuple[KernelChange, ...]
    uniform: Uniform | None
    conclusion: Conclusion


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two captures side by side.

    `families`: of the whole captures, only where no step matched. `is_simulated`: one of the two was not recorded.
    """

    source_a: str
    source_b: str
    kv_tolerance: float
    differences: tuple[Difference, ...]
    workloads: tuple[Compared, ...]
    unmatched: tuple[Unmatched, ...]
    families: tuple[WholeFamily, ...]
    causes: Causes
    verdict: Verdict
    is_simulated: bool = False


def compare(a: Account, b: Account, *, kv_tolerance: float = KV_TOLERANCE) -> Comparison:
    """Compare two captures, rank by rank; ranks are paired by number, and a single one with a single one."""
    matched = [_match(x, y, kv_tolerance) for x, y in _pair_ranks(a, b)]
    differences = find_differences(a, b, matched)
    workloads = [
        _compare_workload(m, workload, kernels, differences) for m in matched for workload, kernels in m.groups
    ]
    return Comparison(
        source_a=a.source,
        source_b=b.source,
        kv_tolerance=kv_tolerance,
        differences=differences,
        workloads=tuple(workloads),
        unmatched=tuple(u for m in matched for u in m.matching.unmatched),
        families=() if workloads else rank_families(a, b),
        causes=find_causes(matched, differences),
        verdict=find_verdict(differences, [c.conclusion for c in workloads]),
        is_simulated=any(rank.store.is_simulated for account in (a, b) for rank in account.ranks),
    )


def _pair_ranks(a: Account, b: Account) -> list[tuple[RankAccount, RankAccount]]:
    if len(a.ranks) == len(b.ranks) == 1:
        return [(a.ranks[0], b.ranks[0])]
    by_number = {rank.rank: rank for rank in b.ranks}
    return [(rank, by_number[rank.rank]) for rank in a.ranks if rank.rank in by_number]


def _match(a: RankAccount, b: RankAccount, kv_tolerance: float) -> Matched:
    matching = match_steps(a, b, kv_tolerance=kv_tolerance)
    works = find_work(a), find_work(b)
    kernels = tuple(compare_kernels(*works, workload.pairs) for workload in matching.workloads)
    return Matched(a=a, b=b, matching=matching, kernels=kernels)


def _compare_workload(
    matched: Matched, workload: Workload, kernels: tuple[KernelChange, ...], differences: Sequence[Difference]
) -> Compared:
    budgets = [rank.budget.windows for rank in (matched.a, matched.b)]
    sides = ([budgets[0][i] for i, _ in workload.pairs], [budgets[1][j] for _, j in workload.pairs])
    inferred = any(s.boundary.grade == "inferred" for m in (matched.a, matched.b) for s in m.table.counted)
    grade: Grade = "inferred" if inferred else "derived"
    wall = paired([w.window_ns for w in sides[0]], [w.window_ns for w in sides[1]], grade)
    grade = "inferred" if inferred else "classified"
    claimable = all(rank.budget.coverage.idle_claimable for rank in (matched.a, matched.b))
    exclusive = {
        name: ([w.exclusive_ns[name] or 0 for w in sides[0]], [w.exclusive_ns[name] or 0 for w in sides[1]])
        for name in CATEGORIES
    }
    if not claimable:  # withheld on one side: withheld in the comparison, and its ns are unknown
        for side in (0, 1):
            held = [exclusive[name][side] for name in WITHHELD]
            exclusive["unknown"][side][:] = [sum(ns) for ns in zip(exclusive["unknown"][side], *held, strict=True)]
    categories = {
        name: None if not claimable and name in WITHHELD else paired(*exclusive[name], grade) for name in CATEGORIES
    }
    parts = {
        name: None if None in (categories[c] for c in members) else _sum(exclusive, members, grade)
        for name, members in PARTS.items()
    }
    families = _families(matched, workload, grade, claimable=claimable)
    return Compared(
        workload=workload,
        wall=wall,
        parts=parts,
        categories=categories,
        families=families,
        kernels=kernels,
        uniform=find_uniform(kernels),
        conclusion=conclude(workload, wall, parts, families, kernels, differences),
    )


def _sum(exclusive: dict[str, tuple[list[int], list[int]]], members: Sequence[str], grade: Grade) -> Delta:
    """Categories added up pair by pair."""
    a, b = ([sum(ns) for ns in zip(*(exclusive[name][side] for name in members), strict=True)] for side in (0, 1))
    return paired(a, b, grade)


def _families(matched: Matched, workload: Workload, grade: Grade, *, claimable: bool) -> dict[Place, Delta]:
    """Each family's exclusive time, the largest change first."""
    a, b = matched.a.budget.step_families, matched.b.budget.step_families
    found = {}
    for place in sorted(a.keys() | b.keys()):
        if not claimable and place[0] in WITHHELD:
            continue
        times_a, times_b = a.get(place), b.get(place)
        delta = paired(
            [times_a[i] if times_a else 0 for i, _ in workload.pairs],
            [times_b[j] if times_b else 0 for _, j in workload.pairs],
            grade,
        )
        if delta.a_ns or delta.b_ns:
            found[place] = delta
    return dict(sorted(found.items(), key=lambda item: (-abs(item[1].delta_ns), item[0])))
