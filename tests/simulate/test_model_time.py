from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.batch import NO_ROWS, BatchShape, PhaseSums, Row
from stepscope.cost.calibration import Calibration, Factor, Source
from stepscope.cost.families import FAMILIES
from stepscope.cost.step_cost import price_step
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.router import Router
from stepscope.operators.step import step_operators
from stepscope.simulate.clock import to_seconds
from stepscope.simulate.model_time import ModelTime, Reach, fixed_time, model_time
from stepscope.simulate.step_time import DecodeGrid, StepTime

REACH = Reach(max_tokens=2048, max_requests=64, max_kv_len=16384)
SHARDED = Deployment(plan=ParallelPlan(tp=8, ep=8))


def priced(model: str, shape: BatchShape, deployment: Deployment) -> float:
    seconds = price_step(step_operators(read_model(model), shape, deployment), "h200", deployment.plan).time_s
    assert isinstance(seconds, float)
    return seconds


def decode(count: int, kv_len: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=1, context_len=kv_len - 1, phase="decode"),) * count)


def prefill(query: int, context: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=query, context_len=context, phase="prefill"),))


def of(model: str, deployment: Deployment | None = None) -> ModelTime:
    return model_time(read_model(model), deployment or Deployment(), "h200", REACH)


@pytest.mark.parametrize(
    ("model", "deployment", "p90"),
    [
        ("llama-3.1-8b", Deployment(), 0.05),
        ("qwen3-30b-a3b", Deployment(), 0.05),
        ("deepseek-v4-flash", SHARDED, 0.05),
        ("glm-5.2", SHARDED, 0.15),
    ],
)
def test_the_table_is_near_the_price_of_the_very_shape(model: str, deployment: Deployment, p90: float) -> None:
    found = of(model, deployment)
    assert found.step_time is not None
    assert found.error_p50 < 0.03
    assert found.error_p90 < p90
    # at grid points of pure decode nothing is lost but half a tick
    for count, kv_len in ((1, 16), (16, 1024), (64, 8192)):
        shape = decode(count, kv_len)
        assert found.step_time(shape) == pytest.approx(priced(model, shape, deployment), rel=1e-6)


def test_low_and_high_hold_the_middle() -> None:
    found = of("llama-3.1-8b")
    assert found.step_time is not None
    for shape in (decode(7, 900), prefill(1500, 300), prefill(16, 0)):
        assert found.low.ticks(shape) < found.step_time.ticks(shape) < found.high.ticks(shape)


def test_without_a_price_only_bounds_are_given() -> None:
    found = model_time(read_model("llama-3.1-8b"), Deployment(), "ascend-910c", REACH)
    if found.step_time is None:
        assert found.unpriced
        assert found.grade is None
        assert found.low.ticks(decode(8, 1000)) <= found.high.ticks(decode(8, 1000))
    else:
        assert found.grade == "extrapolated"


def test_more_history_and_more_skew_cost_more() -> None:
    even = of("qwen3-30b-a3b")
    skewed = of("qwen3-30b-a3b", Deployment(router=Router(skew=1.2)))
    assert even.step_time is not None
    assert skewed.step_time is not None
    assert even.step_time.ticks(decode(8, 8000)) > even.step_time.ticks(decode(8, 800))
    assert skewed.step_time.ticks(decode(8, 800)) != even.step_time.ticks(decode(8, 800))


def test_verified_drafts_cost_their_tokens() -> None:
    plain = of("llama-3.1-8b").step_time
    reach = Reach(max_tokens=2048, max_requests=64, max_kv_len=16384, decode_query_len=4)
    found = model_time(read_model("llama-3.1-8b"), Deployment(), "h200", reach).step_time
    assert plain is not None
    assert found is not None
    verify = BatchShape.from_rows((Row(query_len=4, context_len=1020, phase="decode"),) * 16)
    assert found(verify) == pytest.approx(priced("llama-3.1-8b", verify, Deployment()), rel=0.02)
    assert found.ticks(verify) < 4 * plain.ticks(decode(16, 1024))


def calibration(cost: str, families: dict[str, float], fixed: dict[str, float]) -> Calibration:
    return Calibration(
        name="test",
        model="llama-3.1-8b",
        hardware="h200",
        engine="vllm",
        engine_version="0.32.0",
        plan=ParallelPlan(),
        source=Source(files=("steps.jsonl",), content_hash="0" * 64, date="2026-11-29"),
        cost=cost,  # type: ignore[arg-type]  # the test names one
        host_s=Factor(value=0.0, low=0.0, high=0.0),
        fixed={name: Factor(value=value, low=value / 2, high=value * 2) for name, value in fixed.items()},
        families={name: Factor(value=value, low=value / 2, high=value * 2) for name, value in families.items()},
    )


def test_factors_of_one_change_nothing_and_factors_scale_their_family() -> None:
    model = read_model("llama-3.1-8b")
    plain = of("llama-3.1-8b").step_time
    same = model_time(model, Deployment(), "h200", REACH, calibration("model", dict.fromkeys(FAMILIES, 1.0), {}))
    twice = model_time(model, Deployment(), "h200", REACH, calibration("model", dict.fromkeys(FAMILIES, 2.0), {}))
    some = model_time(model, Deployment(), "h200", REACH, calibration("model", {"attention": 2.0}, {}))
    assert plain is not None
    assert same.step_time == plain
    for shape in (decode(7, 900), prefill(1500, 300)):
        assert twice.step_time is not None
        assert some.step_time is not None
        assert twice.step_time(shape) == pytest.approx(2 * plain(shape), rel=1e-3)
        assert plain(shape) < some.step_time(shape) < 2 * plain(shape)
        assert twice.low(shape) == pytest.approx(plain(shape), rel=1e-3)


FIXED_COSTS = {
    "step_s": 1e-3,
    "request_s": 2e-5,
    "token_s": 3e-6,
    "token_s_from_64": 1e-6,
    "prefill_step_s": 4e-4,
    "prefill_request_s": 5e-5,
    "prefill_token_s": 6e-6,
    "prefill_kv_s": 7e-8,
    "prefill_query_kv_s": 8e-10,
    "decode_request_s": 9e-5,
    "decode_kv_s": 1e-8,
}


@given(st.integers(1, 64), st.integers(1, 16384), st.integers(1, 1500), st.integers(0, 3000))
def test_fixed_costs_add_up(count: int, kv_len: int, query: int, context: int) -> None:
    table = fixed_time(calibration("none", {}, FIXED_COSTS), REACH).step_time
    assert table is not None
    rows = (*(decode(count, kv_len).rows or ()), *(prefill(query, context).rows or ()))
    shape = BatchShape.from_rows(rows)
    tokens, kv_sum = count + query, query + context
    expected = (
        1e-3
        + 2e-5 * (count + 1)
        + 3e-6 * min(tokens, 64)
        + 1e-6 * max(tokens - 64, 0)
        + 4e-4
        + 5e-5
        + 6e-6 * query
        + 7e-8 * kv_sum
        + 8e-10 * query * kv_sum
        + 9e-5 * count
        + 1e-8 * count * kv_len
    )
    assert table(shape) == pytest.approx(expected, rel=1e-5)


def test_a_calibration_is_used_where_it_belongs() -> None:
    with pytest.raises(BadInput, match="scales no model"):
        model_time(read_model("llama-3.1-8b"), Deployment(), "h200", REACH, calibration("none", {}, FIXED_COSTS))
    with pytest.raises(BadInput, match="model and hardware"):
        fixed_time(calibration("model", {"attention": 1.0}, {}), REACH)


@pytest.mark.parametrize("name", ["max_tokens", "max_requests", "max_kv_len", "decode_query_len"])
def test_a_reach_of_nothing_is_refused(name: str) -> None:
    sizes = {"max_tokens": 8, "max_requests": 8, "max_kv_len": 8, name: 0}
    with pytest.raises(BadInput, match=name):
        Reach(**sizes)


GRIDS = st.builds(
    lambda rows, kv_lens, base, slope: DecodeGrid(
        rows=tuple(rows),
        kv_lens=tuple(kv_lens),
        ticks=tuple(tuple(base + slope * r * k + r * r for k in kv_lens) for r in rows),
    ),
    st.sets(st.integers(1, 300), min_size=1, max_size=6).map(sorted),
    st.sets(st.integers(0, 5000), min_size=1, max_size=6).map(sorted),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
)


@settings(max_examples=60)
@given(GRIDS, st.integers(1, 400), st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_a_line_is_what_ticks_adds_up_to(grid: DecodeGrid, count: int, sums: list[int]) -> None:
    """m steps along a line, in closed form, equal m steps one by one: pieces meet and are straight."""
    table = StepTime(by_tokens=(0,) * 401, decode=grid)
    line = table.decode_line(count)
    assert [piece[0] for piece in line] == sorted({count * kv for kv in grid.kv_lens})
    for before, after in pairwise(line):
        assert before[1] + before[2] * (after[0] - before[0]) == after[1]
    for kv_sum in sums:
        piece = max((p for p in line if p[0] <= kv_sum), default=line[0])
        here = BatchShape.from_sums(NO_ROWS, _with_kv(count, kv_sum))
        assert table.ticks(here) == piece[1] + piece[2] * (kv_sum - piece[0])
        assert table(here) == to_seconds(table.ticks(here))


def _with_kv(count: int, kv_sum: int) -> PhaseSums:
    return PhaseSums(num_requests=count, query_sum=count, kv_sum=kv_sum, query_sq_sum=count, query_kv_sum=kv_sum)


def test_a_step_beyond_the_table_is_refused() -> None:
    with pytest.raises(BadInput, match="table ends at 3"):
        StepTime(by_tokens=(0, 1, 2, 3)).ticks(prefill(4, 0))
