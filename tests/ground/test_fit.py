"""Fits find known coefficients inside their intervals, shrug at outliers, and refuse what the points do not tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.fit import (
    Resampling,
    check_points,
    choose_bend,
    fit_linear_costs,
    fit_robust,
    hold_out,
    separateness,
    solve_nonnegative,
)

Array = np.ndarray[Any, np.dtype[Any]]
TRUE = np.array([5e-3, 2e-4, 7e-7])
NAMES = ("step_s", "token_s", "decode_kv_s")


def points(rng: np.random.Generator, count: int = 160, noise: float = 0.05) -> tuple[Array, Array]:
    a = np.column_stack([np.ones(count), rng.integers(1, 512, count), rng.integers(0, 20_000, count)]).astype(float)
    return a, a @ TRUE * np.exp(rng.normal(0, noise, count))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_the_solution_is_where_no_coefficient_can_improve(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    a, y = rng.normal(size=(12, columns)), rng.normal(size=12)
    x = solve_nonnegative(a, y)
    gradient = a.T @ (y - a @ x)
    assert (x >= 0).all()
    assert (gradient <= 1e-7 * (1 + np.abs(y).max())).all()  # Karush-Kuhn-Tucker: none wants to grow
    assert np.allclose(gradient[x > 0], 0, atol=1e-7)


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_exact_points_give_exact_coefficients(seed: int) -> None:
    a, y = points(np.random.default_rng(seed), noise=0.0)
    assert np.allclose(fit_robust(a, y), TRUE, rtol=1e-6)


def test_one_point_in_ten_ten_times_too_slow_moves_nothing() -> None:
    a, y = points(np.random.default_rng(3), noise=0.02)
    clean = fit_robust(a, y)
    y[::10] *= 10
    assert np.allclose(fit_robust(a, y), clean, rtol=0.03)
    squares = solve_nonnegative(a / y[:, None], np.ones(len(y)))
    assert not np.allclose(squares, clean, rtol=0.03)


def test_intervals_of_90_percent_hold_the_truth_about_that_often() -> None:
    held = []
    for seed in range(40):
        a, y = points(np.random.default_rng(seed))
        fit = fit_linear_costs(a, y, NAMES, Resampling(num_draws=40, seed=seed))
        held.append((fit.low <= TRUE) & (fit.high >= TRUE))
    share = np.mean(held)
    assert 0.78 <= share <= 0.98  # of 120: 0.90 with a standard error of 0.03, and 20 blocks make it a little narrow


def test_the_same_seed_gives_the_same_intervals() -> None:
    a, y = points(np.random.default_rng(1))
    first, second = (fit_linear_costs(a, y, NAMES, Resampling(num_draws=20, seed=5)) for _ in range(2))
    assert (first.draws == second.draws).all()
    assert (first.low <= first.values).all()
    assert (first.values <= first.high).all()


def test_held_out_errors_are_those_of_points_that_were_not_seen() -> None:
    a, y = points(np.random.default_rng(2))
    changed = y.copy()
    changed[:8] *= 3  # the first block: its own predictions come from the other parts, which did not change
    how = Resampling(block_len=8, folds=5)
    assert np.allclose(hold_out(a, y, how)[:8], hold_out(a, changed, how)[:8])


def test_a_column_that_others_make_is_not_separate() -> None:
    a, y = points(np.random.default_rng(4))
    assert (separateness(a, y) > 0.1).all()
    doubled = np.column_stack([a, a[:, 0] + 2 * a[:, 1]])
    assert separateness(doubled, y)[3] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, y: (a[:11], y[:11]), "11 points for 3 coefficients .*expected 12 or more"),
        (lambda a, y: (np.where([True, False, True], a, 100.0), y), "does not vary on its own"),
        (lambda a, y: (a, np.where(np.arange(len(y)) == 5, np.nan, y)), "finite times above 0"),
        (lambda a, y: (a, y * 0), "finite times above 0"),
    ],
)
def test_what_the_points_do_not_tell_is_refused(change: Any, said: str) -> None:
    a, y = change(*points(np.random.default_rng(0)))
    with pytest.raises(BadInput, match=said):
        check_points(a, y, NAMES)


def test_a_bend_is_chosen_only_where_it_tells_unseen_points_better() -> None:
    errors = {None: 0.10, 8: 0.099, 64: 0.05, 256: 0.07}
    assert choose_bend((8, 64, 256), errors.__getitem__) == 64
    assert choose_bend((8,), errors.__getitem__) is None
    assert choose_bend((), errors.__getitem__) is None
