"""Arrival skew in sentences: whose clock, who is late, behind in what, and what even work would gain."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.lateness import explain_lateness, skew_by_step, total_balance_ns
from stepscope.messages import Message, say
from stepscope.steps.ranks import ArrivalSkew
from stepscope.units import show_fraction, show_ns

if TYPE_CHECKING:
    from stepscope.answers.account import Account
    from stepscope.answers.lateness import Lateness

_MOST_RANKS = 4
_MOST_CAUSES = 3


def skew_sentences(account: Account) -> list[Message]:
    """What can be said of the account's collectives on one clock; nothing where the skew is refused."""
    skew = account.skew
    if not isinstance(skew, ArrivalSkew):
        return []
    said = [_skew(skew), _clock(skew)]
    if skew.is_evidence:
        said += [_cause(late) for late in explain_lateness(account)[:_MOST_RANKS]]
        said.append(_balance(account, skew))
    return said


def _skew(skew: ArrivalSkew) -> Message:
    if not skew.is_evidence:
        return say(
            "Over {count} matched collectives no arrival skew stands out: at most {largest}, and the ends agree within "
            "{residual}.",
            count=skew.num_instances,
            largest=show_ns(skew.largest_skew_ns),
            residual=show_ns(skew.residual_ns),
        )
    return say(
        "Over {count} matched collectives (ends agree within {residual}) the others wait for: {awaited}; the largest "
        "single wait, {largest}, is for rank {rank}. Up to the last arrival a collective is waiting, not transfer.",
        count=skew.num_instances,
        residual=show_ns(skew.residual_ns),
        awaited=_awaited(skew),
        largest=show_ns(skew.largest_skew_ns),
        rank=skew.largest_late_rank,
    )


def _awaited(skew: ArrivalSkew) -> str:
    """Every rank where they are few, else those that are awaited most."""
    ranked = sorted(skew.awaited_ns.items())
    if len(ranked) > 2 * _MOST_RANKS:
        ranked = sorted(ranked, key=lambda item: (-item[1], item[0]))[: 2 * _MOST_RANKS]
    return ", ".join(f"rank {rank} {show_ns(ns)}" for rank, ns in ranked)


def _clock(skew: ArrivalSkew) -> Message:
    values = {"median": show_ns(skew.residual_ns), "p95": show_ns(skew.residual_p95_ns)}
    if skew.method == "recorded clocks":
        return say(
            "The recorded clocks are compared as they are: ends differ by {median} in the median, {p95} at the 95th "
            "percentile.",
            **values,
        )
    offset = max(skew.offset_ns.values()) - min(skew.offset_ns.values())
    if offset > skew.largest_skew_ns:
        return say(
            "The ranks' clocks differ by up to {offset}, more than any skew: times as recorded cannot be compared. "
            "They are fitted to the ends of collectives, which then differ by {median} in the median, {p95} at the "
            "95th percentile.",
            offset=show_ns(offset),
            **values,
        )
    return say(
        "The ranks' clocks are fitted to the ends of collectives (they differ by up to {offset}); the ends then differ "
        "by {median} in the median, {p95} at the 95th percentile.",
        offset=show_ns(offset),
        **values,
    )


def _cause(late: Lateness) -> Message:
    values = {"rank": late.rank, "count": late.num_instances, "behind": show_ns(late.behind_ns)}
    if late.cause is None:
        return say(
            "Rank {rank} arrives last {count} times, {behind} behind the mean of all ranks; the cause before the "
            "collective is not instrumented ({unseen} of it shows no recorded work).",
            unseen=show_ns(late.uninstrumented_ns),
            **values,
        )
    return say(
        "Rank {rank} arrives last {count} times, {behind} behind the mean of all ranks: before the collective it is "
        "longer in {causes}.",
        causes=", ".join(
            f"{family} ({category}) {show_ns(ns)}" for (category, family), ns in late.causes[:_MOST_CAUSES]
        ),
        **values,
    )


def _balance(account: Account, skew: ArrivalSkew) -> Message:
    found = skew.instances
    transfer, gain = int(found.transfer_ns.sum()), total_balance_ns(skew)
    steps = [step for step in skew_by_step(account) if step.step_id is not None]
    values = {"transfer": show_ns(transfer), "gain": show_ns(gain)}
    if not steps:
        return say(
            "From the last arrival on, transfer takes {transfer}; the same work spread evenly over the ranks would "
            "gain {gain} at most.",
            **values,
        )
    busiest, count = Counter(step.busiest_rank for step in steps).most_common(1)[0]
    return say(
        "From the last arrival on, transfer takes {transfer}; the same work spread evenly over the ranks would gain "
        "{gain} at most ({median} a step in the median). The critical path runs mostly over rank {rank} in {share} of "
        "{steps} steps.",
        median=show_ns(int(np.median([step.balance_ns for step in steps]))),
        rank=busiest,
        share=show_fraction(count / len(steps)),
        steps=len(steps),
        **values,
    )
