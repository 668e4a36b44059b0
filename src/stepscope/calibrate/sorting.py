"""Sorting: measured steps -> those that a fit may see, and how many were left out by which reason.

A step that compiles, captures a graph or meets its size for the first time is no step of the engine's steady state; nor
is one that a stall of the machine stretched to many times its time. Both are named, never averaged in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.calibrate.columns import is_plain, plain_columns
from stepscope.calibrate.measured import in_order
from stepscope.fit import fit_robust

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.batch import BatchShape
    from stepscope.calibrate.measured import MeasuredStep

NO_TIME = "time not recorded"
NO_SUMS = "composition not recorded"
EMPTY = "no tokens"
FIRST = "cold: first step of its size"
PAUSED = "cold: compiled or captured"
STALLED = "stalled: far above the fit"
MOST = 3.0  # times the robust fit's seconds beyond which a step is a stall
_SPREADS = 8.0  # and as many spreads above it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Steps in order of time, all with sums and seconds, and the others by reason."""

    steps: tuple[MeasuredStep, ...]
    left_out: Mapping[str, int]

    @property
    def shapes(self) -> list[BatchShape]:
        """One a step."""
        return [step.shape for step in self.steps]

    @property
    def seconds(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """One a step."""
        return np.array([step.seconds for step in self.steps], dtype=float)


def sort_steps(steps: Iterable[MeasuredStep], pauses: Sequence[tuple[float, float]] = ()) -> Sorted:
    """`pauses`: from and until when the engine compiled or captured, as its log says, on the steps' clock."""
    left_out: Counter[str] = Counter()
    kept: list[MeasuredStep] = []
    seen: set[tuple[str | None, int]] = set()
    for step in in_order(steps):
        reason = _reason(step, seen, pauses)
        if reason is None:
            kept.append(step)
        else:
            left_out[reason] += 1
    stalled = _stalled(kept)
    if any(stalled):
        left_out[STALLED] = sum(stalled)
    return Sorted(
        steps=tuple(step for step, is_out in zip(kept, stalled, strict=True) if not is_out), left_out=dict(left_out)
    )


def _reason(step: MeasuredStep, seen: set[tuple[str | None, int]], pauses: Sequence[tuple[float, float]]) -> str | None:
    if step.shape.num_scheduled_tokens == 0:
        return EMPTY
    if not is_plain(step.shape):
        return NO_SUMS
    size = (step.shape.phase, (step.shape.num_scheduled_tokens or 1).bit_length())
    if size not in seen:  # powers of two: where engines pad, capture and tune
        seen.add(size)
        return FIRST
    if step.seconds is None or not step.seconds > 0:
        return NO_TIME
    end_s = step.start_s + step.seconds
    return PAUSED if any(begin < end_s and step.start_s < end for begin, end in pauses) else None


def _stalled(steps: Sequence[MeasuredStep]) -> list[bool]:
    columns = plain_columns([step.shape for step in steps]).values if steps else np.empty((0, 1))
    if len(steps) <= 2 * columns.shape[1]:
        return [False] * len(steps)
    seconds = np.array([step.seconds for step in steps], dtype=float)
    predicted = np.maximum(columns @ fit_robust(columns, seconds), 1e-12)
    ratio = seconds / predicted
    spread = 1.4826 * float(np.median(np.abs(ratio - np.median(ratio))))
    return [bool(out) for out in ratio > max(MOST, 1 + _SPREADS * spread)]
