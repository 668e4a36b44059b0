"""What bounds a profiled kernel: its achieved throughput against the peak of compute and of memory.

NVIDIA's Speed of Light: the larger of the two utilisations names the bound where it is 60 % or more of its peak; below
that neither unit is near its peak and latency bounds (Nsight Compute, "Bottleneck" rule of the SpeedOfLight section).
A counter that is missing gives no bound, and the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.readers.ncu.page import CORE

if TYPE_CHECKING:
    from stepscope.store.counters import Counters, Reading

NEAR_PEAK = 0.6
Bound = Literal["compute", "memory", "overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBound:
    """Achieved fractions of peak, and the bound; None with `missing` (a key of counters.MISSING) where one lacks."""

    bound: Bound | None
    missing: str
    compute: Reading
    memory: Reading


def find_bound(counters: Counters, index: int) -> KernelBound:
    """Of one kernel of the counters. "overhead": latency; neither compute nor memory is near its peak."""
    compute = counters.column(CORE, "compute_ratio").reading(index)
    memory = counters.column(CORE, "memory_ratio").reading(index)
    for reading in (compute, memory):
        if reading.value is None:
            return KernelBound(bound=None, missing=reading.missing, compute=compute, memory=memory)
    most = max(compute.value or 0.0, memory.value or 0.0)
    bound: Bound = "overhead" if most < NEAR_PEAK else "compute" if compute.value == most else "memory"
    return KernelBound(bound=bound, missing="recorded", compute=compute, memory=memory)
