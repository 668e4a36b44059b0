"""Operator -> the kernel model that prices it, and its work in that model's terms.

A GEMM goes by its weight's dtype, routed experts as one module of which each grouped GEMM takes its share of the
matrix elements, an attention core by phase and cache dtype, a collective by group size. What no table measures alone
(norms, copies, states, lookups) streams through memory like the bf16 GEMM's weights do, and is "extrapolated".
Conventions (blocks, head padding) are those of the fits: benchmarks/kernel_cores.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.cost.core_model import CoreWork
from stepscope.cost.expert_model import ExpertWork
from stepscope.cost.gemm_model import GemmWork
from stepscope.models.dtype import bits_with_scales
from stepscope.operators.operator import AttentionWork, ExpertLoad, Operator, Transfer

Array = np.ndarray[Any, np.dtype[Any]]
LEAST_HEADS = 64  # kernels on latent rows (absorbed MLA, DSA, V4) work on this many
QUERY_BLOCK = 128  # queries of one block of a prefill attention kernel
INDEX_BLOCK = 4  # queries of one block of the index scores
SELECTED_ROWS = 2048  # slots of the sparse MLA kernel's index: topk of every DSA model


@dataclass(frozen=True, slots=True, kw_only=True)
class Priceable:
    """`models`: names to look up, best first (a later one is a stand-in); `share`: of the model's time."""

    models: tuple[str, ...]
    work: GemmWork | ExpertWork | CoreWork | None
    features: dict[str, Any]
    share: float = 1.0
    is_stand_in: bool = False


def bytes_per_element(dtype: str | None) -> float:
    """With block scales."""
    numerator, denominator = bits_with_scales(dtype or "bf16")
    return numerator / denominator


def gemm_work(operator: Operator) -> Priceable:
    """Dense GEMM; a batched one is taken as one GEMM with its groups side by side."""
    shape = operator.shape
    assert shape is not None
    dtypes = operator.dtypes
    weight = dtypes.weight or dtypes.compute
    n = shape.n * shape.groups
    is_quantised = weight in ("fp8", "fp8_block", "nvfp4") and dtypes.activation == dtypes.compute != "bf16"
    work = GemmWork.from_shape(
        shape.m,
        n,
        shape.k,
        x_bytes=bytes_per_element(dtypes.activation) * shape.groups,
        w_bytes=bytes_per_element(weight),
        y_bytes=bytes_per_element(dtypes.output),
        has_quantisation=is_quantised,
    )
    names = (f"gemm.{weight}", "gemm.bf16") if is_quantised or weight == "bf16" else ("gemm.bf16",)
    return Priceable(
        models=names,
        work=work,
        features={"m": shape.m, "n": n, "k": shape.k},
        is_stand_in=shape.groups > 1 or (not is_quantised and weight != "bf16"),
    )


def expert_work(operator: Operator, layer: Sequence[Operator], ep: int) -> Priceable:
    """One grouped GEMM's share of its layer's experts; `layer`: the grouped GEMMs of the layer, in order."""
    load, dtype = operator.work, operator.dtypes.weight or "bf16"
    first, last = layer[0].shape, layer[-1].shape
    assert isinstance(load, ExpertLoad)
    assert first is not None
    assert last is not None
    elements = [op.shape.n * op.shape.k for op in layer if op.shape is not None]
    share = (operator.n or 0) * (operator.k or 0) / sum(elements)
    rows = np.asarray(load.copies, dtype=float)
    work = ExpertWork(
        hidden_size=np.asarray(float(first.k)),
        intermediate_size=np.asarray(float(last.k)),
        num_experts=np.asarray(float(load.num_experts)),
        active_experts=np.asarray(load.active_experts, dtype=float),
        rows=rows,
        copies=rows * ep,
        local_copies=rows * ep,
        w_bytes=bytes_per_element(dtype),
    )
    features = {
        "rows": np.maximum(rows, 1),
        "active_experts": np.maximum(work.active_experts, 1),
        "hidden_size": first.k,
        "intermediate_size": last.k,
    }
    names = ("experts.fp8", "experts.fp8_block") if dtype == "fp8" else (f"experts.{dtype}",)
    return Priceable(models=(*names, "experts.bf16"), work=work, features=features, share=share)


def core_work(operator: Operator) -> Priceable:
    """An attention core or index scores."""
    work = operator.work
    assert isinstance(work, AttentionWork)
    rows, queries = np.asarray(work.rows, dtype=float), np.asarray(work.queries, dtype=float)
    flop, moved = np.asarray(operator.flop, dtype=float), np.asarray(operator.bytes_moved, dtype=float)
    cache = "bf16" if operator.dtypes.kv in (None, "bf16") else "fp8"
    is_latent, is_decode = work.num_kv_heads == 1 and work.qk_head_dim >= 512, work.phase == "decode"
    padded = max(work.num_heads, LEAST_HEADS) / work.num_heads  # of latent kernels, except expanded MLA's
    if operator.kind == "indexer":
        name, blocks = f"indexer_{work.phase}", queries / INDEX_BLOCK
        walkers = np.zeros_like(rows) if is_decode else np.ceil(blocks)
    elif is_latent and work.qk_head_dim == work.v_head_dim:  # V4: one row is key and value
        name, blocks, walkers = f"compressed_{work.phase}", queries, queries * is_decode
        flop = flop * padded
    elif operator.kind == "sparse_attention":  # the kernel walks every slot of its index, filled or not
        pairs = np.maximum(np.asarray(work.pairs, dtype=float), 1)
        name, blocks, walkers = f"sparse_{work.phase}", queries, queries
        flop = flop * padded / pairs * queries * SELECTED_ROWS
    elif is_latent and is_decode:
        name, blocks, flop = f"mla_decode_{cache}", rows * padded * work.num_heads / LEAST_HEADS, flop * padded
        walkers = np.zeros_like(rows)
    elif is_decode:
        name, blocks, walkers = f"attention_decode_{cache}", rows * work.num_kv_heads, np.zeros_like(rows)
    else:
        name, blocks = "attention_prefill", work.num_heads * np.maximum(queries / QUERY_BLOCK, rows)
        walkers = np.ceil(blocks)
    models = (f"core.{name}", "core.mla_decode_bf16") if name == "mla_decode_fp8" else (f"core.{name}",)
    return Priceable(
        models=models,
        work=CoreWork(flop=flop, moved_bytes=moved, blocks=blocks, walkers=walkers),
        features={"flop": flop, "bytes": moved},
    )


def transfer_work(operator: Operator) -> Priceable:
    """A collective; groups that were not measured have no model."""
    work = operator.work
    assert isinstance(work, Transfer)
    sent = np.asarray(work.wire_bytes, dtype=float)
    name = f"transfer.{work.collective}_{work.group_size}"
    return Priceable(models=(name,), work=None, features={"wire_bytes": sent})


def stream_work(operator: Operator) -> Priceable:
    """Anything that streams through memory."""
    flop, moved = np.asarray(operator.flop, dtype=float), np.asarray(operator.bytes_moved, dtype=float)
    nothing = np.zeros_like(moved)
    work = CoreWork(flop=flop, moved_bytes=moved, blocks=nothing, walkers=nothing)
    return Priceable(models=("gemm.bf16",), work=work, features={}, is_stand_in=True)
