"""Crossovers: the three bends of a sweep's results, or why a sweep does not show them, and what was predicted of them.

1. Dense: the time of the dense matrices over their rows M, or of the whole prefill step where families are unknown.
2. Experts: the time of the grouped GEMMs per active expert over the rows of an active expert, for weights are read
   once per active expert and their number rises with the batch; mean M_e over all experts stands in the table.
3. Decode, end to end: TPOT over B at each context: from where on more requests cost each of them time.
The first two take prefill cells and the decode cells of the shortest context: M and M_e alone decide their times.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepscope.cost.crossover_document import CrossoverPlan, crossover_document
from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.sweep.bend import REFITS, Bend, Point, find_bend
from stepscope.sweep.model import deployment_of, read_architecture
from stepscope.sweep.model_driver import CostDriver
from stepscope.sweep.result import make_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.sweep.plan import Plan
    from stepscope.sweep.result import Result

_WHAT = {
    "step_s": "the whole prefill step",
    "dense_gemm_s": "the dense matrices",
    "experts_s": "the grouped GEMMs, per active expert",
}


def find_crossovers(plan: Plan, results: Sequence[Result], *, num_refits: int = REFITS) -> list[dict[str, Any]]:
    """All three answers as rows; of the third one for each context. Without refits there are no intervals."""
    valid = [result for result in results if result["status"] == "ok"]
    return [
        _dense(plan, valid, num_refits),
        _experts(plan, valid, num_refits),
        *(_decode(valid, context, num_refits) for context in plan.decode_context_lens),
    ]


def _row(crossover: str, axis: str, of: str, bend: Bend, context_len: int | None = None) -> dict[str, Any]:
    return {"crossover": crossover, "context_len": context_len, "axis": axis, "of": of, **asdict(bend)}


def _dense(plan: Plan, valid: Sequence[Result], num_refits: int) -> dict[str, Any]:
    places = _by_axis(_one_context(plan, valid), "dense_m", "dense_gemm_s")
    if len(places) > 1:
        return _row("dense", "M", _WHAT["dense_gemm_s"], find_bend(places, num_refits=num_refits))
    prefill = [result for result in valid if result["cell"]["kind"] == "prefill"]
    points = [p for result in prefill if (p := _step_point(result, result["cell"]["tokens"])) is not None]
    if points or not valid:
        return _row("dense", "M", _WHAT["step_s"], find_bend(points, num_refits=num_refits))
    return _row("dense", "M", _WHAT["step_s"], _not_measured(prefill or valid, "step_s"))


def _experts(plan: Plan, valid: Sequence[Result], num_refits: int) -> dict[str, Any]:
    cells = _one_context(plan, valid)
    points = [p for result in cells if (p := _expert_point(result)) is not None]
    if points or not cells:
        return _row("experts", "M_e of active experts", _WHAT["experts_s"], find_bend(points, num_refits=num_refits))
    missing = "mean_rows_per_expert" if _value(cells[0], "mean_rows_per_expert") is None else "experts_s"
    return _row("experts", "M_e of active experts", _WHAT["experts_s"], _not_measured(cells, missing))


def _decode(valid: Sequence[Result], context: int, num_refits: int) -> dict[str, Any]:
    cells = [r for r in valid if r["cell"]["kind"] == "decode" and r["cell"]["context_len"] == context]
    points = []
    for result in cells:
        tpot = _value(result, "tpot_s")
        if tpot is not None:
            points.append(Point(x=result["cell"]["batch"], samples=tuple(result["samples_s"]) or (tpot,)))
    bend = find_bend(points, num_refits=num_refits) if points or not cells else _not_measured(cells, "tpot_s")
    return _row("decode", "B", "TPOT", bend, context)


def _one_context(plan: Plan, valid: Sequence[Result]) -> list[Result]:
    shortest = min(plan.decode_context_lens, default=0)
    return [r for r in valid if r["cell"]["kind"] == "prefill" or r["cell"]["context_len"] == shortest]


def _by_axis(results: Sequence[Result], axis: str, figure: str) -> list[Point]:
    """One point for each place of the axis; cells that share it (prefill and decode of one M) are its samples."""
    found: dict[float, list[float]] = {}
    for result in results:
        x, seconds = _value(result, axis), _value(result, figure)
        if x is not None and seconds is not None:
            found.setdefault(x, []).append(seconds)
    return [Point(x=x, samples=tuple(seconds)) for x, seconds in found.items()]


def _expert_point(result: Result) -> Point | None:
    """Copies of an active expert, and the time of one."""
    seconds, active = _value(result, "experts_s"), _value(result, "active_experts")
    if seconds is None or not active:
        return None
    return Point(x=sum(result["rows_per_expert"]) / active, samples=(seconds / active,))


def _step_point(result: Result, x: float) -> Point | None:
    seconds = _value(result, "step_s")
    return None if seconds is None else Point(x=x, samples=tuple(result["samples_s"]) or (seconds,))


def _value(result: Result, name: str) -> float | None:
    value: float | None = result["figures"][name]["value"]
    return value


def _not_measured(results: Sequence[Result], name: str) -> Bend:
    reasons = dict.fromkeys(str(result["figures"][name]["reason"]) for result in results)
    return Bend(answer="not_measured", reason="; ".join(reasons) or "no cell of it ran")


def predict_crossovers(plan: Plan, hardware: str | None = None) -> dict[str, Any] | None:
    """What the model wing says of the same deployment: by formula, and by the same bends on its own times.

    None where no hardware is named; a reason in place of the rest where the model or the device is unknown.
    """
    device = hardware or plan.hardware
    if device is None:
        return None
    try:
        return _predict(plan, device)
    except BadInput as error:
        return {"hardware": device, "refused": str(error)}


def _predict(plan: Plan, device: str) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    architecture, deployment = read_architecture(plan.model), deployment_of(plan)
    asked = CrossoverPlan(
        batches=plan.decode_batches or (1,), context_lens=plan.decode_context_lens or (1024,), tokens=(1,)
    )
    document = crossover_document(architecture, load_hardware(device), deployment, asked)
    dense = [each["crossover_tokens"] for each in document["dense"]]
    experts = [each["crossover_rows"] for each in document["experts"]]
    driver = CostDriver(msgspec.structs.replace(plan, engine="cost", hardware=device))
    priced = [make_result(plan, cell, driver.measure(cell), {}, []) for cell in plan.cells]
    return {
        "hardware": device,
        "cost": plan.cost,
        "dense_tokens": _ends(dense),
        "expert_rows": _ends(experts),
        "decode_batch": document["decode"]["crossover_batch"] if plan.decode_batches else [],
        "bends": find_crossovers(plan, priced, num_refits=0),
        "step_s": {result["cell"]["name"]: _value(result, "step_s") for result in priced},
        "refused": None,
    }


def _ends(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Least and most over the matrices; `never`: how many stay memory-bound at any size."""
    if not values:
        return None
    there = [value for value in values if value is not None]
    return {
        "low": min(there, default=None),
        "high": max(there, default=None),
        "never": len(values) - len(there),
        "matrices": len(values),
    }
