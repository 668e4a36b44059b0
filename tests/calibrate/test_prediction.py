"""A plain calibration's StepTime gives a shape what its counts cost, and predictions carry the draws' interval."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.batch import BatchShape, Row
from stepscope.calibrate.columns import plain_columns
from stepscope.calibrate.prediction import Drawing, predict_with_draws
from stepscope.cost.calibration import Calibration, Factor, Source
from stepscope.errors import BadInput
from stepscope.models.parallel import ParallelPlan
from stepscope.simulate.fixed_costs import plain_step_time
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.step_time import StepTime
from stepscope.simulate.synthetic import Lengths, poisson_arrivals, single_requests

BUDGET = 256
SECONDS = {
    "step_s": 6e-3,
    "token_s": 1e-5,
    "token_s_from_16": 2e-4,
    "prefill_step_s": 1e-3,
    "prefill_request_s": 4e-4,
    "prefill_kv_s": 3e-6,
    "prefill_query_kv_s": 1e-7,
    "decode_request_s": 1e-4,
    "decode_kv_s": 6e-7,
}


def exact(value: float) -> Factor:
    return Factor(value=value, low=value, high=value)


def a_calibration(**seconds: float) -> Calibration:
    return Calibration(
        name="plain",
        model="tiny",
        hardware=None,
        engine="vllm",
        engine_version="0.32.0",
        plan=ParallelPlan(),
        source=Source(files=(), content_hash="", date="2026-11"),
        cost="none",
        host_s=exact(1e-4),
        fixed={name: exact(value) for name, value in seconds.items()},
    )


rows = st.lists(
    st.one_of(
        st.builds(Row, query_len=st.just(1), context_len=st.integers(1, 4000), phase=st.just("decode")),
        st.builds(Row, query_len=st.integers(1, 32), context_len=st.integers(0, 4000), phase=st.just("prefill")),
    ),
    min_size=1,
    max_size=8,
)


@given(rows)
def test_a_shape_takes_what_its_counts_cost(drawn: list[Row]) -> None:
    shape = BatchShape.from_rows(tuple(drawn))
    columns = plain_columns([shape], bend=16)
    expected = sum(SECONDS[name] * value for name, value in zip(columns.names, columns.values[0], strict=True))
    assert plain_step_time(a_calibration(**SECONDS), BUDGET)(shape) == pytest.approx(expected, rel=1e-6)


def test_a_row_of_any_phase_is_counted_once() -> None:
    time = plain_step_time(a_calibration(step_s=1e-3, request_s=1e-4, prefill_token_s=1e-5), BUDGET)
    chunk = Row(query_len=10, context_len=0, phase="prefill")
    token = Row(query_len=1, context_len=10, phase="decode")
    assert time(BatchShape.from_rows((chunk, token))) == pytest.approx(1e-3 + 2e-4 + 1e-4, rel=1e-6)


def test_a_calibration_of_families_needs_its_model() -> None:
    scaled = replace(a_calibration(step_s=1e-3), cost="bound", families={"dense_gemm": exact(2.0)})
    with pytest.raises(BadInput, match="Give its model and hardware"):
        plain_step_time(scaled, BUDGET)


RULES = SchedulerRules(max_num_batched_tokens=BUDGET, max_num_seqs=16, max_model_len=2048, num_blocks=2000)


def a_load() -> tuple[Request, ...]:
    rng = Random(1)
    arrivals = poisson_arrivals(rng, rate_per_s=5.0, count=40)
    return single_requests(rng, arrivals, question=Lengths(median=200), answer=Lengths(median=20)).requests


def step_time(calibration: Calibration) -> StepTime:
    return plain_step_time(calibration, BUDGET)


def test_draws_span_an_interval_around_the_figure() -> None:
    steady = a_calibration(**SECONDS)
    alone = predict_with_draws(a_load(), RULES, steady, step_time)
    assert all(figure.low == figure.value == figure.high for figure in alone.values())
    assert set(alone) == {f"{name}_s_{p}" for name in ("ttft", "tpot", "e2el") for p in ("p50", "p90")}
    wide = replace(steady, draws={"fixed.step_s": (5e-3, 7e-3)}, drift=Factor(value=1.0, low=0.9, high=1.1))
    drawn = predict_with_draws(a_load(), RULES, wide, step_time, drawing=Drawing(count=12, seed=3))
    assert {name: figure.value for name, figure in drawn.items()} == {n: f.value for n, f in alone.items()}
    assert all(figure.low < figure.value < figure.high for figure in drawn.values())
    assert drawn == predict_with_draws(a_load(), RULES, wide, step_time, drawing=Drawing(count=12, seed=3))


def test_a_faster_calibration_predicts_less() -> None:
    slow, fast = (
        predict_with_draws(a_load(), RULES, a_calibration(**SECONDS).drawn(0, speed), step_time) for speed in (1.0, 0.5)
    )
    assert all(fast[name].value < slow[name].value for name in slow)
