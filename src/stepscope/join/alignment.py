"""Two sequences of steps without a common number -> the one shift under which their shapes agree, checked by the clock.

A log's clock has an unknown time zone and often no year; both differ from the trace's by a multiple of a quarter of an
hour. So the shapes place the sequence, the clock confirms or refuses it, and what is left is the residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.messages import Message, say
from stepscope.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.join.observation import Observation, Side

QUARTER_NS = 900_000_000_000
_AGREE = 0.9  # of the overlapping steps must have equal shapes
_MIN_STEPS = 3
_SLACK_NS = 500_000_000  # printing lags the step
_MOST = 20_000  # steps of each side that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Side step i + shift is trace step i, of the lists that were given; the clocks differ by `offset_ns`."""

    shift: int
    num_overlapping: int
    num_equal: int
    offset_ns: int
    residuals_ns: tuple[int, ...]


def align(trace: Sequence[Observation], side: Side, others: Sequence[Observation]) -> Alignment | Message:
    """The shift, or why there is none. `others` are the side's steps that ran tokens, `trace` the trace's."""
    shared = _shared_facts(trace, others)
    if not shared:
        return say("no fact is common to both, so nothing can place them")
    if len(trace) > _MOST or len(others) > _MOST:
        return say("there are more than {most} steps to place; cut the trace", most=_MOST)
    scored = _scores(*_codes(trace, others, shared))
    if not scored:
        return say("no placement has equal shapes for {share} % of the steps", share=round(100 * _AGREE))
    placed = [found for score in scored if (found := _check_clock(trace, others, side, score)) is not None]
    return _choose(placed, side)


def _choose(placed: list[Alignment], side: Side) -> Alignment | Message:
    if not placed:
        return say("the placement that fits by shape contradicts the clocks")
    best = [a for a in placed if a.num_equal == max(p.num_equal for p in placed)]
    if side.clock == "epoch" and all(a.residuals_ns for a in best):
        return min(best, key=lambda a: (abs(_median(a.residuals_ns)), a.shift))
    if len(best) > 1:
        return say("{count} placements fit equally well", count=len(best))
    return best[0]


def _shared_facts(trace: Sequence[Observation], others: Sequence[Observation]) -> list[str]:
    ours = set.intersection(*(set(o.facts) for o in trace)) if trace else set()
    theirs = set.intersection(*(set(o.facts) for o in others)) if others else set()
    return sorted(ours & theirs)


def _codes(
    trace: Sequence[Observation], others: Sequence[Observation], names: list[str]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    seen: dict[tuple[int, ...], int] = {}
    rows = [[seen.setdefault(tuple(o.facts[n] for n in names), len(seen)) for o in part] for part in (trace, others)]
    return np.array(rows[0], np.int64), np.array(rows[1], np.int64)


def _scores(
    ours: np.ndarray[tuple[int], np.dtype[np.int64]], theirs: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> list[tuple[int, int, int]]:
    """(shift, equal, overlap) of every placement that is good enough."""
    found = []
    least = min(_MIN_STEPS, len(ours), len(theirs))
    for shift in range(-len(ours) + least, len(theirs) - least + 1):
        start, end = max(0, -shift), min(len(ours), len(theirs) - shift)
        equal = int((ours[start:end] == theirs[start + shift : end + shift]).sum())
        if equal >= _AGREE * (end - start) and equal:
            found.append((shift, equal, end - start))
    most = max((equal for _, equal, _ in found), default=0)
    return [score for score in found if score[1] >= _AGREE * most]


def _check_clock(
    trace: Sequence[Observation], others: Sequence[Observation], side: Side, score: tuple[int, int, int]
) -> Alignment | None:
    shift, equal, overlap = score
    start = max(0, -shift)
    gaps = []
    for i in range(start, start + overlap):
        ours, theirs = trace[i], others[i + shift]
        a = ours.start_ns if side.time_is == "start" else ours.end_ns
        b = theirs.start_ns if side.time_is == "start" else theirs.end_ns
        if a is not None and b is not None:
            gaps.append(a - b)
    if not gaps:
        return Alignment(shift=shift, num_overlapping=overlap, num_equal=equal, offset_ns=0, residuals_ns=())
    offset = 0 if side.clock == "epoch" else round(_median(gaps) / QUARTER_NS) * QUARTER_NS
    residuals = tuple(gap - offset for gap in gaps)
    allowed = side.resolution_ns + _SLACK_NS
    if side.clock == "log" and max(abs(r) for r in residuals) > allowed:
        return None
    return Alignment(shift=shift, num_overlapping=overlap, num_equal=equal, offset_ns=offset, residuals_ns=residuals)


def _median(values: Sequence[int]) -> int:
    return int(np.median(values)) if values else 0


def say_residual(residuals_ns: Sequence[int]) -> Message:
    """The residual as a sentence's part."""
    if not residuals_ns:
        return say("no clock to check it")
    sizes = [abs(r) for r in residuals_ns]
    return say(
        "residual {median} in the median, {largest} at most",
        median=show_ns(_median(sizes)),
        largest=show_ns(max(sizes)),
    )
