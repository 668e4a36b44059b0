"""Compiled: the event loop as machine code, where numba is installed; 64-bit integers, so only where they hold.

The source is the Python loop's own. numba keeps what it compiled beside it (or in the user's cache), so it compiles
once for each version; loading it still takes about a second, which is why it is not loaded for small workloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.simulate.event_loop import Demand, Found, LoopRules, Times, run_events, steps_until

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = (1 << 63) - 1


@cache
def load_loop() -> Callable[[Demand, LoopRules, Times, Found], int] | None:
    """The compiled loop; None where numba is not installed."""
    try:
        from numba import njit  # noqa: PLC0415  # an extra
    except ImportError:
        return None
    names = run_events.__globals__ | {"steps_until": njit(cache=True)(steps_until)}
    loop = FunctionType(run_events.__code__, names, run_events.__name__)
    loop.__module__, loop.__qualname__ = run_events.__module__, run_events.__qualname__
    compiled: Callable[[Demand, LoopRules, Times, Found], int] = njit(cache=True)(loop)
    return compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The largest numbers of a workload: lengths in tokens, times in ticks."""

    count: int
    num_tokens: int
    longest: int  # prompt and output of one request
    latest: int  # arrival
    longest_wait: int  # after another request's end


def last_tick(rules: LoopRules, times: Times, sizes: Sizes) -> int:
    """The tick up to which no number of a run can leave 64 bits, about six days; below 0 where they do not hold it."""
    step = rules.host + times.most_ticks
    step += times.most_slope * rules.seats * (sizes.longest + 1)
    step += (times.per_row + times.per_query) * rules.budget
    step += (times.per_kv + times.per_query_kv * rules.budget) * rules.seats * sizes.longest
    jump = step * (sizes.longest + 2)  # an upper bound of what one jump adds
    last = _MOST - 2 * jump - sizes.longest_wait
    if last < sizes.latest or (sizes.num_tokens + sizes.count) * sizes.count > _MOST:
        return -1
    return last


def to_arrays(columns: Any) -> Any:
    """A record of columns with arrays of 64-bit integers for its sequences."""
    return columns._replace(
        **{
            name: np.asarray(value, dtype=np.int64)
            for name, value in columns._asdict().items()
            if not isinstance(value, int)
        }
    )
