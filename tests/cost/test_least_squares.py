"""Fits: coefficients never negative, optimal (KKT), robust; bands that cover what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cost.least_squares import (
    Band,
    Guess,
    cross_validate,
    fit_linear,
    fit_positive,
)
from stepscope.fit import solve_nonnegative

Array = np.ndarray[Any, np.dtype[Any]]


@given(st.integers(0, 10_000))
def test_nonnegative_solution_is_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, y = rng.random((20, 6)), rng.normal(size=20)
    x = solve_nonnegative(a, y)
    gradient = a.T @ (y - a @ x)
    assert (x >= 0).all()
    assert (gradient[x == 0] < 1e-7).all()  # none that stands at the border would gain
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-7


@given(st.integers(0, 10_000))
def test_nonnegative_takes_wildly_scaled_and_collinear_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.random((15, 3)) + 0.1
    a = np.concatenate([base, base[:, :1] * 1e9, np.zeros((15, 1))], axis=1)
    x = solve_nonnegative(a, base @ np.array([1.0, 2.0, 3.0]))
    assert (x >= 0).all()
    assert np.allclose(a @ x, base @ np.array([1.0, 2.0, 3.0]), rtol=1e-5)


def test_linear_fit_finds_costs_under_noise_and_an_outlier() -> None:
    rng = np.random.default_rng(1)
    a = np.stack([np.ones(60), rng.uniform(1, 100, 60)], axis=1)
    y = (a @ np.array([5.0, 0.3])) * rng.lognormal(0, 0.02, 60)
    y[7] *= 20
    assert fit_linear(a, y) == pytest.approx([5.0, 0.3], rel=0.05)


def test_positive_fit_finds_a_nonlinear_law() -> None:
    x = np.linspace(1, 50, 40)
    found = fit_positive(lambda c: c[0] + c[1] * x ** c[2], 2.0 + 0.5 * x**1.3, Guess(start=(1.0, 1.0, 1.0)))
    assert found == pytest.approx([2.0, 0.5, 1.3], rel=1e-3)


def test_a_least_value_is_kept() -> None:
    x = np.linspace(1, 50, 40)
    guess = Guess(start=(1.0, 1.5), least=((1, 1.0),))
    assert fit_positive(lambda c: c[0] * x ** c[1], x**0.5, guess)[1] == pytest.approx(1.0)


def test_band_covers_its_level_on_held_out_data() -> None:
    rng = np.random.default_rng(3)
    inside = [_covered(rng) for _ in range(60)]
    assert 0.88 <= float(np.mean(inside)) <= 0.96  # 0.9 is promised


def _covered(rng: np.random.Generator) -> float:
    """The share of 200 further points inside the band of 60."""
    a = np.stack([np.ones(260), rng.uniform(1, 100, 260)], axis=1)
    y = (a @ np.array([5.0, 0.3])) * rng.lognormal(0, 0.15, 260)

    def fit(rows: Array) -> Callable[[Array], Array]:
        c = fit_linear(a[rows], y[rows])
        return lambda out: np.asarray(a[out] @ c)

    band = cross_validate(fit, y[:60], rng)
    ratio = y[60:] / (a[60:] @ fit_linear(a[:60], y[:60]))
    return float(np.mean((ratio >= band.low) & (ratio <= band.high)))


def test_band_of_few_points_is_as_wide_as_they_are() -> None:
    band = Band.from_held_out(np.ones(5), np.array([0.5, 0.9, 1.0, 1.2, 3.0]))
    assert (band.low, band.high, band.num_points) == (0.5, 3.0, 5)
