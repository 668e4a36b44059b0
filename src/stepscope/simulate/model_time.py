"""ModelTime: the cost wing's price of a step, tabulated as a `StepTime`: a simulation of a million steps stays cheap.

Pricing one shape takes milliseconds; a simulation asks for each of its steps. So the model is priced once, on grids:
pure decode over rows x kv_len (exact there, straight lines between), the rest of a step over its tokens, and prefill
attention fitted by straight terms in the sums of its rows. A mixed step is the sum. `errors` says how far the table is
from pricing the very shape, on random shapes that no table entry was made from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.batch import BatchShape, Row
from stepscope.cost.least_squares import fit_linear
from stepscope.cost.step_cost import StepCost, price_step
from stepscope.errors import BadInput
from stepscope.latency import percentile
from stepscope.operators.operator import AttentionWork
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators
from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.cost.hardware import Hardware
    from stepscope.evidence import Grade
    from stepscope.models.architecture import Architecture
    from stepscope.operators.deployment import Deployment

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


def model_time(architecture: Architecture, deployment: Deployment, hardware: Hardware | str, reach: Reach) -> ModelTime:
    """Tabulate what steps of this model cost on this device.

    Raises:
        BadInput: an impossible deployment, unknown hardware, or a kv_len beyond what the model is published for.
    """
    pricer = _Pricer(architecture=architecture, deployment=deployment, hardware=hardware)
    grid = _Grid.of(reach)
    found = {name: _tabulate(pricer, grid, reach, name) for name in ("time_s", "low_s", "high_s")}
    middle, low, high = found["time_s"], found["low_s"], found["high_s"]
    if low is None or high is None:
        low = _tabulate(pricer, grid, reach, "lower_bound_s")
        high = _tabulate(pricer, grid, reach, "serial_bound_s")
    assert low is not None
    assert high is not None
    errors = _errors(pricer, middle or low, "time_s" if middle else "lower_bound_s", reach)
    sample = pricer.price([_prefill(1, min(reach.max_tokens, reach.max_kv_len), 0), _decode(1, reach.max_kv_len)])[0]
    return ModelTime(
        step_time=middle,
        low=low,
        high=high,
        grade=sample.grade if middle else None,
        unpriced=sample.unpriced,
        error_p50=percentile(errors, 0.5),
        error_p90=percentile(errors, 0.9),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricer:
    """Prices many shapes at once."""

    architecture: Architecture
    deployment: Deployment
    hardware: Hardware | str

    def price(self, shapes: Sequence[BatchShape]) -> tuple[StepCost, StepCost]:
        """Whole steps, and the same steps without what reads the history."""
        rows = StepRows.from_shapes(shapes)
        operators = step_operators(self.architecture, rows, self.deployment)
        whole = price_step(operators, self.hardware, self.deployment.plan)
        kept = [place for place, operator in enumerate(operators) if not isinstance(operator.work, AttentionWork)]
        rest = replace(
            whole,
            operators=tuple(whole.operators[place] for place in kept),
            counts=tuple(whole.counts[place] for place in kept),
        )
        return whole, rest


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
    """One StepTime of one figure of StepCost; None where the cost wing has none."""
    query = reach.decode_query_len
    _, rest = pricer.price([_prefill(1, tokens, 0) for tokens in _within(grid.tokens, reach.max_kv_len)])
    seconds = getattr(rest, name)
    if seconds is None:
        return None
    by_tokens = _interpolate(grid.tokens, np.asarray(seconds), reach)
    decode = [_decode(rows, kv, query) for rows in grid.rows for kv in grid.kv_lens]
    whole = np.asarray(getattr(pricer.price(decode)[0], name)).reshape(len(grid.rows), len(grid.kv_lens))
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
    whole = np.asarray(getattr(pricer.price(shapes)[0], name))
    sums = [shape.prefill for shape in shapes]
    tokens = np.array([each.query_sum for each in sums])
    names = ("num_requests", "query_sum", "kv_sum", "query_kv_sum")
    features = np.array([[1.0, *(float(getattr(each, of)) for of in names)] for each in sums])
    beyond = np.maximum(whole - by_tokens[tokens], 1e-12)
    # what lies beyond the tokens is fitted as a part of the whole step: errors count by what they do to that
    weighted = features * (beyond / whole)[:, None]
    step, row, query, kv, query_kv = fit_linear(weighted, beyond * (beyond / whole)) * TICKS_PER_S
    return PrefillTicks(step=round(step), row=round(row), query=round(query), kv=round(kv), query_kv=round(query_kv))


def _errors(pricer: _Pricer, table: StepTime, name: str, reach: Reach) -> list[float]:
    """|table / priced - 1| of random shapes, ascending; the same shapes every time."""
    rng = Random(5)  # noqa: S311  # shapes to check a table with, no secret
    shapes = [shape for _ in range(NUM_CHECKED) if (shape := _random_shape(rng, reach)).rows]
    priced = np.asarray(getattr(pricer.price(shapes)[0], name))
    return sorted(abs(table(shape) / float(seconds) - 1) for shape, seconds in zip(shapes, priced, strict=True))


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
    return max(min(round(float(most) ** rng.random()), most), 1)
