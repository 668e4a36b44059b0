"""TpotModel: the TPOT of one deployment at any load, from a few measured points of (concurrency, isl, osl).

C = concurrency (requests in flight), i = isl and o = osl (tokens of prompt and answer). Over a request's life a decode
step holds C rows of mean context i + o/2, and each of its tokens makes room for C·i/o prompt tokens of other requests:
TPOT = a + b·C + c·C(i + o/2) + d·C·i/o + e·C·i²/o + f·√C + Σ g·(1 - exp(-C/τ)), all coefficients 0 or more.
a: weights and launches; b: rows; c: KV read; d: prompt tokens; e: attention among prompt tokens; f: what grows slower
than the load (small GEMMs, waves); g: expert weights, of which C tokens reach 1 - exp(-C·top_k/num_experts), with
num_experts / top_k from 4 (Mixtral) over 16 and 32 (Qwen3, DeepSeek) to 48, more where attention is data parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from stepscope.cost.least_squares import Array, Band, fit_linear
from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.evidence import Grade

FEWEST = 4  # different loads; below that nothing could be held out of a fit
LEVEL = 0.9
SATURATION = (8.0, 32.0, 128.0)  # τ


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a closed-loop benchmark keeps up: requests in flight, tokens of each prompt and of each answer."""

    concurrency: float
    isl: float
    osl: float

    def __post_init__(self) -> None:
        if not all(isfinite(value) and value > 0 for value in (self.concurrency, self.isl, self.osl)):
            raise BadInput(f"{self}: concurrency, isl and osl must be above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One aggregated result: the mean TPOT at a load."""

    load: Load
    tpot_s: float

    def __post_init__(self) -> None:
        if not (isfinite(self.tpot_s) and self.tpot_s > 0):
            raise BadInput(f"TPOT at {self.load} is {self.tpot_s} s: give a time above 0, or leave the point out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTpot:
    """A TPOT, the interval that holds `level` of further points, and what lies `outside` of the fit's range."""

    tpot_s: float
    low_s: float
    high_s: float
    level: float
    grade: Grade
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TpotModel:
    """The fit of one deployment: coefficients (seconds per unit of each term), its range, its held-out residuals."""

    coefficients: tuple[float, ...]
    least: Load
    most: Load
    held_out: Band

    def predict(self, load: Load) -> PredictedTpot:
        """TPOT at a load, graded extrapolated where concurrency, isl or osl is outside of what was measured."""
        tpot_s = float(_terms((load,))[0] @ np.array(self.coefficients))
        outside = tuple(
            name
            for name in ("concurrency", "isl", "osl")
            if not getattr(self.least, name) <= getattr(load, name) <= getattr(self.most, name)
        )
        return PredictedTpot(
            tpot_s=tpot_s,
            low_s=tpot_s * self.held_out.low,
            high_s=tpot_s * self.held_out.high,
            level=self.held_out.level,
            grade="extrapolated" if outside else "modelled",
            outside=outside,
        )


def fit_tpot(points: Sequence[MeasuredPoint]) -> TpotModel:
    """The model of one deployment's points: same model, system, engine and version, precision and parallel plan.

    Raises:
        BadInput: fewer than 4 different loads.
    """
    predicted = leave_one_out(points)
    measured = np.array([point.tpot_s for point in points])
    # n order statistics cover at most (n - 1) / (n + 1) of a further point
    level = min(LEVEL, (len(points) - 1) / (len(points) + 1))
    loads = [point.load for point in points]
    return TpotModel(
        coefficients=tuple(fit_linear(_terms(loads), measured).tolist()),
        least=_extreme(loads, min),
        most=_extreme(loads, max),
        held_out=Band.from_held_out(predicted, measured, level),
    )


def leave_one_out(points: Sequence[MeasuredPoint]) -> Array:
    """Each point as predicted by a fit of the others; those of the same load leave together.

    Raises:
        BadInput: fewer than 4 different loads.
    """
    loads = [point.load for point in points]
    if len(set(loads)) < FEWEST:
        raise BadInput(
            f"{len(points)} points of {len(set(loads))} different loads: a fit needs {FEWEST} or more. Measure further "
            "concurrencies or lengths of this deployment."
        )
    terms, measured = _terms(loads), np.array([point.tpot_s for point in points])
    predicted = np.empty(len(points))
    for load in dict.fromkeys(loads):
        held_out = np.array([each == load for each in loads])
        predicted[held_out] = terms[held_out] @ fit_linear(terms[~held_out], measured[~held_out])
    return predicted


def _terms(loads: Sequence[Load]) -> Array:
    """One row a load, in the order of the module's formula."""
    rows, isl, osl = np.array([(load.concurrency, load.isl, load.osl) for load in loads], dtype=float).T
    shared = (np.ones_like(rows), rows, rows * (isl + osl / 2), rows * isl / osl, rows * isl**2 / osl, np.sqrt(rows))
    return np.stack([*shared, *(1 - np.exp(-rows / tau) for tau in SATURATION)], axis=1)


def _extreme(loads: Sequence[Load], pick: Callable[[list[float]], float]) -> Load:
    return Load(
        concurrency=pick([load.concurrency for load in loads]),
        isl=pick([load.isl for load in loads]),
        osl=pick([load.osl for load in loads]),
    )
