"""What stands out, in the notes' reading order, each with its numbers, its grade and what it does not show.

A finding is a fact of the capture in a sentence, not a cause: hypotheses come after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.steps.ranks import ArrivalSkew
from stepscope.units import show_fraction, show_ns

if TYPE_CHECKING:
    from stepscope.answers.account import Account, RankAccount
    from stepscope.evidence import Grade

_NOTABLE = 0.10  # of the span
_COLD = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence with its evidence. `value_ns` is what it rests on."""

    id: str
    layer: str
    rank: int | None
    text: str
    value_ns: int
    grade: Grade
    not_shown: str


def find_findings(account: Account) -> tuple[Finding, ...]:
    """Findings in reading order: supply, host, compile, KV path, communication."""
    found: list[Finding] = []
    for rank in account.ranks:
        if rank.budget.coverage.idle_claimable:
            found += _shares(rank)
    if isinstance(account.skew, ArrivalSkew) and account.skew.is_evidence:
        skew = account.skew
        found.append(
            Finding(
                id="late_rank",
                layer="comm",
                rank=skew.late_rank,
                text=(
                    f"The others wait {show_ns(skew.awaited_ns[skew.late_rank])} for rank {skew.late_rank} in "
                    f"collectives (the largest single wait, {show_ns(skew.largest_skew_ns)}, is for "
                    f"rank {skew.largest_late_rank})."
                ),
                value_ns=skew.awaited_ns[skew.late_rank],
                grade="derived",
                not_shown="why it is late: compare its budget with the others' in the same step",
            )
        )
    order = ("supply", "host", "compute", "kv", "comm", "idle", "unknown")
    return tuple(sorted(found, key=lambda f: (order.index(f.layer), -f.value_ns)))


_SENTENCES: tuple[tuple[str, str, str], ...] = (
    ("supply", "waits for its next work", "whether requests were queued at that time"),
    (
        "host",
        "has an idle device, or Python time, while the host prepares or launches",
        "how much of it the profiler itself adds",
    ),
    ("kv", "is in the KV data path", "what reading compressed or sparse KV saved"),
    ("comm", "is in exposed communication", "how much of it is waiting for a late rank, without the other ranks"),
    ("idle", "is idle with the worker recorded doing something that is no step", "why the worker was there"),
    ("unknown", "has no evidence either way", "anything about that time"),
)


def _shares(rank: RankAccount) -> list[Finding]:
    total, span = rank.budget.total, rank.budget.total.window_ns
    name = "Rank ?" if rank.rank is None else f"Rank {rank.rank}"
    found = []
    for category, what, not_shown in _SENTENCES:
        ns = total.exclusive_ns[category] or 0
        if span and ns >= _NOTABLE * span:
            found.append(
                Finding(
                    id=f"{category}_share",
                    layer=category,
                    rank=rank.rank,
                    text=f"{name} {what} for {show_ns(ns)}, {show_fraction(ns / span)} of its span.",
                    value_ns=ns,
                    grade="classified",
                    not_shown=not_shown,
                )
            )
    compiled = rank.budget.step_families.get(("host", "compile"))
    if compiled and span and sum(compiled) >= _COLD * span:
        worst = max(range(len(compiled)), key=compiled.__getitem__)
        step = rank.table.counted[worst]
        found.append(
            Finding(
                id="compilation",
                layer="host",
                rank=rank.rank,
                text=(
                    f"{name} compiles for {show_ns(compiled[worst])} in step {step.step_id} "
                    f"({step.boundary.shape.num_scheduled_tokens} tokens): a cold step, no steady state."
                ),
                value_ns=sum(compiled),
                grade="classified",
                not_shown="whether it comes again: warm up, and leave cold steps out of statistics",
            )
        )
    return found
