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
from stepscope.cost.operator_work import INDEX_BLOCK, LEAST_HEADS, QUERY_BLOCK, SELECTED_ROWS
from stepscope.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]


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
        work = CoreWork(flop=4 * b * seen * heads * dim, moved_bytes=moved, blocks=b * kv_heads, walkers=0 * b)
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
    blocks = b * heads * np.ceil(q / QUERY_BLOCK)
    work = CoreWork(flop=4 * b * pairs * heads * dim, moved_bytes=moved, blocks=blocks, walkers=blocks)
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
        padded = np.maximum(heads, float(LEAST_HEADS))
        moved = b * seen * 576 * (2.0 if dtype == "bf16" else 1.0) + 2 * b * heads * (576 + 512)
        flop, blocks = 2 * padded * (2 * 512 + 64) * b * seen, b * padded / LEAST_HEADS
        work = CoreWork(flop=flop, moved_bytes=moved, blocks=blocks, walkers=0 * b)
        yield core_group(f"mla_decode_{dtype}", work, p["seconds"], device, source)


def _history(point: dict[str, Array]) -> tuple[Array, Array, Array]:
    """(rows, queries of each, context) of a table with isl and step."""
    return point["batch_size"].astype(float), point["isl"].astype(float), point["step"].astype(float)


def _sparse_table(root: Path, system: str, file: str, framework: str) -> tuple[dict[str, Array], str] | None:
    layout = Layout(op="sparse_attention", file=file, keys=(), axes=("batch_size", "isl", "step"))
    try:
        rows, source = _table(root, system, layout, framework, layout.axes)
    except BadInput:
        return None
    return medians(rows, layout.axes), source


def indexer(root: Path, system: str) -> Iterator[Group]:
    """Index scores in fp8: GLM-5's 32 heads in prefill, V4's 64 heads on every fourth row in decode (paged kernel)."""
    device = device_of(load_hardware(system), "fp8")
    for phase, file, framework, heads, ratio in (
        ("prefill", "glm5_mqa_logits_module", "sglang", 32, 1),
        ("decode", "dsv4_paged_mqa_logits_module", "vllm", 64, 4),
    ):
        found = _sparse_table(root, system, file, framework)
        if found is None:
            continue
        point = chosen(found[0], (found[0]["isl"] == 1) == (phase == "decode"))
        b, q, c = _history(point)
        pairs = b * (q * c + q * (q + 1) / 2) / ratio
        moved = b * (c + q) / ratio * 132 + b * q * heads * 128 + 4 * pairs
        blocks = b * np.ceil(q / INDEX_BLOCK) if phase == "prefill" else b / INDEX_BLOCK
        walkers = blocks if phase == "prefill" else 0 * b
        work = CoreWork(flop=2 * heads * 128 * pairs, moved_bytes=moved, blocks=blocks, walkers=walkers)
        yield core_group(f"indexer_{phase}", work, point["seconds"], device, found[1])


def sparse_core(root: Path, system: str) -> Iterator[Group]:
    """The sparse MLA core of GLM-5 (64 heads; it walks all slots of its index)."""
    found = _sparse_table(root, system, "glm5_dsa_attn_module", "sglang")
    if found is None:
        return
    for phase in ("prefill", "decode"):
        point = chosen(found[0], (found[0]["isl"] == 1) == (phase == "decode"))
        b, q, c = _history(point)
        moved = b * np.minimum(q * _mean_seen(q, c, SELECTED_ROWS), c + q) * 656 + 2 * b * q * 64 * (576 + 512)
        flop = 2 * 64 * (2 * 512 + 64) * b * q * SELECTED_ROWS
        work = CoreWork(flop=flop, moved_bytes=moved, blocks=b * q, walkers=b * q)
        yield core_group(f"sparse_{phase}", work, point["seconds"], device_of(load_hardware(system), "bf16"), found[1])


def compressed_core(root: Path, system: str) -> Iterator[Group]:
    """The core of V4's C128 layers (64 heads): a window of 128 rows and one row per 128 tokens."""
    found = _sparse_table(root, system, "dsv4_hca_attn_module", "vllm")
    if found is None:
        return
    for phase in ("prefill", "decode"):
        point = chosen(found[0], (found[0]["isl"] == 1) == (phase == "decode"))
        b, q, c = _history(point)
        seen = _mean_seen(q, c, 128) + (c + q / 2) / 128
        moved = b * np.minimum(q * seen, c + q) * 584 + 2 * b * q * 64 * 1024
        walkers = b * q if phase == "decode" else 0 * b
        work = CoreWork(flop=4 * 64 * 512 * b * q * seen, moved_bytes=moved, blocks=b * q, walkers=walkers)
        device = device_of(load_hardware(system), "bf16")
        yield core_group(f"compressed_{phase}", work, point["seconds"], device, found[1])


def _mean_seen(q: Array, c: Array, cap: float) -> Array:
    """Mean over a row's queries of min(position + 1, cap)."""
    rising = np.clip(cap - c, 0, q)
    return (rising * (c + (rising + 1) / 2) + (q - rising) * cap) / q


CORES = (decode_attention, prefill_attention, mla_decode, indexer, sparse_core, compressed_core)
