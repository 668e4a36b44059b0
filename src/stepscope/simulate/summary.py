"""Summary: an Outcome -> its figures as rows: latencies, throughput, goodput, hits, preemptions, and what binds.

A figure is a value with the ends that the cost's interval gives. Rates are over the time from the first arrival to the
last output. What binds, of the time in which a step ran: `seats` (max_num_seqs requests ran and others waited),
`blocks` (some waited although seats and budget were left), `budget` (a step took all max_num_batched_tokens), `step`
(nobody waited for any of these: the step's own time is the limit). Between steps: `host`, then `load`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, Literal

from stepscope.latency import Limits, Spread, goodput_per_s, percentile, pooled_itl_s, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.latency import RequestTimes
    from stepscope.simulate.scenario import EngineOptions, Outcome
    from stepscope.simulate.simulation import SimulatedStep, Simulation

STATISTICS = ("mean", "p50", "p90", "p99", "max")
LATENCIES = ("ttft", "tpot", "itl", "e2el")
BINDING: dict[str, str] = {
    "seats": "max_num_seqs requests run and others wait",
    "blocks": "requests wait for KV blocks",
    "budget": "steps take all of max_num_batched_tokens",
    "step": "nobody waits for a seat, a block or the budget: the step's own time is the limit",
    "host": "the host works between steps and the device waits",
    "load": "no request is there to run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number; None: there is none. Without a prediction `value` is None and the ends are bounds."""

    name: str
    statistic: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    count: int | None = None


def find_figures(outcome: Outcome, limits: Limits) -> tuple[Figure, ...]:
    """Every figure of a simulation: of ends the least and the most, of draws the 5th and the 95th percentile."""
    middle = None if outcome.middle is None else measure(outcome.middle, limits, outcome.num_devices)
    others = [measure(each, limits, outcome.num_devices) for each in outcome.alternatives]
    found = []
    for key, first in (middle or others[0]).items():
        value = None if middle is None else first.value
        low, high = interval([each[key].value for each in others], value, outcome.costs.kind)
        found.append(replace(first, value=value, low=low, high=high))
    return tuple(found)


def interval(
    among: Sequence[float | None], value: float | None, kind: Literal["ends", "draws"]
) -> tuple[float | None, float | None]:
    """The ends that alternatives give to a value, which lies between them."""
    known = sorted(each for each in among if each is not None)
    if not known:
        return None, None
    low, high = (known[0], known[-1]) if kind == "ends" else (percentile(known, 0.05), percentile(known, 0.95))
    return (low, high) if value is None else (min(low, value), max(high, value))


def latencies(times: Sequence[RequestTimes]) -> dict[str, Spread | None]:
    """The spread of each latency, in seconds."""
    return {
        "ttft": spread(request.ttft_s for request in times),
        "tpot": spread(request.tpot_s for request in times),
        "itl": spread(pooled_itl_s(times)),
        "e2el": spread(request.e2el_s for request in times),
    }


def measure(simulation: Simulation, limits: Limits, num_devices: int) -> dict[tuple[str, str], Figure]:
    """Figures of one simulation, without an interval, by name and statistic."""
    times = [request.times for request in simulation.requests]
    found = [
        Figure(
            name=name,
            statistic=statistic,
            unit="s",
            value=None if values is None else getattr(values, statistic),
            count=None if values is None else values.count,
        )
        for name, values in latencies(times).items()
        for statistic in STATISTICS
    ]
    duration, is_limited = duration_s(simulation), limits != Limits()
    outputs = sum(time.output_len or 0 for time in times)
    output_rate = _rate(outputs, duration)
    prompts = sum(request.prompt_len for request in simulation.requests)
    hits = sum(request.prefix_hit_tokens for request in simulation.requests)
    rates: dict[str, tuple[str, float | None]] = {
        "requests": ("1/s", _rate(len(times), duration)),
        "prompt_tokens": ("1/s", _rate(prompts, duration)),
        "output_tokens": ("1/s", output_rate),
        "output_tokens_per_device": ("1/s", None if output_rate is None else output_rate / num_devices),
        "device_s_per_million_outputs": ("s", num_devices * duration / outputs * 1e6),
        "goodput": ("1/s", goodput_per_s(times, limits, duration_s=duration) if duration and is_limited else None),
        "duration": ("s", duration),
        "steps": ("", float(simulation.num_steps)),
        "preemptions": ("", float(sum(request.num_preemptions for request in simulation.requests))),
        "prefix_hit_share": ("fraction", hits / prompts),
    }
    found += [Figure(name=name, statistic="total", unit=unit, value=value) for name, (unit, value) in rates.items()]
    return {(figure.name, figure.statistic): figure for figure in found}


def _rate(amount: float, duration: float) -> float | None:
    """None where step times of 0 s leave no time to have a rate over."""
    return amount / duration if duration else None


def duration_s(simulation: Simulation) -> float:
    """From the first arrival to the last output."""
    begin = min(request.times.arrival_s for request in simulation.requests)
    return simulation.end_s - begin


def find_binding(outcome: Outcome) -> dict[str, float] | None:
    """Share of the ranks' time that each resource binds; None where no steps were kept, or they took no time."""
    steps, host_s = outcome.shown.steps, outcome.costs.shown.host_s
    if not steps:
        return None
    parts: dict[str, list[float]] = {name: [] for name in BINDING}
    begin = min(request.times.arrival_s for request in outcome.shown.requests)
    ended: dict[int, float] = {}
    for step in steps:
        gap = max(step.start_s - ended.get(step.rank, begin), 0.0)
        parts["host"].append(min(gap, host_s))
        parts["load"].append(gap - min(gap, host_s))
        parts[_binds(step, outcome.scenario.engine)].append(step.end_s - step.start_s)
        ended[step.rank] = step.end_s
    whole = fsum(time for times in parts.values() for time in times)
    return {name: fsum(times) / whole for name, times in parts.items()} if whole else None


def _binds(step: SimulatedStep, engine: EngineOptions) -> str:
    if (step.shape.num_scheduled_tokens or 0) >= engine.max_num_batched_tokens:
        return "budget"
    if not step.num_waiting:
        return "step"
    return "seats" if (step.shape.num_requests or 0) >= engine.max_num_seqs else "blocks"


def name_binding(shares: dict[str, float] | None) -> str | None:
    """The resource that binds longest while anything ran; `load` where most of the time nothing did."""
    if shares is None:
        return None
    return max(shares, key=lambda name: shares[name])
