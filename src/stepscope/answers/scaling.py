"""Scaling: how a step's time follows its tokens, its kv_len and its experts' rows, fitted where the steps can carry it.

Three times of a step, from its exclusive budget: forward (compute, kv and comm), each attention family, the experts.
Each is a sum of non-negative costs (`fit`), with intervals and the error on steps that the fit had not seen. Cold steps
(first of their size, compiling, stalled) are left out by name. What does not vary on its own gets no slope of its own;
without enough steps or spread there is no fit, and the refusal says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.calibrate.measured import MeasuredStep
from stepscope.calibrate.sorting import sort_steps
from stepscope.errors import BadInput
from stepscope.fit import LEAST_SEPARATE, Resampling, choose_bend, fit_linear_costs, hold_out, separateness
from stepscope.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.answers.account import RankAccount
    from stepscope.fit import Array
    from stepscope.steps.step import Step

Quantity = Literal["forward", "attention", "attention_mla", "attention_sparse", "indexer", "experts"]
WORK = ("compute", "kv", "comm")
ATTENTION: tuple[Quantity, ...] = ("attention", "attention_mla", "attention_sparse", "indexer")
LEAST_STEPS = 12
_BENDS = (16, 32, 64, 128, 256, 512, 1024)
_STEPS_FOR_A_BEND = 24
_COLD_MOST = 0.5  # of the steps' time: beyond, the rest says little of the engine
_HOW = Resampling(num_draws=100)

# column -> what one unit of it is
UNITS: dict[str, str] = {
    "step": "a step",
    "token": "a scheduled token",
    "token_up_to_bend": "a scheduled token up to the bend",
    "token_beyond_bend": "a scheduled token beyond the bend",
    "decode_kv": "a token of history of a decode row (Σk)",
    "prefill_query_kv": "a query-history pair of prefill (Σqk)",
    "expert_row": "a row of an expert",
    "unique_expert": "an expert with rows, a layer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Ns per unit of a column, with the ends of the 90 % interval."""

    column: str
    value_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """One time of a rank's steps against what the steps computed.

    Attributes:
        bend: scheduled tokens at which the line bends; None: it does not, or there are too few steps to tell.
        tied: columns that do not vary on their own: their time is in the others' slopes.
        error_p50, error_p90: |predicted / measured - 1| of steps that the fit had not seen.
        left_out: why steps were not fitted -> how many.
    """

    quantity: Quantity
    slopes: tuple[Slope, ...]
    bend: int | None
    tied: tuple[str, ...]
    num_steps: int
    error_p50: float
    error_p90: float
    left_out: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFit:
    """Why a time is not fitted."""

    quantity: Quantity
    reason: Message


def fit_scaling(rank: RankAccount, experts: Mapping[int, tuple[int, int]] | None = None) -> list[ScalingFit | NoFit]:
    """All fits of a rank. `experts`: step_id -> rows of experts and experts with rows, summed over layers."""
    found: list[ScalingFit | NoFit] = []
    steps = rank.table.counted
    work = [ns for (category, _), ns in rank.budget.step_families.items() if category in WORK]
    forward = np.asarray(np.sum(np.array(work, np.float64), axis=0)) if work else np.zeros(len(steps))
    found.append(_fit("forward", steps, forward, _forward_columns))
    for name in ATTENTION:
        times = _family(rank, name)
        if times is not None:
            found.append(_fit(name, steps, times, _attention_columns))
    times = _family(rank, "experts")
    if times is not None and experts is not None:

        def columns(chosen: Sequence[Step]) -> dict[str, Array]:
            rows = [experts.get(step.step_id, (0, 0)) for step in chosen]
            return {
                "step": np.ones(len(rows)),
                "expert_row": np.array([each[0] for each in rows], dtype=float),
                "unique_expert": np.array([each[1] for each in rows], dtype=float),
            }

        counted = [i for i, step in enumerate(steps) if step.step_id in experts]
        found.append(_fit("experts", [steps[i] for i in counted], times[counted], columns))
    return found


def _family(rank: RankAccount, name: str) -> Array | None:
    own = [ns for (_, family), ns in rank.budget.step_families.items() if family == name]
    return np.asarray(np.sum(np.array(own, np.float64), axis=0)) if own else None


def _attention_columns(steps: Sequence[Step]) -> dict[str, Array]:
    """A pair of prefill is computed, a token of decode's history is read: each has a cost of its own."""
    shapes = [step.boundary.shape for step in steps]
    return {
        "step": np.ones(len(shapes)),
        "decode_kv": np.array([shape.decode.kv_sum or 0 for shape in shapes], dtype=float),
        "prefill_query_kv": np.array([shape.prefill.query_kv_sum or 0 for shape in shapes], dtype=float),
    }


def _forward_columns(steps: Sequence[Step]) -> dict[str, Array]:
    tokens = np.array([step.boundary.shape.num_scheduled_tokens for step in steps], dtype=float)
    return {**_attention_columns(steps), "token": tokens}


def _fit(
    quantity: Quantity, steps: Sequence[Step], times_ns: Array, to_columns: Callable[[Sequence[Step]], dict[str, Array]]
) -> ScalingFit | NoFit:
    measured = [
        MeasuredStep(shape=step.boundary.shape, start_s=float(place), seconds=float(ns) * 1e-9 if ns > 0 else None)
        for place, (step, ns) in enumerate(zip(steps, times_ns.tolist(), strict=True))
    ]
    sorted_steps = sort_steps(measured)
    kept = [int(step.start_s) for step in sorted_steps.steps]
    if sum(times_ns[kept]) < (1 - _COLD_MOST) * sum(times_ns) and len(kept) >= LEAST_STEPS:
        told = ", ".join(f"{reason} {count}" for reason, count in sorted_steps.left_out.items())
        return NoFit(
            quantity=quantity, reason=say("most of the time is in steps that are left out ({told})", told=told)
        )
    if len(kept) < LEAST_STEPS:
        return NoFit(
            quantity=quantity,
            reason=say(
                "{count} warm steps with known sums and time; {needed} or more are needed",
                count=len(kept),
                needed=LEAST_STEPS,
            ),
        )
    chosen, y = [steps[place] for place in kept], times_ns[kept].astype(float)
    columns = {name: values for name, values in to_columns(chosen).items() if values.any()}
    bend = _bend(columns, y)
    if bend is not None:
        columns = _bent(columns, bend)
    columns, tied = _apart(columns, y)
    if len(columns) < 2:
        return NoFit(
            quantity=quantity,
            reason=say(
                "{count} warm steps of nearly one shape: nothing varies that time could follow", count=len(kept)
            ),
        )
    names, matrix = tuple(columns), np.column_stack(list(columns.values()))
    try:
        fit = fit_linear_costs(matrix, y, names, _HOW)
    except BadInput as error:
        return NoFit(quantity=quantity, reason=say("{error}", error=error))
    errors = np.abs(fit.held_out / y - 1)
    return ScalingFit(
        quantity=quantity,
        slopes=tuple(
            Slope(column=name, value_ns=float(value), low_ns=float(low), high_ns=float(high))
            for name, value, low, high in zip(names, fit.values, fit.low, fit.high, strict=True)
        ),
        bend=bend,
        tied=tied,
        num_steps=len(kept),
        error_p50=float(np.quantile(errors, 0.5)),
        error_p90=float(np.quantile(errors, 0.9)),
        left_out=sorted_steps.left_out,
    )


def _bend(columns: dict[str, Array], y: Array) -> int | None:
    """Where time stops being the weights' and starts to be the tokens' own."""
    if "token" not in columns or len(y) < _STEPS_FOR_A_BEND:
        return None
    tokens = columns["token"]
    # a bend needs steps on both sides of it
    candidates = [at for at in _BENDS if (tokens <= at).sum() >= 8 and (tokens > at).sum() >= 8]

    def error_of(bend: int | None) -> float:
        tried, _ = _apart(columns if bend is None else _bent(columns, bend), y)
        return float(np.median(np.abs(hold_out(np.column_stack(list(tried.values())), y) / y - 1)))

    return choose_bend(candidates, error_of)


def _bent(columns: dict[str, Array], bend: int) -> dict[str, Array]:
    tokens = columns["token"]
    parts = {"token_up_to_bend": np.minimum(tokens, bend), "token_beyond_bend": np.maximum(tokens - bend, 0.0)}
    return {**{name: values for name, values in columns.items() if name != "token"}, **parts}


def _apart(columns: dict[str, Array], y: Array) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The columns that vary on their own; the constant stays, and takes in what does not vary."""
    left, tied = dict(columns), []
    while len(left) > 1:
        names = list(left)
        shares = separateness(np.column_stack(list(left.values())), y)
        weakest = min((place for place, name in enumerate(names) if name != "step"), key=lambda place: shares[place])
        if shares[weakest] >= LEAST_SEPARATE:
            break
        tied.append(names[weakest])
        del left[names[weakest]]
    return left, tuple(tied)
