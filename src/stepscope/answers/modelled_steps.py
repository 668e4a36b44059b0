"""A rank's steps as the model prices them: operators and seconds of every step whose rows or sums are known.

All steps are priced at once, so every amount is an array over them (`over_steps`). Bounds always; a prediction where
kernels were fitted or the run is calibrated. Which experts a step's tokens reach is not in a trace: where nobody
counted them, routed experts get two bounds, with as few distinct ones as can be and with as many, and no number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.cost.families import FAMILIES, family_of
from stepscope.cost.step_cost import price_step
from stepscope.errors import BadInput
from stepscope.models.architecture import MoeFeedForward
from stepscope.models.dtype import matrix_bytes
from stepscope.operators.operator import ExpertLoad, GemmShape, Transfer
from stepscope.operators.rows import StepRows, equal_rows
from stepscope.operators.step import step_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.answers.account import RankAccount
    from stepscope.batch import BatchShape
    from stepscope.cost.calibration import Calibration
    from stepscope.cost.families import Family
    from stepscope.cost.hardware import Hardware
    from stepscope.cost.operator_cost import OperatorCost
    from stepscope.evidence import Grade
    from stepscope.models.architecture import Architecture
    from stepscope.operators.deployment import Deployment
    from stepscope.operators.operator import Operator

Array = np.ndarray[Any, np.dtype[Any]]
PHASES = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """What a run is held against: a model, how it is deployed, on what, and a calibration where there is one."""

    architecture: Architecture
    deployment: Deployment
    hardware: Hardware
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FamilySeconds:
    """Seconds of one family in each step.

    `bound_s` is the lower bound; `bound_most_s` differs for routed experts alone: the bound if all of them are hit.
    `time_s` None: no prediction, or only its interval; `low_s`, `high_s` None: neither.
    """

    bound_s: Array
    bound_most_s: Array
    time_s: Array | None
    low_s: Array | None
    high_s: Array | None
    grade: Grade | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModelledSteps:
    """`places`: positions of the priced steps among the counted ones; `phases`: theirs; `num_left_out`: the others."""

    places: Array
    phases: tuple[str, ...]
    num_left_out: int
    is_counted: bool  # the experts that each step's tokens reached
    has_links: bool  # False: collectives are not priced, for nobody gave the links a rate
    num_even: int  # priced from their sums, with even rows in place of the real ones
    shapes: tuple[BatchShape, ...]
    operators: tuple[Operator, ...]
    families: dict[Family, FamilySeconds]

    @property
    def num_steps(self) -> int:
        """How many are priced."""
        return len(self.places)

    def of_phase(self, phase: str) -> Array:
        """Which of the priced steps are of a phase."""
        return np.array([each == phase for each in self.phases], dtype=bool)


def over_steps(amount: Any, num_steps: int) -> Array:
    """An amount as an array over the steps: a single step's, and what no step changes, is a plain number."""
    return np.broadcast_to(np.asarray(amount, dtype=float), (num_steps,))


def sum_amount(operators: Sequence[Operator], of: Callable[[Operator], Any], num_steps: int) -> Array:
    """An amount of all operators, per step."""
    total = np.zeros(num_steps)
    for operator in operators:
        total += operator.count * over_steps(of(operator), num_steps)
    return total


def model_steps(rank: RankAccount, choice: ModelChoice, active: Mapping[int, float]) -> ModelledSteps | None:
    """Price the steps of a rank; None where no step's rows or sums are known.

    `active`: step_id -> experts with rows, mean over layers. It counts where every priced step has one and the rank
    holds all experts; of experts that are spread, a total does not tell how many are this rank's.

    Raises:
        BadInput: an impossible deployment, a context beyond the model's limit, or hardware without a needed figure.
    """
    counted, plan = rank.table.counted, choice.deployment.plan
    places = [i for i, step in enumerate(counted) if is_known(step.boundary.shape)]
    if not places:
        return None
    shapes = tuple(counted[i].boundary.shape for i in places)
    counts = [active.get(counted[i].step_id) for i in places] if plan.ep == 1 else [None]
    known = [count for count in counts if count is not None]
    is_counted = len(known) == len(places)
    operators, families = price_families(shapes, choice, np.array(known) if is_counted else None)
    return ModelledSteps(
        places=np.array(places),
        phases=tuple(shape.phase or "" for shape in shapes),
        num_left_out=len(counted) - len(places),
        is_counted=is_counted,
        has_links=all(_has_link(choice.hardware, size) for size in (plan.tp, plan.expert_group_size)),
        num_even=sum(shape.rows is None and (shape.num_requests or 0) > 1 for shape in shapes),
        shapes=shapes,
        operators=operators,
        families=families,
    )


def is_known(shape: BatchShape) -> bool:
    """Whether a step's rows are known, or sums for which even rows can stand."""
    if shape.phase in (None, "empty"):
        return False
    try:
        rows = shape.rows if shape.rows is not None else equal_rows(shape)
    except BadInput:
        return False
    return bool(rows) and all(row.query_len > 0 and row.context_len >= 0 for row in rows)


def price_families(
    shapes: Sequence[BatchShape], choice: ModelChoice, active: Array | None = None
) -> tuple[tuple[Operator, ...], dict[Family, FamilySeconds]]:
    """The operators of the steps, and the seconds of each family that runs at all; `active` experts where known.

    Collectives are left out on a device whose links nobody gave a rate: a probe measures none.
    """
    every = step_operators(choice.architecture, StepRows.from_shapes(shapes), choice.deployment)
    operators = tuple(op for op in every if _has_link(choice.hardware, _sends(op)))
    plain = tuple(op for op in operators if op.kind != "grouped_gemm")
    grouped = tuple(op for op in operators if op.kind == "grouped_gemm")
    found = _sum_families(plain, choice, shapes)
    if grouped and active is not None:
        found |= _sum_families(tuple(_with_experts(op, active) for op in grouped), choice, shapes)
    elif grouped:
        found["experts"] = _between_bounds(grouped, choice, shapes)
    return operators, {family: found[family] for family in FAMILIES if family in found}


def _has_link(hardware: Hardware, group_size: int) -> bool:
    """Whether the device has a rate for what a group of that size sends; one rank sends nothing."""
    try:
        return group_size < 2 or hardware.link_bytes_per_s(group_size) > 0
    except BadInput:
        return False


def _sends(operator: Operator) -> int:
    """Ranks of the group that an operator sends to; 1 of work that sends nothing."""
    return operator.work.group_size if isinstance(operator.work, Transfer) else 1


def _between_bounds(grouped: tuple[Operator, ...], choice: ModelChoice, shapes: Sequence[BatchShape]) -> FamilySeconds:
    """Experts if the tokens reach as few distinct ones as can be (all the same top_k), and as many."""
    ep, architecture = choice.deployment.plan.ep, choice.architecture
    few = tuple(_with_experts(op, max(1, _top_k(architecture, op.layer_type) // ep)) for op in grouped)
    fewest = _sum_families(few, choice, shapes)["experts"]
    most = _sum_families(tuple(_with_experts(op, math.inf) for op in grouped), choice, shapes)["experts"]
    return replace(fewest, bound_most_s=most.bound_s, time_s=None, high_s=most.high_s)


def _with_experts(operator: Operator, active: float | Array) -> Operator:
    """A layer whose tokens reach so many of the rank's experts, if there are as many experts and copies."""
    load, shape = operator.work, operator.shape
    assert isinstance(load, ExpertLoad)
    assert isinstance(shape, GemmShape)
    reached = np.minimum(np.minimum(np.asarray(load.copies, dtype=float), load.num_experts), active)
    per_expert = matrix_bytes(operator.dtypes.weight or "bf16", shape.k * shape.n)
    return replace(
        operator,
        work=replace(load, active_experts=reached, rows_per_expert=None),
        traffic=replace(operator.traffic, weight=np.rint(reached * per_expert).astype(np.int64)),
    )


def _top_k(architecture: Architecture, layer_type: str) -> int:
    layers = [layer for layer in architecture.layers if layer.layer_type == layer_type] or architecture.layers
    return max(layer.feed_forward.top_k for layer in layers if isinstance(layer.feed_forward, MoeFeedForward))


@dataclass(slots=True)
class _Sum:
    """A family's operators added up; a prediction is given up where one of them has none."""

    bound_s: Array
    time_s: Array
    low_s: Array
    high_s: Array
    grades: set[Grade | None]

    @classmethod
    def of(cls, num_steps: int) -> _Sum:
        zeros = [np.zeros(num_steps) for _ in range(4)]
        return cls(bound_s=zeros[0], time_s=zeros[1], low_s=zeros[2], high_s=zeros[3], grades=set())


def _sum_families(
    operators: tuple[Operator, ...], choice: ModelChoice, shapes: Sequence[BatchShape]
) -> dict[Family, FamilySeconds]:
    fitted = choice.calibration
    cost = price_step(
        operators,
        choice.hardware,
        choice.deployment.plan,
        cost="bound" if fitted is not None and fitted.cost == "bound" else "model",
    )
    sums: dict[Family, _Sum] = {}
    for operator, priced in zip(operators, cost.operators, strict=True):
        family = family_of(operator)
        if family not in sums:
            sums[family] = _Sum.of(len(shapes))
        _add(sums[family], operator.count, priced, len(shapes))
    return {
        family: _calibrated(family, found, fitted, shapes)
        for family, found in sums.items()
        if np.any(found.bound_s) or np.any(found.time_s)
    }


def _add(found: _Sum, count: int, priced: OperatorCost, num_steps: int) -> None:
    found.bound_s += count * over_steps(priced.terms.lower_s, num_steps)
    if not np.any(priced.terms.lower_s):
        return
    found.grades.add(priced.grade)
    if priced.time_s is not None:
        low, high = (priced.time_s if end is None else end for end in (priced.low_s, priced.high_s))
        found.time_s += count * over_steps(priced.time_s, num_steps)
        found.low_s += count * over_steps(low, num_steps)
        found.high_s += count * over_steps(high, num_steps)


def _calibrated(family: Family, found: _Sum, fitted: Calibration | None, shapes: Sequence[BatchShape]) -> FamilySeconds:
    """A calibration's factor scales the model's time or the bound, and its interval is the factor's."""
    bound = found.bound_s
    bare = FamilySeconds(bound_s=bound, bound_most_s=bound, time_s=None, low_s=None, high_s=None, grade=None)
    is_predicted = None not in found.grades
    if fitted is None:
        if not is_predicted:
            return bare
        grade: Grade = "extrapolated" if "extrapolated" in found.grades else "modelled"
        return replace(bare, time_s=found.time_s, low_s=found.low_s, high_s=found.high_s, grade=grade)
    factor = fitted.families.get(family)
    if factor is None or (fitted.cost == "model" and not is_predicted):
        return bare
    base = bound if fitted.cost == "bound" else found.time_s
    grades = {fitted.grade(shape) for shape in shapes}
    return replace(
        bare,
        time_s=factor.value * base,
        low_s=factor.low * base,
        high_s=factor.high * base,
        grade="extrapolated" if "extrapolated" in grades else "modelled",
    )
