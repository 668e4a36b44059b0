"""A count that changes over time -> its mean over a window: time-weighted, from integrals or from what steps saw.

w = waiting after a schedule() call, b = waiting before the next one. Between the two, requests may have arrived at any
time: the mean lies between the integral of w and that of b. An exact one needs the recorder's own integral.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.step_log import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMean:
    """Bounds of a mean. `is_exact`: it rests on an integral over every change, so both are the mean."""

    low: float
    high: float
    duration_ns: int
    is_exact: bool = False


def mean_of_integral(integral_ns: Sequence[int | None], clock_ns: Sequence[int | None]) -> TimeMean | None:
    """Growth of a running integral over growth of its clock; None where fewer than two points have both."""
    points = [(i, c) for i, c in zip(integral_ns, clock_ns, strict=True) if i is not None and c is not None]
    if len(points) < 2 or points[-1][1] <= points[0][1]:
        return None
    duration = points[-1][1] - points[0][1]
    value = (points[-1][0] - points[0][0]) / duration
    return TimeMean(low=value, high=value, duration_ns=duration, is_exact=True)


def mean_of_steps(
    times_ns: Sequence[int], after: Sequence[int | None], before: Sequence[int | None]
) -> TimeMean | None:
    """Bounds from the counts after each step and before the next.

    >>> mean_of_steps([0, 10, 20], [2, 4, 0], [0, 3, 4])
    TimeMean(low=3.0, high=3.5, duration_ns=20, is_exact=False)
    """
    low = high = 0
    duration = 0
    for (start, left, _), (end, _, right) in pairwise(zip(times_ns, after, before, strict=True)):
        if left is None or end <= start:
            continue
        rising = left if right is None else max(left, right)
        low += min(left, rising if right is None else right) * (end - start)
        high += rising * (end - start)
        duration += end - start
    return None if not duration else TimeMean(low=low / duration, high=high / duration, duration_ns=duration)


def mean_waiting(steps: Sequence[StepRecord]) -> TimeMean | None:
    """Queue length of one engine core over its log."""
    exact = mean_of_integral([s.waiting_request_ns for s in steps], [s.stream_ns for s in steps])
    if exact is not None:
        return exact
    return mean_of_steps(
        [s.time_ns for s in steps], [s.num_waiting for s in steps], [s.num_waiting_before for s in steps]
    )


def mean_running(steps: Sequence[StepRecord]) -> TimeMean | None:
    """Running requests of one engine core over its log."""
    exact = mean_of_integral([s.running_request_ns for s in steps], [s.stream_ns for s in steps])
    if exact is not None:
        return exact
    counts = [s.num_running for s in steps]
    # a request that the next step calls finished may have ended at any time since this one
    left = [None if n is None else n - len(after.finished) for n, after in zip(counts, steps[1:], strict=False)]
    return mean_of_steps([s.time_ns for s in steps], counts, [None, *left])


def add_means(means: Sequence[TimeMean | None]) -> TimeMean | None:
    """The sum over engine cores; None where one is unknown."""
    known = [mean for mean in means if mean is not None]
    if not known or len(known) < len(means):
        return None
    return TimeMean(
        low=sum(m.low for m in known),
        high=sum(m.high for m in known),
        duration_ns=max(m.duration_ns for m in known),
        is_exact=all(m.is_exact for m in known),
    )
