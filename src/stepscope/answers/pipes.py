"""What bounds one kernel, from its pipeline ratios: pure formulas on readings, where missing stays missing.

memory_bound = mte2_ratio / max(mac_ratio, vec_ratio), as CANN's manual of the 910A defines it: above 1 the core moved
data for longer than it computed. On 910B and 910C each core has its own ratios and denominators, so there is one value
a core: AIC mte2 / mac, AIV mte2 / vec. Official tools write 0 where the denominator is 0; here that is N/A, with its
reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.store.counters import Reading

if TYPE_CHECKING:
    from stepscope.store.counters import Counters

Bound = Literal["compute", "memory", "scalar", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The counters of one core that its bound is read from; `compute` are all needed, the largest counts.

    Below `near_peak` neither side is near its peak: latency bounds (NVIDIA's Speed of Light rule, 0.6).
    """

    name: str
    compute: tuple[str, ...]
    memory: str
    scalar: str | None
    near_peak: float = 0.0


CORES: dict[str, Core] = {
    core.name: core
    for core in (
        Core(name="AIC", compute=("mac_ratio",), memory="mte2_ratio", scalar="scalar_ratio"),
        Core(name="AIV", compute=("vec_ratio",), memory="mte2_ratio", scalar="scalar_ratio"),
        Core(name="AICORE", compute=("mac_ratio", "vec_ratio"), memory="mte2_ratio", scalar="scalar_ratio"),
        # NVIDIA: achieved against peak, both as fractions
        Core(name="SM", compute=("compute_ratio",), memory="memory_ratio", scalar=None, near_peak=0.6),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreBound:
    """One kernel on one core."""

    core: str
    memory_bound: Reading
    bound: Bound


def memory_bound(memory: Reading, *compute: Reading) -> Reading:
    """The quotient, or why there is none. It is never 0, infinite or NaN.

    >>> memory_bound(Reading(value=0.902), Reading(value=0.138)).value
    6.536...
    """
    for given in (memory, *compute):
        if given.value is None:
            return given
    most = max(reading.value or 0.0 for reading in compute)
    if most == 0:
        return Reading(value=None, missing="zero_denominator")
    if memory.value == 0:
        return Reading(value=None, missing="rounded_to_zero")
    quotient = (memory.value or 0.0) / most
    if not math.isfinite(quotient) or quotient <= 0:
        return Reading(value=None, missing="not_a_number")
    return Reading(value=quotient)


def bound_of(memory: Reading, compute: tuple[Reading, ...], scalar: Reading | None) -> Bound:
    """What bounds a kernel on a core: the scalar pipe where it is the busiest, else by memory_bound."""
    quotient = memory_bound(memory, *compute)
    others = [reading.value for reading in (memory, *compute) if reading.value is not None]
    if scalar is not None and scalar.value and len(others) == 1 + len(compute) and scalar.value > max(others):
        return "scalar"
    if quotient.value is None:
        return "unknown"
    return "memory" if quotient.value > 1 else "compute"


def bounds(counters: Counters, index: int) -> tuple[CoreBound, ...]:
    """One kernel's bound on each core that the capture has counters of."""
    found = []
    for core in (CORES[name] for name in counters.cores if name in CORES):
        memory = counters.column(core.name, core.memory).reading(index)
        compute = tuple(counters.column(core.name, name).reading(index) for name in core.compute)
        scalar = counters.column(core.name, core.scalar).reading(index) if core.scalar else None
        found.append(
            CoreBound(
                core=core.name,
                memory_bound=memory_bound(memory, *compute),
                bound=bound_of(memory, compute, scalar),
            )
        )
    return tuple(found)


def joint_memory_bound(counters: Counters, index: int) -> Reading:
    """One number of a mixed kernel: max(aic_mte2, aiv_mte2) / max(aic_mac, aiv_vec) of the cores that ran.

    Its two sides can be of different cores: it is shown beside the cores' own values, never instead of them.
    """
    sides: list[tuple[Reading, Reading]] = []
    for name in (core for core in counters.cores if core in ("AIC", "AIV")):
        core = CORES[name]
        memory = counters.column(name, core.memory).reading(index)
        compute = counters.column(name, core.compute[0]).reading(index)
        if "core_not_run" not in (memory.missing, compute.missing):
            sides.append((memory, compute))
    if not sides:
        return Reading(value=None, missing="core_not_run" if counters.cores else "no_column")
    for memory, compute in sides:
        for given in (memory, compute):
            if given.value is None:
                return given
    most = max(sides, key=lambda side: side[0].value or 0.0)[0]
    return memory_bound(most, *(compute for _, compute in sides))
