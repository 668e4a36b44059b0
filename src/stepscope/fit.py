"""Robust fits of times as sums of costs that are never negative, each coefficient with an interval, or a refusal.

y = A x, x >= 0. Errors are relative to the prediction, and those beyond a few of their own spreads count by their size,
not its square (Huber, "Robust Estimation of a Location Parameter", 1964). Intervals come of refits on resampled blocks
of neighbouring points, for disturbances last longer than one (Künsch, "The Jackknife and the Bootstrap for General
Stationary Observations", 1989); held-out errors leave out such blocks too. All random numbers come from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, np.dtype[Any]]
ROUNDS = 12
_HUBER = 1.345  # spreads within which an error counts by its square: 95 % efficiency on normal errors
_LEAST_SPREAD = 1e-3  # relative: errors below it are all alike
LEAST_SEPARATE = 0.02  # share of a column, relative to y, that no mix of the others makes
POINTS_PER_COEFFICIENT = 4


def solve_nonnegative(a: Array, y: Array) -> Array:
    """The x >= 0 with the least |a x - y|² (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23).

    >>> solve_nonnegative(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    size = np.sqrt(np.einsum("ij,ij->j", a, a))
    scaled = a / np.where(size > 0, size, 1.0)
    tolerance = 1e-10 * max(float(np.abs(scaled.T @ y).max(initial=0.0)), 1e-300)
    x = np.zeros(a.shape[1])
    free = np.zeros(a.shape[1], dtype=bool)
    for _ in range(5 * a.shape[1]):
        gradient = scaled.T @ (y - scaled @ x)
        gradient[free] = -np.inf
        enter = int(np.argmax(gradient))
        if gradient[enter] <= tolerance:
            break
        free[enter] = True
        x, free = _step_inside(scaled, y, x, free)
    return x / np.where(size > 0, size, 1.0)


def _step_inside(a: Array, y: Array, x: Array, free: Array) -> tuple[Array, Array]:
    """Solve on the free columns; where that leaves x >= 0, stop at the border and fix what stands on it."""
    free = free.copy()
    while free.any():
        trial = np.zeros_like(x)
        trial[free] = np.linalg.lstsq(a[:, free], y, rcond=None)[0]
        below = free & (trial <= 0)
        if not below.any():
            return trial, free
        length = float(np.min(x[below] / np.maximum(x[below] - trial[below], 1e-300)))
        x = x + length * (trial - x)
        free &= x > 1e-12 * max(float(x.max(initial=0.0)), 1e-300)
        x = np.where(free, x, 0.0)
    return x, free


def fit_robust(a: Array, y: Array, counts: Array | None = None, rounds: int = ROUNDS) -> Array:
    """Coefficients >= 0 of y = a x by relative errors; `counts`: how often each point counts (default: once).

    >>> a = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0], [1.0, 8.0], [1.0, 9.0]])
    >>> fit_robust(a, a @ np.array([1.0, 2.0])).round(9).tolist()
    [1.0, 2.0]
    """
    often = np.ones(len(y)) if counts is None else counts.astype(float)
    weight = np.sqrt(often) / y
    x = np.zeros(a.shape[1])
    for _ in range(rounds):
        before = x
        x = _solve_weighted(a, y, weight)
        predicted = np.maximum(a @ x, 0.05 * y)
        error = np.abs(y - predicted) / predicted
        spread = max(1.4826 * float(np.median(np.repeat(error, often.astype(int)))), _LEAST_SPREAD)
        weight = np.sqrt(often * np.minimum(1.0, _HUBER * spread / np.maximum(error, 1e-12))) / predicted
        if np.allclose(x, before, rtol=1e-4, atol=0):
            break
    return x


def _solve_weighted(a: Array, y: Array, weight: Array) -> Array:
    """Of as many equations as coefficients: the triangle of a QR factorisation has the same solution."""
    joined = np.column_stack([a, y]) * weight[:, None]
    if len(y) > a.shape[1] + 1:
        joined = np.asarray(np.linalg.qr(joined, mode="r"))
    return solve_nonnegative(joined[:, :-1], joined[:, -1])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fit:
    """Coefficients by name, with the ends of their intervals, the refits, and what was predicted of unseen points."""

    names: tuple[str, ...]
    values: Array
    low: Array
    high: Array
    draws: Array  # [refits, coefficients]
    fitted: Array  # one a point
    held_out: Array  # one prediction a point, by a fit that has not seen its block


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """How intervals are made: refits, the points of a block, parts of the held-out score, the interval, the seed."""

    num_draws: int = 100
    block_len: int = 8
    folds: int = 5
    level: float = 0.9
    seed: int = 0


def fit_linear_costs(a: Array, y: Array, names: Sequence[str], how: Resampling | None = None) -> Fit:
    """Fit, with intervals and held-out predictions; points in the order of time.

    Raises:
        BadInput: too few points, points that are no times, or columns that the points cannot tell apart.
    """
    how = how or Resampling()
    check_points(a, y, names)
    values = fit_robust(a, y)
    blocks = np.arange(len(y)) // how.block_len
    draws = _draws(a, y, blocks, how)
    beyond = (1 - how.level) / 2
    low, high = np.quantile(draws, [beyond, 1 - beyond], axis=0) if len(draws) else (values, values)
    return Fit(
        names=tuple(names),
        values=values,
        low=np.minimum(low, values),
        high=np.maximum(high, values),
        draws=draws,
        fitted=np.asarray(a @ values),
        held_out=hold_out(a, y, how),
    )


def _draws(a: Array, y: Array, blocks: Array, how: Resampling) -> Array:
    rng = np.random.default_rng(how.seed)
    num_blocks = int(blocks[-1]) + 1
    found = np.empty((how.num_draws, a.shape[1]))
    for row in found:
        counts = np.bincount(rng.integers(0, num_blocks, num_blocks), minlength=num_blocks)[blocks]
        seen = counts > 0
        row[:] = fit_robust(a[seen], y[seen], counts[seen], rounds=5)
    return found


def hold_out(a: Array, y: Array, how: Resampling | None = None) -> Array:
    """Predictions of every point by a fit on the blocks of the other parts; part p holds blocks p, p + folds, ..."""
    how = how or Resampling()
    part = (np.arange(len(y)) // how.block_len) % how.folds
    predicted = np.empty(len(y))
    for index in range(how.folds):
        unseen = part == index
        if unseen.any():
            predicted[unseen] = a[unseen] @ fit_robust(a[~unseen], y[~unseen])
    return predicted


def separateness(a: Array, y: Array) -> Array:
    """Of each column, relative to y: the share of its length that no mix of the other columns makes; 0 of no column.

    >>> separateness(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.ones(3)).round(3).tolist()
    [0.378, 0.378]
    """
    relative = a / y[:, None]
    size = np.linalg.norm(relative, axis=0)
    scaled = relative / np.where(size > 0, size, 1.0)
    found = np.zeros(a.shape[1])
    for column in np.flatnonzero(size > 0):
        others = np.delete(scaled, column, axis=1)
        mix = np.linalg.lstsq(others, scaled[:, column], rcond=None)[0]
        found[column] = np.linalg.norm(scaled[:, column] - others @ mix)
    return found


def check_points(a: Array, y: Array, names: Sequence[str]) -> None:
    """Whether a fit would mean something.

    Raises:
        BadInput: it would not; the message says why.
    """
    if not (np.isfinite(a).all() and np.isfinite(y).all() and (y > 0).all() and (a >= 0).all()):
        raise BadInput("a fit needs finite times above 0 and finite counts of 0 or more. Leave the other points out.")
    needed = POINTS_PER_COEFFICIENT * len(names)
    if len(y) < needed:
        raise BadInput(
            f"{len(y)} points for {len(names)} coefficients ({', '.join(names)}); expected {needed} or more. "
            "Record for longer, or fit fewer."
        )
    for name, share in zip(names, separateness(a, y), strict=True):
        if share < LEAST_SEPARATE:
            raise BadInput(
                f"'{name}' does not vary on its own: the other costs make all but {100 * share:.1f} % of it at these "
                f"{len(y)} points, expected {100 * LEAST_SEPARATE:g} % or more. Record with more spread, or tie them."
            )


def choose_bend(candidates: Sequence[int], error_of: Callable[[int | None], float], gain: float = 0.03) -> int | None:
    """Where a straight line bends: the candidate of the least error, None where none is better by a share of `gain`."""
    straight = error_of(None)
    tried = [(error_of(candidate), candidate) for candidate in candidates]
    if not tried:
        return None
    error, best = min(tried)
    return best if error < (1 - gain) * straight else None
