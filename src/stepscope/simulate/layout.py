"""Layout: how the engines of a deployment stand together, and which of the simulations that makes it.

One engine; dp ranks, in lockstep where they share experts and else as replicas; the stages of a pipeline; or pools of
prefill and decode engines with KV sent between them. Two of these at once are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.cost.hardware import SCALE_OUT, load_hardware
from stepscope.errors import BadInput
from stepscope.models.architecture import MoeFeedForward
from stepscope.models.hf_config import read_model
from stepscope.models.kv_layout import kv_bytes_per_token
from stepscope.simulate.disaggregated import Link, simulate_disaggregated
from stepscope.simulate.engine import simulate
from stepscope.simulate.engine_pool import EnginePool, simulate_replicas
from stepscope.simulate.lockstep import simulate_ranks
from stepscope.simulate.pipeline import simulate_pipeline
from stepscope.simulate.stages import Stages

if TYPE_CHECKING:
    from stepscope.simulate.policy import Rules
    from stepscope.simulate.scenario import EngineOptions, Scenario
    from stepscope.simulate.simulation import Options, Simulation
    from stepscope.simulate.step_costs import Served
    from stepscope.simulate.step_time import StepTime


def check_layout(scenario: Scenario) -> None:
    """Refuse what is not simulated together.

    Raises:
        BadInput: two layouts at once, half of one, or one that needs a model.
    """
    engine, served = scenario.engine, scenario.served
    pools = (engine.prefill_engines, engine.decode_engines)
    if min(pools) < 0 or (0 in pools and pools != (0, 0)):
        raise BadInput(f"{pools[0]} prefill and {pools[1]} decode engines: give 1 or more of both, or neither.")
    names = [name for name in ("dp", "pp") if served is not None and getattr(served.deployment.plan, name) > 1]
    if pools != (0, 0):
        names.append("prefill and decode engines")
        if served is None:
            raise BadInput("prefill and decode engines send KV, whose size is a model's: give --model and --hardware.")
    if engine.policy == "sglang" and (engine.speculative_tokens or names not in ([], ["dp"])):
        raise BadInput("with SGLang's policy, drafts, pipelines and engines apart are not simulated. Set them aside.")
    if len(names) > 1:
        raise BadInput(f"{' with '.join(names)} is not simulated together. Set one of them aside.")


def num_engines(engine: EngineOptions) -> int:
    """Engines of the whole deployment; dp ranks count as one."""
    return max(engine.prefill_engines + engine.decode_engines, 1)


def simulate_layout(scenario: Scenario, rules: Rules, step_time: StepTime, options: Options) -> Simulation:
    """Run the scenario's requests on its layout."""
    engine, served = scenario.engine, scenario.served
    if engine.prefill_engines:
        assert served is not None
        prefill, decode = (
            EnginePool(rules=rules, cost=step_time, num_engines=count)
            for count in (engine.prefill_engines, engine.decode_engines)
        )
        return simulate_disaggregated(scenario.requests, prefill, decode, find_link(served), options=options)
    plan = None if served is None else served.deployment.plan
    if plan is not None and plan.pp > 1:
        return simulate_pipeline(scenario.requests, rules, step_time, Stages.even(plan.pp), options)
    if plan is None or served is None or plan.dp == 1:
        return simulate(scenario.requests, rules, step_time, options)
    if any(isinstance(layer.feed_forward, MoeFeedForward) for layer in read_model(served.model).layers):
        return simulate_ranks(scenario.requests, rules, step_time, plan.dp, options=options)
    return simulate_replicas(scenario.requests, EnginePool(rules=rules, cost=step_time, num_engines=plan.dp), options)


def find_link(served: Served) -> Link:
    """KV from engine to engine: one transfer at a time from each, over the network links of all its devices.

    Raises:
        BadInput: the hardware has no scale-out rate.
    """
    hardware = load_hardware(served.hardware)
    figure = hardware.rates.get(("advertised", SCALE_OUT))
    if figure is None:
        raise BadInput(f"{hardware.name} has no scale_out rate to send KV over. Add it to a hardware file of your own.")
    token_bytes = float(kv_bytes_per_token(read_model(served.model), served.deployment.kv))
    rate = figure.value * served.deployment.plan.world_size
    return Link(kv_bytes_per_token=token_bytes, bytes_per_s=rate, lanes="per_sender")
