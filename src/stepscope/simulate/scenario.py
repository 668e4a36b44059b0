"""Scenario: requests, an engine's options and where its step times come from -> Outcome, with the interval of the cost.

The same requests run once under the cost's prediction and once under each alternative: the low and the high end of the
cost model, or draws of a calibration. An interval is what these give, not a spread over other loads. Where an operator
has no price there is no prediction, only bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.simulate.arrivals import check_workload
from stepscope.simulate.layout import check_layout, num_engines, simulate_layout
from stepscope.simulate.memory import Memory, MemoryUse, plan_memory
from stepscope.simulate.model_time import Reach
from stepscope.simulate.rules import build_rules, most_tokens
from stepscope.simulate.simulation import Options, Simulation
from stepscope.simulate.step_costs import Served, StepCosts, TimedStep, make_costs

if TYPE_CHECKING:
    from stepscope.cost.calibration import Calibration
    from stepscope.simulate.policy import Rules
    from stepscope.simulate.request import Request
    from stepscope.simulate.simulation import Detail

MOST_BLOCKS, MOST_ENGINES = 50_000_000, 10_000  # whose state the simulator keeps
_MOST = {"block_size": 1 << 16, "max_num_seqs": 1 << 21, "max_num_batched_tokens": 1 << 21}  # tables are as long
MOST_GAPS = 20_000_000  # outputs whose gaps are kept for ITL; beyond, memory would grow with them


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """A scheduler's options by vLLM's names.

    None: `num_blocks` from the device's memory, `max_model_len` from the model or the load, `host_s` from the
    calibration, else 0. `acceptance`: of each speculative token, or one chance for all. Prefill and decode engines: 0
    is one engine that does both. `policy`: whose scheduler; SGLang's takes these options by its own names.
    """

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    async_scheduling: bool = True
    host_s: float | None = None
    utilisation: float = 0.9
    speculative_tokens: int = 0
    acceptance: tuple[float, ...] = ()
    prefill_engines: int = 0
    decode_engines: int = 0
    policy: str = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated: step times are the model's on its device, scaled by the calibration, or that one's alone."""

    requests: tuple[Request, ...]
    engine: EngineOptions
    served: Served | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out. `middle` is None where there are only bounds."""

    scenario: Scenario
    rules: Rules
    num_blocks: int
    costs: StepCosts
    memory: Memory | None
    middle: Simulation | None
    alternatives: tuple[Simulation, ...]

    @property
    def shown(self) -> Simulation:
        """The prediction, or the lower bound."""
        return self.middle or self.alternatives[0]

    @property
    def num_devices(self) -> int:
        """Of all engines; 1 each where no deployment was named."""
        served = self.scenario.served
        each = 1 if served is None else served.deployment.plan.world_size
        return each * num_engines(self.scenario.engine)


def run_scenario(scenario: Scenario, *, steps: Detail = "sums") -> Outcome:
    """Simulate it under the prediction and every alternative. `steps`: what is kept of the shown one's steps.

    Raises:
        BadInput: a setup that cannot run, before any step.
    """
    rules, memory = make_rules(scenario)
    check_workload(scenario.requests, rules)
    longest = max(request.num_tokens for request in scenario.requests)
    reach = Reach(
        max_tokens=most_tokens(scenario.engine),
        max_requests=scenario.engine.max_num_seqs,
        max_kv_len=min(longest, rules.max_model_len),
        decode_query_len=1 + scenario.engine.speculative_tokens,
    )
    costs = make_costs(_drafting(scenario), scenario.calibration, reach, host_s=scenario.engine.host_s)
    with_gaps = sum(request.output_len for request in scenario.requests) <= MOST_GAPS

    def run(timed: TimedStep) -> Simulation:
        kept = steps if timed is costs.shown else "none"
        options = Options(steps=kept, with_gaps=with_gaps, host_s=timed.host_s)
        return simulate_layout(scenario, rules, timed.step_time, options)

    return Outcome(
        scenario=scenario,
        rules=rules,
        num_blocks=_num_blocks(scenario.engine, memory),
        costs=costs,
        memory=memory,
        middle=None if costs.middle is None else run(costs.middle),
        alternatives=tuple(run(each) for each in costs.alternatives),
    )


def make_rules(scenario: Scenario) -> tuple[Rules, Memory | None]:
    """The scheduler's rules, blocks from the device's memory where their number is not given.

    Raises:
        BadInput: no requests, no engine would start so, or the model does not fit.
    """
    if not scenario.requests:
        raise BadInput("there is no request to simulate: the workload is empty.")
    engine, served = scenario.engine, scenario.served
    check_layout(scenario)
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
    num_blocks = _num_blocks(engine, memory)
    _check_size(scenario, num_blocks)
    return build_rules(engine, served, num_blocks, engine.max_model_len or _longest(scenario)), memory


def _check_size(scenario: Scenario, num_blocks: int) -> None:
    """Refuse what the simulator's own memory does not hold: it keeps a record of each block."""
    engine, served = scenario.engine, scenario.served
    for name, most in _MOST.items():
        if getattr(engine, name) > most:
            raise BadInput(f"{name} is {getattr(engine, name)}: give {most:,} at most.")
    count = num_engines(engine) * (1 if served is None else served.deployment.plan.dp)
    if count > MOST_ENGINES or count * num_blocks > MOST_BLOCKS:
        raise BadInput(
            f"{count:,} engines with {num_blocks:.7g} KV blocks each: at most {MOST_ENGINES:,} engines and "
            f"{MOST_BLOCKS:,} blocks in all are simulated. Give fewer (num_blocks), or larger ones (block_size)."
        )


def _num_blocks(engine: EngineOptions, memory: Memory | None) -> int:
    found = engine.num_blocks if memory is None else memory.num_blocks
    assert found is not None
    return found


def _drafting(scenario: Scenario) -> Served | None:
    """With as many passes of the model's own draft as there are drafts, so that drafting is in the step's time."""
    served, count = scenario.served, scenario.engine.speculative_tokens
    if served is None or not count or read_model(served.model).draft is None or served.deployment.draft_passes:
        return served
    return replace(served, deployment=replace(served.deployment, draft_passes=count))


def _longest(scenario: Scenario) -> int:
    """The model's own limit; without a model, what the longest request needs."""
    if scenario.served is not None:
        limit = scenario.served.deployment.max_model_len
        return read_model(scenario.served.model).max_context_len if limit is None else limit
    return max(max(request.last_len, request.num_tokens) for request in scenario.requests) + 1
