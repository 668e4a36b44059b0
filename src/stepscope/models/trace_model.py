"""A config.json -> Architecture by building the transformers model on torch's meta device: for families without a rule.

Taken from the model's own code: the shape of every projection, router, expert and head, and the parameter count. Kept
as rules, because eager code computes something else than an engine does (no causal half, no window, no top-k, latent
KV expanded again): the attention cores. One layer per distinct type is read; no weights are loaded, nothing is run.
What has two or more dimensions and no rule is listed in `Architecture.unplaced`, and is left out of every sum.
Needs the packages transformers and torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from stepscope.errors import BadInput
from stepscope.models.architecture import (
    Architecture,
    Attention,
    Checkpoint,
    DenseFeedForward,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    MoeFeedForward,
)
from stepscope.models.config_keys import ConfigKeys
from stepscope.models.families import FAMILIES
from stepscope.models.hf_config import from_hf_config, load_config
from stepscope.models.weight import Split, Storage, Weight

# the first pattern that a module's path matches gives its role; order matters
ROLES: tuple[tuple[str, str], ...] = (
    (r"indexer", "indexer"),
    (r"compressor", "compressor"),
    (r"shared_expert|shared_mlp", "moe_shared"),
    (r"experts", "moe_routed"),
    (r"(mlp|moe|feed_forward|ffn|block_sparse_moe)\.(gate|router)(\.|$)", "router"),
    (r"linear_attn|delta", "gdn_proj"),
    (r"attn.*kv_b_proj|attention.*kv_b_proj", "attn_kvb"),
    (r"attn|attention", "attn_proj"),
    (r"(^|\.)(mlp|feed_forward|ffn)(\.|$)", "dense_mlp"),
)
_ROWS = re.compile(r"(^|\.)(o_proj|o_b_proj|out_proj|dense|down_proj|wo|w2|fc2)$")
_KV = re.compile(r"(^|\.)(k_proj|v_proj)$")
_REPLICATED = re.compile(r"_a_proj|kv_a_|(^|\.)kv_proj$|shared_expert_gate$")
_BY_RULE = re.compile(r"conv1d|position_bias|_hc$|norm|_bias$")  # counted with the core or the matrix they belong to
_KEPT = re.compile(r"weights_proj|in_proj_(ba|b|a)$|shared_expert_gate$|compressor.*(kv|gate)_proj$")  # unquantised
_EXPERT = re.compile(r"experts\.(\d+)\.")


def trace_model(model: str) -> Architecture:
    """The architecture of a config.json (or a bundled model) whose family needs no rule of ours.

    Raises:
        BadInput: transformers or torch is missing, or transformers does not know the model either.
    """
    raw, name, source = load_config(model)
    built, config = _build(raw, source)
    keys = ConfigKeys(config, source, tuple(FAMILIES))
    stack = _layer_stack(built, keys)
    ruled = from_hf_config(raw, name=name, source=source) if keys.model_type in FAMILIES else None
    types: dict[Layer, str] = {}
    schedule, unplaced = [], list[str]()
    for index, module in enumerate(stack):
        weights, left = _layer_weights(module, keys)
        if ruled is not None:
            known = next(layer for layer in ruled.layers if layer.layer_type == ruled.schedule[index])
            layer = replace(known, weights=weights)
        else:
            attention, feed_forward = _attention(keys, index), _feed_forward(keys, weights)
            layer = Layer(layer_type="", attention=attention, feed_forward=feed_forward, weights=weights)
        if layer not in types:
            types[layer] = layer.layer_type or _type_name(layer, len(types))
            unplaced += [f"{types[layer]}: {path}" for path in left]
        schedule.append(types[layer])
    return Architecture(
        name=name,
        family=keys.model_type,
        hidden_size=keys.number("hidden_size"),
        vocab_size=keys.number("vocab_size"),
        native_context_len=keys.number("max_position_embeddings"),
        max_context_len=keys.number("max_position_embeddings"),
        layers=tuple(replace(layer, layer_type=label) for layer, label in types.items()),
        schedule=tuple(schedule),
        checkpoint=Checkpoint(
            weights="bf16", experts="bf16", tie_word_embeddings=bool(config.get("tie_word_embeddings"))
        )
        if ruled is None
        else ruled.checkpoint,
        hc_mult=1 if ruled is None else ruled.hc_mult,
        draft=None if ruled is None else ruled.draft,
        keys=tuple(keys.read.items()),
        num_parameters=sum(int(p.numel()) for p in built.parameters()),
        unplaced=tuple(unplaced),
    )


def _build(raw: dict[str, Any], source: str) -> tuple[Any, dict[str, Any]]:
    """(the model on the meta device, its configuration with all defaults filled in)."""
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
    except ImportError as error:
        raise BadInput(
            f"--trace-model needs the packages transformers and torch ({error}). Install them, or use a known family."
        ) from error
    inner = raw.get("text_config") or raw
    plain = {k: v for k, v in inner.items() if k not in ("model_type", "architectures", "quantization_config")}
    try:
        config = transformers.AutoConfig.for_model(str(inner.get("model_type")), **plain)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config), config.to_dict()
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadInput(f"{source}: transformers {transformers.__version__} cannot build it: {error}") from error


def _layer_stack(built: Any, keys: ConfigKeys) -> Any:
    """The decoder's list of layers: the first one that is as long as the configuration says."""
    wanted = keys.number("num_layers", "num_hidden_layers", "n_layer")
    for _, module in built.named_modules():
        if type(module).__name__ == "ModuleList" and len(module) == wanted:
            return module
    raise BadInput(f"{keys.source}: no list of {wanted} layers in {type(built).__name__}.")


def _layer_weights(module: Any, keys: ConfigKeys) -> tuple[tuple[Weight, ...], list[str]]:
    """(the matrices of a layer, gate and up as one, per-expert modules as one; paths that no rule places)."""
    found: dict[str, Weight] = {}
    left: list[str] = []
    for path, child in module.named_modules():
        for name, parameter in child.named_parameters(recurse=False):
            full = f"{path}.{name}"
            if parameter.ndim < 2 or _BY_RULE.search(path) or _BY_RULE.search(name):
                continue
            weight = _weight(path, name, child, tuple(parameter.shape), keys)
            if weight is None:
                left.append(full)
            elif weight.name in found and _EXPERT.search(path):
                found[weight.name] = replace(weight, experts=found[weight.name].experts + 1)
            else:
                found[weight.name] = weight
    return tuple(_with_gates_joined(found)), left


def _weight(path: str, name: str, module: Any, shape: tuple[int, ...], keys: ConfigKeys) -> Weight | None:
    """The matrix of one parameter; None where its role or its orientation is not known."""
    role = next((role for pattern, role in ROLES if re.search(pattern, path)), None)
    if role is None:
        return None
    bias = getattr(module, "bias", None) is not None or getattr(module, f"{name}_bias", None) is not None
    if len(shape) == 3 and role == "moe_routed":
        hidden = keys.number("hidden_size")
        inner = shape[1] if shape[2] == hidden else shape[2]
        is_down = "down" in name or name == "w2"
        k, n = (inner, hidden) if is_down else (hidden, inner)
        split: Split = "expert_rows" if is_down else "expert_columns"
        label = "experts_w2" if is_down else "experts_w13"
        return Weight(name=label, role=role, k=k, n=n, experts=shape[0], split=split, storage="expert", bias=bias)
    if len(shape) != 2:
        return None
    groups = int(getattr(module, "n_groups", 1)) if role == "attn_proj" and "Linear" in type(module).__name__ else 1
    label = _label(path, role)
    experts = 1 if _EXPERT.search(path) else 0
    return Weight(
        name=label,
        role=role,
        k=shape[1],
        n=shape[0] // groups,
        groups=groups,
        experts=experts,
        split=_split(path, role, groups, experts=bool(experts)),
        storage=_storage(path, role),
        bias=bias,
    )


def _label(path: str, role: str) -> str:
    """The module's name within its sublayer; experts without their number."""
    parts = _EXPERT.sub("experts.", path).split(".")
    inner = [part for part in parts if part not in ("self_attn", "linear_attn", "attention", "mlp", "scorer")]
    if role == "router":
        return parts[-1]
    return "_".join(inner) or parts[-1]


def _split(path: str, role: str, groups: int, *, experts: bool) -> Split:
    is_rows = _ROWS.search(path) is not None
    if experts:
        return "expert_rows" if is_rows else "expert_columns"
    if groups > 1:
        return "groups"
    if role in ("router", "indexer", "compressor") or _REPLICATED.search(path):
        return "replicated"
    if _KV.search(path):
        return "kv_columns"
    return "rows" if is_rows else "columns"


def _storage(path: str, role: str) -> Storage:
    if role == "moe_routed":
        return "expert"
    return "kept" if role == "router" or _KEPT.search(path) else "projection"


def _with_gates_joined(found: dict[str, Weight]) -> Iterator[Weight]:
    """gate_proj and up_proj of one FFN as one matrix, under the names that the rules use."""
    names = {"dense_mlp": ("gate_up_proj", "down_proj"), "moe_shared": ("shared_w13", "shared_w2")}
    names["moe_routed"] = ("experts_w13", "experts_w2")
    for label, weight in found.items():
        if weight.role not in names or label in ("experts_w13", "experts_w2") or label == "shared_expert_gate":
            yield weight
            continue
        joined, down = names[weight.role]
        if label.endswith("up_proj") and f"{label.removesuffix('up_proj')}gate_proj" in found:
            continue
        if label.endswith("gate_proj"):
            yield replace(weight, name=joined, n=2 * weight.n)
        else:
            yield replace(weight, name=down if "down" in label else label)


def _attention(keys: ConfigKeys, index: int) -> Attention:
    """GQA or MLA from the configuration's keys, with the layer's window where it has one."""
    heads = keys.number("num_heads", "num_attention_heads", "n_head")
    if keys.optional_number("kv_lora_rank"):
        return LatentAttention(
            num_heads=heads,
            q_lora_rank=keys.optional_number("q_lora_rank") or 0,
            kv_lora_rank=keys.number("kv_lora_rank"),
            qk_nope_head_dim=keys.number("qk_nope_head_dim"),
            qk_rope_head_dim=keys.number("qk_rope_head_dim"),
            v_head_dim=keys.number("v_head_dim"),
        )
    kinds = keys.words("layer_types")
    kind = kinds[index] if kinds is not None else None
    if kind not in (None, "full_attention", "sliding_attention"):
        raise BadInput(f"{keys.source}: no rule for the core of a '{kind}' layer. Add one in models/families.py.")
    slides = kind == "sliding_attention" if kind is not None else keys.flag("use_sliding_window", default=True)
    return GroupedQueryAttention(
        num_heads=heads,
        num_kv_heads=keys.optional_number("num_kv_heads", "num_key_value_heads") or heads,
        head_dim=keys.optional_number("head_dim") or keys.number("hidden_size") // heads,
        window=(keys.optional_number("sliding_window") or None) if slides else None,
    )


def _feed_forward(keys: ConfigKeys, weights: tuple[Weight, ...]) -> FeedForward:
    by_name = {weight.name: weight for weight in weights}
    down = by_name.get("experts_w2")
    if down is None:
        dense = next((w for w in weights if w.role == "dense_mlp" and w.split == "rows"), None)
        if dense is None:
            raise BadInput(f"{keys.source}: no feed-forward matrix was recognised in {sorted(by_name)}.")
        return DenseFeedForward(intermediate_size=dense.k)
    shared = by_name.get("shared_w2")
    return MoeFeedForward(
        num_experts=down.experts,
        top_k=keys.number("top_k", "num_experts_per_tok", "moe_topk", "num_experts_per_token"),
        intermediate_size=down.k,
        shared_intermediate_size=0 if shared is None else shared.k,
        has_shared_gate="shared_expert_gate" in by_name,
        has_bias=down.bias,
    )


def _type_name(layer: Layer, number: int) -> str:
    attention = layer.attention
    is_window = isinstance(attention, GroupedQueryAttention) and attention.window is not None
    kind = "mla" if isinstance(attention, LatentAttention) else "swa" if is_window else "full"
    return f"{kind}_{'dense' if isinstance(layer.feed_forward, DenseFeedForward) else 'moe'}_{number}"
