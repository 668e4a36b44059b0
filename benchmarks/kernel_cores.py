"""Single kernels on the history for `kernels.py`: table rows -> flop, bytes and blocks, counted as `operators` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kernel_cases import Group, _table, chosen, core_group, device_of, medians

from stepscope.cost.core_model import CoreWork
from stepscope.cost.hardware import load_hardware
from stepscope.cost.measured import DECODE_ATTENTION, PREFILL_ATTENTION, Layout
from stepscope.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]
QUERY_BLOCK = 128  # queries of one block of a prefill attention kernel


def _heads(point: dict[str, Array]) -> tuple[Array, Array, Array, Array]:
    size = np.where(point["kv_cache_dtype"] == "fp8", 1.0, 2.0)
    return (
        point["num_heads"].astype(float),
        point["num_key_value_heads"].astype(float),
        point["head_dim"].astype(float),
        size,
    )


def decode_attention(root: Path, system: str) -> Iterator[Group]:
    """GQA decode, head_dim 128, one group per cache dtype."""
    keys = (*DECODE_ATTENTION.keys, *DECODE_ATTENTION.axes)
    rows, source = _table(root, system, DECODE_ATTENTION, "vllm", keys)
    point = medians(chosen(rows, rows["head_dim"] == 128), keys)
    device = device_of(load_hardware(system), "bf16")
    for dtype in ("bf16", "fp8"):
        p = chosen(point, point["kv_cache_dtype"] == dtype)
        heads, kv_heads, dim, size = _heads(p)
        b, window = p["batch_size"].astype(float), p["window_size"]
        seen = p["step"] + 1.0
        seen = np.where(window > 0, np.minimum(seen, window), seen)
        moved = 2 * b * seen * kv_heads * dim * size + 4 * b * heads * dim
        work = CoreWork(flop=4 * b * seen * heads * dim, moved_bytes=moved, blocks=b * kv_heads)
        yield core_group(f"attention_decode_{dtype}", work, p["seconds"], device, source)


def prefill_attention(root: Path, system: str) -> Iterator[Group]:
    """GQA prefill without context, head_dim 128."""
    keys = (*PREFILL_ATTENTION.keys, *PREFILL_ATTENTION.axes)
    rows, source = _table(root, system, PREFILL_ATTENTION, "vllm", keys)
    point = medians(chosen(rows, (rows["head_dim"] == 128) & (rows["kv_cache_dtype"] == "bf16")), keys)
    heads, kv_heads, dim, size = _heads(point)
    b, q, window = point["batch_size"].astype(float), point["isl"].astype(float), point["window_size"]
    w = np.where(window > 0, np.minimum(q, window), q)
    pairs = w * (w + 1) / 2 + (q - w) * w
    moved = b * q * dim * (4 * heads + 2 * kv_heads * size)
    work = CoreWork(flop=4 * b * pairs * heads * dim, moved_bytes=moved, blocks=b * heads * np.ceil(q / QUERY_BLOCK))
    device = device_of(load_hardware(system), "bf16")
    yield core_group("attention_prefill", work, point["seconds"], device, source)


def mla_decode(root: Path, system: str) -> Iterator[Group]:
    """Absorbed MLA decode (kernel alone), one group per cache dtype. Rows of other tp at the same heads are alike."""
    layout = Layout(op="mla", file="generation_mla", keys=("kv_cache_dtype", "num_heads"), axes=("batch_size", "step"))
    keys = (*layout.keys, *layout.axes)
    rows, source = _table(root, system, layout, "sglang", keys)
    point = medians(rows, keys)
    device = device_of(load_hardware(system), "bf16")
    for dtype in ("bf16", "fp8"):
        p = chosen(point, point["kv_cache_dtype"] == dtype)
        heads, b, seen = p["num_heads"].astype(float), p["batch_size"].astype(float), p["step"] + 1.0
        padded = np.maximum(heads, 64.0)  # the kernel works on 64 heads at least
        moved = b * seen * 576 * (2.0 if dtype == "bf16" else 1.0) + 2 * b * heads * (576 + 512)
        work = CoreWork(flop=2 * padded * (2 * 512 + 64) * b * seen, moved_bytes=moved, blocks=b * padded / 64)
        yield core_group(f"mla_decode_{dtype}", work, p["seconds"], device, source)


def _history(point: dict[str, Array]) -> tuple[Array, Array, Array]:
    """(rows, queries of each, context) of a table with isl and step."""
    return point["batch_size"].astype(float), point["isl"].astype(float), point["step"].astype(float)


def indexer(root: Path, system: str) -> Iterator[Group]:
    """Index scores of GLM-5 (32 heads x 128) on DeepGEMM's kernel: fp8, every query against every earlier row."""
    layout = Layout(op="sparse_attention", file="glm5_mqa_logits_module", keys=(), axes=("batch_size", "isl", "step"))
    try:
        rows, source = _table(root, system, layout, "sglang", layout.axes)
    except BadInput:
        return
    point = medians(rows, layout.axes)
    b, q, c = _history(point)
    pairs = b * (q * c + q * (q + 1) / 2)
    moved = b * (c + q) * 132 + b * q * 32 * 128 + 4 * pairs
    work = CoreWork(flop=2 * 32 * 128 * pairs, moved_bytes=moved, blocks=b * np.ceil(q / 4))
    yield core_group("indexer", work, point["seconds"], device_of(load_hardware(system), "fp8"), source)


def sparse_core(root: Path, system: str) -> Iterator[Group]:
    """The sparse MLA core of GLM-5 (64 heads, topk 2048), and the full-history core of V4's C128 layers."""
    device = device_of(load_hardware(system), "bf16")
    for name, framework, file in (
        ("sparse_attention", "sglang", "glm5_dsa_attn_module"),
        ("sparse_attention_c128", "vllm", "dsv4_hca_attn_module"),
    ):
        layout = Layout(op="sparse_attention", file=file, keys=(), axes=("batch_size", "isl", "step"))
        try:
            rows, source = _table(root, system, layout, framework, layout.axes)
        except BadInput:
            continue
        point = medians(rows, layout.axes)
        b, q, c = _history(point)
        if name == "sparse_attention":
            seen = _mean_seen(q, c, 2048)
            flop, row_bytes, width = 2 * 64 * (2 * 512 + 64) * b * q * seen, 656.0, 576 + 512
        else:
            seen = _mean_seen(q, c, 128) + (c + q / 2) / 128
            flop, row_bytes, width = 4 * 64 * 512 * b * q * seen, 584.0, 1024
        moved = b * np.minimum(q * seen, c + q) * row_bytes + 2 * b * q * 64 * width
        work = CoreWork(flop=flop, moved_bytes=moved, blocks=b * q)
        yield core_group(name, work, point["seconds"], device, source)


def _mean_seen(q: Array, c: Array, cap: float) -> Array:
    """Mean over a row's queries of min(position + 1, cap)."""
    rising = np.clip(cap - c, 0, q)
    return (rising * (c + (rising + 1) / 2) + (q - rising) * cap) / q


CORES = (decode_attention, prefill_attention, mla_decode, indexer, sparse_core)
