"""Small scenarios with step times of a calibration that needs no model: fast, and every number known."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from stepscope.cost.calibration import Calibration, Factor, Source
from stepscope.models.parallel import ParallelPlan
from stepscope.simulate.scenario import EngineOptions, Scenario
from stepscope.simulate.synthetic import Lengths, poisson_arrivals, single_requests

if TYPE_CHECKING:
    from stepscope.simulate.request import Request

ENGINE = EngineOptions(max_num_batched_tokens=512, max_num_seqs=8, num_blocks=400, async_scheduling=False)


def factor(value: float) -> Factor:
    return Factor(value=value, low=0.9 * value, high=1.2 * value)


def plain_calibration(**more: Any) -> Calibration:
    """5 ms a step, 20 us a token, 1 us per token of decode history; 1 ms of host work."""
    fields: dict[str, Any] = {
        "name": "plain",
        "model": "any",
        "hardware": None,
        "engine": "test",
        "engine_version": "0",
        "plan": ParallelPlan(),
        "source": Source(files=("test",), content_hash="0" * 64, date="2026-11-29"),
        "cost": "none",
        "host_s": factor(0.001),
        "fixed": {"step_s": factor(0.005), "token_s": factor(20e-6), "decode_kv_s": factor(1e-6)},
    }
    return Calibration(**(fields | more))


def poisson_load(*, rate: float = 20.0, count: int = 40, seed: int = 3) -> tuple[Request, ...]:
    rng = Random(seed)
    arrivals = poisson_arrivals(rng, rate_per_s=rate, count=count)
    question, answer = Lengths(median=200, sigma=0.8, most=2000), Lengths(median=20, sigma=0.5)
    return single_requests(rng, arrivals, question=question, answer=answer).requests


def plain_scenario(**engine: Any) -> Scenario:
    options = {name: getattr(ENGINE, name) for name in ENGINE.__dataclass_fields__} | engine
    return Scenario(requests=poisson_load(), engine=EngineOptions(**options), calibration=plain_calibration())
