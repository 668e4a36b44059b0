"""Gemm: a matrix of the model and its rows -> Operator.

[m, k] x [k, n]: flop = 2 m n k (g groups: times g); bytes = b_w k n + b_x m k + b_y m n, each operand once.
intensity = flop / bytes -> 2 m / b_w while m is far below k and n. `gemm_row` counts elements only, as the notes do;
operators count block scales with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.models.dtype import bits_with_scales, element_bytes, matrix_bytes
from stepscope.models.parallel import ParallelPlan
from stepscope.models.weight import Split, Weight
from stepscope.operators.operator import Amount, GemmShape, Operator, OperatorKind, Traffic

if TYPE_CHECKING:
    from stepscope.operators.layer_context import LayerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRow:
    """One line of a table over m; floats where m is a mean."""

    m: int | float
    flop: int | float
    bytes: int | float

    @property
    def intensity(self) -> float:
        """Flop per byte."""
        return self.flop / self.bytes


def gemm_row(m: float, k: int, n: int, *, dtype: str = "bf16", weights: str | None = None) -> GemmRow:
    """Work and least traffic of [m, k] x [k, n]; m may be a mean, such as rows per expert.

    >>> gemm_row(1, 4096, 1024).flop, gemm_row(1, 4096, 1024).bytes
    (8388608, 8398848)

    Raises:
        BadInput: a dtype nobody knows, or sizes that are not positive.
    """
    if m <= 0 or k <= 0 or n <= 0:
        raise BadInput(f"m, k and n have to be positive: m {m}, k {k}, n {n}.")
    flop = 2 * m * k * n
    moved = element_bytes(weights or dtype) * k * n + element_bytes(dtype) * (m * k + m * n)
    whole = isinstance(m, int) and float(moved).is_integer()
    return GemmRow(m=m, flop=flop, bytes=int(moved) if whole else moved)


def shard(weight: Weight, plan: ParallelPlan, num_kv_heads: int = 0) -> Weight:
    """What one rank holds of a matrix; sizes have been checked to divide."""
    tp, moe_tp, experts = plan.tp, plan.moe_tp, weight.experts // plan.ep
    shares: dict[Split, Weight] = {
        "replicated": weight,
        "columns": replace(weight, n=weight.n // tp),
        "vocabulary": replace(weight, n=-(-weight.n // tp)),  # engines pad the vocabulary
        "rows": replace(weight, k=weight.k // tp),
        "groups": replace(weight, groups=weight.groups // tp),
        "expert_columns": replace(weight, n=weight.n // moe_tp, experts=experts),
        "expert_rows": replace(weight, k=weight.k // moe_tp, experts=experts),
    }
    if weight.split == "kv_columns":
        return replace(weight, n=max(1, num_kv_heads // tp) * (weight.n // num_kv_heads))
    return shares[weight.split]


def gemm(context: LayerContext, weight: Weight, m: Amount, kind: OperatorKind | None = None) -> Operator:
    """The operator that multiplies m rows (per group) with a rank's share of a matrix."""
    dtypes = context.deployment.dtypes(weight, context.architecture)
    return context.operator(
        name=weight.name,
        role=weight.role,
        kind=kind or ("gemm" if weight.groups == 1 else "batched_gemm"),
        flop=2 * m * weight.k * weight.n * weight.groups,
        traffic=Traffic(
            weight=_is_run(m) * matrix_bytes(dtypes.weight or "bf16", weight.k * weight.n * weight.groups),
            read=activation_bytes(dtypes.activation, m * (weight.k * weight.groups)),
            written=activation_bytes(dtypes.output, m * (weight.n * weight.groups)),
        ),
        dtypes=dtypes,
        shape=GemmShape(m=m, n=weight.n, k=weight.k, groups=weight.groups),
    )


def _is_run(m: Amount) -> Amount:
    """1 where a step has rows for the matrix, else 0: then it is not read."""
    return int(m > 0) if isinstance(m, int) else (m > 0).astype("int64")


def activation_bytes(dtype: str, elements: Amount) -> Amount:
    """Bytes of activations, over one shape or many."""
    numerator, denominator = bits_with_scales(dtype)
    result: Amount = -(-elements * numerator // denominator)
    return result
