"""History: what one decode query reads of a context of L tokens (itself included), branch by branch.

Branches: dense (all rows), sliding_window (min(L, W)), c4 (min(topk, L // 4)), indexer (L // 4, or L in DSA),
dsa_topk (min(topk, L)), c128 (L // 128), state (GDN: one state, whatever L).
rows: read by the kernel, closed windows only; stored_rows: ceil(L / ratio), what the cache needs room for.
bytes = rows x row bytes of the layout: a payload, not what memory really moves (pages, caches and reuse change it).
flop are those of the attention core (or of the indexer's scores) for this query. Source: the second founding note, 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepscope.errors import BadInput
from stepscope.models.architecture import (
    Architecture,
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    Indexer,
)
from stepscope.models.kv_layout import cache_row, gdn_state_bytes, state_row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One branch of one layer type at one context; rows, bytes and flop are of ONE layer and one query."""

    layer_type: str
    layers: int
    branch: str
    rows: int
    stored_rows: int
    row_bytes: int
    flop: int

    @property
    def payload_bytes(self) -> int:
        """What the rows hold."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTotal:
    """One branch over all layers, and its share of decode attention's bytes and flop."""

    branch: str
    layers: int
    rows: int
    layer_bytes: int
    layer_flop: int
    total_bytes: int
    total_flop: int
    bytes_fraction: float
    flop_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """A row of compressor state in one layer type."""

    layer_type: str
    name: str
    row_bytes: int


def history_branches(architecture: Architecture, kv_len: int, layout: str) -> tuple[Branch, ...]:
    """Every branch of every layer type for a query that sees `kv_len` tokens.

    >>> from stepscope.models.hf_config import read_model
    >>> found = history_branches(read_model("deepseek-v4-flash"), 8192, "ascend-910c")
    >>> [(b.branch, b.rows, b.payload_bytes) for b in found if b.layer_type == "csa_c4"]
    [('sliding_window', 128, 131072), ('c4', 512, 524288), ('indexer', 2048, 266240)]

    Raises:
        BadInput: a context below 1 or beyond the model's limit, or a layout that does not exist for it.
    """
    if not 1 <= kv_len <= architecture.max_context_len:
        raise BadInput(
            f"{architecture.name}: a context of {kv_len} tokens; 1 to {architecture.max_context_len} was expected."
        )
    return tuple(
        Branch(
            layer_type=layer.layer_type,
            layers=architecture.counts[layer.layer_type],
            branch=part.branch,
            rows=part.rows,
            stored_rows=part.stored_rows,
            row_bytes=part.row_bytes,
            flop=part.flop_per_row * part.rows,
        )
        for layer in architecture.layers
        for part in _parts(layer.attention, kv_len, layout)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    branch: str
    rows: int
    stored_rows: int
    row_bytes: int
    flop_per_row: int


def _parts(attention: Attention, length: int, layout: str) -> Iterator[_Part]:
    row = cache_row(attention, layout)
    if isinstance(attention, GatedDeltaNet):
        state = attention.num_v_heads * attention.k_head_dim * attention.v_head_dim
        size = sum(gdn_state_bytes(attention))
        yield _Part(branch="state", rows=1, stored_rows=1, row_bytes=size, flop_per_row=8 * state)
        return
    if isinstance(attention, CompressedAttention):
        yield from _compressed_parts(attention, length, layout)
        return
    if isinstance(attention, GroupedQueryAttention):
        seen = length if attention.window is None else min(length, attention.window)
        name = "dense" if attention.window is None else "sliding_window"
        per_row = 4 * attention.num_heads * attention.head_dim
        yield _Part(branch=name, rows=seen, stored_rows=seen, row_bytes=row.kv, flop_per_row=per_row)
        return
    per_row = 2 * attention.num_heads * (2 * attention.kv_lora_rank + attention.qk_rope_head_dim)
    seen = length if attention.topk is None else min(length, attention.topk)
    name = "dense" if attention.topk is None else "dsa_topk"
    yield _Part(branch=name, rows=seen, stored_rows=length, row_bytes=row.kv, flop_per_row=per_row)
    if attention.indexer is not None:
        yield _index_part(attention.indexer, length, length, row.index)


def _compressed_parts(a: CompressedAttention, length: int, layout: str) -> Iterator[_Part]:
    row, per_row = cache_row(a, layout), 4 * a.num_heads * a.head_dim
    seen = min(length, a.window)
    yield _Part(branch="sliding_window", rows=seen, stored_rows=seen, row_bytes=row.kv, flop_per_row=per_row)
    if not a.ratio:
        return
    closed, stored = length // a.ratio, -(-length // a.ratio)
    picked = closed if a.indexer is None else min(closed, a.indexer.topk)
    yield _Part(branch=f"c{a.ratio}", rows=picked, stored_rows=stored, row_bytes=row.kv, flop_per_row=per_row)
    if a.indexer is not None:
        yield _index_part(a.indexer, closed, stored, row.index)


def _index_part(indexer: Indexer, rows: int, stored: int, row_bytes: int) -> _Part:
    per_row = 2 * indexer.num_heads * indexer.head_dim
    return _Part(branch="indexer", rows=rows, stored_rows=stored, row_bytes=row_bytes, flop_per_row=per_row)


def branch_totals(branches: tuple[Branch, ...]) -> tuple[BranchTotal, ...]:
    """The branches of all layer types put together."""
    all_bytes = sum(b.layers * b.payload_bytes for b in branches)
    all_flop = sum(b.layers * b.flop for b in branches)
    totals = []
    for name in dict.fromkeys(b.branch for b in branches):
        same = [b for b in branches if b.branch == name]
        moved, flop = sum(b.layers * b.payload_bytes for b in same), sum(b.layers * b.flop for b in same)
        totals.append(
            BranchTotal(
                branch=name,
                layers=sum(b.layers for b in same),
                rows=same[0].rows,
                layer_bytes=same[0].payload_bytes,
                layer_flop=same[0].flop,
                total_bytes=moved,
                total_flop=flop,
                bytes_fraction=moved / all_bytes,
                flop_fraction=flop / all_flop,
            )
        )
    return tuple(totals)


def state_rows(architecture: Architecture) -> tuple[StateRow, ...]:
    """The fp32 state rows of V4's compressors."""
    found = []
    for layer in architecture.layers:
        if isinstance(layer.attention, CompressedAttention) and layer.attention.ratio:
            kv, index = state_row_bytes(layer.attention)
            found.append(StateRow(layer_type=layer.layer_type, name=f"c{layer.attention.ratio}", row_bytes=kv))
            if index:
                found.append(StateRow(layer_type=layer.layer_type, name="indexer", row_bytes=index))
    return tuple(found)
