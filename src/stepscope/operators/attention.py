"""Attention cores over all of the history or a window: GQA, and MLA absorbed and expanded.

h: heads of this rank, d: head dim, c: kv_lora_rank, no / ro: q-k dims without and with RoPE, v: value dim.
P: Σ over queries of the rows each attends to (causal; at most `window` or `topk`), T: tokens, K: history rows.
GQA: 4 h d P.  MLA expanded: 2 h (no + ro + v) P, and kv_b over K rows.  MLA absorbed: 2 h (2 c + ro) P, and
2 h c (no + v) T for W_UK on the queries and W_UV on the outputs.
Sources: DeepSeek-V2 paper, section 2.1 and appendix C; vLLM mla_attention.py; docs/models.md.
"""

from __future__ import annotations

from stepscope.models.architecture import GroupedQueryAttention, LatentAttention
from stepscope.models.kv_layout import cache_row
from stepscope.models.weight import Weight
from stepscope.operators.gemm import activation_bytes, gemm, shard
from stepscope.operators.layer_context import LayerContext, per_rank
from stepscope.operators.operator import Amount, AttentionWork, Dtypes, Operator, OperatorKind, Traffic
from stepscope.operators.rows import Phase, PhaseRows


def phase_tokens(context: LayerContext, phase: Phase, rows: PhaseRows) -> Amount:
    """Queries of a phase on this rank: context parallelism splits those of prefill, and the KV of decode."""
    return per_rank(rows.num_tokens, context.deployment.plan.cp) if phase == "prefill" else rows.num_tokens


def rank_kv_rows(context: LayerContext, phase: Phase, kv_rows: Amount) -> Amount:
    """History rows that this rank reads: all of them in prefill (they are gathered), its share in decode."""
    return kv_rows if phase == "prefill" else per_rank(kv_rows, context.deployment.plan.cp)


def core(
    context: LayerContext, *, kind: OperatorKind, flop_per_pair: int, row_bytes: int, work: AttentionWork
) -> Operator:
    """An attention core: queries in, outputs out, each history row once."""
    heads, queries = work.num_heads, work.queries
    return context.operator(
        name=f"attn_{work.phase}",
        role="core",
        kind=kind,
        flop=flop_per_pair * work.pairs,
        traffic=Traffic(
            read=activation_bytes("bf16", queries * (heads * work.qk_head_dim)),
            written=activation_bytes("bf16", queries * (heads * work.v_head_dim)),
            kv_read=work.kv_rows * row_bytes,
        ),
        dtypes=Dtypes(kv=context.deployment.kv),
        work=work,
    )


def kv_write(context: LayerContext, written: Amount, *, name: str = "kv_write") -> Operator:
    """The new rows on their way into the cache, the indexer's under a name of their own."""
    return context.operator(
        name=name,
        role="kv",
        kind="elementwise",
        traffic=Traffic(kv_written=per_rank(written, context.deployment.plan.cp)),
        dtypes=Dtypes(kv=context.deployment.kv),
    )


def gqa_cores(context: LayerContext, attention: GroupedQueryAttention) -> list[Operator]:
    """One core per phase, and the KV write."""
    plan, rows, d = context.deployment.plan, context.rows, attention.head_dim
    heads, kv_heads = attention.num_heads // plan.tp, max(1, attention.num_kv_heads // plan.tp)
    row_bytes = cache_row(attention, context.deployment.kv).kv // attention.num_kv_heads * kv_heads
    found = []
    for phase, part in context.phases:
        seen = part.num_kv if attention.window is None else part.window_rows(attention.window)
        work = AttentionWork(
            phase=phase,
            num_heads=heads,
            num_kv_heads=kv_heads,
            qk_head_dim=d,
            v_head_dim=d,
            rows=part.num_rows,
            queries=phase_tokens(context, phase, part),
            pairs=per_rank(part.pairs(attention.window), plan.cp),
            kv_rows=rank_kv_rows(context, phase, seen),
            history=part.num_kv,
        )
        found.append(core(context, kind="attention", flop_per_pair=4 * heads * d, row_bytes=row_bytes, work=work))
    return [*found, kv_write(context, rows.num_tokens * row_bytes)]


def mla_cores(context: LayerContext, attention: LatentAttention) -> list[Operator]:
    """One core per phase in its form, what the form needs around it, and the KV write."""
    row_bytes, form = cache_row(attention, context.deployment.kv).kv, context.deployment.mla
    found: list[Operator] = []
    for phase, part in context.phases:
        is_absorbed = form == "absorbed" or (form == "auto" and phase == "decode")
        found += (absorbed if is_absorbed else expanded)(context, attention, phase, part)
    return [*found, kv_write(context, context.rows.num_tokens * row_bytes)]


def absorbed(context: LayerContext, a: LatentAttention, phase: Phase, part: PhaseRows) -> list[Operator]:
    """Attention on the latent rows, with W_UK and W_UV around it."""
    plan, heads = context.deployment.plan, a.num_heads // context.deployment.plan.tp
    queries = phase_tokens(context, phase, part)
    seen = part.num_kv if a.topk is None else part.selected_rows(a.topk)
    work = AttentionWork(
        phase=phase,
        num_heads=heads,
        num_kv_heads=1,
        qk_head_dim=a.kv_lora_rank + a.qk_rope_head_dim,
        v_head_dim=a.kv_lora_rank,
        rows=part.num_rows,
        queries=queries,
        pairs=per_rank(part.pairs(a.topk), plan.cp),
        kv_rows=rank_kv_rows(context, phase, seen),
        history=part.num_kv,
    )
    w_uk = Weight(name=f"w_uk_{phase}", role="attn_kvb", k=a.qk_nope_head_dim, n=a.kv_lora_rank, groups=heads)
    w_uv = Weight(name=f"w_uv_{phase}", role="attn_kvb", k=a.kv_lora_rank, n=a.v_head_dim, groups=heads)
    return [
        gemm(context, w_uk, queries),
        core(
            context,
            kind="attention" if a.topk is None else "sparse_attention",
            flop_per_pair=2 * heads * (2 * a.kv_lora_rank + a.qk_rope_head_dim),
            row_bytes=cache_row(a, context.deployment.kv).kv,
            work=work,
        ),
        gemm(context, w_uv, queries),
    ]


def expanded(context: LayerContext, a: LatentAttention, phase: Phase, part: PhaseRows) -> list[Operator]:
    """Dense attention on the expanded keys and values; rows of earlier steps are gathered from the cache first."""
    plan, heads = context.deployment.plan, a.num_heads // context.deployment.plan.tp
    qk, latent = a.qk_nope_head_dim + a.qk_rope_head_dim, a.kv_lora_rank + a.qk_rope_head_dim
    kv_b = Weight(
        name="kv_b_proj",
        role="attn_kvb",
        k=a.kv_lora_rank,
        n=a.num_heads * (a.qk_nope_head_dim + a.v_head_dim),
        split="columns",
    )
    earlier = part.num_kv - part.num_tokens
    gather = context.operator(
        name="kv_gather",
        role="kv",
        kind="elementwise",
        traffic=Traffic(
            kv_read=earlier * cache_row(a, context.deployment.kv).kv,
            written=activation_bytes("bf16", earlier * latent),
        ),
        dtypes=Dtypes(kv=context.deployment.kv),
    )
    work = AttentionWork(
        phase=phase,
        num_heads=heads,
        num_kv_heads=heads,
        qk_head_dim=qk,
        v_head_dim=a.v_head_dim,
        rows=part.num_rows,
        queries=phase_tokens(context, phase, part),
        pairs=per_rank(part.pairs(), plan.cp),
        kv_rows=part.num_kv,
        history=part.num_kv,
    )
    row_bytes = 2 * heads * (qk + a.v_head_dim)
    dense = core(
        context, kind="attention", flop_per_pair=2 * heads * (qk + a.v_head_dim), row_bytes=row_bytes, work=work
    )
    return [gather, gemm(context, shard(kv_b, plan), part.num_kv), dense]
