"""Scenario: requests, an engine's options and where its step times come from -> Outcome, with the interval of the cost.

The same requests run under the cost's prediction, its low and its high end: an interval of a latency is what these
three give, not a spread over other loads. Where an operator has no price there is no prediction, only the two bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.operators.deployment import Deployment
from stepscope.simulate.engine import Options, Simulation, check_workload, simulate
from stepscope.simulate.memory import Memory, MemoryUse, plan_memory
from stepscope.simulate.model_time import Reach, model_time
from stepscope.simulate.scheduler import SchedulerRules

if TYPE_CHECKING:
    from stepscope.evidence import Grade
    from stepscope.simulate.engine import Detail
    from stepscope.simulate.request import Request
    from stepscope.simulate.step_time import StepTime

MOST_GAPS = 20_000_000  # outputs whose gaps are kept for ITL; beyond, memory would grow with them


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """A scheduler's options by vLLM's names; None: `num_blocks` from the device's memory, the rest from the load."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    async_scheduling: bool = True
    host_s: float = 0.0
    utilisation: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model on devices."""

    model: str
    hardware: str
    deployment: Deployment = field(default_factory=Deployment)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of a step and their interval; `source` says where from, `notes` what a reader must know."""

    middle: StepTime | None
    low: StepTime
    high: StepTime
    grade: Grade | None
    source: str
    unpriced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated. `costs`: step times of one's own, such as a calibration's; None: the model's on the device."""

    requests: tuple[Request, ...]
    engine: EngineOptions
    served: Served | None = None
    costs: StepCosts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out. `middle` is None where there are only bounds."""

    scenario: Scenario
    rules: SchedulerRules
    costs: StepCosts
    memory: Memory | None
    middle: Simulation | None
    low: Simulation
    high: Simulation

    @property
    def shown(self) -> Simulation:
        """The prediction, or the lower bound."""
        return self.middle or self.low

    @property
    def num_devices(self) -> int:
        """Of the deployment; 1 where none was named."""
        served = self.scenario.served
        return 1 if served is None else served.deployment.plan.world_size


def run_scenario(scenario: Scenario, *, steps: Detail = "sums") -> Outcome:
    """Simulate it three times. `steps`: what is kept of the prediction's steps.

    Raises:
        BadInput: a setup that cannot run, before any step.
    """
    rules, memory = make_rules(scenario)
    check_workload(scenario.requests, rules)
    costs = scenario.costs or model_costs(scenario, rules)
    with_gaps = sum(request.output_len for request in scenario.requests) <= MOST_GAPS
    full = Options(steps=steps, with_gaps=with_gaps, host_s=scenario.engine.host_s)
    ends = replace(full, steps="none")
    middle = simulate(scenario.requests, rules, costs.middle, full) if costs.middle is not None else None
    low = simulate(scenario.requests, rules, costs.low, ends if middle else full)
    return Outcome(
        scenario=scenario,
        rules=rules,
        costs=costs,
        memory=memory,
        middle=middle,
        low=low,
        high=low if costs.high == costs.low else simulate(scenario.requests, rules, costs.high, ends),
    )


def make_rules(scenario: Scenario) -> tuple[SchedulerRules, Memory | None]:
    """The scheduler's rules, blocks from the device's memory where their number is not given.

    Raises:
        BadInput: no requests, no engine would start so, or the model does not fit.
    """
    if not scenario.requests:
        raise BadInput("there is no request to simulate: the workload is empty.")
    engine, served = scenario.engine, scenario.served
    # refused before the memory is divided by them
    for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
        if getattr(engine, name) < 1:
            raise BadInput(f"{name} is {getattr(engine, name)}: give 1 or more.")
    memory = None
    if engine.num_blocks is None:
        if served is None:
            raise BadInput("the number of KV blocks is not known: give num_blocks, as the engine logs it.")
        use = MemoryUse(
            block_size=engine.block_size,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            utilisation=engine.utilisation,
        )
        architecture = read_model(served.model)
        served.deployment.check(architecture)
        memory = plan_memory(architecture, served.deployment, load_hardware(served.hardware), use)
    rules = SchedulerRules(
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=engine.max_model_len or _longest(scenario),
        num_blocks=engine.num_blocks if memory is None else memory.num_blocks,  # type: ignore[arg-type]
        block_size=engine.block_size,
        enable_prefix_caching=engine.enable_prefix_caching,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        watermark=engine.watermark,
        async_scheduling=engine.async_scheduling,
    )
    return rules, memory


def _longest(scenario: Scenario) -> int:
    """The model's own limit; without a model, what the longest request needs."""
    if scenario.served is not None:
        limit = scenario.served.deployment.max_model_len
        return read_model(scenario.served.model).max_context_len if limit is None else limit
    return max(max(request.last_len, request.num_tokens) for request in scenario.requests) + 1


def model_costs(scenario: Scenario, rules: SchedulerRules) -> StepCosts:
    """The model's step times on its device, as far as these requests can reach.

    Raises:
        BadInput: there is no model, or the deployment is impossible.
    """
    served = scenario.served
    if served is None:
        raise BadInput("no step times: give a model and its hardware, or a calibration.")
    longest = max(request.num_tokens for request in scenario.requests)
    reach = Reach(
        max_tokens=rules.max_num_batched_tokens,
        max_requests=rules.max_num_seqs,
        max_kv_len=min(longest, rules.max_model_len),
    )
    architecture = read_model(served.model)
    served.deployment.check(architecture)
    found = model_time(architecture, served.deployment, served.hardware, reach)
    off = (f"{100 * error:.1f} %" for error in (found.error_p50, found.error_p90))
    notes = [
        "step times are read from a table, off the model on random shapes by {} in the median, {} in one of ten".format(
            *off
        )
    ]
    if found.step_time is None:
        notes.append(
            f"no kernel model prices {', '.join(found.unpriced)} on {served.hardware}: only bounds are simulated, the "
            "lower one with every operator at its longest term, the upper one at the sum of its terms"
        )
    return StepCosts(
        middle=found.step_time,
        low=found.low,
        high=found.high,
        grade=found.grade,
        source=f"cost model of {served.hardware}" if found.step_time is not None else f"bounds on {served.hardware}",
        unpriced=found.unpriced,
        notes=tuple(notes),
    )
