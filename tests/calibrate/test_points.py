"""A deployment's TPOT from measured points: coefficients found again, intervals that hold, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.calibrate.points import FEWEST, Load, MeasuredPoint, fit_tpot, leave_one_out
from stepscope.errors import BadInput

LOADS = [
    Load(concurrency=concurrency, isl=isl, osl=osl)
    for concurrency in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    for isl, osl in ((1024, 1024), (8192, 1024), (1024, 8192))
]


def tpot_of(load: Load) -> float:
    """A memory-bound dense model: 8 ms of weights, 25 us a row, 12 ns a token of KV, 40 us a prompt token."""
    rows, isl, osl = load.concurrency, load.isl, load.osl
    return 8e-3 + 25e-6 * rows + 12e-9 * rows * (isl + osl / 2) + 40e-6 * rows * isl / osl


def points_of(seed: int, noise: float, loads: list[Load] = LOADS) -> list[MeasuredPoint]:
    rng = np.random.default_rng(seed)
    return [MeasuredPoint(load=load, tpot_s=tpot_of(load) * float(np.exp(noise * rng.normal()))) for load in loads]


def test_exact_points_are_predicted_exactly_and_their_terms_found() -> None:
    model = fit_tpot(points_of(0, 0.0))
    between = Load(concurrency=48, isl=2048, osl=2048)
    found = model.predict(between)
    assert found.tpot_s == pytest.approx(tpot_of(between), rel=1e-6)
    assert found.grade == "modelled"
    assert model.coefficients[:4] == pytest.approx((8e-3, 25e-6, 12e-9, 40e-6), rel=1e-3)
    assert model.coefficients[4:] == pytest.approx([0.0] * (len(model.coefficients) - 4), abs=1e-6)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000))
def test_coefficients_are_never_negative_and_the_interval_surrounds_the_held_out(seed: int) -> None:
    points = points_of(seed, 0.1)
    model = fit_tpot(points)
    assert min(model.coefficients) >= 0
    ratios = np.array([point.tpot_s for point in points]) / leave_one_out(points)
    inside = (ratios >= model.held_out.low) & (ratios <= model.held_out.high)
    assert inside.mean() >= model.held_out.level


def test_the_interval_holds_as_many_new_points_as_it_says() -> None:
    inside = []
    for seed in range(8):
        model = fit_tpot(points_of(seed, 0.03))
        for point in points_of(seed + 1000, 0.03):
            found = model.predict(point.load)
            inside.append(found.low_s <= point.tpot_s <= found.high_s)
    assert np.mean(inside) > 0.85  # says 0.9; 216 draws


def test_outside_of_what_was_measured_is_said() -> None:
    model = fit_tpot(points_of(0, 0.01))
    found = model.predict(Load(concurrency=512, isl=1024, osl=128))
    assert found.grade == "extrapolated"
    assert found.outside == ("concurrency", "osl")


def test_few_points_promise_less() -> None:
    model = fit_tpot(points_of(1, 0.02, LOADS[:5]))
    assert model.held_out.level == pytest.approx(4 / 6)


def test_points_of_one_load_are_left_out_together() -> None:
    points = points_of(0, 0.0)
    wrong = MeasuredPoint(load=points[5].load, tpot_s=points[5].tpot_s * 3)
    predicted = leave_one_out([*points, wrong])
    assert predicted[5] == predicted[-1] == pytest.approx(points[5].tpot_s, rel=1e-4)


def test_fewer_than_four_loads_are_refused() -> None:
    points = points_of(0, 0.0, LOADS[: FEWEST - 1])
    with pytest.raises(BadInput, match="6 points of 3 different loads"):
        fit_tpot([*points, *points])


@pytest.mark.parametrize("tpot_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_tpot_that_is_no_time_is_refused(tpot_s: float) -> None:
    with pytest.raises(BadInput, match="give a time above 0"):
        MeasuredPoint(load=LOADS[0], tpot_s=tpot_s)


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="must be above 0"):
        Load(concurrency=0, isl=1, osl=1)
