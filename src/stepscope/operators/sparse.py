"""Sparse attention: the DSA indexer, and DeepSeek-V4's window, compressed history, indexer and compressor state.

h: heads of this rank, d: head dim, ih / id: index heads and dim, t: position of a query, itself included (1-based).
DSA indexer: 2 ih id Σ t.  V4: 4 h d Σ (min(t, W) + {0 | min(topk, t // 4) | t // 128}), indexer 2 ih id Σ t // 4.
Scores are fp32 and go through memory once each way to the top-k. The indexer is replicated over tp.
Engines leave the indexer out while no history passes its top-k (vLLM 0.32 sparse_mla_attention.py,
deepseek_v4/attention.py): in prefill; V4's scores also in decode that runs without captured graphs.
"""

from __future__ import annotations

from stepscope.models.architecture import CompressedAttention, Indexer, LatentAttention
from stepscope.models.kv_layout import cache_row, state_row_bytes
from stepscope.models.weight import overlap
from stepscope.operators.attention import absorbed, core, expanded, kv_write, phase_tokens, rank_kv_rows
from stepscope.operators.gemm import activation_bytes
from stepscope.operators.layer_context import LayerContext, per_rank
from stepscope.operators.operator import Amount, AttentionWork, Dtypes, Operator, Traffic
from stepscope.operators.rows import Phase, PhaseRows


def dsa_cores(context: LayerContext, attention: LatentAttention) -> list[Operator]:
    """Indexer (where the layer has one), absorbed core over the selected rows, writes into the cache.

    Where the engine goes dense on short prefill, the steps that are short have the expanded core and no indexer.
    """
    row, topk = cache_row(attention, context.deployment.kv), attention.topk or 0
    found: list[Operator] = []
    for phase, part in context.phases:
        short, scored = _short_and_long(context, part, topk if phase == "prefill" else 0)
        if short.query_len.size:
            found += expanded(context, attention, phase, short)
        if not scored.query_len.size:
            continue
        if attention.indexer is not None:
            found += _index(context, attention.indexer, phase, scored, ratio=1, row_bytes=row.index)
        found += absorbed(context, attention, phase, scored)
    if attention.indexer is not None:
        found.append(kv_write(context, context.rows.num_tokens * row.index, name="index_write"))
    return [*found, kv_write(context, context.rows.num_tokens * row.kv)]


def _short_and_long(context: LayerContext, part: PhaseRows, longest: int) -> tuple[PhaseRows, PhaseRows]:
    """Rows of the steps for which the engine leaves the indexer out, and the others."""
    return part.split_by_length(longest if context.deployment.skips_short_index else 0)


def _index(
    context: LayerContext, indexer: Indexer, phase: Phase, part: PhaseRows, *, ratio: int, row_bytes: int
) -> list[Operator]:
    """Scores of every visible row, and the choice among them."""
    plan = context.deployment.plan
    pairs = per_rank(part.pairs() if ratio == 1 else part.closed_pairs(ratio), plan.cp)
    seen = part.num_kv if ratio == 1 else part.closed_rows(ratio)
    queries = phase_tokens(context, phase, part)
    work = AttentionWork(
        phase=phase,
        num_heads=indexer.num_heads,
        num_kv_heads=1,
        qk_head_dim=indexer.head_dim,
        v_head_dim=0,
        rows=part.num_rows,
        queries=queries,
        pairs=pairs,
        kv_rows=rank_kv_rows(context, phase, seen),
        history=part.num_kv,
    )
    dtypes = Dtypes(output="fp32", kv=context.deployment.kv)
    scores = context.operator(
        name=f"index_scores_{phase}",
        role="index_core",
        kind="indexer",
        flop=2 * indexer.num_heads * indexer.head_dim * pairs,
        traffic=Traffic(
            read=activation_bytes("bf16", queries * (indexer.num_heads * (indexer.head_dim + 1))),
            written=4 * pairs,
            kv_read=work.kv_rows * row_bytes,
        ),
        dtypes=dtypes,
        work=work,
    )
    choice = context.operator(
        name=f"index_topk_{phase}",
        role="index_topk",
        kind="indexer",
        traffic=Traffic(read=4 * pairs, written=4 * queries * indexer.topk),
        dtypes=dtypes,
    )
    return [scores, choice]


def v4_cores(context: LayerContext, attention: CompressedAttention) -> list[Operator]:
    """Compressor state, indexer, core and KV writes of a V4 layer."""
    row, rows = cache_row(attention, context.deployment.kv), context.rows
    found: list[Operator] = []
    windows: Amount = 0
    if attention.ratio:
        found.append(_state(context, attention))
        windows = rows.prefill.new_windows(attention.ratio) + rows.decode.new_windows(attention.ratio)
    for phase, part in context.phases:
        if attention.indexer is not None:
            longest = (attention.indexer.topk + 1) * attention.ratio - 1  # max_seq_len // ratio <= topk
            is_skipped = phase == "prefill" or context.deployment.is_eager
            scored = _short_and_long(context, part, longest if is_skipped else 0)[1]
            if scored.query_len.size:
                found += _index(context, attention.indexer, phase, scored, ratio=attention.ratio, row_bytes=row.index)
        found.append(_v4_core(context, attention, phase, part))
    if attention.indexer is not None:
        found.append(kv_write(context, windows * row.index, name="index_write"))
    return [*found, kv_write(context, (rows.num_tokens + windows) * row.kv)]


def _v4_core(context: LayerContext, a: CompressedAttention, phase: Phase, part: PhaseRows) -> Operator:
    plan, heads = context.deployment.plan, a.num_heads // context.deployment.plan.tp
    pairs, seen = part.pairs(a.window), part.window_rows(a.window)
    if a.ratio:
        topk = None if a.indexer is None else a.indexer.topk
        pairs = pairs + part.closed_pairs(a.ratio, topk)
        seen = seen + part.closed_rows(a.ratio, topk)
    work = AttentionWork(
        phase=phase,
        num_heads=heads,
        num_kv_heads=1,
        qk_head_dim=a.head_dim,
        v_head_dim=a.head_dim,
        rows=part.num_rows,
        queries=phase_tokens(context, phase, part),
        pairs=per_rank(pairs, plan.cp),
        kv_rows=rank_kv_rows(context, phase, seen),
        history=part.num_kv,
    )
    return core(
        context,
        kind="sparse_attention" if a.ratio else "attention",
        flop_per_pair=4 * heads * a.head_dim,
        row_bytes=cache_row(a, context.deployment.kv).kv,
        work=work,
    )


def _state(context: LayerContext, a: CompressedAttention) -> Operator:
    """FP32 state: rows that stay behind are written, rows of earlier steps are read when their window closes."""
    row_bytes, laps = sum(state_row_bytes(a)), overlap(a)
    ring = a.ratio * laps
    parts = (context.rows.prefill, context.rows.decode)
    read = parts[0].pending_rows(a.ratio, laps) + parts[1].pending_rows(a.ratio, laps)
    written = parts[0].state_rows(ring) + parts[1].state_rows(ring)
    return context.operator(
        name="compressor_state",
        role="state",
        kind="state",
        traffic=Traffic(kv_read=read * row_bytes, kv_written=written * row_bytes),
        dtypes=Dtypes(activation="fp32", output="fp32", compute="fp32"),
    )
