"""RequestFit: a step's time from a log of requests and the scheduler's rules alone; no step was ever timed.

A simulation with the coefficients so far tells which steps, of which shapes, lie between a request's arrival, its first
and its last token. Each of those spans is then a sum of terms x coefficients, equal to what the log says it took: least
squares of relative errors, coefficients 0 or more (`least_squares`). New coefficients move the schedule, so this is
repeated, with a shorter step where the simulated latencies got no closer. Only requests before `num_fitted` are looked
at; of all others the simulator is told arrival and lengths, for they share the engine's steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from stepscope.calibrate.step_form import NUM_TERMS, StepForm
from stepscope.cost.least_squares import Array, fit_linear
from stepscope.errors import BadInput
from stepscope.simulate.engine import simulate
from stepscope.simulate.lockstep import simulate_ranks
from stepscope.simulate.simulation import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.calibrate.request_log import LoggedRequest
    from stepscope.simulate.balancer import Balancer
    from stepscope.simulate.scheduler import SchedulerRules
    from stepscope.simulate.simulation import SimulatedRequest, Simulation

FEWEST = 20  # requests; fewer do not tell seven terms apart
ROUNDS = 24
CLOSE = 1e-4  # the gain of a round below which it is over
EPSILON = 1e-9  # s; ends of steps are equal to less than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How the engine that wrote the log was run; what its settings tell.

    Attributes:
        rules: its scheduler's.
        num_ranks: data-parallel ranks in lockstep.
        router: how requests get to a rank.
        saturation: num_experts / top_k; None: no experts.
        options: of the simulator, where they are not the defaults.
    """

    rules: SchedulerRules
    num_ranks: int = 1
    router: Balancer | None = None
    saturation: float | None = None
    options: Options = Options()

    def run(self, log: Sequence[LoggedRequest], form: StepForm) -> Simulation:
        """Simulate the requests of a log."""
        requests = [each.to_request() for each in log]
        if self.num_ranks > 1:
            return simulate_ranks(requests, self.rules, form, self.num_ranks, self.router, self.options)
        return simulate(requests, self.rules, form.step_time(self.rules.max_num_batched_tokens), self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of the same requests, in one order; seconds."""

    ttft_s: Array
    decode_s: Array
    e2el_s: Array

    @classmethod
    def of(cls, requests: Sequence[LoggedRequest] | Sequence[SimulatedRequest]) -> Latencies:
        """Measured or simulated ones.

        Raises:
            BadInput: a request without its first or last token's time.
        """
        ttft, e2el = [], []
        for each in requests:
            if each.times.ttft_s is None or each.times.e2el_s is None:
                raise BadInput(f"request {each.request_id!r} has no time of its first or last token: leave it out.")
            ttft.append(each.times.ttft_s)
            e2el.append(each.times.e2el_s)
        first, all_ = np.array(ttft), np.array(e2el)
        return cls(ttft_s=first, decode_s=all_ - first, e2el_s=all_)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFit:
    """What was fitted, on how many requests, with how many simulations; `loss`: mean relative error, large ones capped."""

    form: StepForm
    num_fitted: int
    num_simulations: int
    loss: float


def fit_requests(log: Sequence[LoggedRequest], deployment: Deployment, num_fitted: int) -> RequestFit:
    """Fit to the first `num_fitted` requests of a log.

    Raises:
        BadInput: too few requests, or one without its times.
    """
    if not FEWEST <= num_fitted <= len(log):
        raise BadInput(f"a fit of {num_fitted} out of {len(log)} requests: it needs {FEWEST} or more, and no more than there are.")
    measured = Latencies.of(log[:num_fitted])
    form = _first_form(log, deployment)
    run = deployment.run(log, form)
    best, best_loss = form, loss(run, measured)
    stride = 1.0
    num_simulations = 1
    aim = _solve(run, best, measured)
    while num_simulations < ROUNDS and stride > 0.05:
        form = _between(best, aim, stride)
        run = deployment.run(log, form)
        num_simulations += 1
        found = loss(run, measured)
        if found < best_loss:
            gain = best_loss - found
            best, best_loss = form, found
            aim = _solve(run, best, measured)
            stride = min(1.0, stride * 2) if gain > CLOSE else stride / 2
        else:
            stride /= 2
    return RequestFit(form=best, num_fitted=num_fitted, num_simulations=num_simulations, loss=best_loss)


def loss(run: Simulation, measured: Latencies) -> float:
    """Mean relative error of the first requests' TTFT, decode span and E2EL, each capped at 1."""
    count = len(measured.ttft_s)
    simulated = Latencies.of(run.requests[:count])
    errors = [
        np.abs(getattr(simulated, name) - getattr(measured, name)) / np.maximum(getattr(measured, name), 1e-6)
        for name in ("ttft_s", "decode_s", "e2el_s")
    ]
    return float(np.minimum(np.concatenate(errors), 1.0).mean())


def _first_form(log: Sequence[LoggedRequest], deployment: Deployment) -> StepForm:
    """A step and its tokens share the time that the log took."""
    first = [each.times for each in log]
    del first
    return StepForm(
        coefficients=(0.015, 0.002, 1e-5, 3e-5, 1e-8, 1e-9, 0.0), saturation=deployment.saturation
    )


def _between(form: StepForm, aim: Array, stride: float) -> StepForm:
    start = np.array(form.coefficients)
    return StepForm(coefficients=tuple((start + stride * (aim - start)).tolist()), saturation=form.saturation)


def _solve(run: Simulation, form: StepForm, measured: Latencies) -> Array:
    """Coefficients that give the spans their measured length, were the schedule as simulated."""
    steps = _Steps.of(run, form)
    times = [each.times for each in run.requests[: len(measured.ttft_s)]]
    arrival = steps.until(np.array([each.arrival_s for each in times]))
    first = steps.until(np.array([each.first_token_s for each in times]))
    last = steps.until(np.array([each.last_token_s for each in times]))
    spans = np.vstack([first - arrival, last - first, last - arrival])
    lengths = np.concatenate([measured.ttft_s, measured.decode_s, measured.e2el_s])
    is_long = lengths > EPSILON
    used = spans.any(axis=0)
    aim = np.zeros(NUM_TERMS)
    aim[used] = fit_linear(spans[is_long][:, used], lengths[is_long])
    return aim


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps of a run in order: start, end, and the terms of all steps before each."""

    start: Array
    end: Array
    terms: Array
    before: Array

    @classmethod
    def of(cls, run: Simulation, form: StepForm) -> _Steps:
        together = [list(group) for _, group in groupby(run.steps, key=lambda step: step.start_s)]
        terms = np.array(
            [form.terms([step.shape for step in group] + [None] * group[0].num_dummy) for group in together]
        )
        return cls(
            start=np.array([group[0].start_s for group in together]),
            end=np.array([group[0].end_s for group in together]),
            terms=terms,
            before=np.vstack([np.zeros(NUM_TERMS), np.cumsum(terms, axis=0)]),
        )

    def until(self, times: Array) -> Array:
        """Terms of all that was computed until each time; of the step at that time its share."""
        at = np.minimum(np.searchsorted(self.end, times - EPSILON), len(self.end) - 1)
        share = np.clip((times - self.start[at]) / (self.end[at] - self.start[at]), 0, 1)
        return np.asarray(self.before[at] + share[:, None] * self.terms[at])
