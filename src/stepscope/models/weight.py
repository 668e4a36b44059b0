"""Weight: the matrices of each layer, who shares them, and how many parameters a model has.

[m, k] x [k, n], `groups` times side by side (per head, per output group), `experts` copies of which a token uses top_k.
split: what a tensor-parallel rank holds: columns (n / tp), rows (k / tp), groups (groups / tp), vocabulary (n / tp),
kv_columns (n / tp, at least one KV head), experts (experts / ep, the rest by columns or rows), replicated.
Names and roles are those of the transformers models; what engines fuse is in `operators/fusion.py`.
Small vectors (norms, biases of mHC, sinks, APE) are counted once a layer; router biases and tables are buffers in
transformers and are not counted. Checked against torch's meta device, 2026-11 (docs/models.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from stepscope.models.architecture import (
    Architecture,
    Attention,
    CompressedAttention,
    DenseFeedForward,
    Draft,
    FeedForward,
    GatedDeltaNet,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
)

FEED_FORWARD_ROLES = ("dense_mlp", "router", "moe_routed", "moe_shared")
Split = Literal["replicated", "columns", "kv_columns", "rows", "groups", "vocabulary", "expert_columns", "expert_rows"]
Storage = Literal["projection", "expert", "kept", "fp32"]  # kept: never quantised in the published checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One matrix, or `groups` of them, or one per expert. `bias`: elements of its bias vector."""

    name: str
    role: str
    k: int
    n: int
    groups: int = 1
    experts: int = 0
    split: Split = "replicated"
    storage: Storage = "projection"
    bias: bool = False

    @property
    def params(self) -> int:
        """Elements, biases included."""
        return (self.k * self.n * self.groups + (self.n if self.bias else 0)) * (self.experts or 1)


def attention_weights(attention: Attention, hidden_size: int) -> tuple[Weight, ...]:
    """The projections of an attention, in the order of their use."""
    match attention:
        case GroupedQueryAttention():
            return _gqa_weights(attention, hidden_size)
        case LatentAttention():
            return _mla_weights(attention, hidden_size)
        case CompressedAttention():
            return _v4_weights(attention, hidden_size)
        case GatedDeltaNet():
            return _gdn_weights(attention, hidden_size)
        case _:
            assert_never(attention)


def _gqa_weights(a: GroupedQueryAttention, h: int) -> tuple[Weight, ...]:
    q, kv, bias = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, a.has_bias
    return (
        Weight(name="q_proj", role="attn_proj", k=h, n=q * (2 if a.has_output_gate else 1), split="columns", bias=bias),
        Weight(name="k_proj", role="attn_proj", k=h, n=kv, split="kv_columns", bias=bias),
        Weight(name="v_proj", role="attn_proj", k=h, n=kv, split="kv_columns", bias=bias),
        Weight(name="o_proj", role="attn_proj", k=q, n=h, split="rows", bias=bias),
    )


def _mla_weights(a: LatentAttention, h: int) -> tuple[Weight, ...]:
    heads, qk = a.num_heads, a.qk_nope_head_dim + a.qk_rope_head_dim
    weights = [
        Weight(name="q_a_proj", role="attn_proj", k=h, n=a.q_lora_rank),
        Weight(name="q_b_proj", role="attn_proj", k=a.q_lora_rank, n=heads * qk, split="columns"),
        Weight(name="kv_a_proj_with_mqa", role="attn_proj", k=h, n=a.kv_lora_rank + a.qk_rope_head_dim),
        Weight(
            name="kv_b_proj",
            role="attn_kvb",
            k=a.kv_lora_rank,
            n=heads * (a.qk_nope_head_dim + a.v_head_dim),
            split="columns",
        ),
        Weight(name="o_proj", role="attn_proj", k=heads * a.v_head_dim, n=h, split="rows"),
    ]
    if a.indexer is not None:
        index = a.indexer
        weights += [
            Weight(name="indexer_wq_b", role="indexer", k=a.q_lora_rank, n=index.num_heads * index.head_dim),
            Weight(name="indexer_wk", role="indexer", k=h, n=index.head_dim),
            Weight(name="indexer_weights_proj", role="indexer", k=h, n=index.num_heads, storage="kept"),
        ]
    return tuple(weights)


def _v4_weights(a: CompressedAttention, h: int) -> tuple[Weight, ...]:
    q = a.num_heads * a.head_dim
    weights = [
        Weight(name="wq_a", role="attn_proj", k=h, n=a.q_lora_rank),
        Weight(name="wkv", role="attn_proj", k=h, n=a.head_dim),
        Weight(name="wq_b", role="attn_proj", k=a.q_lora_rank, n=q, split="columns"),
        Weight(name="wo_a", role="attn_proj", k=q // a.o_groups, n=a.o_lora_rank, groups=a.o_groups, split="groups"),
        Weight(name="wo_b", role="attn_proj", k=a.o_groups * a.o_lora_rank, n=h, split="rows"),
    ]
    if a.ratio:
        n = a.head_dim * overlap(a)
        weights += [
            Weight(name="compressor_wkv", role="compressor", k=h, n=n, storage="kept"),
            Weight(name="compressor_wgate", role="compressor", k=h, n=n, storage="kept"),
        ]
    if a.indexer is not None:
        index = a.indexer
        n = index.head_dim * overlap(a)
        weights += [
            Weight(name="indexer_wq_b", role="indexer", k=a.q_lora_rank, n=index.num_heads * index.head_dim),
            Weight(name="indexer_weights_proj", role="indexer", k=h, n=index.num_heads, storage="kept"),
            Weight(name="indexer_compressor_wkv", role="indexer", k=h, n=n, storage="kept"),
            Weight(name="indexer_compressor_wgate", role="indexer", k=h, n=n, storage="kept"),
        ]
    return tuple(weights)


def overlap(attention: CompressedAttention) -> int:
    """Windows that one token belongs to: C4's overlap with their predecessor, C128's do not."""
    return 2 if attention.ratio == 4 else 1


def _gdn_weights(a: GatedDeltaNet, h: int) -> tuple[Weight, ...]:
    qk, v = a.num_k_heads * a.k_head_dim, a.num_v_heads * a.v_head_dim
    return (
        Weight(name="in_proj_qkvz", role="gdn_proj", k=h, n=2 * qk + 2 * v, split="columns"),
        Weight(name="in_proj_ba", role="gdn_proj", k=h, n=2 * a.num_v_heads, split="columns", storage="kept"),
        Weight(name="out_proj", role="gdn_proj", k=v, n=h, split="rows"),
    )


def feed_forward_weights(ffn: FeedForward, hidden_size: int) -> tuple[Weight, ...]:
    """The matrices of a feed-forward part; gate and up are one matrix, as in every engine."""
    h, size = hidden_size, ffn.intermediate_size
    if isinstance(ffn, DenseFeedForward):
        return (
            Weight(name="gate_up_proj", role="dense_mlp", k=h, n=2 * size, split="columns"),
            Weight(name="down_proj", role="dense_mlp", k=size, n=h, split="rows"),
        )
    e, bias = ffn.num_experts, ffn.has_bias
    weights = [
        Weight(name="router" if bias else "gate", role="router", k=h, n=e, storage="kept", bias=bias),
        Weight(
            name="experts_w13",
            role="moe_routed",
            k=h,
            n=2 * size,
            experts=e,
            split="expert_columns",
            storage="expert",
            bias=bias,
        ),
        Weight(
            name="experts_w2",
            role="moe_routed",
            k=size,
            n=h,
            experts=e,
            split="expert_rows",
            storage="expert",
            bias=bias,
        ),
    ]
    if ffn.shared_intermediate_size:
        shared = ffn.shared_intermediate_size
        weights += [
            Weight(name="shared_w13", role="moe_shared", k=h, n=2 * shared, split="columns"),
            Weight(name="shared_w2", role="moe_shared", k=shared, n=h, split="rows"),
        ]
    if ffn.has_shared_gate:
        weights.append(Weight(name="shared_expert_gate", role="moe_shared", k=h, n=1, storage="kept"))
    return tuple(weights)


def hyper_connection_weights(hc_mult: int, hidden_size: int) -> tuple[Weight, ...]:
    """MHC's two fp32 projections of a layer: pre (hc), post (hc) and mixing (hc x hc) coefficients each."""
    if hc_mult == 1:
        return ()
    k, n = hc_mult * hidden_size, hc_mult * (2 + hc_mult)
    return tuple(Weight(name=f"hc_{part}_fn", role="mhc", k=k, n=n, storage="fp32") for part in ("attn", "ffn"))


def attention_part(layer: Layer, hidden_size: int) -> tuple[Weight, ...]:
    """The matrices of a layer's attention, traced or by the family's rule."""
    if layer.weights is None:
        return attention_weights(layer.attention, hidden_size)
    return tuple(w for w in layer.weights if w.role not in FEED_FORWARD_ROLES)


def feed_forward_part(layer: Layer, hidden_size: int) -> tuple[Weight, ...]:
    """The matrices of a layer's feed-forward, traced or by the family's rule."""
    if layer.weights is None:
        return feed_forward_weights(layer.feed_forward, hidden_size)
    return tuple(w for w in layer.weights if w.role in FEED_FORWARD_ROLES)


def layer_weights(layer: Layer, architecture: Architecture) -> tuple[Weight, ...]:
    """Every matrix of one layer."""
    h = architecture.hidden_size
    return (
        *attention_part(layer, h),
        *hyper_connection_weights(architecture.hc_mult, h),
        *feed_forward_part(layer, h),
    )


def head_weights(architecture: Architecture) -> tuple[Weight, ...]:
    """What stands after the layers: mHC's collapse and the vocabulary projection."""
    h, hc = architecture.hidden_size, architecture.hc_mult
    lm_head = Weight(name="lm_head", role="lm_head", k=h, n=architecture.vocab_size, split="vocabulary", storage="kept")
    if hc == 1:
        return (lm_head,)
    return (Weight(name="hc_head_fn", role="mhc", k=hc * h, n=hc, storage="fp32"), lm_head)


def draft_weights(draft: Draft, hidden_size: int, vocab_size: int) -> tuple[Weight, ...]:
    """What a draft has beside its layers (sources: SGLang deepseek_nextn.py, vLLM dspark.py, 2026-11)."""
    h = hidden_size
    if draft.kind == "mtp" and isinstance(draft.layer.attention, LatentAttention):
        return (Weight(name="eh_proj", role="draft", k=2 * h, n=h),)
    if draft.kind == "mtp":
        return (
            Weight(name="e_proj", role="draft", k=h, n=h),
            Weight(name="h_proj", role="draft", k=h, n=h),
        )
    attention = draft.layer.attention
    width = attention.head_dim if isinstance(attention, CompressedAttention) else h
    rank = draft.markov_rank
    return (
        Weight(name="main_proj", role="draft", k=draft.target_layers * h, n=h),
        Weight(name="context_wkv", role="draft", k=h, n=draft.num_stages * width),
        Weight(name="markov_head", role="draft", k=rank, n=vocab_size, split="vocabulary", storage="kept"),
        Weight(name="confidence", role="draft", k=h + rank, n=1, storage="kept"),
    )
