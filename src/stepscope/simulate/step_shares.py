"""StepShares: how a simulated step's time divides among kinds of operators, as the step times are made up.

A StepTime has a part that follows the step's tokens alone and a part that reads the history. The first is divided as
the cost model prices a step of so many tokens without history; step times that are no model's are not divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.batch import BatchShape, Row
from stepscope.cost.step_cost import price_step
from stepscope.models.hf_config import read_model
from stepscope.operators.operator import AttentionWork
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import PhaseSums, RowPhase
    from stepscope.simulate.scenario import Outcome
    from stepscope.simulate.step_costs import Served
    from stepscope.simulate.step_time import StepTime

    Array = np.ndarray[Any, np.dtype[Any]]

HISTORY = "history"
WHOLE = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """Names of parts, and of each step the share of each: [steps, names], rows sum to 1."""

    names: tuple[str, ...]
    shares: Array


def divide_steps(shapes: Sequence[BatchShape], step_time: StepTime, served: Served | None) -> StepShares:
    """The shares of every step."""
    rest = np.array([step_time.by_tokens[shape.num_scheduled_tokens or 0] for shape in shapes], float)
    whole = np.array([step_time.ticks(shape) for shape in shapes], float)
    of_rest = np.clip(np.divide(rest, whole, out=np.ones_like(rest), where=whole > 0), 0.0, 1.0)
    if served is None:
        return StepShares(names=(WHOLE, HISTORY), shares=np.stack([of_rest, 1 - of_rest], axis=1))
    names, table, index = _by_kind(shapes, served)
    shares = np.concatenate([table[index] * of_rest[:, None], (1 - of_rest)[:, None]], axis=1)
    return StepShares(names=(*names, HISTORY), shares=shares)


def _by_kind(shapes: Sequence[BatchShape], served: Served) -> tuple[tuple[str, ...], Array, Array]:
    """Kinds, their shares at each number of tokens that occurs, and where each step's number is."""
    tokens, index = np.unique([shape.num_scheduled_tokens or 0 for shape in shapes], return_inverse=True)
    architecture = read_model(served.model)
    longest = served.deployment.max_model_len or architecture.max_context_len
    priced = [_prefill(min(max(int(each), 1), longest)) for each in tokens]
    # a second shape keeps the arrays arrays where all steps have one size
    operators = step_operators(architecture, StepRows.from_shapes([*priced, _prefill(1)]), served.deployment)
    cost = price_step(operators, served.hardware, served.deployment.plan)
    sums: dict[str, Array] = {}
    for operator, price, count in zip(operators, cost.operators, cost.counts, strict=True):
        if isinstance(operator.work, AttentionWork):
            continue
        seconds = price.terms.lower_s if price.time_s is None else price.time_s
        own = np.broadcast_to(np.asarray(seconds, float) * count, (len(priced) + 1,))
        sums[operator.kind] = sums.get(operator.kind, np.zeros(len(priced) + 1)) + own
    names = tuple(sorted(sums))
    table = np.stack([sums[name][:-1] for name in names], axis=1)
    return names, table / table.sum(axis=1, keepdims=True), np.asarray(index)


def _prefill(tokens: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=tokens, context_len=0, phase="prefill"),))


def find_step_bound(outcome: Outcome) -> str | None:
    """What the roofline says binds a typical step: compute, memory or network; None without a model or without steps.

    Typical: as much of the run's time is in longer steps as in shorter ones; its rows are taken to be alike.
    """
    served, steps = outcome.scenario.served, outcome.shown.steps
    if served is None or not steps:
        return None
    ordered = sorted(steps, key=lambda step: step.end_s - step.start_s)
    times = np.cumsum([step.end_s - step.start_s for step in ordered])
    shape = ordered[int(np.searchsorted(times, times[-1] / 2))].shape
    rows = (*_alike(shape.prefill, "prefill"), *_alike(shape.decode, "decode"))
    operators = step_operators(
        read_model(served.model), StepRows.from_shapes([BatchShape.from_rows(rows)]), served.deployment
    )
    return str(price_step(operators, served.hardware, served.deployment.plan, cost="bound").bound)


def _alike(sums: PhaseSums, phase: RowPhase) -> tuple[Row, ...]:
    count = sums.num_requests or 0
    if not count:
        return ()
    query = max(round((sums.query_sum or 0) / count), 1)
    context = max(round((sums.kv_sum or 0) / count) - query, 0)
    return (Row(query_len=query, context_len=context, phase=phase),) * count
