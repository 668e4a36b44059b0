"""Families: what each model_type's keys mean, as layers and their schedule.

A family is a function from the keys of a config.json to (layers, schedule, extras). Layer types are named
<attention>[_<feed-forward>]: full, swa, mla, dsa_full / dsa_shared (with and without an indexer of their own), gdn;
V4: swa (window only), csa_c4, hca_c128, `_hash` where the router is a table.
Sources: the modelling files of transformers 5.19 and of vLLM 0.32 and SGLang 0.5.23; model cards. 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stepscope.errors import BadInput
from stepscope.models.architecture import (
    CompressedAttention,
    DenseFeedForward,
    Draft,
    FeedForward,
    GatedDeltaNet,
    GroupedQueryAttention,
    Indexer,
    LatentAttention,
    Layer,
    MoeFeedForward,
)
from stepscope.models.config_keys import ConfigKeys

QWEN3_YARN_CONTEXT = 131_072  # Qwen3 model cards: "validated ... up to 131,072 tokens using YaRN", 2025-05


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyLayers:
    """What a family's rule finds; `extended_context_len`: published with rope scaling that the file leaves out."""

    layers: tuple[Layer, ...]
    hc_mult: int = 1
    draft: Draft | None = None
    extended_context_len: int = 0


def _gqa(keys: ConfigKeys, *, window: int | None = None) -> GroupedQueryAttention:
    num_heads = keys.number("num_heads", "num_attention_heads")
    num_kv_heads = keys.number("num_kv_heads", "num_key_value_heads")
    head_dim = keys.optional_number("head_dim")
    if head_dim is None:
        head_dim = keys.number("hidden_size") // num_heads
        keys.derived("head_dim", "hidden_size / num_attention_heads")
    return GroupedQueryAttention(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, window=window)


def _dense(keys: ConfigKeys) -> DenseFeedForward:
    return DenseFeedForward(intermediate_size=keys.number("intermediate_size"))


def llama(keys: ConfigKeys) -> FamilyLayers:
    """Llama 3: GQA and a gated MLP in every layer."""
    attention = replace(_gqa(keys), has_bias=keys.flag("attention_bias"))
    layer = Layer(layer_type="full_dense", attention=attention, feed_forward=_dense(keys))
    return FamilyLayers(layers=(layer,) * keys.number("num_layers", "num_hidden_layers"))


def qwen3(keys: ConfigKeys) -> FamilyLayers:
    """Qwen3, dense: GQA with q and k norms."""
    attention = replace(_gqa(keys), has_qk_norm=True, has_bias=keys.flag("attention_bias"))
    layer = Layer(layer_type="full_dense", attention=attention, feed_forward=_dense(keys))
    num_layers = keys.number("num_layers", "num_hidden_layers")
    return FamilyLayers(layers=(layer,) * num_layers, extended_context_len=QWEN3_YARN_CONTEXT)


def _qwen_moe(keys: ConfigKeys, layer_index: int) -> FeedForward:
    """Dense where `mlp_only_layers` or `decoder_sparse_step` says so."""
    step = keys.optional_number("decoder_sparse_step") or 1
    if layer_index in (keys.numbers("mlp_only_layers") or []) or (layer_index + 1) % step:
        return _dense(keys)
    shared = keys.optional_number("shared_expert_intermediate_size") or 0
    return MoeFeedForward(
        num_experts=keys.number("num_experts"),
        top_k=keys.number("top_k", "num_experts_per_tok"),
        intermediate_size=keys.number("moe_intermediate_size"),
        shared_intermediate_size=shared,
        has_shared_gate=shared > 0,
    )


def qwen3_moe(keys: ConfigKeys) -> FamilyLayers:
    """Qwen3-MoE: GQA with q and k norms, routed experts only."""
    attention = replace(_gqa(keys), has_qk_norm=True, has_bias=keys.flag("attention_bias"))
    layers = []
    for index in range(keys.number("num_layers", "num_hidden_layers")):
        ffn = _qwen_moe(keys, index)
        name = "full_dense" if isinstance(ffn, DenseFeedForward) else "full_moe"
        layers.append(Layer(layer_type=name, attention=attention, feed_forward=ffn))
    return FamilyLayers(layers=tuple(layers), extended_context_len=QWEN3_YARN_CONTEXT)


def qwen3_next(keys: ConfigKeys) -> FamilyLayers:
    """Qwen3-Next and Qwen3.5: gated delta net, every `full_attention_interval`-th layer gated GQA."""
    full = replace(_gqa(keys), has_qk_norm=True, has_output_gate=True)
    gdn = GatedDeltaNet(
        num_k_heads=keys.number("linear_num_key_heads"),
        num_v_heads=keys.number("linear_num_value_heads"),
        k_head_dim=keys.number("linear_key_head_dim"),
        v_head_dim=keys.number("linear_value_head_dim"),
        conv_kernel=keys.number("linear_conv_kernel_dim"),
    )
    num_layers = keys.number("num_layers", "num_hidden_layers")
    kinds = keys.words("layer_types")
    if kinds is None:
        interval = keys.number("full_attention_interval")
        kinds = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(num_layers)]
    has_experts = keys.optional_number("num_experts") is not None
    layers = []
    for index, kind in enumerate(_exactly(keys, "layer_types", kinds, num_layers)):
        ffn = _qwen_moe(keys, index) if has_experts else _dense(keys)
        suffix = "_dense" if has_experts and isinstance(ffn, DenseFeedForward) else ""
        is_full = kind == "full_attention"
        name = ("full" if is_full else "gdn") + suffix
        layers.append(Layer(layer_type=name, attention=full if is_full else gdn, feed_forward=ffn))
    return FamilyLayers(layers=tuple(layers))


def gpt_oss(keys: ConfigKeys) -> FamilyLayers:
    """gpt-oss: GQA with sinks and biases, sliding window and full by turns, routed experts with biases."""
    window = keys.number("sliding_window")
    base = replace(_gqa(keys), has_sink=True, has_bias=keys.flag("attention_bias", default=True))
    ffn = MoeFeedForward(
        num_experts=keys.number("num_experts", "num_local_experts"),
        top_k=keys.number("top_k", "num_experts_per_tok", "experts_per_token"),
        intermediate_size=keys.number("intermediate_size"),
        has_bias=True,
    )
    num_layers = keys.number("num_layers", "num_hidden_layers")
    kinds = keys.words("layer_types") or ["full_attention" if i % 2 else "sliding_attention" for i in range(num_layers)]
    swa = Layer(layer_type="swa_moe", attention=replace(base, window=window), feed_forward=ffn)
    full = Layer(layer_type="full_moe", attention=base, feed_forward=ffn)
    kinds = _exactly(keys, "layer_types", kinds, num_layers)
    return FamilyLayers(layers=tuple(swa if kind == "sliding_attention" else full for kind in kinds))


def _deepseek_moe(keys: ConfigKeys) -> MoeFeedForward:
    size = keys.number("moe_intermediate_size")
    return MoeFeedForward(
        num_experts=keys.number("num_experts", "n_routed_experts"),
        top_k=keys.number("top_k", "num_experts_per_tok"),
        intermediate_size=size,
        shared_intermediate_size=size * (keys.optional_number("num_shared_experts", "n_shared_experts") or 0),
    )


def _indexer(keys: ConfigKeys) -> Indexer:
    return Indexer(
        num_heads=keys.number("index_num_heads", "index_n_heads"),
        head_dim=keys.number("index_head_dim"),
        topk=keys.number("index_topk"),
    )


def deepseek_v3(keys: ConfigKeys) -> FamilyLayers:
    """DeepSeek-V3, R1 (MLA), V3.2 and GLM-5 (MLA with DSA; GLM-5.2 runs an indexer in some layers only)."""
    mla = LatentAttention(
        num_heads=keys.number("num_heads", "num_attention_heads"),
        q_lora_rank=keys.number("q_lora_rank"),
        kv_lora_rank=keys.number("kv_lora_rank"),
        qk_nope_head_dim=keys.number("qk_nope_head_dim"),
        qk_rope_head_dim=keys.number("qk_rope_head_dim"),
        v_head_dim=keys.number("v_head_dim"),
    )
    is_sparse = keys.model_type in ("deepseek_v32", "glm_moe_dsa")
    if is_sparse:
        indexer = _indexer(keys)
        mla = replace(mla, topk=indexer.topk, indexer=indexer)
    moe, num_layers = _deepseek_moe(keys), keys.number("num_layers", "num_hidden_layers")
    indexes = keys.words("indexer_types") or ["full"] * num_layers
    first_dense = keys.optional_number("first_k_dense_replace") or 0
    layers = []
    for index, kind in enumerate(_exactly(keys, "indexer_types", indexes, num_layers)):
        attention = replace(mla, indexer=None) if is_sparse and kind == "shared" else mla
        is_dense = index < first_dense
        prefix = f"dsa_{kind}" if is_sparse else "mla"
        layers.append(
            Layer(
                layer_type=f"{prefix}_{'dense' if is_dense else 'moe'}",
                attention=attention,
                feed_forward=_dense(keys) if is_dense else moe,
            )
        )
    draft = None
    if keys.optional_number("num_mtp_layers", "num_nextn_predict_layers"):
        draft = Draft(kind="mtp", layer=Layer(layer_type="mtp", attention=mla, feed_forward=moe), num_stages=1)
    return FamilyLayers(layers=tuple(layers), draft=draft)


def deepseek_v4(keys: ConfigKeys) -> FamilyLayers:
    """DeepSeek-V4: sliding window in every layer, compressed history (C4 with an indexer, C128) in most, mHC."""
    head_dim = keys.number("head_dim")
    base = CompressedAttention(
        num_heads=keys.number("num_heads", "num_attention_heads"),
        head_dim=head_dim,
        rope_head_dim=keys.number("rope_head_dim", "qk_rope_head_dim"),
        q_lora_rank=keys.number("q_lora_rank"),
        o_groups=keys.number("o_groups"),
        o_lora_rank=keys.number("o_lora_rank"),
        window=keys.number("sliding_window"),
    )
    keys.derived("qk_nope_head_dim", "head_dim - qk_rope_head_dim (the published file has no key for it)")
    by_ratio = {
        0: ("swa", base),
        4: ("csa_c4", replace(base, ratio=4, indexer=_indexer(keys))),
        128: ("hca_c128", replace(base, ratio=128)),
    }
    num_layers, num_hash = keys.number("num_layers", "num_hidden_layers"), keys.optional_number("num_hash_layers") or 0
    ratios = keys.numbers("compress_ratios")
    if ratios is None or len(ratios) < num_layers:
        raise BadInput(f"{keys.source}: `compress_ratios` has to name at least {num_layers} layers.")
    moe = _deepseek_moe(keys)
    layers = []
    for index, ratio in enumerate(ratios[:num_layers]):  # the entries after the layers are the draft stages'
        if ratio not in by_ratio:
            raise BadInput(f"{keys.source}: `compress_ratios` holds {ratio}. Known: 0 (window only), 4, 128.")
        name, attention = by_ratio[ratio]
        is_hash = index < num_hash
        layers.append(
            Layer(
                layer_type=name + ("_hash" if is_hash else ""),
                attention=attention,
                feed_forward=replace(moe, routing="hash") if is_hash else moe,
            )
        )
    draft_layer = Layer(layer_type="draft", attention=base, feed_forward=moe)
    return FamilyLayers(layers=tuple(layers), hc_mult=keys.number("hc_mult"), draft=_v4_draft(keys, draft_layer))


def _v4_draft(keys: ConfigKeys, layer: Layer) -> Draft | None:
    """DSpark where its keys are there (then `num_nextn_predict_layers` is stale), else MTP."""
    block_len = keys.optional_number("dspark_block_size")
    if block_len is not None:
        targets = keys.numbers("dspark_target_layer_ids") or []
        rank = keys.number("dspark_markov_rank")
        return Draft(
            kind="dspark", layer=layer, num_stages=3, block_len=block_len, target_layers=len(targets), markov_rank=rank
        )
    if keys.optional_number("num_mtp_layers", "num_nextn_predict_layers"):
        return Draft(kind="mtp", layer=layer, num_stages=1)
    return None


def _exactly(keys: ConfigKeys, key: str, kinds: list[str], num_layers: int) -> list[str]:
    if len(kinds) != num_layers:
        raise BadInput(f"{keys.source}: `{key}` names {len(kinds)} layers, `num_hidden_layers` is {num_layers}.")
    return kinds


FAMILIES: dict[str, Callable[[ConfigKeys], FamilyLayers]] = {
    "llama": llama,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen3_5": qwen3_next,
    "qwen3_5_text": qwen3_next,
    "qwen3_5_moe": qwen3_next,
    "qwen3_5_moe_text": qwen3_next,
    "gpt_oss": gpt_oss,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v3,
    "glm_moe_dsa": deepseek_v3,
    "deepseek_v4": deepseek_v4,
}
