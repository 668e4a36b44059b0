"""Figure: one number of a cell with its grade, or why there is none; and the names of all that a cell has.

Times are seconds of one step: the median over the window, and the least of the profiled steps for those by family.
Unknown is None with a reason, never 0: a family that does not occur and one that was not looked at say so differently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.evidence import Grade

FAMILY_FIGURES = (
    "dense_gemm_s",
    "experts_s",
    "attention_s",
    "indexer_s",
    "compressor_s",
    "collective_s",
    "other_s",
)
ASCEND_FIGURES = ("mac_ratio", "vec_ratio", "mte2_ratio", "memory_bound")
FIGURES: dict[str, str] = {
    "dense_m": "rows of every dense GEMM of a step",
    "step_s": "a step's whole time: the median of the window",
    "step_low_s": "5th percentile of the window; of a model, the low end of its interval",
    "step_high_s": "95th percentile of the window; of a model, the high end",
    "tpot_s": "time per output token of one request",
    "tokens_per_s": "prompt tokens of a prefill cell, output tokens of a decode cell, per second of step",
    "host_gap_s": "of a step, the time in which the device idles while the host prepares",
    "mean_rows_per_expert": "mean M_e over all experts of a layer",
    "active_experts": "experts with at least one row",
    "max_rows_per_expert": "largest M_e",
    "dense_gemm_s": "dense matrices",
    "experts_s": "grouped GEMMs of the routed experts",
    "attention_s": "attention cores",
    "indexer_s": "index scores and top-k selection",
    "compressor_s": "compressed history",
    "collective_s": "collectives, dispatch and combine",
    "other_s": "all other work",
    "mac_ratio": "Ascend: share of the matrix pipe's cycles",
    "vec_ratio": "Ascend: share of the vector pipe's cycles",
    "mte2_ratio": "Ascend: share of the pipe that reads memory",
    "memory_bound": "Ascend: mte2_ratio / max(mac_ratio, vec_ratio)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value with a grade, or None with a reason."""

    value: float | None = None
    grade: Grade | None = None
    reason: str | None = None


def known(value: float, grade: Grade) -> Figure:
    """A figure that is there."""
    return Figure(value=float(value), grade=grade)


def unknown(reason: str) -> Figure:
    """A figure that is not."""
    return Figure(reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a driver found in a cell.

    Attributes:
        samples: seconds of each step of the window; of a model that gives the same each time, one.
        rows_per_expert: M_e of one layer in one step; () where not known.
        problems: why the cell is not what the plan says, such as cache hits.
    """

    figures: dict[str, Figure]
    samples: tuple[float, ...] = ()
    rows_per_expert: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
