"""Efficiency: measured time of each kind of work beside what the model says that it takes at least, and should take.

The budget's families are what kernels are called, the cost's are what one kind of kernel runs; COUNTERPART says which
stands for which. efficiency = lower bound / measured; above 1 the model, the peak or the mapping is wrong, and it is
shown as it is. Measured is exclusive time: communication behind compute is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.modelled_steps import PHASES
from stepscope.cost.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepscope.answers.account import RankAccount
    from stepscope.answers.modelled_steps import Array, ModelledSteps
    from stepscope.cost.families import Family
    from stepscope.evidence import Grade

# family of the budget's catalog -> family of the cost model
COUNTERPART: dict[str, Family] = {
    "gemm": "dense_gemm",
    "hyper_connections": "dense_gemm",
    "experts": "experts",
    "moe_routing": "experts",
    "attention": "attention",
    "attention_mla": "attention",
    "attention_sparse": "attention",
    "indexer": "indexer",
    "topk_selection": "indexer",
    "compressor": "compressor",
    "recurrent": "recurrent",
    "collective": "collective",
    "dispatch_combine": "collective",
    "norm": "stream",
    "rope": "stream",
    "activation": "stream",
    "embedding": "stream",
    "elementwise": "stream",
    "compiled": "stream",
    "copy": "stream",
    "cache_write": "stream",
    "gather_upconvert": "stream",
}
# families of device work that the model prices nowhere, and why
WITHOUT_COUNTERPART: dict[str, str] = {
    "quantisation": "the fitted FP8 products hold their own; as kernels apart the model has none",
    "sampling": "after the logits, not modelled",
    "convolution": "encoders, not modelled",
    "reduction": "generic: which operator it belongs to is not known",
    "index": "generic: which operator it belongs to is not known",
    "step_inputs": "the engine's inputs, no part of the model",
    "kv_copy": "layout changes of the engine, no part of the model",
    "kv_transfer": "between engines, no part of a step's model",
    "fused_comm": "communication and products in one kernel",
    "device_wait": "a wait, no work",
    "pp_send": "one stage at a time is modelled",
    "pp_recv": "one stage at a time is modelled",
    "peer_copy": "which operator it belongs to is not known",
    "stream_sync": "a wait, no work",
}
WORK = ("compute", "kv", "comm", "unmatched")


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyEfficiency:
    """One family over the priced steps of a phase; ns as fractions are rounded.

    `bound_most_ns` and `efficiency_most` are of all experts hit, and equal the others where no experts are routed.
    None: nothing measured or modelled (efficiency), no prediction (ns), nothing modelled (grade; the prediction's where
    there is one).
    """

    rank: int | None
    phase: str
    family: Family
    measured_ns: int
    bound_ns: int
    bound_most_ns: int
    predicted_ns: int | None
    low_ns: int | None
    high_ns: int | None
    grade: Grade | None

    @property
    def efficiency(self) -> float | None:
        """Lower bound / measured, never clipped."""
        return self.bound_ns / self.measured_ns if self.measured_ns and self.bound_ns else None

    @property
    def efficiency_most(self) -> float | None:
        """The same, if every routed expert is hit."""
        return self.bound_most_ns / self.measured_ns if self.measured_ns and self.bound_most_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """Measured time of a budget family that the model prices nowhere."""

    rank: int | None
    phase: str
    category: str
    family: str
    measured_ns: int


def measured_ns(rank: RankAccount, families: Collection[str], chosen: Array) -> int:
    """Exclusive time of some budget families in some counted steps (positions)."""
    return sum(
        sum(values[i] for i in chosen.tolist())
        for (_, family), values in rank.budget.step_families.items()
        if family in families
    )


def find_efficiencies(rank: RankAccount, steps: ModelledSteps) -> tuple[FamilyEfficiency, ...]:
    """Every phase's families in the order of FAMILIES: those that the model runs, or that were measured."""
    found = []
    for phase in PHASES:
        mask = steps.of_phase(phase)
        if not mask.any():
            continue
        for family in FAMILIES:
            own = [name for name, counterpart in COUNTERPART.items() if counterpart == family]
            row = _efficiency(steps, family, mask, rank.rank, phase, measured_ns(rank, own, steps.places[mask]))
            if row.measured_ns or row.bound_ns:
                found.append(row)
    return tuple(found)


def _efficiency(
    steps: ModelledSteps, family: Family, mask: Array, rank: int | None, phase: str, measured: int
) -> FamilyEfficiency:
    modelled = steps.families.get(family)

    def total(seconds: Array | None) -> int | None:
        return None if seconds is None else round(1e9 * float(np.sum(seconds[mask])))

    return FamilyEfficiency(
        rank=rank,
        phase=phase,
        family=family,
        measured_ns=measured,
        bound_ns=(total(modelled.bound_s) or 0) if modelled else 0,
        bound_most_ns=(total(modelled.bound_most_s) or 0) if modelled else 0,
        predicted_ns=total(modelled.time_s) if modelled else None,
        low_ns=total(modelled.low_s) if modelled else None,
        high_ns=total(modelled.high_s) if modelled else None,
        grade=(modelled.grade or "modelled") if modelled else None,
    )


def find_unexplained(rank: RankAccount, steps: ModelledSteps) -> tuple[Unexplained, ...]:
    """Device work without a modelled counterpart, the largest first."""
    found = []
    for phase in PHASES:
        chosen = steps.places[steps.of_phase(phase)].tolist()
        for (category, family), values in rank.budget.step_families.items():
            ns = sum(values[i] for i in chosen)
            if category in WORK and family not in COUNTERPART and ns:
                found.append(Unexplained(rank=rank.rank, phase=phase, category=category, family=family, measured_ns=ns))
    return tuple(sorted(found, key=lambda row: -row.measured_ns))
