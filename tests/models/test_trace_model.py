"""Against the transformers models themselves, where the packages are installed."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import BadInput
from stepscope.models.hf_config import load_config, read_model
from stepscope.models.parameters import count_parameters
from stepscope.models.trace_model import _build, trace_model
from stepscope.models.weight import Weight, layer_weights
from stepscope.operators.step import step_operators
from tests.operators.steps import decode_step, flop_by_role

has_transformers = find_spec("transformers") is not None and find_spec("torch") is not None
needs_transformers = pytest.mark.skipif(not has_transformers, reason="transformers and torch are not installed")
quietly = pytest.mark.filterwarnings("ignore")  # of torch and transformers
EXACT = (
    "llama-3.1-8b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
    "deepseek-r1",
    "deepseek-v3.2",
    "glm-5.1",
    "glm-5.2",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
)
COUNTED = ("llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3", "glm-5.2", "qwen3-next-80b-a3b")


def facts(weights: tuple[Weight, ...]) -> list[tuple[object, ...]]:
    """All but the name: transformers calls wq_a q_a_proj."""
    return sorted((w.role, w.k, w.n, w.groups, w.experts, w.split, w.storage, w.bias) for w in weights)


@needs_transformers
@quietly
@pytest.mark.parametrize("name", EXACT)
def test_projections_of_the_transformers_model_equal_the_family_rule(name: str) -> None:
    traced, ruled = trace_model(name), read_model(name)
    assert traced.schedule == ruled.schedule
    assert traced.unplaced == ()
    for own, rule in zip(traced.layers, ruled.layers, strict=True):
        assert facts(layer_weights(own, traced)) == facts(layer_weights(rule, ruled))


@needs_transformers
@quietly
@pytest.mark.parametrize("name", [*EXACT, "qwen3.5-27b", "qwen3.5-122b-a10b"])
def test_parameters_equal_torchs_count(name: str) -> None:
    assert trace_model(name).num_parameters == count_parameters(read_model(name)).total


@needs_transformers
@quietly
@pytest.mark.parametrize("name", [*EXACT, "qwen3.5-35b-a3b"])
def test_a_traced_model_has_the_same_step(name: str) -> None:
    shape = decode_step(8, 1000)
    traced, ruled = (flop_by_role(step_operators(read(name), shape)) for read in (trace_model, read_model))
    assert traced == ruled


@needs_transformers
@quietly
def test_a_family_without_a_rule_is_traced(tmp_path: Path) -> None:
    """Mixtral: GQA, 8 experts, top-2; by hand: 4 layers of attention, router and two experts per token."""
    raw = {
        "model_type": "mixtral",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw))
    found = flop_by_role(step_operators(trace_model(str(path)), decode_step(1, 9)))
    assert found["attn_proj"] == 4 * 2 * (2 * 512 * 512 + 2 * 512 * 128)
    assert found["moe_routed"] == 4 * 2 * 2 * 3 * 512 * 1024
    assert found["core"] == 4 * 4 * 8 * 64 * 10


@needs_transformers
@quietly
@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3", "glm-5.2", "qwen3-next-80b-a3b"]
)
def test_flop_counter_sees_the_same_projections(name: str) -> None:
    """FlopCounterMode over a forward pass on the meta device, attention cores left out: eager code does not halve."""
    tokens, architecture = 64, read_model(name)
    counted = _count_projections(name, tokens)
    expected = {w.role: 0 for layer in architecture.layers for w in layer_weights(layer, architecture)}
    for layer in architecture.layers:
        ffn = layer.feed_forward
        for w in layer_weights(layer, architecture):
            used = getattr(ffn, "top_k", 1) if w.experts else 1
            expected[w.role] += architecture.counts[layer.layer_type] * 2 * tokens * used * w.k * w.n * w.groups
    assert counted == sum(expected.values())


def _count_projections(name: str, tokens: int) -> int:
    """Flop of every module of the layers that has parameters of its own."""
    torch = import_module("torch")
    counter = import_module("torch.utils.flop_counter")
    built, _ = _build(load_config(name)[0], name)
    aten = torch.ops.aten

    def grouped(a: Any, b: Any, *_: Any, **__: Any) -> int:
        return int(2 * a[0] * a[1] * b[-1])

    mode = counter.FlopCounterMode(display=False, depth=20, custom_mapping={aten._grouped_mm: grouped})
    ids = torch.zeros((1, tokens), dtype=torch.long, device="meta")
    mask = torch.zeros((1, 1, tokens, tokens), dtype=torch.bfloat16, device="meta")
    built = built.to(torch.bfloat16)
    with torch.no_grad(), mode:
        built(input_ids=ids, attention_mask=mask, use_cache=False)
    root = type(built).__name__
    owners = {f"{root}.{path}" for path, module in built.named_modules() if _is_projection(module)}
    counts = mode.get_flop_counts()
    return sum(sum(ops.values()) for path, ops in counts.items() if path in owners and ".layers." in path)


def _is_projection(module: Any) -> bool:
    """A matrix of its own, and no module with parameters inside; convolutions are the core's."""
    own = [p for p in module.parameters(recurse=False) if p.ndim > 1]
    return (
        bool(own)
        and len(list(module.parameters())) == len(list(module.parameters(recurse=False)))
        and not hasattr(module, "kernel_size")
    )


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadInput, match="needs the packages transformers and torch"):
        trace_model("llama-3.1-8b")
