"""Optimisations that change what a step costs: each changes what it is said to change, and leaves the rest alone."""

from __future__ import annotations

from functools import cache

import pytest

from stepscope.batch import BatchShape, Row
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.step import step_operators
from stepscope.simulate.graphs import GraphGrid, padded_time
from stepscope.simulate.model_time import Reach, model_time
from stepscope.simulate.overlap import StepParts, beside
from stepscope.simulate.step_time import StepTime

REACH = Reach(max_tokens=4096, max_requests=256, max_kv_len=32768)


def decode(count: int, kv_len: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=1, context_len=kv_len - 1, phase="decode"),) * count)


def prefill(query: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=query, context_len=0, phase="prefill"),))


@cache
def of(model: str, **options: str) -> StepTime:
    found = model_time(read_model(model), Deployment(**options), "h100", REACH).step_time  # type: ignore[arg-type]
    assert found is not None
    return found


def test_quantised_weights_pay_where_weights_are_read_for_few_rows() -> None:
    """Half the bytes of every weight: near half the time at one row; at many rows the arithmetic counts instead."""
    plain, quantised = of("llama-3.1-70b", weights="bf16"), of("llama-3.1-70b", weights="fp8")
    few = quantised(decode(1, 128)) / plain(decode(1, 128))
    assert 0.4 < few < 0.7
    # what is read of the history is as it was
    history = [time(decode(16, 16384)) - time(decode(16, 128)) for time in (plain, quantised)]
    assert history[1] == pytest.approx(history[0], rel=0.01)


def test_a_quantised_cache_pays_where_the_history_is_read() -> None:
    plain, quantised = of("llama-3.1-8b", kv="bf16"), of("llama-3.1-8b", kv="fp8")
    long = quantised(decode(64, 16384)) / plain(decode(64, 16384))
    short = quantised(decode(64, 64)) / plain(decode(64, 64))
    assert long < 0.75
    assert short > 0.95
    assert quantised.by_tokens[512] == pytest.approx(plain.by_tokens[512], rel=2e-3)  # less is written, no more


def test_fusion_leaves_fewer_launches_with_the_same_work() -> None:
    model, shape = read_model("llama-3.1-8b"), decode(4, 512)
    plain, fused = (step_operators(model, shape, Deployment(fusion=name)) for name in ("none", "vllm"))
    launches = [sum(op.count for op in operators) for operators in (plain, fused)]
    assert launches[0] - launches[1] == 2 * 32  # q, k and v of 32 layers are one
    assert sum(op.count * op.flop for op in fused) == sum(op.count * op.flop for op in plain)
    assert of("llama-3.1-8b", fusion="vllm")(shape) < of("llama-3.1-8b", fusion="none")(shape)


def test_graphs_take_launching_off_captured_sizes_and_pad_to_them() -> None:
    plain = of("llama-3.1-8b")
    grid = GraphGrid(decode_sizes=(1, 2, 4, 8, 16, 24, 32))
    graphs = padded_time(plain, grid, {"none": 5e-3}, max_decode=256)
    assert graphs.by_tokens[32] == plain.by_tokens[32]
    assert graphs.by_tokens[17] == plain.by_tokens[24]
    beyond = graphs(decode(33, 512)) - plain(decode(33, 512))
    assert beyond == pytest.approx(5e-3, rel=1e-6)


def test_streams_hide_the_shorter_of_two_independent_parts_and_nothing_more() -> None:
    parts = StepParts(compute_s=3e-3, comm_s=1e-3)
    found = beside(parts)
    assert found.low_s == 3e-3
    assert found.high_s == 4e-3
    assert beside(StepParts(compute_s=3e-3, comm_s=0.0)).low_s == beside(StepParts(compute_s=3e-3, comm_s=0.0)).high_s


def test_a_plan_splits_weights_and_pays_for_it_on_the_wire() -> None:
    model, shape = read_model("llama-3.1-70b"), decode(8, 1024)
    one = step_operators(model, shape, Deployment())
    four = step_operators(model, shape, Deployment(plan=ParallelPlan(tp=4)))
    read = [sum(op.count * op.traffic.weight for op in operators) for operators in (one, four)]
    assert read[1] == pytest.approx(read[0] / 4, rel=0.02)
    assert sum(op.count * op.comm_bytes for op in one) == 0
    assert sum(op.count * op.comm_bytes for op in four) > 0
