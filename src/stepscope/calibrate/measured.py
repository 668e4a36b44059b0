"""Measured steps: what each engine step computed and how long it took, from step logs, traces or pairs of one's own.

`seconds` is the time that a simulator gives to a step; `gap_s` the host's time after it until the next one, known only
where the engine had work: the next step has decode rows, and those were running before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.batch import BatchShape
    from stepscope.readers.step_log import StepRecord, Stream
    from stepscope.steps.step import StepTable

_NS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step; None: not known. `start_s` on any one clock."""

    shape: BatchShape
    start_s: float
    seconds: float | None
    gap_s: float | None = None


def has_decodes(shape: BatchShape) -> bool:
    """Whether rows of it ran in a step before: the engine was not idle in between."""
    return bool(shape.decode.num_requests or shape.decode.query_sum)


def steps_of_stream(stream: Stream) -> tuple[MeasuredStep, ...]:
    """Of a scheduler's stream: from one schedule() to the next where the engine had work, else not known.

    That is a step's whole time, the host's part included, with one step in flight and with two.
    """
    ran = [step for step in stream.steps if step.num_scheduled_tokens]
    afters: list[StepRecord | None] = [*ran[1:], None]
    return tuple(
        MeasuredStep(
            shape=step.shape,
            start_s=_begin_ns(step) * _NS,
            seconds=None if after is None or not _follows(step, after) else (_begin_ns(after) - _begin_ns(step)) * _NS,
        )
        for step, after in zip(ran, afters, strict=False)
    )


def _begin_ns(step: StepRecord) -> int:
    return step.time_ns - (step.schedule_ns or 0)


def _follows(step: StepRecord, after: StepRecord) -> bool:
    """No step between them is missing, none was empty, and the engine had work."""
    return after.step_id == step.step_id + 1 and has_decodes(after.shape)


def steps_of_table(table: StepTable) -> tuple[MeasuredStep, ...]:
    """Of a trace: from where the step's own range begins, or the work before it ends if that is later, to its end."""
    found: list[MeasuredStep] = []
    end_ns: int | None = None
    for step in table.counted:
        if step.window is None:
            continue
        begin_ns = step.boundary.start_ns if end_ns is None else max(step.boundary.start_ns, end_ns)
        if found and end_ns is not None and has_decodes(step.boundary.shape):
            last = found[-1]
            found[-1] = MeasuredStep(
                shape=last.shape, start_s=last.start_s, seconds=last.seconds, gap_s=(begin_ns - end_ns) * _NS
            )
        end_ns = step.window[1]
        seconds = (end_ns - begin_ns) * _NS
        found.append(
            MeasuredStep(shape=step.boundary.shape, start_s=begin_ns * _NS, seconds=seconds if seconds > 0 else None)
        )
    return tuple(found)


def in_order(steps: Iterable[MeasuredStep]) -> Sequence[MeasuredStep]:
    """By the time at which they began."""
    return sorted(steps, key=lambda step: step.start_s)
