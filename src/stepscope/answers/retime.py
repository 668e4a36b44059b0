"""Retime: what a recorded run would have taken with some durations changed, everything else in its recorded order.

Unchanged durations must give the recorded span back within 1 %; else waits that no recorded dependency explains are too
large a part of it, and the what-if is refused. Nothing is scheduled anew: a step that becomes shorter does not take in
other requests. Ranks wait for each other in collectives where their clocks agree; else each is retimed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.answers.dependencies import find_dependencies
from stepscope.answers.walk import NOTHING_CHANGED, Changes, Walk
from stepscope.errors import BadInput
from stepscope.steps.ranks import ArrivalSkew

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.answers.dependencies import Dependencies

TOLERANCE = 0.01  # of the span, between recorded and reproduced


@dataclass(frozen=True, slots=True, kw_only=True)
class RetimedStep:
    """When a step's last work ended, recorded and retimed, in ns after the span's start."""

    step_id: int
    recorded_end_ns: int
    retimed_end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retimed:
    """One rank. With a `refusal`, `retimed_ns` is None and what follows from it is empty.

    Attributes:
        recorded_ns, reproduced_ns: the rank's span as recorded, and as the graph gives it with nothing changed.
        critical_ns: what the longest chain is made of after the changes, by category; adds up to `retimed_ns`.
        unexplained_ns: recorded waiting that no dependency explains.
        num_inferred: dependencies between streams that only times suggest.
    """

    rank: int | None
    recorded_ns: int
    reproduced_ns: int
    retimed_ns: int | None
    steps: tuple[RetimedStep, ...]
    critical_ns: Mapping[str, int]
    unexplained_ns: int
    num_inferred: int
    refusal: str | None

    @property
    def error(self) -> float:
        """Reproduced over recorded, minus 1."""
        return self.reproduced_ns / self.recorded_ns - 1 if self.recorded_ns else 0.0

    @property
    def saving_ns(self) -> int | None:
        """Against what the graph gives with nothing changed."""
        return None if self.retimed_ns is None else self.reproduced_ns - self.retimed_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Retiming:
    """All ranks. `apart` says why they were not coupled by their collectives; None: they were, or there is one."""

    ranks: tuple[Retimed, ...]
    apart: str | None


def retime(capture: Account, changes: Changes) -> Retiming:
    """Retime a capture.

    Raises:
        BadInput: the capture is empty, or holds nothing of a category, a family or a name that is to be changed.
    """
    if not capture.ranks:
        raise BadInput(f"{capture.source}: no work is in it, so nothing can be retimed. See `stepscope check`.")
    graphs = [find_dependencies(rank) for rank in capture.ranks]
    _check_names(capture, graphs, changes)
    apart = _why_apart(capture, graphs)
    places = range(len(graphs))
    ranks: list[Retimed] = []
    for group in [list(places)] if apart is None else [[place] for place in places]:
        members, own = [capture.ranks[place] for place in group], [graphs[place] for place in group]
        shifts = _clocks(capture, members) if len(group) > 1 else [0]
        before, after = Walk(own, shifts, NOTHING_CHANGED), Walk(own, shifts, changes)
        ranks += [_retimed(member, place, before, after) for place, member in enumerate(members)]
    return Retiming(ranks=tuple(ranks), apart=apart)


def _check_names(capture: Account, graphs: Sequence[Dependencies], changes: Changes) -> None:
    """Whatever is to be changed must be there, or the answer would be a saving of zero that means nothing."""
    accounts = {account for graph in graphs for account in graph.held_accounts()}
    there = {"category": {category for category, _ in accounts}, "family": {family for _, family in accounts}}
    for what, asked in (("category", changes.categories), ("family", changes.families)):
        for name in asked:
            if name not in there[what]:
                known = ", ".join(sorted(there[what]))
                raise BadInput(
                    f"{capture.source}: no {what} '{name}' to change. There are: {known}. "
                    "Work by its own name: --scale name:TEXT=FACTOR."
                )
    for text in changes.names:
        if not any(text.lower() in name.lower() for graph in graphs for name in graph.held_names()):
            raise BadInput(f"{capture.source}: no work with '{text}' in its name. See `stepscope query` on kernels.")


def _clocks(capture: Account, ranks: Sequence[RankAccount]) -> list[int]:
    """What to add to each rank's times, up to what all have in common: its wall clock less how far that is off."""
    offsets = capture.skew.offset_ns if isinstance(capture.skew, ArrivalSkew) else {}
    return [(rank.store.origin.base_time_ns or 0) - offsets.get(rank.rank or 0, 0) for rank in ranks]


def _why_apart(capture: Account, graphs: Sequence[Dependencies]) -> str | None:
    """Why the ranks' collectives cannot be laid side by side."""
    if len(graphs) < 2:
        return None
    if isinstance(capture.skew, str):
        return f"each rank is retimed alone: {capture.skew}"
    if capture.skew.left_out or len({len(graph.collectives) for graph in graphs}) > 1:
        return "each rank is retimed alone: their spans hold different numbers of collectives"
    return None


def _retimed(rank: RankAccount, place: int, before: Walk, after: Walk) -> Retimed:
    graph = before.graphs[place]
    start, end = rank.table.windows.span
    recorded, reproduced = end - start, before.span_end(place) - before.moved(place, start)
    refusal = _refuse(rank, recorded, reproduced)
    steps: tuple[RetimedStep, ...] = ()
    if refusal is None:
        recorded_ends, ends = before.step_ends(place), after.step_ends(place)
        steps = tuple(
            RetimedStep(
                step_id=step,
                recorded_end_ns=at - before.moved(place, start),
                retimed_end_ns=ends[step] - before.moved(place, start),
            )
            for step, at in recorded_ends.items()
        )
    return Retimed(
        rank=rank.rank,
        recorded_ns=recorded,
        reproduced_ns=reproduced,
        retimed_ns=None if refusal else after.span_end(place) - before.moved(place, start),
        steps=steps,
        critical_ns={} if refusal else after.critical(place, before.moved(place, start)),
        unexplained_ns=graph.unexplained_ns,
        num_inferred=graph.num_inferred,
        refusal=refusal,
    )


def _refuse(rank: RankAccount, recorded: int, reproduced: int) -> str | None:
    """Why no what-if is given."""
    withheld = [reason for reason in rank.budget.coverage.reasons if reason.withholds]
    if withheld:
        return f"the capture does not hold all work: {withheld[0].text}. {withheld[0].record_with}"
    if rank.table.windows.lane == "none" or not recorded:
        return "no work is recorded that could be retimed"
    error = reproduced / recorded - 1
    if abs(error) > TOLERANCE:
        return (
            f"with nothing changed the recorded dependencies give {100 * (1 + error):.1f} % of the span: something "
            "waited that they do not explain. Record host threads and the device together, stacks on."
        )
    return None
