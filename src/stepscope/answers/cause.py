"""Two captures -> causes in sentences, the first one first: what was computed, which rank is late, what takes longer.

Prompt tokens come first: they are exact, and steps of another shape do not match. Then the families that stand out
(`changes`), largest first. A family that stands out on one rank alone makes that rank late; what the others then book
as communication is waiting for it, and is no cause of its own. Nothing is named where nothing stands out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.answers.changes import find_changes
from stepscope.answers.prefill import count_prompts
from stepscope.messages import Message, say
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.changes import Change, Group
    from stepscope.answers.paths import Difference, Matched
    from stepscope.evidence import Grade

CauseKind = Literal["effective prefill", "late rank", "family"]
_SAME = 0.01  # of the prompt tokens: the loads are the same
_OTHER = 0.05  # of the prompt tokens: so many more or fewer were computed
_WAITS = ("comm", "supply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause. Category and family are None for prompts; `delta_ns` of a step, B minus A, is None for them too."""

    kind: CauseKind
    rank: int | None
    category: str | None
    family: str | None
    function: str | None
    delta_ns: int | None
    num_pairs: int
    sentences: tuple[Message, ...]
    not_shown: Message
    grade: Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """What is named, the first one first, and the sentence that stands above it all."""

    named: tuple[Cause, ...]
    headline: Message


def find_causes(matched: Sequence[Matched], differences: Sequence[Difference]) -> Causes:
    """Causes of what B does differently, as far as the two captures carry them.

    Another path is no reason against naming a cause: an added kernel may be the cause.
    """
    stops = [d for d in differences if d.id in ("lane", "vendor") or (d.effect == "evidence" and d.id != "coverage")]
    if stops:
        return Causes(
            named=(),
            headline=say("No cause is named: the captures do not compare ({what}).", what=stops[0].text),
        )
    with_host = all(d.effect != "overhead" for d in differences)
    groups = [group for m in matched for group in find_changes(m, with_host=with_host)]
    named = [*_prompts(matched), *_families(groups, len(matched))]
    if named:
        return Causes(named=tuple(named), headline=named[0].sentences[0])
    return Causes(named=(), headline=_nothing(groups))


def _nothing(groups: Sequence[Group]) -> Message:
    told = [group for group in groups if group.least_ns is not None]
    if not groups:
        return say("No cause is named: no step of A has the phase and shape of a step of B.")
    if not told:
        most = max((group.num_pairs for group in groups), default=0)
        return say(
            "No cause is named: {n} matched steps of one phase are too few for a bound over all families.", n=most
        )
    largest = max(told, key=lambda group: group.num_pairs)
    if not largest.least_ns:
        return say(
            "No cause stands out: {n} matched {phase} steps differ by nothing.",
            n=largest.num_pairs,
            phase=largest.phase,
        )
    return say(
        "No cause stands out beyond noise: in {n} matched {phase} steps a change below {least} a step is not told from "
        "how steps of one shape differ anyway.",
        n=largest.num_pairs,
        phase=largest.phase,
        least=show_ns(largest.least_ns),
    )


def _prompts(matched: Sequence[Matched]) -> list[Cause]:
    """The same prompts, and more or fewer of their tokens computed."""
    if not matched:
        return []
    a, b = (count_prompts(side.table.counted) for side in (matched[0].a, matched[0].b))
    if a is None or b is None or abs(a.prompt_tokens - b.prompt_tokens) > _SAME * a.prompt_tokens:
        return []
    more = b.computed_tokens - a.computed_tokens
    if abs(more) <= _OTHER * a.prompt_tokens:
        return []
    text = say(
        "The same prompts ({prompt} tokens) had {b} of their tokens computed instead of {a}: prefix hits {hits_a} -> "
        "{hits_b} tokens.",
        prompt=show_count(b.prompt_tokens),
        a=show_count(a.computed_tokens),
        b=show_count(b.computed_tokens),
        hits_a=show_count(a.hit_tokens),
        hits_b=show_count(b.hit_tokens),
    )
    return [
        Cause(
            kind="effective prefill",
            rank=None,
            category=None,
            family=None,
            function=None,
            delta_ns=None,
            num_pairs=0,
            sentences=(text,),
            not_shown=say("why the cache held other prefixes: its size, its setting, another order of requests"),
            grade="recorded",
        )
    ]


def _families(groups: Sequence[Group], num_ranks: int) -> list[Cause]:
    """Each phase's changes, largest first; of the same family on several ranks the largest."""
    found = sorted(
        ((group, change) for group in groups for change in group.changes),
        key=lambda item: -abs(item[1].change.median_ns) * item[0].num_pairs,
    )
    late = {
        group.phase: change.rank
        for group, change in reversed(found)
        if num_ranks > 1 and change.account[0] not in _WAITS and _on_one_rank(groups, change)
    }
    causes: dict[tuple[str, str, str], Cause] = {}
    for group, change in found:
        is_late = late.get(group.phase) == change.rank and change.rank is not None and change.change.median_ns > 0
        if group.phase in late and change.account[0] in _WAITS:
            continue
        causes.setdefault((group.phase, *change.account), _cause(group, change, is_late=is_late))
    return list(causes.values())


def _on_one_rank(groups: Sequence[Group], change: Change) -> bool:
    ranks = {c.rank for g in groups for c in g.changes if (c.phase, c.account) == (change.phase, change.account)}
    return len(ranks) == 1


def _cause(group: Group, change: Change, *, is_late: bool) -> Cause:
    category, family = change.account
    delta = change.change.median_ns
    values = {
        "place": _place(change),
        "delta": show_ns(abs(delta)),
        "a": show_ns(change.a_ns),
        "b": show_ns(change.b_ns),
        "n": group.num_pairs,
        "phase": group.phase,
    }
    if is_late:
        text = say(
            "Rank {rank} is late: before its collectives {place} takes {delta} more a step ({a} -> {b}, {n} matched "
            "{phase} steps), on this rank alone.",
            rank=change.rank,
            **values,
        )
    else:
        more = say("more") if delta > 0 else say("less")
        text = say(
            "{place} takes {delta} {more} a step: {a} -> {b}, {share} of the window's change, in {n} matched {phase} "
            "steps.",
            more=more,
            share=show_fraction(change.share),
            **values,
        )
    return Cause(
        kind="late rank" if is_late else "family",
        rank=change.rank,
        category=category,
        family=family,
        function=change.function,
        delta_ns=delta,
        num_pairs=group.num_pairs,
        sentences=(text, *_details(group, change)),
        not_shown=_not_shown(category),
        grade="classified",
    )


def _place(change: Change) -> Message:
    category, family = change.account
    if change.function is None:
        return say("{family} ({category})", family=family, category=category)
    return say("{family} ({category}), in {function},", family=family, category=category, function=change.function)


def _details(group: Group, change: Change) -> list[Message]:
    said = []
    if change.work is not None:
        work = change.work
        said.append(
            say(
                "In it, {name} takes {a} -> {b} a step and runs {count_a} -> {count_b} times.",
                name=work.name,
                a=show_ns(work.a_ns),
                b=show_ns(work.b_ns),
                count_a=f"{work.count_a:.3g}",
                count_b=f"{work.count_b:.3g}",
            )
        )
    if abs(group.ratio - 1) >= _OTHER:
        said.append(
            say(
                "All families together take {ratio} times as long in B (clock, a busy machine), which is taken off "
                "first.",
                ratio=f"{group.ratio:.2f}",
            )
        )
    return said


def _not_shown(category: str) -> Message:
    if category == "supply":
        return say("what the engine did meanwhile: record its process beside the workers")
    if category == "comm":
        return say("whether it is transfer or waiting for a late rank, unless all ranks were recorded")
    return say("why: look at what changed in this code, its settings or its inputs")
