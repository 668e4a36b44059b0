"""Crossovers: the exact formula is where both terms are equal; experts by their distribution; decode cell by cell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cost.crossover import Weight, expert_crossover, gemm_crossover
from stepscope.cost.crossover_document import CrossoverPlan, crossover_document
from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.router import Router

WQ_A = Weight(name="wq_a", k=4096, n=1024, x_bytes=2, w_bytes=2, y_bytes=2)
W13 = Weight(name="w13", k=4096, n=4096, x_bytes=2, w_bytes=2, y_bytes=2)


def test_crossover_by_hand() -> None:
    found = gemm_crossover(WQ_A, 200.0)
    elements = 4096 * 1024
    assert found.crossover_tokens == pytest.approx(200 * 2 * elements / (2 * elements - 200 * 2 * (4096 + 1024)))
    assert found.approximation == 200.0  # R b_w / 2
    assert found.intensity(64) == pytest.approx(59.3623, abs=5e-5)  # the second note's table
    assert found.most_intensity == pytest.approx(819.2)


@given(
    st.floats(1, 5000),
    st.integers(16, 20000),
    st.integers(16, 20000),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([1.0, 2.0]),
)
def test_both_terms_are_equal_at_the_crossover(ridge: float, k: int, n: int, w_bytes: float, x_bytes: float) -> None:
    found = gemm_crossover(Weight(name="x", k=k, n=n, x_bytes=x_bytes, w_bytes=w_bytes, y_bytes=2), ridge)
    if found.crossover_tokens is None:
        assert found.most_intensity <= ridge * (1 + 1e-12)  # memory-bound at any m
        return
    assert found.intensity(found.crossover_tokens) == pytest.approx(ridge, rel=1e-6)
    assert found.crossover_tokens > found.approximation  # input and output only ever delay it


def test_never_where_input_and_output_fill_the_memory() -> None:
    assert gemm_crossover(WQ_A, 819.2).crossover_tokens is None
    assert gemm_crossover(WQ_A, 819.0).crossover_tokens is not None


def test_half_the_weight_bytes_halve_the_approximation() -> None:
    int8 = Weight(name="wq_a", k=4096, n=1024, x_bytes=1, w_bytes=1, y_bytes=2)
    assert gemm_crossover(int8, 200.0).approximation == 100.0


def test_a_ridge_has_to_be_positive() -> None:
    with pytest.raises(BadInput, match="ridge"):
        gemm_crossover(WQ_A, 0.0)


def test_uniform_experts_cross_where_their_sum_does() -> None:
    gemm = gemm_crossover(W13, 100.0)
    found = expert_crossover(gemm, 256, 6, (64, 2048, 16384))
    tokens = found.crossover_tokens
    assert tokens is not None
    active = 256 * (1 - (1 - 6 / 256) ** tokens)
    memory = active * 2 * 4096 * 4096 + tokens * 6 * 2 * 8192
    assert 2 * 4096 * 4096 * tokens * 6 / 100 == pytest.approx(memory, rel=2e-3)
    assert [p.mean for p in found.points] == [1.5, 48.0, 384.0]  # the note's numbers
    assert found.points[0].compute_bound_copies_fraction == 0
    assert found.points[2].compute_bound_copies_fraction == 1
    assert [p.bound for p in found.points] == ["memory", "memory", "compute"]


def test_few_tokens_reach_few_experts_and_the_mean_misjudges_them() -> None:
    low = gemm_crossover(W13, 1.2)  # a device on which hardly any reuse suffices
    found = expert_crossover(low, 256, 6, (8,))
    assert found.crossover_tokens is not None
    assert found.mean_crossover_tokens is not None
    assert found.crossover_tokens < found.mean_crossover_tokens  # empty experts cost no weights


def test_skew_makes_some_experts_compute_bound_long_before_the_mean() -> None:
    gemm = gemm_crossover(W13, 100.0)
    even = expert_crossover(gemm, 256, 6, (1024,)).points[0]
    skewed = expert_crossover(gemm, 256, 6, (1024,), Router(skew=1.2)).points[0]
    assert even.mean == skewed.mean == 24.0
    assert even.compute_bound_copies_fraction < 0.01
    assert skewed.compute_bound_copies_fraction > 0.3
    assert skewed.max > 5 * even.max


def test_never_for_experts_where_never_for_one() -> None:
    found = expert_crossover(gemm_crossover(W13, 3000.0), 256, 6, (1,))
    assert found.crossover_tokens is None
    assert found.mean_crossover_tokens is None


def test_more_experts_per_token_than_there_are_is_refused() -> None:
    with pytest.raises(BadInput, match="top_k"):
        expert_crossover(gemm_crossover(W13, 100.0), 4, 8, (1,))


def test_decode_grid_has_a_binding_term_and_parts_for_every_cell() -> None:
    plan = CrossoverPlan(batches=(1, 64, 512), context_lens=(1024, 131072), tokens=(64,))
    deployment = Deployment(plan=ParallelPlan(tp=8, ep=8))
    document = crossover_document(read_model("deepseek-v4-flash-0731"), load_hardware("h200"), deployment, plan)
    cells = document["decode"]["cells"]
    assert [(c["batch"], c["context_len"]) for c in cells] == [(b, c) for b in (1, 64, 512) for c in (1024, 131072)]
    for cell in cells:
        assert cell["bound"] in ("compute", "memory", "network")
        assert sum(cell["part_fractions"].values()) == pytest.approx(1)
        assert cell["lower_bound_s"] <= cell["serial_bound_s"]
    history = {(c["batch"], c["context_len"]): c["part_fractions"]["history"] for c in cells}
    assert history[512, 131072] > history[512, 1024]  # longer history, larger share
    assert history[512, 131072] > history[1, 131072]  # weights are shared by the batch, histories are not
    assert {e["name"] for e in document["experts"]} == {"experts_w13", "experts_w2"}


def test_contexts_beyond_the_model_are_left_out_and_named() -> None:
    plan = CrossoverPlan(batches=(1,), context_lens=(1024, 1 << 30), tokens=(1,))
    document = crossover_document(read_model("llama-3.1-8b"), load_hardware("mi300x"), Deployment(), plan)
    assert document["decode"]["context_lens"] == [1024]
    assert any(str(1 << 30) in note for note in document["notes"])
    assert document["ridges"]["bf16"]["effective"] is None
    assert document["decode"]["cells"][0]["time_s"] is None  # bounds only: no kernels were measured


def test_dense_decode_turns_compute_bound_at_large_batch_and_short_context() -> None:
    plan = CrossoverPlan(batches=(1, 16, 1024, 2048), context_lens=(16,), tokens=(1,))
    document = crossover_document(read_model("llama-3.1-8b"), load_hardware("h20"), Deployment(), plan)
    assert [c["bound"] for c in document["decode"]["cells"]] == ["memory", "memory", "compute", "compute"]
    assert document["decode"]["crossover_batch"] == [{"context_len": 16, "batch": 1024}]
    assert np.all(np.diff([c["time_s"] for c in document["decode"]["cells"]]) > 0)
