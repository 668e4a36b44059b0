"""Trace steps joined with other sources: by step id, else by forward id, else by clock with its residual.

A source that disagrees with the trace about a step is shown beside it; nothing is averaged and nothing wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.join.alignment import Alignment, align, say_residual
from stepscope.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.join.observation import Observation, Side, TraceSteps

Method = Literal["step id", "forward id", "clock"]
_AGREE = 0.5  # numbers of another counter agree by chance only


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a source says of a trace step. `residual_ns`: trace time minus the source's, offset taken out."""

    rank: int | None
    step_id: int
    source: str
    method: Method
    number: int | None
    residual_ns: int | None
    facts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One fact of one step with what each source says of it."""

    rank: int | None
    step_id: int
    fact: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceJoin:
    """How one source was joined with one rank. `method` None: it was not, and `text` says why."""

    rank: int | None
    source: str
    method: Method | None
    num_side_steps: int
    num_trace_steps: int
    num_joined: int
    offset_ns: int | None
    residuals_ns: tuple[int, ...]
    text: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StepJoin:
    """All links, the disagreements among them, and how each source was joined."""

    links: tuple[Link, ...]
    disagreements: tuple[Disagreement, ...]
    sources: tuple[SourceJoin, ...]

    def of_source(self, source: str) -> tuple[Link, ...]:
        """One source's links."""
        return tuple(link for link in self.links if link.source == source)


def join_steps(ranks: Sequence[TraceSteps], sides: Sequence[Side]) -> StepJoin:
    """Join every side with every rank that it can belong to."""
    links: list[Link] = []
    sources: list[SourceJoin] = []
    for trace in ranks:
        for side in _sides_of(trace, sides):
            found, how = _join(trace, side)
            links += found
            sources.append(how)
    return StepJoin(links=tuple(links), disagreements=tuple(_disagreements(ranks, links)), sources=tuple(sources))


def _sides_of(trace: TraceSteps, sides: Sequence[Side]) -> list[Side]:
    """Of several engines, the one whose data-parallel rank this is; a lone one serves every rank."""
    chosen = []
    for side in sides:
        rivals = {s.dp_rank for s in sides if s.source == side.source}
        if len(rivals) == 1 or (trace.dp_rank is not None and side.dp_rank == trace.dp_rank):
            chosen.append(side)
    return chosen


def _join(trace: TraceSteps, side: Side) -> tuple[list[Link], SourceJoin]:
    if side.number_kind is not None and side.number_kind == trace.number_kind and not trace.numbers_doubted:
        links = _by_number(trace, side)
        if links and _agreement(trace, links) >= _AGREE:
            residuals = tuple(link.residual_ns for link in links if link.residual_ns is not None)
            text = say("by {kind}; {residual}", kind=side.number_kind, residual=say_residual(residuals))
            return links, _how(trace, side, side.number_kind, links, None, text)
    ran = [(i, o) for i, o in enumerate(trace.steps) if o.facts.get("num_scheduled_tokens") != 0]
    if side.source == "log prefill batches":
        ran = [(i, o) for i, o in ran if o.facts.get("num_prefill_tokens")]
    others = [o for o in side.steps if o.facts.get("num_scheduled_tokens") != 0]
    placed = align([o for _, o in ran], side, others) if ran and others else say("one of them has no steps")
    if isinstance(placed, Message):
        return [], _how(trace, side, None, [], None, say("not joined: {reason}", reason=placed))
    links = _by_shift(trace, side, ran, others, placed)
    text = say(
        "by clock, placed by {equal} equal shapes of {overlap}; {residual}",
        equal=placed.num_equal,
        overlap=placed.num_overlapping,
        residual=say_residual(placed.residuals_ns),
    )
    return links, _how(trace, side, "clock", links, placed, text)


def _how(
    trace: TraceSteps,
    side: Side,
    method: Method | None,
    links: list[Link],
    placed: Alignment | None,
    text: Message,
) -> SourceJoin:
    return SourceJoin(
        rank=trace.rank,
        source=side.source,
        method=method,
        num_side_steps=len(side.steps),
        num_trace_steps=len(trace.steps),
        num_joined=len(links),
        offset_ns=placed.offset_ns if placed else 0 if method else None,
        residuals_ns=tuple(link.residual_ns for link in links if link.residual_ns is not None),
        text=text,
    )


def _by_number(trace: TraceSteps, side: Side) -> list[Link]:
    by_number = {o.number: o for o in side.steps if o.number is not None}
    assert side.number_kind is not None
    return [
        Link(
            rank=trace.rank,
            step_id=index,
            source=side.source,
            method=side.number_kind,
            number=ours.number,
            residual_ns=_gap(ours, by_number[ours.number], side),
            facts=by_number[ours.number].facts,
        )
        for index, ours in enumerate(trace.steps)
        if ours.number in by_number
    ]


def _by_shift(
    trace: TraceSteps,
    side: Side,
    ran: list[tuple[int, Observation]],
    others: list[Observation],
    placed: Alignment,
) -> list[Link]:
    links = []
    for position, (index, ours) in enumerate(ran):
        place = position + placed.shift
        if 0 <= place < len(others):
            theirs = others[place]
            gap = _gap(ours, theirs, side)
            links.append(
                Link(
                    rank=trace.rank,
                    step_id=index,
                    source=side.source,
                    method="clock",
                    number=theirs.number,
                    residual_ns=None if gap is None else gap - placed.offset_ns,
                    facts=theirs.facts,
                )
            )
    return links


def _gap(ours: Observation, theirs: Observation, side: Side) -> int | None:
    a, b = (ours.start_ns, theirs.start_ns) if side.time_is == "start" else (ours.end_ns, theirs.end_ns)
    return None if a is None or b is None else a - b


def _agreement(trace: TraceSteps, links: list[Link]) -> float:
    """The share of links whose facts equal the trace's, of those that can be compared; 1 where none can."""
    compared = equal = 0
    for link in links:
        ours = trace.steps[link.step_id].facts
        common = set(ours) & set(link.facts)
        compared += bool(common)
        equal += bool(common) and all(ours[name] == link.facts[name] for name in common)
    return equal / compared if compared else 1.0


def _disagreements(ranks: Sequence[TraceSteps], links: list[Link]) -> list[Disagreement]:
    by_step: dict[tuple[int | None, int], dict[str, Mapping[str, int]]] = {}
    for trace in ranks:
        for index, step in enumerate(trace.steps):
            by_step[trace.rank, index] = {"trace": step.facts}
    for link in links:
        by_step[link.rank, link.step_id][link.source] = link.facts
    found = []
    for (rank, step_id), sources in by_step.items():
        for fact in sorted({name for facts in sources.values() for name in facts}):
            values = {source: facts[fact] for source, facts in sources.items() if fact in facts}
            if len(set(values.values())) > 1:
                found.append(Disagreement(rank=rank, step_id=step_id, fact=fact, values=values))
    return found
