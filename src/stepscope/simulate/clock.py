"""Clock: simulated time as whole ticks of 2^-44 s (57 fs), so that adding up in closed form equals adding step by step.

Half a tick is lost where a cost is rounded: 140,000 steps move a run's end by 4 ns at most. Integers of 64 bits hold
six days of ticks; Python's own hold any.
"""

from __future__ import annotations

from stepscope.errors import BadInput

TICKS_PER_S = 1 << 44
MOST_S = 1e12  # 30,000 years: beyond, a float64 no longer tells ticks apart, nor a reader runs


def to_ticks(seconds: float, name: str = "a time") -> int:
    """The nearest whole tick.

    >>> to_ticks(0.5) == TICKS_PER_S // 2
    True

    Raises:
        BadInput: not a number of 0 to MOST_S.
    """
    if not 0 <= seconds <= MOST_S:
        raise BadInput(f"{name} is {seconds}: give 0 or more seconds, at most {MOST_S:g}.")
    return round(seconds * TICKS_PER_S)


def to_seconds(ticks: int) -> float:
    """Seconds, to the nearest float64."""
    return ticks / TICKS_PER_S
