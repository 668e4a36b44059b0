"""StepCosts: the times of a step that a simulation runs on, and the alternatives that its interval comes from.

A model's price on a device has ends; a calibration has draws: refits on resampled steps, each made faster or slower as
whole stretches of the recording were. Without draws its ends are taken, which lets every number err the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal

from stepscope.errors import BadInput
from stepscope.models.hf_config import bundled_models, read_model
from stepscope.operators.deployment import Deployment
from stepscope.simulate.model_time import ModelTime, Reach, fixed_time, model_time

if TYPE_CHECKING:
    from stepscope.cost.calibration import Calibration
    from stepscope.evidence import Grade
    from stepscope.simulate.step_time import StepTime

NUM_DRAWS = 20  # of a calibration without a model; with one each draw is a table of its own, so fewer
NUM_MODEL_DRAWS = 8
_MOST_NUMBER = 1e6  # seconds or a factor: eleven days a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model on devices."""

    model: str
    hardware: str
    deployment: Deployment = field(default_factory=Deployment)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """Times of a step, and the host's work beside it."""

    step_time: StepTime
    host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """A prediction (None: only bounds) and its alternatives; `notes`: what a reader must know."""

    middle: TimedStep | None
    alternatives: tuple[TimedStep, ...]
    kind: Literal["ends", "draws"]
    grade: Grade | None
    source: str
    unpriced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> TimedStep:
        """The prediction, or the lower bound."""
        return self.middle or self.alternatives[0]


def make_costs(
    served: Served | None, calibration: Calibration | None, reach: Reach, *, host_s: float | None = None
) -> StepCosts:
    """Step times as far as the reach goes, by the model, the calibration, or both; `host_s` where it is given.

    Raises:
        BadInput: there is neither, the deployment is impossible, or the calibration scales a model that is not named.
    """
    if calibration is not None:
        _check_numbers(calibration)
        if served is not None:
            _check_model(served, calibration)
    found = _times(served, reach, calibration)
    if calibration is None:
        timed = [
            None if each is None else _timed(each, host_s or 0.0) for each in (found.step_time, found.low, found.high)
        ]
        return StepCosts(
            middle=timed[0],
            alternatives=tuple(each for each in timed[1:] if each is not None),
            kind="ends",
            grade=found.grade,
            source=_source(served, found),
            unpriced=found.unpriced,
            notes=tuple(_table_notes(served, found)),
        )
    assert found.step_time is not None
    middle = _timed(found.step_time, calibration.host_s.value if host_s is None else host_s)
    count = min(NUM_DRAWS if calibration.cost == "none" else NUM_MODEL_DRAWS, calibration.num_draws)
    rng = Random(0)  # noqa: S311  # which refits are drawn, no secret
    drawn = [calibration.drawn(place, calibration.draw_speed(rng)) for place in range(count)]
    alternatives = tuple(_drawn_time(served, reach, each, host_s) for each in drawn)
    ends = tuple(_timed(each, middle.host_s) for each in (found.low, found.high))
    return StepCosts(
        middle=middle,
        alternatives=alternatives or ends,
        kind="draws" if alternatives else "ends",
        grade=found.grade,
        source=f"calibration {calibration.name}"
        + ("" if calibration.cost == "none" else f" of the {_source(served, found)}"),
        unpriced=found.unpriced,
        notes=(*_table_notes(served, found), *_calibration_notes(served, calibration)),
    )


def _check_model(served: Served, calibration: Calibration) -> None:
    """A calibration of one model says nothing of another; where a path names either, nobody can tell."""
    known = bundled_models()
    if served.model in known and calibration.model in known and served.model != calibration.model:
        raise BadInput(
            f"calibration {calibration.name} is of {calibration.model}, and {served.model} is to be simulated. "
            "Calibrate on a run of that model, or leave --calibration out."
        )


def _check_numbers(calibration: Calibration) -> None:
    """Numbers that are no seconds and no factors would leave the clock."""
    drawn = ((name, max(values, default=0.0)) for name, values in calibration.draws.items())
    factors = (("drift", calibration.drift), *calibration.numbers.items())
    for name, most in (*((name, factor.high) for name, factor in factors), *drawn):
        if most > _MOST_NUMBER:
            raise BadInput(
                f"calibration {calibration.name}: {name} is {most:g}, and {_MOST_NUMBER:g} is the most that is "
                "simulated. Fit it again."
            )


def _times(served: Served | None, reach: Reach, calibration: Calibration | None) -> ModelTime:
    if calibration is not None and calibration.cost == "none":
        return fixed_time(calibration, reach)
    if served is None:
        raise BadInput("no step times: give a model and its hardware, or a calibration that needs none (cost none).")
    architecture = read_model(served.model)
    served.deployment.check(architecture)
    return model_time(architecture, served.deployment, served.hardware, reach, calibration)


def _timed(step_time: StepTime, host_s: float) -> TimedStep:
    return TimedStep(step_time=step_time, host_s=host_s)


def _drawn_time(served: Served | None, reach: Reach, drawn: Calibration, host_s: float | None) -> TimedStep:
    step_time = _times(served, reach, drawn).step_time
    assert step_time is not None
    return _timed(step_time, drawn.host_s.value if host_s is None else host_s)


def _source(served: Served | None, found: ModelTime) -> str:
    hardware = "" if served is None else f" of {served.hardware}"
    return f"cost model{hardware}" if found.step_time is not None else f"bounds{hardware}"


def _table_notes(served: Served | None, found: ModelTime) -> list[str]:
    notes = []
    if found.error_p90:
        notes.append(
            f"step times are read from a table, off the model on random shapes by {100 * found.error_p50:.1f} % in the "
            f"median, {100 * found.error_p90:.1f} % in one of ten"
        )
    if found.step_time is None and served is not None:
        notes.append(
            f"no kernel model prices {', '.join(found.unpriced)} on {served.hardware}: only bounds are "
            "simulated, the lower one with every operator at its longest term, the upper one at the sum of its terms"
        )
    return notes


def _calibration_notes(served: Served | None, calibration: Calibration) -> list[str]:
    notes = [f"calibrated on {', '.join(calibration.source.files)} ({calibration.source.date})"]
    held_out = calibration.held_out.get("all")
    if held_out is not None:
        notes.append(
            f"on {held_out.num_steps} steps that a fit had not seen it errs by {100 * held_out.median:.1f} % in the "
            f"median, {100 * held_out.p90:.1f} % in one of ten"
        )
    if served is not None and calibration.hardware not in (None, served.hardware):
        notes.append(f"it was fitted on {calibration.hardware} and is carried over to {served.hardware}: extrapolated")
    if served is not None and calibration.cost != "none" and served.deployment.plan != calibration.plan:
        notes.append(
            f"its factors were fitted at tp {calibration.plan.tp}, ep {calibration.plan.ep}, pp {calibration.plan.pp} "
            "and are carried over to this plan: extrapolated"
        )
    return notes
