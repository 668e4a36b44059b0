"""Bend: where a time turns from flat to rising along an axis: two straight pieces, with refits for an interval.

t = a + b x + c max(x - x*, 0), a, b, c >= 0, errors relative to t. x* is tried on a fine grid between the second and
the last but one point, for on either side of a bend two points are needed to see it. It is taken where it pays for its
two parameters: n log(mean square error) + parameters x log(n) is least (Schwarz, "Estimating the Dimension of a Model",
1978), with errors below the points' own noise counting as that, and only if the slope at least doubles there. Refits
draw each point's samples anew with replacement and leave out one point between the ends: where the samples are all
alike, the interval is what the grid leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stepscope.fit import choose_bend, fit_robust

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, np.dtype[Any]]
Answer = Literal["found", "not_reached", "passed", "straight", "not_measured"]
LEAST_POINTS = 5
_PER_OCTAVE = 4  # bends that are tried
_TURN = 1.0  # c / b: the slope at least doubles, or it is a line that is not quite straight
_NOISE = 0.01  # relative: errors below it are all alike
_FALLING, _PROPORTIONAL = (
    0.5,
    0.85,
)  # d log t / d log x: up to here x < a / b; from here the time per token hardly falls
REFITS = 40
_ROUNDS = 1  # of the robust fit: the points are medians already
_LEAST_FOUND = 0.5  # share of refits that must have a bend too


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A time at a place of the axis; `samples`: of the same, one or more."""

    x: float
    samples: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return float(np.median(self.samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """The answer.

    Attributes:
        at, low, high: where it bends, and the 5th to 95th percentile of the refits that bend; None without a bend.
        share: of the refits that have a bend; None without refits.
        half: x at which a straight line pays as much for x as it pays at x = 0: a / b, with its ends; None where not
            both are paid. Where memory and compute add up instead of overlapping, this is the crossover.
        first_slope, last_slope: d log t / d log x of the straight line at the ends: 0 flat, 1 in proportion.
    """

    answer: Answer
    reason: str
    at: float | None = None
    low: float | None = None
    high: float | None = None
    share: float | None = None
    half: float | None = None
    half_low: float | None = None
    half_high: float | None = None
    first_slope: float | None = None
    last_slope: float | None = None
    num_points: int = 0


def find_bend(points: Sequence[Point], *, num_refits: int = REFITS, seed: int = 0) -> Bend:
    """The bend of time over the axis; points in any order, one for each place."""
    ordered = sorted(points, key=lambda point: point.x)
    if len(ordered) < LEAST_POINTS:
        return Bend(
            answer="not_measured",
            reason=f"{len(ordered)} points with a time, {LEAST_POINTS} or more are needed",
            num_points=len(ordered),
        )
    x, y = np.array([p.x for p in ordered]), np.array([p.seconds for p in ordered])
    at = _bend_of(x, y, _noise(ordered))
    a, b = _line_of(x, y)
    slopes = [float(b * end / (a + b * end)) for end in (x[0], x[-1])]
    half = a / b if a > 0 and b > 0 else None
    refits = _refits(ordered, num_refits, seed)
    bent = [found for found, _ in refits if found is not None]
    half_low, half_high = _ends([found for _, found in refits if found is not None], half)
    share = len(bent) / len(refits) if refits else None
    told: dict[str, Any] = {
        "half": half,
        "half_low": half_low,
        "half_high": half_high,
        "share": share,
        "first_slope": slopes[0],
        "last_slope": slopes[1],
        "num_points": len(ordered),
    }
    if at is not None and share is None:
        return Bend(answer="found", reason="", at=at, **told)
    if at is not None and share is not None and share >= _LEAST_FOUND:
        low, high = _ends(bent, at)
        return Bend(answer="found", reason="", at=at, low=low, high=high, **told)
    answer, reason = _without(x, slopes)
    return Bend(answer=answer, reason=reason, **told)


def _line_of(x: Array, y: Array) -> tuple[float, float]:
    """The a and b of a straight line; one of them is above 0."""
    a, b = fit_robust(np.column_stack([np.ones_like(x), x]), y)
    return float(a), float(b)


def _half_of(x: Array, y: Array) -> float | None:
    a, b = _line_of(x, y)
    return a / b if a > 0 and b > 0 else None


def _ends(draws: Sequence[float], value: float | None) -> tuple[float | None, float | None]:
    """The 5th and 95th percentile, and the value between them; None without either."""
    if value is None or not draws:
        return None, None
    low, high = np.quantile(draws, [0.05, 0.95])
    return min(float(low), value), max(float(high), value)


def _without(x: Array, slopes: Sequence[float]) -> tuple[Answer, str]:
    if slopes[0] >= _PROPORTIONAL:
        return "passed", f"the time rises in proportion from {x[0]:.4g} on: the bend is below this grid"
    if slopes[1] <= _FALLING:
        return "not_reached", f"what does not grow is most of the time up to {x[-1]:.4g}: not reached in this grid"
    return "straight", f"no bend between {x[1]:.4g} and {x[-2]:.4g}: a straight line explains the times as well"


def _noise(points: Sequence[Point]) -> float:
    """Relative standard error of the points' medians, at least a little."""
    errors = [
        1.2533 * float(np.std(p.samples)) / (len(p.samples) ** 0.5 * p.seconds) for p in points if len(p.samples) > 1
    ]
    return max([_NOISE, *([float(np.median(errors))] if errors else [])])


def _bend_of(x: Array, y: Array, noise: float) -> float | None:
    candidates = _candidates(x)

    def fit_at(index: int | None) -> tuple[Array, Array]:
        columns = [np.ones_like(x), x]
        if index is not None:
            columns.append(np.maximum(x - candidates[index], 0.0))
        a = np.column_stack(columns)
        return a, fit_robust(a, y, rounds=_ROUNDS)

    def error_of(index: int | None) -> float:
        a, coefficients = fit_at(index)
        error = float(np.mean((a @ coefficients / y - 1) ** 2)) + noise**2
        parameters = len(coefficients) + (index is not None)
        return exp((log(error) + parameters * log(len(x)) / len(x)) / 2)

    found = choose_bend(range(len(candidates)), error_of)
    if found is None:
        return None
    _, (_, before, more) = fit_at(found)
    return candidates[found] if more >= _TURN * before else None


def _candidates(x: Array) -> list[float]:
    found: list[float] = []
    for low, high in pairwise(x[1:-1]):
        count = max(round(_PER_OCTAVE * float(np.log2(high / low))), 1)
        found += [float(low * (high / low) ** (i / count)) for i in range(count)]
    return [*found, float(x[-2])]


def _refits(points: Sequence[Point], count: int, seed: int) -> list[tuple[float | None, float | None]]:
    """Bend and half of each."""
    rng = np.random.default_rng(seed)
    noise, found = _noise(points), []
    for _ in range(count):
        left_out = int(rng.integers(1, len(points) - 1)) if len(points) > LEAST_POINTS else None
        kept = [p for i, p in enumerate(points) if i != left_out]
        y = np.array([float(np.median(rng.choice(p.samples, len(p.samples)))) for p in kept])
        x = np.array([p.x for p in kept])
        found.append((_bend_of(x, y, noise), _half_of(x, y)))
    return found
