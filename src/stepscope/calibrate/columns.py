"""Columns: measured shapes -> what a step's time is a sum of: counts of a plain step, or modelled seconds by family.

T: scheduled tokens; q, k: query_len and kv_len of a row. Column names are those of `cost.calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stepscope.cost.calibration import bend_name
from stepscope.cost.families import FAMILIES, family_of
from stepscope.cost.step_cost import price_step
from stepscope.errors import BadInput
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import BatchShape
    from stepscope.cost.hardware import Hardware
    from stepscope.models.architecture import Architecture
    from stepscope.operators.deployment import Deployment

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Columns:
    """A matrix [steps, columns] with a name a column; a name of several families is theirs joined by "+"."""

    names: tuple[str, ...]
    values: Array

    def without(self, *left_out: str) -> Columns:
        """The other columns."""
        kept = [i for i, name in enumerate(self.names) if name not in left_out]
        return Columns(names=tuple(self.names[i] for i in kept), values=self.values[:, kept])

    def joined(self, first: str, second: str) -> Columns:
        """Both as one column, their sum, in place of the first."""
        i, j = self.names.index(first), self.names.index(second)
        values = self.values.copy()
        values[:, i] += values[:, j]
        names = list(self.names)
        names[i] = f"{first}+{second}"
        return Columns(names=tuple(names), values=values).without(second)


def is_plain(shape: BatchShape) -> bool:
    """Whether every sum that a plain column counts is known."""
    for sums in (shape.prefill, shape.decode):
        if sums.num_requests is None:
            return False
        if sums.num_requests and None in (sums.query_sum, sums.kv_sum, sums.query_kv_sum):
            return False
    return shape.num_scheduled_tokens is not None


def plain_columns(shapes: Sequence[BatchShape], bend: int | None = None) -> Columns:
    """Of shapes whose sums are known; with a bend, tokens up to it and beyond it are two columns."""
    prefill, decode = ([getattr(shape, phase) for shape in shapes] for phase in ("prefill", "decode"))
    tokens = np.array([shape.num_scheduled_tokens for shape in shapes], dtype=float)
    columns = {
        "step_s": np.ones(len(shapes)),
        "token_s": tokens if bend is None else np.minimum(tokens, bend),
        **({} if bend is None else {bend_name(bend): np.maximum(tokens - bend, 0.0)}),
        "prefill_step_s": np.array([bool(sums.num_requests) for sums in prefill], dtype=float),
        "prefill_request_s": _counts([sums.num_requests for sums in prefill]),
        "prefill_kv_s": _counts([sums.kv_sum for sums in prefill]),
        "prefill_query_kv_s": _counts([sums.query_kv_sum for sums in prefill]),
        "decode_request_s": _counts([sums.num_requests for sums in decode]),
        "decode_kv_s": _counts([sums.kv_sum for sums in decode]),
    }
    return Columns(names=tuple(columns), values=np.column_stack(list(columns.values())))


def _counts(values: Sequence[int | None]) -> Array:
    return np.array([value or 0 for value in values], dtype=float)


def family_columns(
    shapes: Sequence[BatchShape],
    architecture: Architecture,
    deployment: Deployment,
    hardware: Hardware,
    cost: Literal["model", "bound"],
) -> Columns:
    """Modelled seconds of each family that runs at all, priced over all steps at once, and three fixed columns.

    Raises:
        BadInput: `cost` is "model" and the hardware has no kernels measured for some operator.
    """
    operators = step_operators(architecture, StepRows.from_shapes(shapes), deployment)
    priced = price_step(operators, hardware, deployment.plan, cost=cost)
    if cost == "model" and priced.unpriced:
        raise BadInput(
            f"{hardware.name} has no measured kernels for {', '.join(priced.unpriced[:3])} of {architecture.name}, so "
            "there is nothing to scale. Calibrate on its bounds (--cost bound), or on counts alone (--cost none)."
        )
    sums = {family: np.zeros(len(shapes)) for family in FAMILIES}
    for operator, found in zip(operators, priced.operators, strict=True):
        seconds = found.terms.lower_s if cost == "bound" else found.time_s
        sums[family_of(operator)] += operator.count * np.asarray(seconds, dtype=float)
    columns: dict[str, Array] = {family: values for family, values in sums.items() if values.any()}
    plain = plain_columns(shapes)
    fixed = {"step_s", "prefill_step_s", "prefill_request_s", "decode_request_s"}
    columns |= {name: plain.values[:, i] for i, name in enumerate(plain.names) if name in fixed}
    return Columns(names=tuple(columns), values=np.column_stack(list(columns.values())))
