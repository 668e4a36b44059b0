"""ModelTime: the cost wing's price of a step, tabulated as a `StepTime`: a simulation of a million steps stays cheap.

Pricing one shape takes milliseconds; a simulation asks for each of its steps. So the model is priced once, on grids:
pure decode over rows x kv_len (exact there, straight lines between), the rest of a step over its tokens, and prefill
attention fitted by straight terms in the sums of its rows. A mixed step is the sum. The errors say how far the table is
from pricing the very shape, on random shapes that no table entry was made from. A calibration multiplies each family of
operators by its factor and adds its fixed costs; one without a model ("none") is nothing but fixed costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.batch import BatchShape, Row
from stepscope.cost.families import family_of
from stepscope.cost.least_squares import fit_linear
from stepscope.cost.step_cost import price_step
from stepscope.errors import BadInput
from stepscope.latency import percentile
from stepscope.operators.operator import AttentionWork
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators
from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.fixed_costs import plain_step_time, with_fixed
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.cost.calibration import Calibration
    from stepscope.cost.hardware import Hardware
    from stepscope.cost.operator_cost import OperatorCost
    from stepscope.cost.roofline import Seconds
    from stepscope.cost.step_cost import StepCost
    from stepscope.evidence import Grade
    from stepscope.models.architecture import Architecture
    from stepscope.operators.deployment import Deployment
    from stepscope.operators.operator import Operator

    Array = np.ndarray[Any, np.dtype[Any]]

EVERY_TOKEN_TO = 512  # up to here every number of tokens is priced: waves and tiles show; beyond, one in 64 at least
NUM_CHECKED = 60  # random shapes of `errors`


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How large a step may get: tokens and requests in it, and kv_len of a request.

    `decode_query_len`: tokens of a decode row, more than 1 where it verifies drafts.
    """

    max_tokens: int
    max_requests: int
    max_kv_len: int
    decode_query_len: int = 1

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_requests", "max_kv_len", "decode_query_len"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}: give 1 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTime:
    """A model's step time on a device.

    Attributes:
        step_time: the prediction; None where an operator has no price (`unpriced`), and only bounds are known.
        low, high: ends of its interval; without a prediction the lower bound and the sum of all terms.
        grade: modelled or extrapolated; None without a prediction.
        error_p50, error_p90: |table / priced shape - 1| on random shapes.
    """

    step_time: StepTime | None
    low: StepTime
    high: StepTime
    grade: Grade | None
    unpriced: tuple[str, ...]
    error_p50: float
    error_p90: float


def model_time(
    architecture: Architecture,
    deployment: Deployment,
    hardware: Hardware | str,
    reach: Reach,
    calibration: Calibration | None = None,
) -> ModelTime:
    """Tabulate what steps of this model cost on this device.

    Raises:
        BadInput: an impossible deployment, unknown hardware, a kv_len beyond what the model is published for, or a
            calibration that has no model (`fixed_time` is for those).
    """
    if calibration is not None and calibration.cost == "none":
        raise BadInput(f"calibration {calibration.name} scales no model: it is a step's time by itself.")
    pricer = _Pricer(architecture=architecture, deployment=deployment, hardware=hardware, calibration=calibration)
    grid = _Grid.of(reach)
    names = ("value", "low", "high")
    middle, low, high = (_tabulate(pricer, grid, reach, name) for name in names)
    if low is None or high is None:
        low, high = (_tabulate(pricer, grid, reach, name) for name in ("lower_bound", "serial_bound"))
    assert low is not None
    assert high is not None
    errors = _errors(pricer, middle or low, "value" if middle else "lower_bound", reach)
    if calibration is not None:
        fixed = [{key: getattr(factor, name) for key, factor in calibration.fixed.items()} for name in names]
        middle = None if middle is None else with_fixed(middle, fixed[0])
        low, high = with_fixed(low, fixed[1]), with_fixed(high, fixed[2])
    longest = min(reach.max_tokens, reach.max_kv_len)
    sample, _ = pricer.price([_prefill(1, longest, 0), _decode(1, reach.max_kv_len)])
    return ModelTime(
        step_time=middle,
        low=low,
        high=high,
        grade=sample.grade if middle else None,
        unpriced=sample.unpriced,
        error_p50=percentile(errors, 0.5),
        error_p90=percentile(errors, 0.9),
    )


def fixed_time(calibration: Calibration, reach: Reach) -> ModelTime:
    """The step time of a calibration without a model, with its ends: exact, there is no table to be off.

    Raises:
        BadInput: the calibration scales a model.
    """
    return ModelTime(
        step_time=plain_step_time(calibration, reach.max_tokens),
        low=plain_step_time(calibration, reach.max_tokens, "low"),
        high=plain_step_time(calibration, reach.max_tokens, "high"),
        grade="modelled",
        unpriced=(),
        error_p50=0.0,
        error_p90=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricer:
    """Prices many shapes at once."""

    architecture: Architecture
    deployment: Deployment
    hardware: Hardware | str
    calibration: Calibration | None

    def price(self, shapes: Sequence[BatchShape]) -> tuple[StepCost, tuple[Operator, ...]]:
        """The steps' cost, and the operators that it is of."""
        operators = step_operators(self.architecture, StepRows.from_shapes(shapes), self.deployment)
        is_bound = self.calibration is not None and self.calibration.cost == "bound"
        cost = price_step(operators, self.hardware, self.deployment.plan, cost="bound" if is_bound else "model")
        return cost, operators

    def seconds(self, shapes: Sequence[BatchShape], name: str) -> tuple[Array, Array] | None:
        """Per shape the whole step's seconds, and those without what walks the history; None where not known.

        `name`: value, low, high, lower_bound or serial_bound.
        """
        cost, operators = self.price(shapes)
        whole, rest = np.zeros(len(shapes)), np.zeros(len(shapes))
        for operator, priced, count in zip(operators, cost.operators, cost.counts, strict=True):
            seconds = self._of(operator, priced, name)
            if seconds is None:
                return None
            whole += count * np.asarray(seconds)
            if not isinstance(operator.work, AttentionWork):
                rest += count * np.asarray(seconds)
        return whole, rest

    def _of(self, operator: Operator, priced: OperatorCost, name: str) -> Seconds | None:
        if name == "lower_bound":
            return priced.terms.lower_s
        if name == "serial_bound":
            return priced.terms.serial_s
        if self.calibration is None:
            return {"value": priced.time_s, "low": priced.low_s, "high": priced.high_s}[name]
        factor = self.calibration.families.get(family_of(operator))
        seconds = priced.terms.lower_s if self.calibration.cost == "bound" else priced.time_s
        if factor is None or seconds is None:  # a family that the measured steps did not have keeps its price
            return priced.time_s if seconds is None else seconds
        return float(getattr(factor, name)) * seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Where the model is priced."""

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    kv_lens: tuple[int, ...]

    @classmethod
    def of(cls, reach: Reach) -> _Grid:
        few = min(reach.max_tokens, EVERY_TOKEN_TO)
        stride = max((reach.max_tokens - few) // 1024, 64)
        tokens = {*range(1, few + 1), *range(few, reach.max_tokens + 1, stride), reach.max_tokens}
        return cls(
            tokens=tuple(sorted(tokens)),
            rows=_doubling(1, max(min(reach.max_requests, reach.max_tokens // reach.decode_query_len), 1)),
            kv_lens=_doubling(min(max(16, reach.decode_query_len), reach.max_kv_len), reach.max_kv_len),
        )


def _doubling(first: int, last: int) -> tuple[int, ...]:
    """first, then 1.5 and 2 times as much in turn, up to last."""
    found, at = [first], first
    while at < last:
        found += [min(at + at // 2, last), min(2 * at, last)]
        at *= 2
    return tuple(sorted(set(found)))


def _decode(num_rows: int, kv_len: int, query_len: int = 1) -> BatchShape:
    row = Row(query_len=query_len, context_len=max(kv_len - query_len, 0), phase="decode")
    return BatchShape.from_rows((row,) * num_rows)


def _prefill(num_rows: int, query_len: int, context_len: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=query_len, context_len=context_len, phase="prefill"),) * num_rows)


def _tabulate(pricer: _Pricer, grid: _Grid, reach: Reach, name: str) -> StepTime | None:
    """The table of one figure; None where the cost wing has none."""
    query = reach.decode_query_len
    priced = pricer.seconds([_prefill(1, tokens, 0) for tokens in _within(grid.tokens, reach.max_kv_len)], name)
    if priced is None:
        return None
    by_tokens = _interpolate(grid.tokens, priced[1], reach)
    decode = pricer.seconds([_decode(rows, kv, query) for rows in grid.rows for kv in grid.kv_lens], name)
    assert decode is not None
    whole = decode[0].reshape(len(grid.rows), len(grid.kv_lens))
    base = by_tokens[np.minimum(np.asarray(grid.rows) * query, reach.max_tokens)]
    return StepTime(
        by_tokens=(0, *(_whole_ticks(by_tokens[1:]))),
        decode=DecodeGrid(
            rows=grid.rows,
            kv_lens=grid.kv_lens,
            ticks=tuple(tuple(_whole_ticks(row)) for row in whole - base[:, None]),
        ),
        prefill=_fit_prefill(pricer, by_tokens, reach, name),
    )


def _within(tokens: Sequence[int], longest: int) -> tuple[int, ...]:
    return tuple(min(each, longest) for each in tokens)


def _interpolate(tokens: Sequence[int], seconds: Array, reach: Reach) -> Array:
    """By number of tokens from 0 on; a step of more tokens than one request can have goes on straight."""
    known = np.asarray(tokens) <= reach.max_kv_len
    at, values = np.asarray(tokens)[known], seconds[known]
    found = np.interp(np.arange(reach.max_tokens + 1), at, values)
    if at[-1] < reach.max_tokens and len(at) > 1:
        slope = (values[-1] - values[len(at) // 2]) / (at[-1] - at[len(at) // 2])
        beyond = np.arange(at[-1] + 1, reach.max_tokens + 1)
        found[at[-1] + 1 :] = values[-1] + slope * (beyond - at[-1])
    return np.asarray(found)


def _whole_ticks(seconds: Array) -> list[int]:
    return [round(float(each) * TICKS_PER_S) for each in seconds]


def _fit_prefill(pricer: _Pricer, by_tokens: Array, reach: Reach, name: str) -> PrefillTicks:
    """Straight terms for what prefill rows cost beyond their tokens."""
    shapes = [
        _prefill(rows, query, context)
        for rows in (1, 2, 4, 8)
        for query in _doubling(min(16, reach.max_tokens), reach.max_tokens)
        for context in (0, *_doubling(min(256, reach.max_kv_len), reach.max_kv_len))
        if rows * query <= reach.max_tokens and query + context <= reach.max_kv_len
    ]
    if not shapes:
        return PrefillTicks()
    priced = pricer.seconds(shapes, name)
    assert priced is not None
    whole = priced[0]
    sums = [shape.prefill for shape in shapes]
    tokens = np.array([each.query_sum for each in sums])
    names = ("num_requests", "query_sum", "kv_sum", "query_kv_sum")
    features = np.array([[1.0, *(float(getattr(each, of)) for of in names)] for each in sums])
    if not np.all(whole > 0):
        raise BadInput(
            "the calibration's factors make steps of no time at all: a family of this model has a factor of 0."
        )
    beyond = np.maximum(whole - by_tokens[tokens], 1e-12)
    # what lies beyond the tokens is fitted as a part of the whole step: errors count by what they do to that
    weighted = features * (beyond / whole)[:, None]
    step, row, query, kv, query_kv = fit_linear(weighted, beyond * (beyond / whole)) * TICKS_PER_S
    return PrefillTicks(step=round(step), row=round(row), query=round(query), kv=round(kv), query_kv=round(query_kv))


def _errors(pricer: _Pricer, table: StepTime, name: str, reach: Reach) -> list[float]:
    """|table / priced - 1| of random shapes, ascending; the same shapes every time."""
    rng = Random(5)  # noqa: S311  # shapes to check a table with, no secret
    shapes = [shape for _ in range(NUM_CHECKED) if (shape := _random_shape(rng, reach)).rows]
    priced = pricer.seconds(shapes, name)
    assert priced is not None
    pairs = zip(shapes, priced[0].tolist(), strict=True)
    return sorted(abs(table(shape) / seconds - 1) for shape, seconds in pairs)


def _random_shape(rng: Random, reach: Reach) -> BatchShape:
    """Decode rows, prefill rows or both, as even as the logarithm of every size can be."""
    rows: list[Row] = []
    left = reach.max_tokens
    if rng.random() < 0.7:
        kv_len = _log_uniform(rng, reach.max_kv_len)
        for _ in range(_log_uniform(rng, min(reach.max_requests, left))):
            own = max(round(kv_len * (0.5 + rng.random())), 1)
            rows.append(Row(query_len=1, context_len=min(own, reach.max_kv_len) - 1, phase="decode"))
        left -= len(rows)
    if left and (not rows or rng.random() < 0.5):
        query = min(_log_uniform(rng, left), reach.max_kv_len)
        context = _log_uniform(rng, reach.max_kv_len - query + 1) - 1
        rows.append(Row(query_len=query, context_len=context, phase="prefill"))
    return BatchShape.from_rows(tuple(rows))


def _log_uniform(rng: Random, most: int) -> int:
    return max(min(round(exp(rng.random() * log(most))), most), 1)
