"""Model x hardware -> the three crossovers as one JSON-able document, which `crossover` shows.

Dense GEMMs and experts by their formulas, the decode grid by pricing every cell; one rank's share under the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepscope.cost.crossover import (
    PARTS,
    DecodeBindings,
    ExpertCrossover,
    GemmCrossover,
    Weight,
    decode_grid,
    expert_crossover,
    gemm_crossover,
)
from stepscope.cost.hardware import Hardware, compute_dtype
from stepscope.cost.kernel_model import load_coefficients
from stepscope.cost.operator_work import bytes_per_element
from stepscope.cost.roofline import TERMS, Ridge, bound_flop_per_s, ridge
from stepscope.cost.step_cost import price_step
from stepscope.models.architecture import Architecture, MoeFeedForward
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import Operator
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators

CURVE_ROWS = tuple(2**i for i in range(15))  # M of a GEMM's intensity curve: 1 to 16,384


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverPlan:
    """What is asked. `tokens`: of the EP domain, for the experts."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    context_lens: tuple[int, ...] = (1024, 8192, 32768, 131072)
    tokens: tuple[int, ...] = (1, 16, 64, 256, 1024, 2048, 8192, 32768)
    use_peak: bool = False


def crossover_document(
    architecture: Architecture, hardware: Hardware, deployment: Deployment, plan: CrossoverPlan
) -> dict[str, Any]:
    """All three answers.

    Raises:
        BadInput: the hardware lacks a figure, or the model a context.
    """
    limit = deployment.max_model_len or architecture.max_context_len
    contexts = tuple(c for c in plan.context_lens if c < limit)
    grid_operators, grid = _decode(architecture, hardware, deployment, plan.batches, contexts)
    ridges = _Ridges(hardware=hardware, use_peak=plan.use_peak, known={})
    gemms = _distinct([op for op in grid_operators if op.kind == "gemm" and op.shape is not None])
    experts = _distinct([op for op in grid_operators if op.kind == "grouped_gemm" and op.shape is not None])
    dense = [_dense(op, ridges) for op in gemms]
    routed = [_experts(op, ridges, architecture, deployment, plan.tokens) for op in experts]
    return {
        "model": architecture.name,
        "hardware": hardware.name,
        "ridges": {name: asdict(found) for name, found in ridges.known.items()},
        "ridge_used": "peak" if plan.use_peak else "effective where known, else peak",
        "dense": [_dense_entry(found) for found in dense],
        "experts": [_expert_entry(found) for found in routed],
        "decode": _decode_entry(grid),
        "notes": _notes(architecture, hardware, contexts, plan),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ridges:
    hardware: Hardware
    use_peak: bool
    known: dict[str, Ridge]

    def of(self, operator: Operator) -> float:
        """The ridge of an operator's compute dtype; bf16's rate where fp32 has none of its own."""
        dtype = compute_dtype(operator.dtypes.compute)
        if dtype not in self.known:
            self.known[dtype] = self._find(dtype)
        found = self.known[dtype]
        value = found.peak if self.use_peak or found.effective is None else found.effective
        assert value is not None
        return value

    def _find(self, dtype: str) -> Ridge:
        if (self.hardware.basis, dtype) not in self.hardware.compute and dtype == "fp32":
            peak = bound_flop_per_s(self.hardware, "fp32") / self.hardware.bytes_per_s()
            return Ridge(dtype="fp32", peak=peak, effective=None, effective_from=None)
        fits = load_coefficients(self.hardware)
        model = None if fits is None else fits.find(f"gemm.{dtype}", f"gemm.{dtype}_block")
        return ridge(self.hardware, dtype, None if model is None else (model.coefficients[1], model.coefficients[2]))


def _distinct(operators: Sequence[Operator]) -> list[Operator]:
    found: dict[tuple[Any, ...], Operator] = {}
    for op in operators:
        found.setdefault((op.name, op.k, op.n, op.dtypes.weight), op)
    return list(found.values())


def _weight(op: Operator) -> Weight:
    return Weight(
        name=op.name,
        k=op.k or 0,
        n=op.n or 0,
        x_bytes=bytes_per_element(op.dtypes.activation),
        w_bytes=bytes_per_element(op.dtypes.weight),
        y_bytes=bytes_per_element(op.dtypes.output),
    )


def _dense(op: Operator, ridges: _Ridges) -> GemmCrossover:
    return gemm_crossover(_weight(op), ridges.of(op))


def _experts(
    op: Operator, ridges: _Ridges, architecture: Architecture, deployment: Deployment, tokens: Sequence[int]
) -> ExpertCrossover:
    layer = next(x for x in architecture.layers if x.layer_type == op.layer_type)
    ffn = layer.feed_forward
    assert isinstance(ffn, MoeFeedForward)
    return expert_crossover(_dense(op, ridges), ffn.num_experts, ffn.top_k, tokens, deployment.router)


def _decode(
    architecture: Architecture,
    hardware: Hardware,
    deployment: Deployment,
    batches: Sequence[int],
    contexts: Sequence[int],
) -> tuple[Sequence[Operator], DecodeBindings]:
    lengths = [batch for batch in batches for _ in contexts]
    rows = StepRows.from_arrays(
        query_len=np.ones(sum(lengths), dtype=np.int64),
        context_len=np.repeat(np.tile(np.array(contexts), len(batches)), lengths),
        is_decode=np.ones(sum(lengths), dtype=bool),
        step_index=np.repeat(np.arange(len(lengths)), lengths),
    )
    operators = step_operators(architecture, rows, deployment)
    cost = price_step(operators, hardware, deployment.plan)
    return operators, decode_grid(operators, cost, batches, contexts)


def _dense_entry(found: GemmCrossover) -> dict[str, Any]:
    w = found.weight
    return {
        "name": w.name,
        "k": w.k,
        "n": w.n,
        "x_bytes": w.x_bytes,
        "w_bytes": w.w_bytes,
        "y_bytes": w.y_bytes,
        "ridge": found.ridge,
        "crossover_tokens": found.crossover_tokens,
        "approximation": found.approximation,
        "most_intensity": found.most_intensity,
        "points": [{"m": m, "intensity": found.intensity(m)} for m in CURVE_ROWS],
    }


def _expert_entry(found: ExpertCrossover) -> dict[str, Any]:
    return _dense_entry(found.gemm) | {  # its points are those of the distribution
        "num_experts": found.num_experts,
        "top_k": found.top_k,
        "crossover_rows": found.crossover_rows,
        "crossover_tokens": found.crossover_tokens,
        "mean_crossover_tokens": found.mean_crossover_tokens,
        "points": [asdict(point) for point in found.points],
    }


def _decode_entry(grid: DecodeBindings) -> dict[str, Any]:
    leading = grid.leading_part
    cells = [
        {
            "batch": batch,
            "context_len": context,
            "bound": str(grid.bound[i, j]),
            "leading_part": str(leading[i, j]),
            "lower_bound_s": float(grid.lower_bound_s[i, j]),
            "serial_bound_s": float(grid.serial_bound_s[i, j]),
            "time_s": None if grid.time_s is None else float(grid.time_s[i, j]),
            **{f"{name}_s": float(grid.terms[name][i, j]) for name in TERMS},
            "part_fractions": {name: float(grid.parts[name][i, j] / grid.lower_bound_s[i, j]) for name in PARTS},
        }
        for i, batch in enumerate(grid.batches)
        for j, context in enumerate(grid.context_lens)
    ]
    return {
        "batches": list(grid.batches),
        "context_lens": list(grid.context_lens),
        "crossover_batch": [
            {"context_len": context, "batch": grid.crossover_batch(j)} for j, context in enumerate(grid.context_lens)
        ],
        "cells": cells,
    }


def _notes(architecture: Architecture, hardware: Hardware, contexts: Sequence[int], plan: CrossoverPlan) -> list[str]:
    notes = ["the three answers differ: a GEMM that is compute-bound does not make its step compute-bound."]
    dropped = sorted(set(plan.context_lens) - set(contexts))
    if dropped:
        notes.append(f"contexts beyond {architecture.name}'s limit left out: {', '.join(map(str, dropped))}.")
    if hardware.coefficients is None:
        notes.append(f"{hardware.name}: no measured kernels, so ridge_effective is unknown and times are bounds only.")
    elif hardware.is_borrowed:
        notes.append(f"{hardware.name}: efficiencies are borrowed from {hardware.coefficients}.")
    return notes
