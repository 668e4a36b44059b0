"""Fits with coefficients that are never negative, in numpy alone.

A time is a sum of costs, so a negative coefficient is always a misfit: `fit_linear` solves least squares with x >= 0
(the active set of `fit`), `fit_positive` a nonlinear model through the logarithm of its coefficients (Levenberg and
Marquardt). Both weigh relative errors, and both give an outlier the weight of its size, not of its square (iteratively
reweighted).
`Band`: residuals ln(measured / predicted) of points that were held out, as the quantiles that cover `level`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.fit import solve_nonnegative

Array = np.ndarray[Any, np.dtype[Any]]
SCALE = 0.05  # relative errors beyond this weigh as their size


def fit_linear(a: Array, y: Array, rounds: int = 8) -> Array:
    """Coefficients >= 0 of y = a x, by relative errors.

    >>> fit_linear(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]]), np.array([3.0, 5.0, 9.0])).round(9).tolist()
    [1.0, 2.0]
    """
    weight = 1 / y
    x = np.zeros(a.shape[1])
    for _ in range(rounds):
        x = solve_nonnegative(a * weight[:, None], y * weight)
        weight = 1 / (y * np.sqrt(np.maximum(np.abs(a @ x / y - 1), SCALE / 2)))
    return x


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Where `fit_positive` starts, and how far each coefficient may move: a factor of exp(reach) either way."""

    start: tuple[float, ...]
    reach: float = 3.0
    least: tuple[tuple[int, float], ...] = ()  # (coefficient, its least value)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lowest and highest logarithm of each coefficient."""
        start = np.log(np.asarray(self.start))
        low = start - self.reach
        for position, value in self.least:
            low[position] = max(low[position], np.log(value))
        return low, start + self.reach


def fit_positive(predict: Callable[[Array], Array], y: Array, guess: Guess, rounds: int = 60) -> Array:
    """Coefficients > 0 with which `predict` comes closest to y, in relative terms."""
    low, high = guess.bounds
    log_y = np.log(y)

    def residual(theta: Array) -> Array:
        return np.asarray(np.log(predict(np.exp(theta))) - log_y, dtype=float)

    theta, damping = np.log(np.asarray(guess.start)), 1e-2
    error = residual(theta)
    cost = _cost(error)
    for _ in range(rounds):
        jacobian = _jacobian(residual, theta, error)
        weight = 1 / np.sqrt(1 + (error / SCALE) ** 2)
        hessian = jacobian.T @ (jacobian * weight[:, None])
        slope = jacobian.T @ (error * weight)
        before = cost
        for _ in range(8):
            ridge = damping * (np.diag(hessian) + 1e-9)
            trial = np.clip(theta - np.linalg.solve(hessian + np.diag(ridge + 1e-12), slope), low, high)
            trial_error = residual(trial)
            if _cost(trial_error) < cost:
                theta, error, cost, damping = trial, trial_error, _cost(trial_error), max(damping / 5, 1e-9)
                break
            damping = min(damping * 4, 1e9)
        if before - cost <= 1e-7 * before:
            break
    return np.asarray(np.exp(theta))


def _cost(error: Array) -> float:
    return float(np.sum(np.sqrt(1 + (error / SCALE) ** 2) - 1))


def _jacobian(residual: Callable[[Array], Array], theta: Array, error: Array) -> Array:
    step = 1e-3
    columns = []
    for position in range(theta.size):
        moved = theta.copy()
        moved[position] += step
        columns.append((residual(moved) - error) / step)
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """measured = predicted x a factor between `low` and `high` in `level` of held-out points (`num_points` of them)."""

    low: float
    high: float
    level: float
    num_points: int

    @classmethod
    def from_held_out(cls, predicted: Array, measured: Array, level: float = 0.9) -> Band:
        """The order statistics that cover `level` of a further point, whatever the residuals' distribution.

        Source: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005 (split conformal sets).
        """
        ratio = np.sort(measured / predicted)
        beyond = (len(ratio) + 1) * (1 - level) / 2
        position = max(int(np.floor(beyond)) - 1, 0)
        return cls(low=float(ratio[position]), high=float(ratio[-1 - position]), level=level, num_points=len(ratio))


def cross_validate(
    fit: Callable[[Array], Callable[[Array], Array]], measured: Array, rng: np.random.Generator, folds: int = 5
) -> Band:
    """The band of points that each fit has not seen; `fit(rows)` returns a function of rows to predictions."""
    order = rng.permutation(len(measured))
    predicted = np.empty(len(measured))
    for part in range(folds):
        held_out = order[part::folds]
        seen = np.setdiff1d(order, held_out)
        predicted[held_out] = fit(seen)(held_out)
    return Band.from_held_out(predicted, measured)
