"""What stands out, in the notes' reading order, each with its numbers, its grade and what it does not show.

A finding is a fact of the capture in a sentence, not a cause: hypotheses come after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.messages import Message, say
from stepscope.steps.ranks import ArrivalSkew
from stepscope.units import show_count, show_fraction, show_ns

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
    text: Message
    value_ns: int
    grade: Grade
    not_shown: Message


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
                text=say(
                    "The others wait {total} for rank {rank} in collectives (the largest single wait, {largest}, is "
                    "for rank {other}).",
                    total=show_ns(skew.awaited_ns[skew.late_rank]),
                    rank=skew.late_rank,
                    largest=show_ns(skew.largest_skew_ns),
                    other=skew.largest_late_rank,
                ),
                value_ns=skew.awaited_ns[skew.late_rank],
                grade="derived",
                not_shown=say("whether its work can be spread evenly; question 6 says what it was longer in"),
            )
        )
    order = ("supply", "host", "compute", "kv", "comm", "idle", "unknown")
    if account.is_simulated:
        found = [replace(finding, grade="simulated") for finding in found]
    return tuple(sorted(found, key=lambda f: (order.index(f.layer), -f.value_ns)))


# category, sentence, what it does not show; {rank}, {total} and {share} are filled in
_SENTENCES: tuple[tuple[str, str, str], ...] = (
    (
        "supply",
        "{rank} waits for its next work for {total}, {share} of its span.",
        "whether requests were queued at that time",
    ),
    (
        "host",
        (
            "{rank} has an idle device, or Python time, while the host prepares or launches for {total}, {share} of "
            "its span."
        ),
        "how much of it the profiler itself adds",
    ),
    (
        "kv",
        "{rank} is in the KV data path for {total}, {share} of its span.",
        "what reading compressed or sparse KV saved",
    ),
    (
        "comm",
        "{rank} is in exposed communication for {total}, {share} of its span.",
        "how much of it is waiting for a late rank, without the other ranks",
    ),
    (
        "idle",
        "{rank} is idle with the worker recorded doing something that is no step for {total}, {share} of its span.",
        "why the worker was there",
    ),
    ("unknown", "{rank} has no evidence either way for {total}, {share} of its span.", "anything about that time"),
)


def _shares(rank: RankAccount) -> list[Finding]:
    total, span = rank.budget.total, rank.budget.total.window_ns
    name = say("Rank ?") if rank.rank is None else say("Rank {rank}", rank=rank.rank)
    found = []
    for category, sentence, not_shown in _SENTENCES:
        ns = total.exclusive_ns[category] or 0
        if span and ns >= _NOTABLE * span:
            found.append(
                Finding(
                    id=f"{category}_share",
                    layer=category,
                    rank=rank.rank,
                    text=say(sentence, rank=name, total=show_ns(ns), share=show_fraction(ns / span)),
                    value_ns=ns,
                    grade="classified",
                    not_shown=say(not_shown),
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
                text=say(
                    "{rank} compiles for {total} in step {step} ({tokens} tokens): a cold step, no steady state.",
                    rank=name,
                    total=show_ns(compiled[worst]),
                    step=step.step_id,
                    tokens=show_count(step.boundary.shape.num_scheduled_tokens),
                ),
                value_ns=sum(compiled),
                grade="classified",
                not_shown=say("whether it comes again: warm up, and leave cold steps out of statistics"),
            )
        )
    return found
