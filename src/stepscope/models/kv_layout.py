"""KvLayout: how many bytes the cache keeps, per row and per token, in each engine's layout.

row: what one layer stores of one token (V4: of one window of `ratio` tokens); index row: the indexer's key of it.
d: head dim, r: its rope part, c: kv_lora_rank, i: index head dim. Rows per token: 1, V4's compressed layers 1 / ratio.
V4 fp8: (d-r) e4m3 + r bf16 + (d-r)/64 ue8m0 + 1 pad = 584; arch35: the same without the pad, up to 128 B = 640.
MLA fp8 with DSA: c e4m3 + c/128 fp32 + r bf16 = 656, without DSA one byte an element; nvfp4: c/2 + r + c/16 = 352.
Index: fp8 i + 4 (fp32 scale); mxfp4 i/2 + i/32; 910C int8 i + 2 (fp16 scale).
Sources: vLLM flashmla_sparse.py and deepseek_v4/attention.py, SGLang kv_layout.py and npu/dsv4_memory_pool.py. 2026-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, assert_never

from stepscope.errors import BadInput
from stepscope.models.architecture import (
    Architecture,
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    LatentAttention,
)
from stepscope.models.weight import overlap

KvLayout = Literal["bf16", "fp8", "fp8-plain", "fp8-mxfp4-index", "nvfp4", "ascend-910c", "ascend-arch35"]

_GQA_BITS: dict[str, int] = {"bf16": 16, "fp8": 8, "fp8-plain": 8}
LAYOUTS: tuple[str, ...] = ("bf16", "fp8", "fp8-plain", "fp8-mxfp4-index", "nvfp4", "ascend-910c", "ascend-arch35")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """Bytes of one row in one layer; `index`: the indexer's key beside it, 0 where the layer has none."""

    kv: int
    index: int = 0


def cache_row(attention: Attention, layout: str) -> CacheRow:
    """Bytes that one layer keeps per row (GDN keeps none).

    Raises:
        BadInput: the layout is unknown, or no engine has it for this attention.
    """
    if layout not in LAYOUTS:
        raise BadInput(f"unknown KV layout '{layout}'. Known: {', '.join(LAYOUTS)}.")
    match attention:
        case GroupedQueryAttention():
            if layout not in _GQA_BITS:
                raise _no_layout(layout, "GQA", tuple(_GQA_BITS))
            return CacheRow(kv=2 * attention.num_kv_heads * attention.head_dim * _GQA_BITS[layout] // 8)
        case LatentAttention():
            return _latent_row(attention, layout)
        case CompressedAttention():
            return _compressed_row(attention, layout)
        case GatedDeltaNet():
            return CacheRow(kv=0)
        case _:
            assert_never(attention)


def _latent_row(a: LatentAttention, layout: str) -> CacheRow:
    c, r = a.kv_lora_rank, a.qk_rope_head_dim
    plain = c + r
    rows = {
        "bf16": 2 * plain,
        "fp8": plain if a.topk is None else c + c // 128 * 4 + 2 * r,
        "fp8-plain": plain,
    }
    if a.topk is not None:
        rows["nvfp4"] = c // 2 + r + c // 16
    if layout not in rows:
        raise _no_layout(layout, "MLA", tuple(rows))
    return CacheRow(kv=rows[layout], index=0 if a.indexer is None else a.indexer.head_dim + 4)


def _compressed_row(a: CompressedAttention, layout: str) -> CacheRow:
    d, r = a.head_dim, a.rope_head_dim
    packed = (d - r) + 2 * r + -(-(d - r) // 64)
    i = a.indexer.head_dim if a.indexer is not None else 0
    rows = {
        "bf16": (2 * d, 2 * i),
        "fp8": (packed + 1, i + 4),
        "fp8-mxfp4-index": (packed + 1, i // 2 + i // 32),
        "ascend-910c": (2 * d, i + 2),
        "ascend-arch35": (-(-packed // 128) * 128, i + 4),
    }
    if layout not in rows:
        raise _no_layout(layout, "DeepSeek-V4", tuple(rows))
    kv, index = rows[layout]
    return CacheRow(kv=kv, index=index if a.indexer is not None else 0)


def _no_layout(layout: str, what: str, known: tuple[str, ...]) -> BadInput:
    return BadInput(f"KV layout '{layout}' does not exist for {what}. Known for it: {', '.join(known)}.")


def layouts_of(architecture: Architecture) -> tuple[str, ...]:
    """The layouts that exist for every layer of a model."""
    found = []
    for layout in LAYOUTS:
        try:
            for layer in architecture.layers:
                cache_row(layer.attention, layout)
        except BadInput:
            continue
        found.append(layout)
    return tuple(found)


def kv_bytes_per_token(architecture: Architecture, layout: str) -> Fraction:
    """What each further token of context adds to the cache, all layers; bounded windows and states add nothing.

    >>> from stepscope.models.hf_config import read_model
    >>> float(kv_bytes_per_token(read_model("deepseek-v4-flash"), "fp8"))
    3850.25
    """
    total = Fraction(0)
    for layer in architecture.layers:
        row, attention = cache_row(layer.attention, layout), layer.attention
        count = architecture.counts[layer.layer_type]
        if isinstance(attention, CompressedAttention):
            total += Fraction(count * (row.kv + row.index), attention.ratio) if attention.ratio else 0
        elif not (isinstance(attention, GroupedQueryAttention) and attention.window is not None):
            total += count * (row.kv + row.index)
    return total


def window_bytes_per_request(architecture: Architecture, layout: str) -> int:
    """What the sliding windows hold at most, all layers."""
    total = 0
    for layer in architecture.layers:
        attention = layer.attention
        if isinstance(attention, (CompressedAttention, GroupedQueryAttention)) and attention.window is not None:
            total += architecture.counts[layer.layer_type] * attention.window * cache_row(attention, layout).kv
    return total


def state_row_bytes(attention: CompressedAttention) -> tuple[int, int]:
    """FP32 state row of the compressor and of the indexer's compressor: 2 (1 + overlap) x dim x 4 B.

    >>> from stepscope.models.hf_config import read_model
    >>> [state_row_bytes(layer.attention) for layer in read_model("deepseek-v4-flash").layers[1:3]]
    [(8192, 2048), (4096, 0)]
    """
    if not attention.ratio:
        return 0, 0
    per_dim = 2 * overlap(attention) * 4
    return per_dim * attention.head_dim, per_dim * (attention.indexer.head_dim if attention.indexer is not None else 0)


def gdn_state_bytes(attention: GatedDeltaNet) -> tuple[int, int]:
    """(convolution state in bf16: conv_dim x (kernel - 1), recurrent state in fp32: heads x dk x dv) of one layer."""
    conv = attention.conv_dim * (attention.conv_kernel - 1) * 2
    return conv, attention.num_v_heads * attention.k_head_dim * attention.v_head_dim * 4


def state_bytes_per_request(architecture: Architecture) -> int:
    """Fixed state of one request, all layers: compressor rings (no speculation) and GDN states."""
    total = 0
    for layer in architecture.layers:
        count, attention = architecture.counts[layer.layer_type], layer.attention
        if isinstance(attention, GatedDeltaNet):
            total += count * sum(gdn_state_bytes(attention))
        elif isinstance(attention, CompressedAttention):
            total += count * attention.ratio * overlap(attention) * sum(state_row_bytes(attention))
    return total
