"""Does it pay: a measured time against what the same steps take at least, or should take, run another way.

pays: the other way cannot beat the measured time, for its lower bound (or the low end of its prediction) is above it.
does not pay: the high end of the other way's prediction is below the measured time. Else it is open, and stays so.
no verdict: the measured time is below the bound of the way that ran, so the model or its options are not the run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.answers.modelled_steps import Array, FamilySeconds
    from stepscope.cost.hardware import Hardware
    from stepscope.evidence import Grade

Verdict = Literal["pays", "does not pay", "open", "no verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Some steps run another way: the lower bound, and the ends of a prediction where there is one."""

    bound_ns: int
    low_ns: int | None
    high_ns: int | None
    grade: Grade

    def against(self, measured_ns: int, own_bound_ns: int) -> Verdict:
        """Whether the way that was measured, and that takes at least `own_bound_ns`, pays."""
        if measured_ns < own_bound_ns:
            return "no verdict"
        if not measured_ns:
            return "open"
        if max(self.bound_ns, self.low_ns or 0) > measured_ns:
            return "pays"
        if self.high_ns is not None and self.high_ns < measured_ns:
            return "does not pay"
        return "open"


def add_up(families: Iterable[FamilySeconds], mask: Array) -> Alternative:
    """Families of some steps as one; a prediction only where each of them has one."""
    found = list(families)

    def total(parts: list[Array | None]) -> int | None:
        if any(part is None for part in parts):
            return None
        return round(1e9 * sum(float(np.sum(part[mask])) for part in parts if part is not None))

    grades = {each.grade for each in found}
    return Alternative(
        bound_ns=total([each.bound_s for each in found]) or 0,
        low_ns=total([each.low_s for each in found]),
        high_ns=total([each.high_s for each in found]),
        grade="extrapolated" if "extrapolated" in grades else "modelled",
    )


def effective_bytes_per_s(hardware: Hardware) -> float:
    """The memory's rate as it was measured; the advertised one where nobody did."""
    return hardware.bytes_per_s("achieved") if hardware.has("achieved") else hardware.bytes_per_s()
