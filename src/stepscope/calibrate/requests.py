"""RequestFit: a step's time from a log of requests and the scheduler's rules alone; no step was ever timed.

A simulation with the coefficients so far tells which steps, of which shapes, lie between a request's arrival, its first
and its last token. Each of those spans is then a sum of terms x coefficients, equal to what the log says it took: least
squares of relative errors, coefficients 0 or more. New coefficients move the schedule, so this is repeated. Only the
first `num_fitted` requests' times are looked at; of the others the simulator is told arrival and lengths.
A request that need not queue waits for the step in flight, and at which moment of that step it came is settled by
everything before: coefficients that differ by a percent give it another wait. So fit and prediction rest on several
runs with coefficients drawn about a percent apart, and the prediction is the median (docs/decisions/0561).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from stepscope.calibrate.step_form import NUM_TERMS, TERMS, StepForm
from stepscope.cost.least_squares import SCALE, Array
from stepscope.errors import BadInput
from stepscope.fit import solve_nonnegative
from stepscope.simulate.engine import simulate
from stepscope.simulate.lockstep import simulate_ranks
from stepscope.simulate.simulation import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.calibrate.request_log import LoggedRequest
    from stepscope.simulate.balancer import Balancer
    from stepscope.simulate.scheduler import SchedulerRules
    from stepscope.simulate.simulation import SimulatedRequest, Simulation

FEWEST = 20  # requests; fewer do not tell the terms apart
ROUNDS, RUNS_A_ROUND = 9, 2
FULL_ROUNDS = 3  # after these, half of the way each time: the schedule moves less
RUNS = 9  # of a prediction
JITTER = 0.01
EPSILON = 1e-9  # s; ends of steps are equal to less than that
_START = {"step": 0.015, "mixed": 0.002, "row": 1e-5, "decode_kv": 1e-8, "query_kv": 1e-9, "token": 3e-5}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """How the engine that wrote the log was run; what its settings tell.

    Attributes:
        rules: its scheduler's.
        num_ranks: data-parallel ranks in lockstep.
        router: how a request gets to a rank; None: in turn.
        saturation: num_experts / top_k; None: no experts.
        options: of the simulator.
    """

    rules: SchedulerRules
    num_ranks: int = 1
    router: Balancer | None = None
    saturation: float | None = None
    options: Options = field(default_factory=Options)

    def run(self, log: Sequence[LoggedRequest], form: StepForm) -> Simulation:
        """Simulate the requests of a log."""
        requests = [each.to_request() for each in log]
        if self.num_ranks > 1:
            return simulate_ranks(requests, self.rules, form, self.num_ranks, self.router, self.options)
        return simulate(requests, self.rules, form.step_time(self.rules.max_num_batched_tokens), self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of the same requests, in one order; seconds. `decode_s` is the time from the first token to the last."""

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
        return cls(ttft_s=np.array(ttft), decode_s=np.array(e2el) - np.array(ttft), e2el_s=np.array(e2el))

    @classmethod
    def median(cls, runs: Sequence[Latencies]) -> Latencies:
        """Of several runs, each request by itself."""
        return cls(
            ttft_s=np.median([run.ttft_s for run in runs], axis=0),
            decode_s=np.median([run.decode_s for run in runs], axis=0),
            e2el_s=np.median([run.e2el_s for run in runs], axis=0),
        )

    def first(self, count: int) -> Latencies:
        """Those of the first requests."""
        return Latencies(ttft_s=self.ttft_s[:count], decode_s=self.decode_s[:count], e2el_s=self.e2el_s[:count])

    def joined(self) -> Array:
        """All of them in one row: TTFT, decode, E2EL."""
        return np.concatenate([self.ttft_s, self.decode_s, self.e2el_s])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFit:
    """What was fitted, to how many requests, by how many simulations; `loss`: mean relative error, each at most 1."""

    form: StepForm
    num_fitted: int
    num_simulations: int
    loss: float


def fit_requests(
    log: Sequence[LoggedRequest], setup: EngineSetup, num_fitted: int, rng: np.random.Generator
) -> RequestFit:
    """Fit to the first `num_fitted` requests of a log.

    Raises:
        BadInput: too few requests, or one without its times.
    """
    if not FEWEST <= num_fitted <= len(log):
        raise BadInput(
            f"a fit to the first {num_fitted} of {len(log)} requests: give {FEWEST} or more, and at most all of them."
        )
    measured = Latencies.of(log[:num_fitted])
    form = StepForm(coefficients=tuple(_START.get(name, 0.0) for name in TERMS), saturation=setup.saturation)
    best, best_loss = form, float("inf")
    for number in range(ROUNDS):
        spans, simulated = [], []
        for _ in range(RUNS_A_ROUND):
            drawn = _draw(form, rng)
            run = setup.run(log, drawn)
            spans.append(_spans(_Steps.of(run, drawn, setup.num_ranks), run, num_fitted))
            simulated.append(Latencies.of(run.requests[:num_fitted]))
        loss = mean_error(Latencies.median(simulated), measured)
        if loss < best_loss:
            best, best_loss = form, loss
        lengths = np.concatenate([each.joined() for each in simulated])
        aim = _solve(np.vstack(spans), np.tile(measured.joined(), RUNS_A_ROUND), lengths)
        if number >= FULL_ROUNDS:
            aim = (aim + np.array(form.coefficients)) / 2
        form = StepForm(coefficients=tuple(aim.tolist()), saturation=setup.saturation)
    return RequestFit(form=best, num_fitted=num_fitted, num_simulations=ROUNDS * RUNS_A_ROUND, loss=best_loss)


def predict_requests(
    log: Sequence[LoggedRequest], setup: EngineSetup, form: StepForm, rng: np.random.Generator
) -> Latencies:
    """Each request's latencies: the median of several runs. Of the log only arrivals and lengths are looked at."""
    return Latencies.median([Latencies.of(setup.run(log, _draw(form, rng)).requests) for _ in range(RUNS)])


def mean_error(predicted: Latencies, measured: Latencies) -> float:
    """Mean relative error of TTFT, decode span and E2EL, each counted as 1 at most; spans of no length are left out."""
    told = measured.joined()
    is_long = told > EPSILON
    return float(np.minimum(np.abs(predicted.joined()[is_long] / told[is_long] - 1), 1.0).mean())


def _draw(form: StepForm, rng: np.random.Generator) -> StepForm:
    factors = np.exp(JITTER * rng.standard_normal(NUM_TERMS))
    return StepForm(coefficients=tuple((np.array(form.coefficients) * factors).tolist()), saturation=form.saturation)


def _spans(steps: _Steps, run: Simulation, count: int) -> Array:
    """Terms of what was computed while the first requests waited, decoded, and both, in the order of `joined`."""
    times = [each.times for each in run.requests[:count]]
    arrival = steps.until(np.array([each.arrival_s for each in times]))
    first = steps.until(np.array([each.first_token_s for each in times]))
    last = steps.until(np.array([each.last_token_s for each in times]))
    return np.vstack([first - arrival, last - first, last - arrival])


def _solve(spans: Array, lengths: Array, simulated: Array) -> Array:
    """Coefficients that give the spans their measured lengths, were the schedule as simulated.

    Errors are relative to the simulated lengths: relative to the measured ones, those that luck made short would weigh
    more than those that it made long, and every wait would come out too short.
    """
    is_long = (simulated > EPSILON) & spans.any(axis=1)
    used = spans.any(axis=0)
    a, y, scale = spans[is_long][:, used], lengths[is_long], simulated[is_long]
    weight = 1 / scale
    x = np.zeros(a.shape[1])
    for _ in range(8):
        x = solve_nonnegative(a * weight[:, None], y * weight)
        weight = 1 / (scale * np.sqrt(np.maximum(np.abs(a @ x - y) / scale, SCALE / 2)))
    found = np.zeros(NUM_TERMS)
    found[used] = x
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps of a run in order, ranks together: start, end, terms, and the terms of all steps before each."""

    start: Array
    end: Array
    terms: Array
    before: Array

    @classmethod
    def of(cls, run: Simulation, form: StepForm, num_ranks: int) -> _Steps:
        together = [[step] for step in run.steps]
        if num_ranks > 1:
            together = [list(group) for _, group in groupby(run.steps, key=lambda step: step.start_s)]
        terms = np.array(
            [form.terms([*(step.shape for step in group), *[None] * group[0].num_dummy]) for group in together]
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
        length = np.maximum(self.end[at] - self.start[at], EPSILON)
        share = np.clip((times - self.start[at]) / length, 0, 1)
        return np.asarray(self.before[at] + share[:, None] * self.terms[at])
