"""Drivers without an engine: the cost model prices a cell's step; the simulator schedules its requests on that cost."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.batch import BatchShape, Row
from stepscope.cost.families import family_of
from stepscope.cost.hardware import load_hardware
from stepscope.cost.step_cost import price_step
from stepscope.errors import BadInput
from stepscope.models.architecture import MoeFeedForward
from stepscope.operators.router import summarise
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators
from stepscope.simulate.engine import Options, simulate
from stepscope.simulate.model_time import Reach, model_time
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.sweep.conditions import hash_config
from stepscope.sweep.figure import ASCEND_FIGURES, FAMILY_FIGURES, Figure, Measured, known, unknown
from stepscope.sweep.model import deployment_of, load_model_config, read_architecture

if TYPE_CHECKING:
    from stepscope.cost.step_cost import StepCost
    from stepscope.evidence import Grade
    from stepscope.operators.deployment import Deployment
    from stepscope.simulate.model_time import ModelTime
    from stepscope.simulate.simulation import SimulatedStep
    from stepscope.sweep.plan import Cell, Plan

_FAMILY = {
    "dense_gemm": "dense_gemm_s",
    "experts": "experts_s",
    "attention": "attention_s",
    "indexer": "indexer_s",
    "compressor": "compressor_s",
    "collective": "collective_s",
    "recurrent": "other_s",
    "stream": "other_s",
}
_NO_DEVICE = "a model of the device has no pipes that could be read"
_BLOCK = 16


def cell_shape(cell: Cell) -> BatchShape:
    """The step that a cell is about."""
    if cell.kind == "prefill":
        return BatchShape.from_rows((Row(query_len=cell.tokens, context_len=0, phase="prefill"),))
    row = Row(query_len=1, context_len=cell.context_len, phase="decode")
    return BatchShape.from_rows((row,) * cell.batch)


class CostDriver:
    """Each cell is one step that the cost model prices."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._architecture = read_architecture(plan.model)
        self._deployment = deployment_of(plan)
        self._deployment.check(self._architecture)
        self._hardware = load_hardware(plan.hardware or "")

    def conditions(self) -> dict[str, Any]:
        """The model, the plan and the device's file."""
        return _conditions(self._plan, self._hardware.name)

    def measure(self, cell: Cell) -> Measured:
        """Price it."""
        return self.price(cell, cell_shape(cell))

    def price(self, cell: Cell, shape: BatchShape) -> Measured:
        """Price one shape as a cell's step."""
        operators = step_operators(self._architecture, StepRows.from_shapes([shape]), self._deployment)
        cost = price_step(operators, self._hardware, self._deployment.plan, cost=self._plan.cost)
        step = _step_figures(cost, is_bound=self._plan.cost == "bound")
        step |= rate_figures(cell, step["step_s"])
        step |= self._families(cost, operators)
        step |= {"host_gap_s": unknown("the cost model has no host between steps"), "dense_m": _dense_m(cell)}
        rows = rows_per_expert(self._plan, cell)
        step |= expert_figures(rows, "modelled", "the model has no routed experts")
        step |= {name: unknown(_NO_DEVICE) for name in ASCEND_FIGURES}
        samples = () if step["step_s"].value is None else (step["step_s"].value,)
        return Measured(figures=step, samples=samples, rows_per_expert=rows)

    def _families(self, cost: StepCost, operators: Any) -> dict[str, Figure]:
        totals: dict[str, float | None] = {}
        grade: Grade = cost.grade or "modelled"
        for operator, priced, count in zip(operators, cost.operators, cost.counts, strict=True):
            name = _FAMILY[family_of(operator)]
            bound = self._plan.cost == "bound"
            seconds = priced.terms.lower_s if bound else priced.time_s
            before = totals.get(name, 0.0)
            totals[name] = None if seconds is None or before is None else before + count * float(np.asarray(seconds))
        found = {}
        for name in FAMILY_FIGURES:
            total = totals.get(name, 0.0)
            if total is None:
                found[name] = unknown(f"no kernel model prices all of it on {self._hardware.name}")
            else:
                found[name] = known(total, grade) if total else unknown("the model has no such work in this step")
        return found

    def close(self) -> None:
        """Nothing is held."""


def _step_figures(cost: StepCost, *, is_bound: bool) -> dict[str, Figure]:
    if is_bound:
        value = known(float(np.asarray(cost.lower_bound_s)), "modelled")
        return {"step_s": value, "step_low_s": value, "step_high_s": known(float(cost.serial_bound_s), "modelled")}
    names = {"step_s": cost.time_s, "step_low_s": cost.low_s, "step_high_s": cost.high_s}
    why = f"no kernel model prices {', '.join(cost.unpriced) or 'it'} on {cost.hardware}; cost: bound gives its bound"
    grade: Grade = cost.grade or "modelled"
    return {
        name: unknown(why) if value is None else known(float(np.asarray(value)), grade) for name, value in names.items()
    }


def rate_figures(cell: Cell, step: Figure) -> dict[str, Figure]:
    """TPOT and tokens per second where every step of the cell is like this one."""
    if step.value is None or step.grade is None:
        none = unknown(step.reason or "the step's time is not known")
        return {"tpot_s": none, "tokens_per_s": none}
    rate = Figure(value=cell.tokens / step.value, grade=step.grade)
    if cell.kind == "prefill":
        return {
            "tpot_s": unknown("a prefill step puts out one token: there is no time between two"),
            "tokens_per_s": rate,
        }
    return {"tpot_s": step, "tokens_per_s": rate}


def _dense_m(cell: Cell) -> Figure:
    return known(cell.tokens, "derived")


def rows_per_expert(plan: Plan, cell: Cell) -> tuple[int, ...]:
    """M_e as the plan's router model gives it, over the ranks of an EP domain; () without routed experts."""
    experts = moe_of(plan)
    if experts is None:
        return ()
    domain_tokens = cell.tokens * (plan.held.dp if plan.held.ep > 1 else 1)
    return deployment_of(plan).router.sample(experts.num_experts, experts.top_k, domain_tokens)


def moe_of(plan: Plan) -> MoeFeedForward | None:
    """The routed experts of the model's first layer that has some."""
    layers = read_architecture(plan.model).layers
    return next((x.feed_forward for x in layers if isinstance(x.feed_forward, MoeFeedForward)), None)


def expert_figures(rows: tuple[int, ...], grade: Grade, why_not: str) -> dict[str, Figure]:
    """M_e in short."""
    names = ("mean_rows_per_expert", "active_experts", "max_rows_per_expert")
    if not rows:
        return {name: unknown(why_not) for name in names}
    short = summarise(rows)
    return {
        name: known(value, grade)
        for name, value in zip(names, (short.mean, short.active_experts, short.max), strict=True)
    }


def _conditions(plan: Plan, device: str) -> dict[str, Any]:
    raw, name = load_model_config(plan.model)
    held = plan.held
    return {
        "checkpoint": name,
        "checkpoint_hash": hash_config(raw),
        "quantisation": f"weights {held.weights or 'as stored'}, experts {held.experts or 'as weights'}, KV {held.kv}",
        "parallel": f"TP {held.tp}, DP {held.dp}, EP {held.ep}",
        "engine": f"stepscope {plan.engine} {_own_version()}",
        "drivers": None,
        "device": device,
        "attention_backend": "modelled",
        "moe_communication": "modelled",
        "prefix_caching": False,
        "limits": f"{plan.max_num_batched_tokens} tokens, {plan.max_num_seqs} seats, {plan.max_model_len} long",
        "graphs": "eager" if held.enforce_eager else "captured",
    }


def _own_version() -> str:
    """Of the models; a source tree that is not installed has none."""
    try:
        return metadata.version("stepscope")
    except metadata.PackageNotFoundError:
        return "(not installed)"


class SimulatorDriver:
    """Each cell's requests run through the scheduler, with the cost model's step times from its table."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cost = CostDriver(plan)
        reach = Reach(
            max_tokens=plan.max_num_batched_tokens,
            max_requests=plan.max_num_seqs,
            max_kv_len=plan.longest,
        )
        self._times = _times(plan.model, plan.hardware or "", deployment_of(plan), reach)
        if self._times.step_time is None:
            raise BadInput(
                f"engine simulator: no kernel model prices {', '.join(self._times.unpriced)} on {plan.hardware}. "
                "Use engine cost with cost: bound, or another device."
            )

    def conditions(self) -> dict[str, Any]:
        """As of the cost model."""
        return self._cost.conditions()

    def measure(self, cell: Cell) -> Measured:
        """Simulate it; what a step consists of is the cost model's."""
        plan, window = self._plan, self._plan.window
        is_prefill = cell.kind == "prefill"
        count = window.warmup_steps + window.prefill_repeats if is_prefill else cell.batch
        requests = tuple(
            Request(
                request_id=f"r{i}",
                arrival_s=0.0,
                prompt_len=cell.tokens if is_prefill else cell.context_len,
                output_len=1 if is_prefill else plan.output_len(cell),
                after=f"r{i - 1}" if is_prefill and i else None,
            )
            for i in range(count)
        )
        longest = -(-plan.longest // _BLOCK)
        rules = SchedulerRules(
            max_num_batched_tokens=max(plan.max_num_batched_tokens, plan.max_num_seqs),
            max_num_seqs=plan.max_num_seqs,
            max_model_len=plan.max_model_len,
            num_blocks=(longest + 2) * plan.max_num_seqs + 2,
            block_size=_BLOCK,
            enable_prefix_caching=False,
        )
        assert self._times.step_time is not None
        found = simulate(requests, rules, self._times.step_time, Options(steps="sums", host_s=0.0, is_exact=True))
        steps = [step for step in found.steps if is_of_cell(cell, step.shape)]
        steps = steps[window.warmup_steps :][: window.prefill_repeats if is_prefill else window.decode_steps]
        return self._found(cell, steps)

    def _found(self, cell: Cell, steps: list[SimulatedStep]) -> Measured:
        if not steps:
            return Measured(figures={}, problems=("no simulated step has the cell's shape",))
        priced = self._cost.measure(cell)
        samples = tuple(step.end_s - step.start_s for step in steps)
        figures = dict(priced.figures) | sample_figures(samples, "simulated")
        figures |= rate_figures(cell, figures["step_s"])
        figures["host_gap_s"] = unknown("host work is simulated as 0")
        return Measured(figures=figures, samples=samples, rows_per_expert=priced.rows_per_expert)

    def close(self) -> None:
        """Nothing is held."""


@lru_cache(maxsize=4)
def _times(model: str, hardware: str, deployment: Deployment, reach: Reach) -> ModelTime:
    """Tabulated once a process."""
    architecture = read_architecture(model)
    deployment.check(architecture)
    return model_time(architecture, deployment, hardware, reach)


def is_of_cell(cell: Cell, shape: BatchShape) -> bool:
    """Whether a step is what the cell is about: its whole prompt alone, or all its requests decoding, nothing else."""
    if cell.kind == "prefill":
        return shape.prefill.query_sum == cell.tokens and not shape.decode.num_requests
    return shape.decode.num_requests == cell.batch and not shape.prefill.num_requests


def sample_figures(samples: tuple[float, ...], grade: Grade) -> dict[str, Figure]:
    """The median of a window, and its 5th and 95th percentile."""
    low, middle, high = np.quantile(np.array(samples), [0.05, 0.5, 0.95])
    return {"step_s": known(middle, grade), "step_low_s": known(low, grade), "step_high_s": known(high, grade)}
