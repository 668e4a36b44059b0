"""Step: Architecture x rows x Deployment -> the operators of one engine step on one rank.

Operators stand in the order in which a layer runs them, one layer per type with its `count`; then the head.
Norms and activation functions move bytes and count no flop, as in the reference totals (only matrix products do).
Under pipeline parallelism the list still holds every layer: a step passes through all stages, one after another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from stepscope.batch import BatchShape
from stepscope.errors import BadInput
from stepscope.models.architecture import (
    Architecture,
    CompressedAttention,
    Draft,
    GatedDeltaNet,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    MoeFeedForward,
)
from stepscope.models.weight import (
    Weight,
    attention_part,
    draft_weights,
    feed_forward_part,
    head_weights,
    hyper_connection_weights,
)
from stepscope.operators.attention import gqa_cores, mla_cores
from stepscope.operators.collective import (
    attention_collectives,
    feed_forward_collectives,
    stage_hand_over,
    step_collectives,
)
from stepscope.operators.deployment import Deployment
from stepscope.operators.fusion import fuse
from stepscope.operators.gemm import activation_bytes, gemm, shard
from stepscope.operators.layer_context import LayerContext
from stepscope.operators.moe import expert_load, routed_gemm
from stepscope.operators.operator import Amount, GemmShape, Operator, Traffic
from stepscope.operators.recurrent import gdn_cores
from stepscope.operators.rows import StepRows
from stepscope.operators.sparse import dsa_cores, v4_cores


def step_operators(
    architecture: Architecture, shape: BatchShape | StepRows, deployment: Deployment | None = None
) -> tuple[Operator, ...]:
    """Every operator of one step, or of many steps at once (then amounts are arrays over the steps).

    >>> from stepscope.batch import Row
    >>> from stepscope.models.hf_config import read_model
    >>> shape = BatchShape.from_rows((Row(query_len=2048, context_len=0, phase="prefill"),))
    >>> sum(op.count * op.flop for op in step_operators(read_model("llama-3.1-8b"), shape))
    29688401494016

    Raises:
        BadInput: an impossible deployment, or a context that the model is not published for.
    """
    deployment = deployment or Deployment()
    deployment.check(architecture)
    rows = shape if isinstance(shape, StepRows) else StepRows.from_shapes([shape])
    limit = deployment.max_model_len or architecture.max_context_len
    if rows.max_kv_len > limit:
        raise BadInput(
            f"{architecture.name}: a row reaches {rows.max_kv_len} tokens, the model's limit is {limit}. "
            "Shorten the context, or raise the limit if the engine runs with rope scaling (--max-model-len; "
            "max_model_len in a sweep's plan)."
        )
    operators: list[Operator] = []
    model = LayerContext(architecture=architecture, deployment=deployment, rows=rows)
    operators.append(_embedding(model))
    for layer in architecture.layers:
        context = replace(model, layer=layer, count=architecture.counts[layer.layer_type])
        operators += layer_operators(context, layer)
    if deployment.plan.pp > 1:
        operators.append(stage_hand_over(replace(model, count=deployment.plan.pp - 1)))
    operators += _head(model)
    if deployment.draft_passes and architecture.draft is not None:
        operators += _draft(model, architecture.draft)
    return tuple(operators)


def layer_operators(context: LayerContext, layer: Layer) -> list[Operator]:
    """One decoder layer: attention sublayer, then feed-forward sublayer."""
    return [*_attention(context, layer), *_feed_forward(context, layer)]


def _draft(model: LayerContext, draft: Draft) -> list[Operator]:
    """Passes of the draft: MTP over the step's rows, DSpark over one block of noise tokens per decode row.

    Its head is the model's own; `layer_type` tells the draft's operators from the target's.
    """
    passes, architecture = model.deployment.draft_passes, model.architecture
    rows = model.rows if draft.kind == "mtp" else model.rows.with_decode_len(draft.block_len)
    once = replace(model, rows=rows, layer=replace(draft.layer, layer_type=draft.kind), count=passes)
    staged = replace(once, count=passes * draft.num_stages)
    target_tokens = ("main_proj", "context_wkv")  # these read the target's hidden states
    extra = [
        gemm(once, shard(w, model.deployment.plan), model.num_tokens if w.name in target_tokens else once.num_tokens)
        for w in draft_weights(draft, architecture.hidden_size, architecture.vocab_size)
    ]
    return [*extra, *layer_operators(staged, draft.layer), *_head(once)]


def _attention(context: LayerContext, layer: Layer) -> list[Operator]:
    architecture, attention, plan = context.architecture, layer.attention, context.deployment.plan
    num_kv_heads = attention.num_kv_heads if isinstance(attention, GroupedQueryAttention) else 0
    weights = fuse(
        [shard(w, plan, num_kv_heads) for w in attention_part(layer, architecture.hidden_size)],
        context.deployment.fusion,
    )
    weights = tuple(w for w in weights if w.role != "attn_kvb")  # the cores bring it, in the form they need
    before = [w for w in weights if w.split not in ("rows", "groups")]
    after = [w for w in weights if w.split in ("rows", "groups")]
    match attention:
        case GroupedQueryAttention():
            cores = gqa_cores(context, attention)
        case LatentAttention():
            cores = mla_cores(context, attention) if attention.topk is None else dsa_cores(context, attention)
        case CompressedAttention():
            cores = v4_cores(context, attention)
        case GatedDeltaNet():
            cores = gdn_cores(context, attention)
        case _:
            assert_never(attention)
    return [
        *_sublayer_entry(context, "attn"),
        *(gemm(context, w, context.num_tokens) for w in before),
        *cores,
        *(gemm(context, w, context.num_tokens) for w in after),
        *attention_collectives(context, cores),
        *_sublayer_exit(context, "attn"),
    ]


def _feed_forward(context: LayerContext, layer: Layer) -> list[Operator]:
    ffn, plan, tokens = layer.feed_forward, context.deployment.plan, context.num_tokens
    load = expert_load(context, ffn) if isinstance(ffn, MoeFeedForward) else None
    found = _sublayer_entry(context, "ffn")
    for whole in feed_forward_part(layer, context.architecture.hidden_size):
        weight = shard(whole, plan)
        if whole.experts and load is not None:
            found.append(routed_gemm(context, weight, load))
        else:
            found.append(gemm(context, weight, tokens))
        if whole.name in ("gate_up_proj", "experts_w13", "shared_w13"):
            rows = load.copies if whole.experts and load is not None else tokens
            found.append(_gate(context, whole, weight.n // 2, rows))
    return [*found, *feed_forward_collectives(context), *_sublayer_exit(context, "ffn")]


def _gate(context: LayerContext, weight: Weight, width: int, rows: Amount) -> Operator:
    """silu(gate) x up between the two matrices of an FFN."""
    return context.operator(
        name=weight.name.removesuffix("_w13").removesuffix("_proj") + "_act",
        role="activation",
        kind="elementwise",
        traffic=Traffic(
            read=activation_bytes("bf16", rows * (2 * width)), written=activation_bytes("bf16", rows * width)
        ),
    )


def _sublayer_entry(context: LayerContext, part: str) -> list[Operator]:
    """MHC's coefficients where the model has them, and the norm (with the residual added)."""
    h, hc, tokens = context.architecture.hidden_size, context.architecture.hc_mult, context.num_tokens
    name = f"hc_{part}_fn"
    found = [gemm(context, w, tokens) for w in hyper_connection_weights(hc, h) if w.name == name]
    moved = activation_bytes("bf16", tokens * (2 * h))
    norm = context.operator(name=f"{part}_norm", role="norm", kind="norm", traffic=Traffic(read=moved, written=moved))
    return [*found, norm]


def _sublayer_exit(context: LayerContext, part: str) -> list[Operator]:
    """MHC's mixing of the residual streams: [hc, hc] x [hc, H] per token, no weights."""
    h, hc, tokens = context.architecture.hidden_size, context.architecture.hc_mult, context.num_tokens
    if hc == 1:
        return []
    moved = activation_bytes("bf16", tokens * (hc * h))
    return [
        context.operator(
            name=f"hc_{part}_comb",
            role="mhc_mix",
            kind="batched_gemm",
            flop=2 * tokens * hc * h * hc,
            traffic=Traffic(read=moved, written=moved),
            shape=GemmShape(m=tokens, n=h, k=hc, groups=hc),
        )
    ]


def _embedding(context: LayerContext) -> Operator:
    moved = activation_bytes("bf16", context.num_tokens * context.architecture.hidden_size)
    return context.operator(
        name="embed_tokens", role="embed", kind="embedding", traffic=Traffic(weight=moved, written=moved)
    )


def _head(context: LayerContext) -> list[Operator]:
    """Final norm, mHC's collapse over all tokens, logits of the rows that need them."""
    architecture, plan = context.architecture, context.deployment.plan
    moved = activation_bytes("bf16", context.num_tokens * (2 * architecture.hidden_size))
    norm = context.operator(name="final_norm", role="norm", kind="norm", traffic=Traffic(read=moved, written=moved))
    gemms = [
        gemm(context, shard(w, plan), context.rows.num_logits if w.role == "lm_head" else context.num_tokens)
        for w in head_weights(architecture)
    ]
    return [*gemms[:-1], norm, gemms[-1], *step_collectives(context, plan)]
