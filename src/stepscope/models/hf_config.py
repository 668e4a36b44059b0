"""A config.json of Hugging Face's format -> Architecture, by a bundled short name or a path."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from stepscope.errors import BadInput
from stepscope.models.architecture import Architecture, Checkpoint
from stepscope.models.config_keys import ConfigKeys
from stepscope.models.families import FAMILIES


def bundled_models() -> tuple[str, ...]:
    """Short names of the configurations that ship with the program, sorted."""
    folder = resources.files("stepscope.models") / "configs"
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def read_model(model: str) -> Architecture:
    """A bundled model by its short name (any case), or the config.json at a path (a folder may be named too).

    Raises:
        BadInput: no such model or file, no JSON, an unknown family, or a key that its family needs is missing.
    """
    raw, name, source = load_config(model)
    return from_hf_config(raw, name=name, source=source)


def load_config(model: str) -> tuple[dict[str, Any], str, str]:
    """(parsed config.json, the model's short name, where it was read) of what `read_model` takes."""
    name = model.lower()
    if name in bundled_models():
        text = (resources.files("stepscope.models") / "configs" / f"{name}.json").read_text(encoding="utf-8")
        return _parse(text, f"{name} (bundled config.json)"), name, f"{name} (bundled config.json)"
    path = Path(model).expanduser()
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise BadInput(
            f"{model}: neither a bundled model nor a config.json. Bundled: {', '.join(bundled_models())}. "
            "Name one of them or the path of a config.json."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}). Name a config.json.") from error
    short = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return _parse(text, str(path)), short, str(path)


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{source}: no valid JSON ({error}). A config.json was expected.") from error
    if not isinstance(raw, dict):
        raise BadInput(f"{source}: a JSON object was expected, as in a Hugging Face config.json.")
    return raw


def from_hf_config(raw: dict[str, Any], *, name: str, source: str = "config.json") -> Architecture:
    """The architecture that a parsed config.json describes.

    Raises:
        BadInput: an unknown family, or a key that its family needs is missing.
    """
    keys = ConfigKeys(raw, source, tuple(FAMILIES))
    if "model_type" not in raw and "text_config" not in raw:
        raise BadInput(f"{source}: it names no model_type, so it is no model's config.json. Name the checkpoint's.")
    rule = FAMILIES.get(keys.model_type)
    if rule is None:
        raise BadInput(
            f"{source}: model_type '{keys.model_type}' is of no known family. Known families: {', '.join(FAMILIES)}. "
            "Use --trace-model to take the projections from transformers, or add a rule in models/families.py."
        )
    found = rule(keys)
    distinct = tuple({layer.layer_type: layer for layer in found.layers}.values())
    native = keys.number("max_context_len", "max_position_embeddings")
    return Architecture(
        name=name,
        family=keys.model_type,
        hidden_size=keys.number("hidden_size"),
        vocab_size=keys.number("vocab_size"),
        native_context_len=native,
        max_context_len=max(native, found.extended_context_len),
        layers=distinct,
        schedule=tuple(layer.layer_type for layer in found.layers),
        checkpoint=_checkpoint(keys),
        hc_mult=found.hc_mult,
        draft=found.draft,
        keys=tuple(keys.read.items()),
    )


def _checkpoint(keys: ConfigKeys) -> Checkpoint:
    """How the published weights are stored, from `quantization_config` and `expert_dtype`."""
    quantization = keys.table("quantization_config")
    method = quantization.get("quant_method")
    weights, experts = "bf16", "bf16"
    if method == "fp8":
        weights = experts = "fp8_block" if quantization.get("weight_block_size") else "fp8"
    elif method == "mxfp4":
        experts = "mxfp4"
        skipped = " ".join(str(item) for item in quantization.get("modules_to_not_convert", []))
        weights = "bf16" if "self_attn" in skipped else "mxfp4"
    elif method is not None:
        raise BadInput(
            f"{keys.source}: quantization_config.quant_method '{method}' is unknown. Known: fp8, mxfp4. "
            "Remove it from the file and pass --weights."
        )
    if keys.word("expert_dtype") == "fp4":
        experts = "mxfp4"
    return Checkpoint(weights=weights, experts=experts, tie_word_embeddings=keys.flag("tie_word_embeddings"))
