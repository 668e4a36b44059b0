"""Pipeline: one engine whose layers are split over stages, with as many steps in flight as it takes to fill them.

A request's next token needs the one before it, so a request is in one step at a time, and one that decodes alone
leaves all stages but one idle. Steps in flight: as many as stages, and one more in async scheduling, where requests
decode in every pp-th step (vLLM 0.32: VllmConfig.max_concurrent_batches, AsyncScheduler's next_decode_eligible_step,
with the model runner V2). A prompt's chunks follow each other through the stages without waiting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.simulate.arrivals import check_workload
from stepscope.simulate.engine import Engine
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.simulation import Options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.simulate.policy import Rules
    from stepscope.simulate.request import Request
    from stepscope.simulate.simulation import Simulation
    from stepscope.simulate.stages import Stages
    from stepscope.simulate.step_time import CostFunction


def simulate_pipeline(
    requests: Iterable[Request],
    rules: Rules,
    cost: CostFunction,
    stages: Stages,
    options: Options | None = None,
) -> Simulation:
    """Run a workload; `cost` is of a step through all layers, of which each stage takes its share.

    Steps overlap: they are told from the first stage's begin to the last one's end, and `stages` of the result says
    how busy each stage was. One stage: the same as `simulate`. vLLM's rules get the number of stages here.

    Raises:
        BadInput: as of `simulate`, or rules that know no pipeline.
    """
    asked = tuple(requests)
    count = len(stages.shares)
    if isinstance(rules, SchedulerRules):
        rules = replace(rules, pipeline_parallel_size=count)
    check_workload(asked, rules)
    kept = options or Options()
    engine = Engine(asked, rules, cost, replace(kept, is_exact=kept.is_exact or count > 1), stages)
    engine.run()
    return engine.result()
