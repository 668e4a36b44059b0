from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import BadInput
from stepscope.models.architecture import CompressedAttention, GroupedQueryAttention, LatentAttention
from stepscope.models.hf_config import bundled_models, from_hf_config, read_model
from tests.models.reference import MODELS, REFERENCE


def raw_config(name: str) -> dict[str, Any]:
    text = (resources.files("stepscope.models") / "configs" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def test_all_21_models_are_bundled() -> None:
    assert bundled_models() == tuple(sorted(MODELS))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_its_layer_schedule(name: str) -> None:
    assert read_model(name).counts == REFERENCE[name]["layers"]


def test_a_name_is_found_in_any_case_and_a_path_reads_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "GLM-5.2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(raw_config("glm-5.2")))
    bundled, own = read_model("GLM-5.2"), read_model(str(folder))
    assert own.name == "GLM-5.2"
    assert own.layers == bundled.layers
    assert own.schedule == bundled.schedule


def test_each_dimension_tells_its_key() -> None:
    keys = dict(read_model("deepseek-v4-flash-0731").keys)
    assert keys["num_experts"] == "n_routed_experts"
    assert keys["qk_nope_head_dim"].startswith("head_dim - qk_rope_head_dim")
    assert dict(read_model("qwen3.5-35b-a3b").keys)["num_experts"] == "text_config.num_experts"
    assert dict(read_model("llama-3.1-8b").keys)["head_dim"] == "hidden_size / num_attention_heads"


def test_v4_ratios_beyond_the_layers_belong_to_the_draft() -> None:
    flash = read_model("deepseek-v4-flash-0731")
    assert len(raw_config("deepseek-v4-flash-0731")["compress_ratios"]) == 46
    assert len(flash.schedule) == 43
    assert flash.schedule[0] == "swa_hash"
    assert flash.draft is not None
    assert (flash.draft.kind, flash.draft.num_stages, flash.draft.block_len) == ("dspark", 3, 5)
    assert isinstance(flash.draft.layer.attention, CompressedAttention)
    assert flash.draft.layer.attention.ratio == 0
    preview = read_model("deepseek-v4-flash").draft
    assert preview is not None
    assert preview.kind == "mtp"


def test_pro_has_no_window_only_layer() -> None:
    pro = read_model("deepseek-v4-pro")
    assert pro.schedule[:3] == ("hca_c128_hash", "hca_c128_hash", "csa_c4_hash")


def test_glm_52_runs_21_indexers_in_78_layers() -> None:
    glm = read_model("glm-5.2")
    attention = {layer.layer_type: layer.attention for layer in glm.layers}
    with_indexer = [
        i
        for i, kind in enumerate(glm.schedule)
        if isinstance(a := attention[kind], LatentAttention) and a.indexer is not None
    ]
    assert with_indexer == [0, 1, 2, *range(6, 75, 4)]
    assert len(with_indexer) == 21


def test_gpt_oss_alternates_windows() -> None:
    layers = {layer.layer_type: layer.attention for layer in read_model("gpt-oss-20b").layers}
    swa, full = layers["swa_moe"], layers["full_moe"]
    assert isinstance(swa, GroupedQueryAttention)
    assert isinstance(full, GroupedQueryAttention)
    assert (swa.window, full.window) == (128, None)


def test_checkpoint_formats() -> None:
    stored = {
        name: read_model(name).checkpoint for name in ("deepseek-v4-flash", "gpt-oss-20b", "deepseek-v3", "glm-5")
    }
    assert (stored["deepseek-v4-flash"].weights, stored["deepseek-v4-flash"].experts) == ("fp8_block", "mxfp4")
    assert (stored["gpt-oss-20b"].weights, stored["gpt-oss-20b"].experts) == ("bf16", "mxfp4")
    assert (stored["deepseek-v3"].weights, stored["deepseek-v3"].experts) == ("fp8_block", "fp8_block")
    assert (stored["glm-5"].weights, stored["glm-5"].experts) == ("bf16", "bf16")


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"model_type 'foo' is of no known family\. Known families: llama, qwen3"):
        from_hf_config({"model_type": "foo"}, name="x")


def test_a_missing_key_is_named_with_the_family() -> None:
    raw = raw_config("llama-3.1-8b")
    del raw["num_key_value_heads"]
    with pytest.raises(BadInput, match=r"has no `num_key_value_heads` \(model_type 'llama'\).*Known families: llama"):
        from_hf_config(raw, name="x")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("hidden_size", "big", "`hidden_size` is 'big'"),
        ("layer_types", ["full_attention"], "`layer_types` names 1 layers"),
        ("quantization_config", {"quant_method": "gptq"}, "quant_method 'gptq' is unknown"),
    ],
)
def test_a_broken_key_is_named(key: str, value: object, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        from_hf_config({**raw_config("gpt-oss-20b"), key: value}, name="x")


def test_a_ratio_that_nobody_knows_is_refused() -> None:
    raw = raw_config("deepseek-v4-flash")
    raw["compress_ratios"][5] = 16
    with pytest.raises(BadInput, match="`compress_ratios` holds 16"):
        from_hf_config(raw, name="x")


def test_no_such_model_lists_the_bundled_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"neither a bundled model nor a config\.json\. Bundled: deepseek-r1"):
        read_model("deepseek-v9")
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(BadInput, match="no valid JSON"):
        read_model(str(broken))
    broken.write_text("[]")
    with pytest.raises(BadInput, match="a JSON object was expected"):
        read_model(str(broken))
