from __future__ import annotations

import pytest

from stepscope.models.hf_config import read_model
from stepscope.models.parameters import count_parameters
from stepscope.models.weight import draft_weights, head_weights, layer_weights
from tests.models.reference import MODELS, REFERENCE


@pytest.mark.parametrize("name", MODELS)
def test_parameters_equal_the_transformers_model(name: str) -> None:
    found, reference = count_parameters(read_model(name)), REFERENCE[name]
    assert dict(found.by_role) == reference["params_by_role"]
    assert found.matrices == reference["params_matrices"]
    assert found.active == reference["params_active"]
    if reference["params_total"] is not None:  # four of the 21 were not built on the meta device
        assert found.total == reference["params_total"]


@pytest.mark.parametrize("name", MODELS)
def test_every_projection_has_its_shape(name: str) -> None:
    architecture = read_model(name)
    for layer in architecture.layers:
        found = {w.name: [w.k, w.n, w.groups] for w in layer_weights(layer, architecture)}
        expected = dict(REFERENCE[name]["projections"][layer.layer_type])
        for weightless in ("hc_attn_comb", "hc_ffn_comb"):
            expected.pop(weightless, None)
        assert found == expected


def test_same_counts_where_no_reference_was_built() -> None:
    assert count_parameters(read_model("deepseek-r1")).total == count_parameters(read_model("deepseek-v3")).total
    assert count_parameters(read_model("glm-5.1")).total == count_parameters(read_model("glm-5")).total


def test_dense_models_use_all_their_matrices_per_token() -> None:
    found = count_parameters(read_model("llama-3.1-70b"))
    assert found.active == found.matrices


def test_v4_mtp_matrices_are_those_of_the_checkpoint() -> None:
    """6,610,048,891 stored elements; of them vectors: layer 9846, three norms 12288, hc_head 5, router bias 256."""
    flash = read_model("deepseek-v4-flash")
    assert flash.draft is not None
    own = [w for w in head_weights(flash) if w.name == "hc_head_fn"]
    extra = draft_weights(flash.draft, flash.hidden_size, flash.vocab_size)
    matrices = sum(w.params for w in (*layer_weights(flash.draft.layer, flash), *own, *extra))
    assert matrices + 9846 + 12288 + 5 + 256 == 6_610_048_891


def test_dspark_makes_about_304_billion() -> None:
    flash = read_model("deepseek-v4-flash-0731")
    assert flash.draft is not None
    stages = flash.draft.num_stages * sum(w.params for w in layer_weights(flash.draft.layer, flash))
    extra = sum(w.params for w in draft_weights(flash.draft, flash.hidden_size, flash.vocab_size))
    assert round((stages + extra) / 1e9, 1) == 19.8
    assert round((stages + extra + count_parameters(flash).total) / 1e9) == 304
