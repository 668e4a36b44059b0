"""Steps: measured steps x plain counts or modelled operators -> Calibration, with held-out errors and what it left out.

Families that the steps cannot tell apart, or that would cost nothing, share a factor with the one most like them.
Robust coefficients are of a typical step, and a run is a sum of steps: all are scaled so that Σ fitted = Σ measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.calibrate.columns import Columns, family_columns, plain_columns
from stepscope.calibrate.sorting import sort_steps
from stepscope.cost.calibration import (
    PHASES,
    CalibratedCost,
    Calibration,
    Factor,
    HeldOut,
    Source,
    features_of,
)
from stepscope.cost.families import FAMILIES
from stepscope.errors import BadInput
from stepscope.fit import (
    LEAST_SEPARATE,
    POINTS_PER_COEFFICIENT,
    Fit,
    Resampling,
    choose_bend,
    fit_linear_costs,
    fit_robust,
    hold_out,
    separateness,
)
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.batch import BatchShape
    from stepscope.calibrate.measured import MeasuredStep
    from stepscope.calibrate.sorting import Sorted
    from stepscope.cost.hardware import Hardware
    from stepscope.models.architecture import Architecture

Array = np.ndarray[Any, np.dtype[Any]]
BENDS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
KEPT_DRAWS = 50
_STRETCHES = 12  # of equal numbers of steps, whose drift against the fit is told
_STEPS_OF_A_STRETCH = 12
_NONE = Factor(value=0.0, low=0.0, high=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a calibration is of; fields as in Calibration."""

    name: str
    model: str
    engine: str
    engine_version: str
    source: Source
    hardware: str | None = None
    plan: ParallelPlan = field(default_factory=ParallelPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """The model wing's side, for a cost other than "none"."""

    architecture: Architecture
    hardware: Hardware
    deployment: Deployment = field(default_factory=Deployment)
    cost: CalibratedCost = "model"


def calibrate_steps(
    steps: Iterable[MeasuredStep],
    about: About,
    modelled: Modelled | None = None,
    *,
    pauses: Sequence[tuple[float, float]] = (),
    how: Resampling | None = None,
) -> Calibration:
    """Fit one deployment's steps; without `modelled` on counts alone (cost "none").

    Raises:
        BadInput: too few steps, or too little spread among them, to fit anything but a constant.
    """
    kept = sort_steps(steps, pauses)
    how = how or Resampling()
    if len(kept.steps) < 2 * POINTS_PER_COEFFICIENT:
        why = ", ".join(f"{count} {reason}" for reason, count in kept.left_out.items())
        raise BadInput(
            f"calibration {about.name}: {len(kept.steps)} steps can be fitted ({why or 'none were left out'}); "
            f"expected {2 * POINTS_PER_COEFFICIENT} or more. Record for longer."
        )
    columns = _plain(kept, how) if modelled is None else _of_families(kept, modelled)
    fit = _without_empty_families(columns, kept.seconds, how)
    return _record(kept, fit, about, modelled)


def choose_calibration(candidates: Sequence[Calibration]) -> Calibration:
    """The one with the least median held-out error over all steps; the first of equals."""
    return min(candidates, key=lambda c: c.held_out["all"].median)


def _plain(kept: Sorted, how: Resampling) -> Columns:
    """Counts that vary on their own, with a bend in the tokens where that tells unseen steps better."""
    shapes, seconds = kept.shapes, kept.seconds
    most = max(shape.num_scheduled_tokens or 0 for shape in shapes)

    def columns_at(bend: int | None) -> Columns:
        return _separate(plain_columns(shapes, bend), seconds, tie=False)

    def error_at(bend: int | None) -> float:
        predicted = hold_out(columns_at(bend).values, seconds, how)
        return float(np.mean(np.minimum(np.abs(predicted / seconds - 1), 1.0)))

    bend = choose_bend([b for b in BENDS if 2 * b <= most], error_at)
    columns = columns_at(bend)
    if set(columns.names) <= {"step_s"}:
        raise BadInput(
            f"the {len(shapes)} steps that can be fitted are all of one size: their time holds for that size alone. "
            "Record a load with more spread (other batch sizes, prompts and contexts)."
        )
    return columns


def _of_families(kept: Sorted, modelled: Modelled) -> Columns:
    if modelled.cost == "none":
        raise BadInput("a cost of 'none' takes no model. Leave `modelled` out.")
    columns = family_columns(kept.shapes, modelled.architecture, modelled.deployment, modelled.hardware, modelled.cost)
    separate = _separate(columns, kept.seconds, tie=True)
    if not any(_is_family(name) for name in separate.names):
        raise BadInput(
            f"the {len(kept.steps)} steps that can be fitted are too alike to tell any family's time from the step's "
            "fixed cost. Record a load with more spread (other batch sizes, prompts and contexts), or calibrate on "
            "counts alone (--cost none)."
        )
    return separate


def _separate(columns: Columns, seconds: Array, *, tie: bool) -> Columns:
    """Until every column varies on its own: the least separate one is tied to its like, or left out.

    Fixed columns go before families do, and `step_s` last.
    """
    columns = columns.without(*(name for name, c in zip(columns.names, columns.values.T, strict=True) if not c.any()))
    while len(columns.names) > 1:
        shares = separateness(columns.values, seconds)
        room = len(seconds) // POINTS_PER_COEFFICIENT
        doubtful = [i for i, share in enumerate(shares) if share < LEAST_SEPARATE]
        if not doubtful and len(columns.names) <= room:
            break
        least = min(doubtful or range(len(shares)), key=lambda i: (_order(columns.names[i]), shares[i]))
        name = columns.names[least]
        like = _most_alike(columns, least, seconds) if tie and _is_family(name) else None
        columns = columns.without(name) if like is None else columns.joined(like, name)
    return columns


def _order(name: str) -> int:
    """What is given up first: fixed costs of a phase, then tokens, families, the step's own."""
    if name == "step_s":
        return 3
    return 2 if _is_family(name) else 1 if name.startswith("token_s") else 0


def _is_family(name: str) -> bool:
    return name.split("+", maxsplit=1)[0] in FAMILIES


def _most_alike(columns: Columns, index: int, seconds: Array) -> str | None:
    relative = columns.values / seconds[:, None]
    unit = relative / np.linalg.norm(relative, axis=0)
    others = [i for i, name in enumerate(columns.names) if i != index and _is_family(name)]
    return columns.names[max(others, key=lambda i: float(unit[:, i] @ unit[:, index]))] if others else None


def _without_empty_families(columns: Columns, seconds: Array, how: Resampling) -> Fit:
    """A family's factor of 0 would say that its work is free: it is tied to its like, and all are fitted anew."""
    while True:
        values = fit_robust(columns.values, seconds)
        free = [n for n, value in zip(columns.names, values, strict=True) if _is_family(n) and value == 0]
        like = _most_alike(columns, columns.names.index(free[0]), seconds) if free else None
        if like is None:
            break
        columns = columns.joined(like, free[0])
    fit = fit_linear_costs(columns.values, seconds, columns.names, how)
    level = float(seconds.sum() / fit.fitted.sum())
    return Fit(
        names=fit.names,
        values=level * fit.values,
        low=level * fit.low,
        high=level * fit.high,
        draws=level * fit.draws,
        held_out=level * fit.held_out,
        fitted=level * fit.fitted,
    )


def _record(kept: Sorted, fit: Fit, about: About, modelled: Modelled | None) -> Calibration:
    families: dict[str, Factor] = {}
    fixed: dict[str, Factor] = {}
    draws: dict[str, tuple[float, ...]] = {}
    for i, name in enumerate(fit.names):
        factor = Factor(value=float(fit.values[i]), low=float(fit.low[i]), high=float(fit.high[i]))
        drawn = tuple(float(f"{value:.6g}") for value in fit.draws[:KEPT_DRAWS, i])
        for part in name.split("+"):
            (families if _is_family(name) else fixed)[part] = factor
            draws[f"{'families' if _is_family(name) else 'fixed'}.{part}"] = drawn
    seconds = kept.seconds
    deployment = modelled.deployment if modelled else None
    dtypes = {} if deployment is None else {key: getattr(deployment, key) for key in ("weights", "experts", "kv")}
    return Calibration(
        name=about.name,
        model=about.model,
        hardware=modelled.hardware.name if modelled else about.hardware,
        engine=about.engine,
        engine_version=about.engine_version,
        plan=modelled.deployment.plan if modelled else about.plan,
        source=about.source,
        cost=modelled.cost if modelled else "none",
        host_s=_host(kept.steps),
        fixed=fixed,
        families=families,
        tied=tuple(tuple(name.split("+")) for name in fit.names if "+" in name),
        dtypes={key: value for key, value in dtypes.items() if value is not None},
        drift=_drift(seconds, fit.held_out),
        ranges=_ranges(kept.shapes),
        held_out=_held_out(kept.shapes, seconds, fit.held_out),
        unexplained_fraction=float(np.abs(seconds - fit.fitted).sum() / seconds.sum()),
        left_out=kept.left_out,
        draws=draws,
    )


def _host(steps: Sequence[MeasuredStep]) -> Factor:
    """The median gap between steps; 0 where none is known, for then the steps' own seconds hold it."""
    gaps = [step.gap_s for step in steps if step.gap_s is not None]
    if not gaps:
        return _NONE
    value = max(float(np.median(gaps)), 0.0)
    beyond = 0.5 * 1.645 / np.sqrt(len(gaps))  # ranks about the median: its distribution-free interval, at 90 %
    low, high = np.quantile(gaps, [max(0.5 - beyond, 0.0), min(0.5 + beyond, 1.0)])
    return Factor(value=value, low=max(min(float(low), value), 0.0), high=max(float(high), value))


def _drift(seconds: Array, predicted: Array) -> Factor:
    count = min(_STRETCHES, len(seconds) // _STEPS_OF_A_STRETCH)
    if count < 2:
        return Factor(value=1.0, low=1.0, high=1.0)
    parts = zip(np.array_split(seconds, count), np.array_split(predicted, count), strict=True)
    low, high = np.quantile([part.sum() / told.sum() for part, told in parts], [0.05, 0.95])
    return Factor(value=1.0, low=min(float(low), 1.0), high=max(float(high), 1.0))


def _ranges(shapes: Sequence[BatchShape]) -> dict[str, dict[str, tuple[float, float]]]:
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for phase in PHASES:
        rows = [features_of(shape) for shape in shapes if shape.phase == phase]
        if rows:
            found[phase] = {
                name: (float(min(row[name] or 0 for row in rows)), float(max(row[name] or 0 for row in rows)))
                for name in rows[0]
            }
    return found


def _held_out(shapes: Sequence[BatchShape], seconds: Array, predicted: Array) -> dict[str, HeldOut]:
    errors = np.abs(predicted - seconds) / seconds
    phases = np.array([shape.phase or "" for shape in shapes])
    found = {}
    for name in ("all", *PHASES):
        of_phase = errors if name == "all" else errors[phases == name]
        if len(of_phase):
            median, p90 = np.quantile(of_phase, [0.5, 0.9])
            found[name] = HeldOut(median=float(median), p90=float(p90), num_steps=len(of_phase))
    return found
