"""Whole attention modules of a decode step: what was measured as one replaces the sum of its operators' predictions.

A module is everything between the norm and the output of a layer's attention: projections, indexer, selection, core,
cache writes. Its fit knows rows B and context_len S (core_model). Each operator of the layer keeps its share of the
module by its own prediction: they add up to the module. Layers that reuse another layer's index (GLM-5.2) have no
module of their own; their operators take the factor of the layer that has one, and are "extrapolated".
Kinds: dsa (V3.2, GLM-5), csa and hca (V4's C4 and C128 layers), mla (V3). A step with prefill rows, draft tokens,
context parallelism, or sizes and dtypes that nobody measured keeps the sum. Why: decision 0118.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.cost.core_model import ModuleWork
from stepscope.cost.gemm_model import Device
from stepscope.cost.kernel_model import CoefficientSet, KernelModel
from stepscope.cost.operator_cost import OperatorCost
from stepscope.operators.operator import AttentionWork, Operator

Array = np.ndarray[Any, np.dtype[Any]]
WINDOW = 128  # V4's sliding window, in rows
C4_RATIO = 4
ROLES = ("attn_proj", "attn_kvb", "indexer", "compressor", "core", "index_core", "index_topk", "kv", "state")
STAND_INS = {"fp8": "fp8_block"}  # weights that were not measured -> the nearest that were
_NO_DEVICE = Device(flop_per_s=1.0, bytes_per_s=1.0, num_cores=1)  # a module's fit has no rates


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionModule:
    """One layer type's attention in decode. `positions`: of its operators; `is_decode`: per step, nothing else runs."""

    kind: str
    sizes: str
    weight: str
    has_index: bool
    positions: tuple[int, ...]
    work: ModuleWork
    is_decode: Array

    @property
    def names(self) -> tuple[str, ...]:
        """The fit's name, and that of a stand-in."""
        weights = (self.weight, STAND_INS[self.weight]) if self.weight in STAND_INS else (self.weight,)
        return tuple(f"module.{self.kind}_{self.sizes}_{weight}" for weight in weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factor:
    """What a layer's operators are multiplied with, per step, and where it came from."""

    value: Array
    model: KernelModel
    name: str
    is_exact: bool


def find_modules(operators: Sequence[Operator]) -> tuple[AttentionModule, ...]:
    """The layer types of a step whose attention may be one module."""
    found = []
    for layer_type in dict.fromkeys(op.layer_type for op in operators):
        positions = tuple(i for i, op in enumerate(operators) if op.layer_type == layer_type and op.role in ROLES)
        module = _module([operators[i] for i in positions], positions)
        if module is not None:
            found.append(module)
    return tuple(found)


def _module(operators: Sequence[Operator], positions: tuple[int, ...]) -> AttentionModule | None:
    cores = {
        op.work.phase: (op, op.work)
        for op in operators
        if op.role == "core" and isinstance(op.work, AttentionWork) and op.kind != "recurrent"
    }
    projection = next((op for op in operators if op.role == "attn_proj"), None)
    if "decode" not in cores or projection is None:
        return None
    core, work = cores["decode"]
    has_index = any(op.role == "index_core" for op in operators)
    kind = _kind(core, work, has_index=has_index)
    if kind is None:
        return None
    queries, rows = np.asarray(work.queries), np.asarray(work.rows)
    is_decode = (queries == rows) & (rows > 0)
    if "prefill" in cores:
        is_decode = is_decode & (np.asarray(cores["prefill"][1].queries) == 0)
    return AttentionModule(
        kind=kind,
        sizes=f"{projection.k}_{work.num_heads}_{core.dtypes.kv}",
        weight=projection.dtypes.weight or "bf16",
        has_index=has_index or kind in ("mla", "hca"),
        positions=positions,
        work=_work(kind, work),
        is_decode=is_decode,
    )


def _kind(core: Operator, work: AttentionWork, *, has_index: bool) -> str | None:
    """Which module it is; None for GQA, expanded MLA, GDN and V4's window-only layers."""
    if work.num_kv_heads != 1 or work.qk_head_dim < 512:
        return None
    if work.qk_head_dim != work.v_head_dim:
        return "dsa" if core.kind == "sparse_attention" else "mla"
    if core.kind != "sparse_attention":
        return None
    return "csa" if has_index else "hca"


def _work(kind: str, work: AttentionWork) -> ModuleWork:
    """B, Σ min(S, cap) and Σ S; the query's own row, which `pairs` and `history` count, is left out."""
    rows, pairs = np.asarray(work.rows, dtype=float), np.asarray(work.pairs, dtype=float)
    history = np.asarray(work.history, dtype=float)
    context = history - np.asarray(work.queries, dtype=float)
    window = np.minimum(history, WINDOW * rows)
    kept = {"dsa": pairs, "csa": C4_RATIO * (pairs - window), "hca": WINDOW * rows, "mla": context}[kind]
    return ModuleWork(rows=rows, kept_tokens=np.clip(kept, 0, context), context_tokens=context)


def price_modules(
    operators: Sequence[Operator], costs: Sequence[OperatorCost], fits: CoefficientSet
) -> tuple[OperatorCost, ...]:
    """The costs, those of measured modules replaced; all others as they were."""
    result, factors = list(costs), dict[tuple[str, ...], _Factor | None]()
    modules = find_modules(operators)
    for module in sorted(modules, key=lambda m: not m.has_index):  # those that lend a factor come first
        summed = _sum(module, costs)
        factor = None if summed is None else _factor(module, summed, fits)
        if module.has_index:
            factors.setdefault(module.names, factor)
        elif factor is None:
            lent = factors.get(module.names)
            factor = None if lent is None else replace(lent, is_exact=False, name=f"{lent.name} of the indexed layer")
        if factor is not None:
            for position in module.positions:
                result[position] = _scaled(costs[position], factor, fits.name)
    return tuple(result)


def _sum(module: AttentionModule, costs: Sequence[OperatorCost]) -> Array | None:
    times = [costs[i].time_s for i in module.positions]
    return None if any(time is None for time in times) else np.asarray(sum(np.asarray(time) for time in times))


def _factor(module: AttentionModule, summed: Array, fits: CoefficientSet) -> _Factor | None:
    model = fits.find(*module.names)
    if model is None or not module.has_index or not np.any(module.is_decode):
        return None
    seconds = model.seconds(module.work, _NO_DEVICE)
    applies = module.is_decode & (summed > 0)
    rows = np.maximum(module.work.rows, 1)
    mean_context = module.work.context_tokens / rows
    covered = model.covers(rows=rows[applies], context_len=np.maximum(mean_context[applies], 1))
    is_first = fits.models.get(module.names[0]) is model
    name = module.names[0] if is_first else f"stand-in {module.names[1]}"
    value = np.where(applies, seconds / np.where(summed > 0, summed, 1), 1.0)
    return _Factor(value=value, model=model, name=name, is_exact=is_first and covered and bool(np.all(applies)))


def _scaled(cost: OperatorCost, factor: _Factor, set_name: str) -> OperatorCost:
    if cost.time_s is None:
        return cost
    time = np.asarray(cost.time_s) * factor.value
    band, is_module = factor.model.band, factor.value != 1.0
    low = np.where(is_module, time * band.low, 0.0 if cost.low_s is None else cost.low_s)
    high = np.where(is_module, time * band.high, 0.0 if cost.high_s is None else cost.high_s)
    return replace(
        cost,
        time_s=_plain(time),
        low_s=_plain(low),
        high_s=_plain(high),
        grade="modelled" if factor.is_exact else "extrapolated",
        source=f"share of {factor.name} of {set_name}",
    )


def _plain(value: Array) -> float | Array:
    return float(value) if value.ndim == 0 else value
