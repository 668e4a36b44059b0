"""Compiled: the event loop as machine code, where numba is installed; 64-bit integers, so only where they hold.

The source is the Python loop's own. numba keeps what it compiled beside it (or in the user's cache), so it compiles
once for each version; loading it still takes about a second, which is why it is not loaded for small workloads.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.simulate.event_loop import Demand, Found, Limits, Times, run_events, steps_until

if TYPE_CHECKING:
    from collections.abc import Callable

LAST_TICK = 1 << 62  # three days: beyond it the loop gives up


@cache
def load_loop() -> Callable[[Demand, Limits, Times, Found], int] | None:
    """The compiled loop; None where numba is not installed."""
    try:
        from numba import njit  # noqa: PLC0415  # an extra
    except ImportError:
        return None
    names = run_events.__globals__ | {"steps_until": njit(cache=True)(steps_until)}
    loop = FunctionType(run_events.__code__, names, run_events.__name__)
    loop.__module__, loop.__qualname__ = run_events.__module__, run_events.__qualname__
    compiled: Callable[[Demand, Limits, Times, Found], int] = njit(cache=True)(loop)
    return compiled


def holds_in_64_bits(limits: Limits, times: Times, *, latest: int, longest: int, num_tokens: int, count: int) -> bool:
    """Whether no number of a run can leave 64 bits before the clock reaches LAST_TICK.

    Args:
        limits: the rules.
        times: the cost.
        latest: the latest arrival, or the longest wait after another request, in ticks.
        longest: tokens of the longest request.
        num_tokens: tokens of all of them.
        count: how many they are.
    """
    step = limits.host + times.most_ticks
    step += times.most_slope * limits.seats * (longest + 1)
    step += (times.per_row + times.per_query) * limits.budget
    step += (times.per_kv + times.per_query_kv * limits.budget) * limits.seats * longest
    return max(2 * latest, 2 * step * (longest + 2), (num_tokens + count) * count) < LAST_TICK


def to_arrays(columns: Any) -> Any:
    """A record of columns with arrays of 64-bit integers for its sequences."""
    return columns._replace(
        **{
            name: np.asarray(value, dtype=np.int64)
            for name, value in columns._asdict().items()
            if not isinstance(value, int)
        }
    )
