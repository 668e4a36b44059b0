"""Calibrations of synthetic steps: known costs come back, cold steps are named, one size is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepscope.batch import BatchShape, Row
from stepscope.calibrate.columns import family_columns, plain_columns
from stepscope.calibrate.measured import MeasuredStep
from stepscope.calibrate.sorting import EMPTY, FIRST, NO_SUMS, NO_TIME, PAUSED, STALLED, sort_steps
from stepscope.calibrate.steps import About, Modelled, calibrate_steps, choose_calibration
from stepscope.cost.calibration import Calibration, Source
from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.fit import Resampling
from stepscope.models.hf_config import read_model
from stepscope.operators.deployment import Deployment

HOW = Resampling(num_draws=30)
ABOUT = About(
    name="test",
    model="qwen3-8b",
    engine="vllm",
    engine_version="0.32.0",
    source=Source(files=("test",), content_hash="sha256:0", date="2026-11-29"),
)
COSTS = {
    "step_s": 6e-3,
    "token_s": 5e-6,
    "token_s_from_64": 2e-4,
    "prefill_step_s": 1e-3,
    "prefill_query_kv_s": 1.5e-7,
    "decode_kv_s": 6e-7,
}


def a_shape(rng: np.random.Generator) -> BatchShape:
    """Decodes, and in one step of two a chunk of a prompt."""
    rows = [
        Row(query_len=1, context_len=int(rng.integers(10, 1500)), phase="decode") for _ in range(rng.integers(0, 12))
    ]
    if not rows or rng.random() < 0.5:
        rows.append(Row(query_len=int(rng.integers(2, 400)), context_len=int(rng.integers(0, 1200)), phase="prefill"))
    return BatchShape.from_rows(tuple(rows))


def plain_seconds(shape: BatchShape) -> float:
    columns = plain_columns([shape], bend=64)
    return sum(COSTS.get(name, 0.0) * float(v) for name, v in zip(columns.names, columns.values[0], strict=True))


def some_steps(seed: int, count: int = 400, noise: float = 0.04, seconds: Any = plain_seconds) -> list[MeasuredStep]:
    rng = np.random.default_rng(seed)
    found, now = [], 0.0
    for _ in range(count):
        shape = a_shape(rng)
        took = seconds(shape) * float(np.exp(rng.normal(0, noise)))
        found.append(MeasuredStep(shape=shape, start_s=now, seconds=took, gap_s=2e-4))
        now += took + 2e-4
    return found


@pytest.fixture(scope="module")
def plain() -> Calibration:
    return calibrate_steps(some_steps(0), ABOUT, how=HOW)


def test_known_costs_come_back_inside_their_intervals(plain: Calibration) -> None:
    assert "token_s_from_64" in plain.fixed
    told = {name: plain.fixed[name] for name in ("step_s", "token_s_from_64", "prefill_query_kv_s", "decode_kv_s")}
    for name, factor in told.items():
        assert factor.value == pytest.approx(COSTS[name], rel=0.1), name
        assert 0.97 * factor.low <= COSTS[name] <= 1.03 * factor.high, name
    assert plain.host_s.value == pytest.approx(2e-4)
    assert plain.cost == "none"


def test_the_score_is_the_noise_of_the_steps(plain: Calibration) -> None:
    assert plain.held_out["all"].num_steps == 400 - sum(plain.left_out.values())
    assert 0.015 < plain.held_out["all"].median < 0.04  # |N(0, 0.04)| has its median at 0.027
    assert plain.unexplained_fraction == pytest.approx(0.032, abs=0.01)  # and its mean at 0.032
    assert plain.drift.low < 1 < plain.drift.high
    assert set(plain.held_out) == {"all", "prefill", "decode", "mixed"}


def test_fitted_seconds_add_up_to_the_measured(plain: Calibration) -> None:
    kept = sort_steps(some_steps(0))
    bends = plain_columns(kept.shapes, bend=64)
    fitted = sum(
        factor.value * float(bends.values[:, bends.names.index(name)].sum()) for name, factor in plain.fixed.items()
    )
    assert fitted == pytest.approx(float(kept.seconds.sum()), rel=1e-9)


def test_a_shape_outside_of_the_measured_ranges_is_extrapolated(plain: Calibration) -> None:
    inside, longer = (BatchShape.from_rows((Row(query_len=100, context_len=c, phase="prefill"),)) for c in (500, 5000))
    assert (plain.grade(inside), plain.grade(longer)) == ("modelled", "extrapolated")


def test_every_step_that_is_left_out_has_its_reason() -> None:
    steps = some_steps(1, count=200)
    seen: set[object] = set()
    for step in steps:
        seen.add((step.shape.phase, (step.shape.num_scheduled_tokens or 0).bit_length()))
    steps[-1] = replace(steps[-1], seconds=40 * (steps[-1].seconds or 0))
    steps[-2] = replace(steps[-2], seconds=None)
    steps[-3] = replace(steps[-3], shape=BatchShape(num_scheduled_tokens=7))
    steps[-4] = replace(steps[-4], shape=BatchShape.from_rows(()))
    begin = steps[-5].start_s
    kept = sort_steps(steps, pauses=[(begin + 1e-4, begin + 2e-4)])
    assert kept.left_out == {FIRST: len(seen), STALLED: 1, NO_TIME: 1, NO_SUMS: 1, EMPTY: 1, PAUSED: 1}
    assert len(kept.steps) + sum(kept.left_out.values()) == len(steps)


def test_steps_in_any_order_give_the_same_calibration() -> None:
    steps = some_steps(2, count=120)
    assert calibrate_steps(steps[::-1], ABOUT, how=HOW) == calibrate_steps(steps, ABOUT, how=HOW)


def test_steps_of_one_size_are_refused() -> None:
    shape = BatchShape.from_rows((Row(query_len=1, context_len=100, phase="decode"),))
    steps = [MeasuredStep(shape=shape, start_s=float(i), seconds=0.007 + 1e-5 * (i % 3)) for i in range(60)]
    with pytest.raises(BadInput, match="all of one size"):
        calibrate_steps(steps, ABOUT, how=HOW)


def test_steps_too_alike_for_any_family_are_refused_with_the_way_out() -> None:
    rows = [Row(query_len=1, context_len=1024 + 8 * (i % 16), phase="decode") for i in range(80)]
    shapes = [BatchShape.from_rows((row,) * (1 + i % 3)) for i, row in enumerate(rows)]
    told = model_seconds(shapes)
    steps = [MeasuredStep(shape=s, start_s=float(i), seconds=told[id(s)]) for i, s in enumerate(shapes)]
    modelled = Modelled(architecture=read_model("qwen3-8b"), hardware=load_hardware("h200"), cost="model")
    with pytest.raises(BadInput, match=r"too alike .*--cost none"):
        calibrate_steps(steps, ABOUT, modelled, how=HOW)


def test_too_few_steps_are_refused_with_what_became_of_them() -> None:
    steps = [replace(step, seconds=None) for step in some_steps(3, count=60)]
    with pytest.raises(BadInput, match=r"0 steps can be fitted \(.*time not recorded.*\); expected 8 or more"):
        calibrate_steps(steps, ABOUT, how=HOW)


FACTORS = {"dense_gemm": 1.3, "attention": 2.0, "stream": 1.6}


def model_seconds(shapes: list[BatchShape]) -> dict[int, float]:
    columns = family_columns(shapes, read_model("qwen3-8b"), Deployment(), load_hardware("h200"), "model")
    factors = np.array([{**FACTORS, "step_s": 2e-3}.get(name, 0.0) for name in columns.names])
    return dict(zip(map(id, shapes), (columns.values @ factors).tolist(), strict=True))


def test_families_come_back_or_share_a_factor() -> None:
    drawn = some_steps(5, count=300, noise=0.0)
    told = model_seconds([step.shape for step in drawn])
    rng = np.random.default_rng(6)
    steps = [replace(s, seconds=told[id(s.shape)] * float(np.exp(rng.normal(0, 0.02)))) for s in drawn]
    modelled = Modelled(architecture=read_model("qwen3-8b"), hardware=load_hardware("h200"), cost="model")
    found = calibrate_steps(steps, ABOUT, modelled, how=HOW)
    assert set(found.families) == set(FACTORS)
    alone = set(FACTORS) - {name for group in found.tied for name in group}
    assert "dense_gemm" in alone or found.tied
    for name in alone:
        assert found.families[name].low * 0.95 <= FACTORS[name] <= found.families[name].high * 1.05
    for group in found.tied:
        assert len({found.families[name] for name in group if name in found.families}) == 1
    assert found.held_out["all"].median < 0.03
    plain = calibrate_steps(steps, ABOUT, how=HOW)
    assert choose_calibration([plain, found]).held_out["all"].median <= found.held_out["all"].median


def test_a_device_without_measured_kernels_is_calibrated_on_its_bounds() -> None:
    steps = some_steps(7, count=150)
    for cost, said in (("model", "no measured kernels"), ("none", "takes no model")):
        modelled = Modelled(architecture=read_model("qwen3-8b"), hardware=load_hardware("mi300x"), cost=cost)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match=said):
            calibrate_steps(steps, ABOUT, modelled, how=HOW)
    bound = Modelled(architecture=read_model("qwen3-8b"), hardware=load_hardware("mi300x"), cost="bound")
    assert calibrate_steps(steps, ABOUT, bound, how=HOW).cost == "bound"
