"""What stands out, in the notes' reading order, each with its numbers, its grade and what it does not show.

A finding is a fact of the capture in a sentence. It names a cause only against a reference inside the capture: the
other ranks, or the other steps of one shape. Against another capture, `cause` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.answers.blocking import find_blocking
from stepscope.answers.finding import READING_ORDER, Finding
from stepscope.answers.lateness import explain_lateness
from stepscope.answers.modes import find_modes
from stepscope.answers.shape_findings import find_shape_findings
from stepscope.messages import Message, say
from stepscope.steps.ranks import ArrivalSkew
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.answers.account import Account, RankAccount

_NOTABLE = 0.10  # of the span
_COLD = 0.05


def find_findings(account: Account) -> tuple[Finding, ...]:
    """Findings in the notes' reading order: supply, prefill, chunk shape, host, KV path, communication and waits."""
    found = list(find_shape_findings(account))
    for rank in account.ranks:
        if rank.budget.coverage.idle_claimable:
            found += _shares(rank)
        found += _blocking(rank)
        found += _modes(rank)
    found += _late_rank(account)
    if account.is_simulated:
        found = [replace(finding, grade="simulated") for finding in found]
    return tuple(sorted(found, key=lambda f: (READING_ORDER.index(f.layer), -f.value_ns)))


def _late_rank(account: Account) -> Iterator[Finding]:
    skew = account.skew
    if not isinstance(skew, ArrivalSkew) or not skew.is_evidence:
        return
    cause = next((late.cause for late in explain_lateness(account) if late.rank == skew.late_rank), None)
    values = {
        "total": show_ns(skew.awaited_ns[skew.late_rank]),
        "rank": skew.late_rank,
        "largest": show_ns(skew.largest_skew_ns),
        "other": skew.largest_late_rank,
    }
    text = say(
        "The others wait {total} for rank {rank} in collectives (the largest single wait, {largest}, is for rank "
        "{other}).",
        **values,
    )
    not_shown = say("why it is late: compare its budget with the others' in the same step")
    if cause is not None:
        text = say(
            "The others wait {total} for rank {rank} in collectives (the largest single wait, {largest}, is for rank "
            "{other}): before them it is longer than the mean rank in {family} ({category}).",
            family=cause[1],
            category=cause[0],
            **values,
        )
        not_shown = say("why that takes it longer: its share of the work, its device's clock, its host")
    yield Finding(
        id="late_rank",
        layer="comm",
        rank=skew.late_rank,
        text=text,
        value_ns=skew.awaited_ns[skew.late_rank],
        grade="derived" if cause is None else "classified",
        not_shown=not_shown,
    )


def _blocking(rank: RankAccount) -> Iterator[Finding]:
    found, window = find_blocking(rank), rank.budget.total.window_ns
    if found is None or found.idle_ns < _NOTABLE * window:
        return
    yield Finding(
        id="sync_serialises",
        layer="comm",
        rank=rank.rank,
        text=say(
            "{rank}: the device runs out of work {gaps} times while the host stands in a blocking call (mostly {name}) "
            "and then idles {total}, {share} of its span: what did not need the call's result waited all the same.",
            rank=_name(rank),
            gaps=found.num_gaps,
            name=found.name,
            total=show_ns(found.idle_ns),
            share=show_fraction(found.idle_ns / window),
        ),
        value_ns=found.idle_ns,
        grade="classified",
        not_shown=say("which of the later work needed the result: only that could not be launched before the call"),
    )


def _modes(rank: RankAccount) -> Iterator[Finding]:
    for found in find_modes(rank):
        values = {
            "rank": _name(rank),
            "slow": len(found.slow_steps),
            "all": found.num_fast + len(found.slow_steps),
            "label": found.label,
            "slow_ns": show_ns(found.slow_ns),
            "fast_ns": show_ns(found.fast_ns),
        }
        text = say(
            "{rank}: {slow} of {all} {label} take {slow_ns} instead of {fast_ns}, in two groups with nothing between; "
            "the added time lies in no single family.",
            **values,
        )
        if found.account is not None:
            text = say(
                "{rank}: {slow} of {all} {label} take {slow_ns} instead of {fast_ns}, in two groups with nothing "
                "between; most of the added time is {family} ({category}).",
                family=found.account[1],
                category=found.account[0],
                **values,
            )
        yield Finding(
            id="two_modes",
            layer="unknown" if found.account is None else found.account[0],
            rank=rank.rank,
            text=text,
            value_ns=found.added_ns * len(found.slow_steps),
            grade="classified",
            not_shown=say("what the slow steps were beside: a neighbour, a collection, another clock"),
        )


def _name(rank: RankAccount) -> Message:
    return say("Rank ?") if rank.rank is None else say("Rank {rank}", rank=rank.rank)


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
    name = _name(rank)
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
