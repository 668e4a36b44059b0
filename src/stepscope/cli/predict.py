"""The commands of the model wing: predict, gemm, history, models."""

from __future__ import annotations

import math
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli.options import Output
from stepscope.cli.predict_view import (
    gemm_sections,
    history_sections,
    model_sections,
    models_sections,
    predict_sections,
    write_view,
)
from stepscope.cli.report import Charts
from stepscope.cli.tabular import TableFormat, TableFormatOption
from stepscope.cost.hardware import load_hardware
from stepscope.cost.step_cost import price_step
from stepscope.cost.step_notes import price_notes
from stepscope.errors import BadInput
from stepscope.models.hf_config import bundled_models, read_model
from stepscope.models.kv_layout import kv_bytes_per_token, layouts_of, state_bytes_per_request, window_bytes_per_request
from stepscope.models.parallel import ParallelPlan
from stepscope.models.parameters import count_parameters
from stepscope.operators.deployment import Deployment
from stepscope.operators.gemm import gemm_row
from stepscope.operators.history import branch_totals, history_branches, state_rows
from stepscope.operators.prediction import predict_document
from stepscope.operators.router import Router
from stepscope.operators.rows import StepRows
from stepscope.operators.shape import parse_count, parse_counts, read_rows_per_expert, read_shape
from stepscope.operators.step import step_operators
from stepscope.report.model_charts import history_charts, write_model_charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.models.architecture import Architecture
    from stepscope.operators.operator import Operator

Model = Annotated[
    str, typer.Argument(help="A bundled model (see `stepscope models`) or the path of a config.json.", metavar="MODEL")
]
Size = typer.Option(min=1)


class CostOption(StrEnum):
    """Where times come from."""

    model = "model"
    bound = "bound"
    measured = "measured"


def predict(
    model: Model,
    *,
    prefill: Annotated[
        list[str] | None, typer.Option(help="A prefill row of this many tokens (Q or Q@C); may be repeated.")
    ] = None,
    context: Annotated[str, typer.Option(help="Context that is there before the prefill rows, in tokens.")] = "0",
    decode: Annotated[
        list[str] | None, typer.Option(help="B@C: B decode rows with C tokens of context each; may be repeated.")
    ] = None,
    draft_tokens: Annotated[int, typer.Option(min=0, help="Draft tokens that each decode row verifies.")] = 0,
    batch: Annotated[Path | None, typer.Option(help="The rows of the step, as YAML or JSON.")] = None,
    hardware: Annotated[str | None, typer.Option(help="Price the step on this hardware.")] = None,
    cost: Annotated[
        CostOption, typer.Option(help="Times from fitted kernel models, the roofline bound, or measured tables.")
    ] = CostOption.model,
    tp: Annotated[int, Size] = 1,
    dp: Annotated[int, Size] = 1,
    ep: Annotated[int, Size] = 1,
    pp: Annotated[int, Size] = 1,
    cp: Annotated[int, Size] = 1,
    weights: Annotated[str | None, typer.Option(help="dtype of the projections (default: the checkpoint's).")] = None,
    experts: Annotated[str | None, typer.Option(help="dtype of the routed experts (default: as --weights).")] = None,
    activations: Annotated[str | None, typer.Option(help="dtype of the GEMMs' inputs.")] = None,
    kv: Annotated[str, typer.Option(help="Layout of the KV cache.")] = "bf16",
    fusion: Annotated[str, typer.Option(help="none, vllm or sglang: what runs as one GEMM.")] = "none",
    mla: Annotated[str, typer.Option(help="auto, absorbed or expanded.")] = "auto",
    eager: Annotated[bool, typer.Option("--eager", help="Decode runs without captured graphs.")] = False,
    router_skew: Annotated[float, typer.Option(help="Zipf skew of the router; 0 is uniform.")] = 0.0,
    rows_per_expert: Annotated[
        str | None, typer.Option(help="Measured rows of each expert, with commas (or @FILE of JSON).")
    ] = None,
    draft_passes: Annotated[int, typer.Option(min=0, help="Passes of the model's MTP or DSpark draft.")] = 0,
    max_model_len: Annotated[int | None, typer.Option(help="Accept contexts up to here.")] = None,
    trace_model: Annotated[
        bool, typer.Option("--trace-model", help="Take the projections from transformers on the meta device.")
    ] = False,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Predict a step: every operator's shape, flop and bytes, and with --hardware its bound and time."""
    if mla not in ("auto", "absorbed", "expanded"):
        raise BadInput(f"--mla {mla}: auto, absorbed or expanded was expected.")
    architecture = _architecture(model, traced=trace_model)
    shape = read_shape(
        prefill=prefill or [], context=context, decode=decode or [], draft_tokens=draft_tokens, batch=batch
    )
    measured = None if rows_per_expert is None else read_rows_per_expert(rows_per_expert)
    deployment = Deployment(
        plan=ParallelPlan(tp=tp, dp=dp, ep=ep, pp=pp, cp=cp),
        weights=weights,
        experts=experts,
        activations=activations,
        kv=kv,
        fusion=fusion,
        mla="auto" if mla == "auto" else "absorbed" if mla == "absorbed" else "expanded",
        router=Router(skew=router_skew, rows_per_expert=measured),
        is_eager=eager,
        draft_passes=draft_passes,
        max_model_len=max_model_len,
    )
    rows = StepRows.from_shapes([shape])
    operators = step_operators(architecture, rows, deployment)
    document = predict_document(architecture, rows, operators, deployment)
    if hardware is not None:
        _price(document, operators, hardware, deployment.plan, cost)
    write_view(document, document["operators"], format_, output, predict_sections)


def _price(
    document: dict[str, Any], operators: Sequence[Operator], hardware: str, plan: ParallelPlan, cost: CostOption
) -> None:
    """Fill in what the hardware makes of each operator and of the step; where no kernel model is, the bound."""
    device = load_hardware(hardware)
    step = price_step(operators, device, plan, cost=cost.value)
    document["hardware"], document["cost"] = step.hardware, cost.value
    document["totals"] |= {
        "lower_bound_s": step.lower_bound_s,
        "serial_bound_s": step.serial_bound_s,
        "bound": step.bound,
        "time_s": step.time_s,
        "low_s": step.low_s,
        "high_s": step.high_s,
        "grade": step.grade,
    }
    for entry, priced in zip(document["operators"], step.operators, strict=True):
        entry |= {
            "bound": priced.bound,
            "time_s": priced.terms.lower_s if priced.time_s is None else priced.time_s,
            "lower_bound_s": priced.terms.lower_s,
            "source": "roofline bound" if priced.time_s is None else priced.source,
        }
    document["notes"] += price_notes(operators, step, device)


def _architecture(model: str, *, traced: bool) -> Architecture:
    if not traced:
        return read_model(model)
    from stepscope.models.trace_model import trace_model  # noqa: PLC0415  # transformers is an optional extra

    return trace_model(model)


def gemm(
    shape: Annotated[str, typer.Argument(help="The weight: KxN, such as 4096x1024.", metavar="KxN")],
    *,
    m: Annotated[str, typer.Option("--m", help="Rows of the input, with commas; fractional for a mean M_e.")],
    dtype: Annotated[str, typer.Option(help="dtype of input and output, and of the weight.")] = "bf16",
    weights: Annotated[str | None, typer.Option(help="dtype of the weight, where it differs.")] = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Show flop, bytes and arithmetic intensity of one GEMM over m (each operand moved once, no scales)."""
    sizes = shape.lower().split("x")
    if len(sizes) != 2:
        raise BadInput(f"{shape}: KxN was expected, such as 4096x1024.")
    k, n = (parse_count(size, "KxN") for size in sizes)
    found = [gemm_row(_rows(text), k, n, dtype=dtype, weights=weights) for text in m.split(",")]
    table = [{"m": row.m, "flop": row.flop, "bytes": row.bytes, "intensity": row.intensity} for row in found]
    write_view(table, table, format_, output, gemm_sections)


def _rows(text: str) -> int | float:
    try:
        value = float(text)
    except ValueError:
        return parse_count(text, "--m")
    if not math.isfinite(value):
        raise BadInput(f"--m {text}: a positive number was expected.")
    return int(value) if value.is_integer() else value


def history(
    model: Model,
    *,
    context: Annotated[
        str, typer.Option(help="Tokens that a decode query sees, itself included; with commas.")
    ] = "8k,32k,128k,1m",
    layout: Annotated[str, typer.Option(help="Layout of the KV cache.")] = "bf16",
    charts: Charts = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Show what a decode query reads of its history: rows, bytes and flop of each branch as context grows."""
    architecture = read_model(model)
    contexts, lines = [], []
    for length in parse_counts(context, "--context"):
        branches = history_branches(architecture, length, layout)
        totals = [{"context": length, **asdict(total)} for total in branch_totals(branches)]
        layer_types = [{**asdict(b), "bytes": b.payload_bytes} for b in branches]
        contexts.append(
            {
                "context": length,
                "branches": [{k: v for k, v in total.items() if k != "context"} for total in totals],
                "layer_types": layer_types,
                "attention_bytes": _attention_bytes(layer_types),
            }
        )
        lines += totals
    document = {
        "model": architecture.name,
        "layout": layout,
        "contexts": contexts,
        "state_rows": [asdict(row) for row in state_rows(architecture)],
    }
    if charts is not None:
        write_model_charts(history_charts(document), charts)
    write_view(document, lines, format_, output, history_sections)


def _attention_bytes(layer_types: list[dict[str, Any]]) -> dict[str, int]:
    """What the attention core of one layer of each type reads, its indexer left out."""
    found: dict[str, int] = {}
    for part in layer_types:
        if part["branch"] != "indexer":
            found[part["layer_type"]] = found.get(part["layer_type"], 0) + part["bytes"]
    return found


def models(
    model: Annotated[str | None, typer.Argument(help="Show one model in full.", metavar="[MODEL]")] = None,
    *,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """List the bundled models, or show one: layers, parameters, cache bytes, and where each dimension came from."""
    if model is not None:
        document = _model_document(read_model(model))
        rows = [{"dimension": name, "key": key} for name, key in document["keys"].items()]
        write_view(document, rows, format_, output, model_sections)
        return
    table = []
    for name in bundled_models():
        found = _model_document(read_model(name))
        table.append({key: found[key] for key in ("name", "family", "num_layers", "params_total", "params_active")})
        table[-1]["kv_bytes_per_token"] = found["kv_bytes_per_token"]["bf16"]
        table[-1]["max_context_len"] = found["max_context_len"]
    write_view(table, table, format_, output, models_sections)


def _model_document(architecture: Architecture) -> dict[str, Any]:
    parameters, layouts = count_parameters(architecture), layouts_of(architecture)
    return {
        "name": architecture.name,
        "family": architecture.family,
        "num_layers": len(architecture.schedule),
        "hidden_size": architecture.hidden_size,
        "vocab_size": architecture.vocab_size,
        "max_context_len": architecture.max_context_len,
        "layer_types": architecture.counts,
        "schedule": list(architecture.schedule),
        "params_total": parameters.total,
        "params_matrices": parameters.matrices,
        "params_active": parameters.active,
        "params_by_role": dict(parameters.by_role),
        "weights": architecture.checkpoint.weights,
        "experts": architecture.checkpoint.experts,
        "kv_bytes_per_token": {layout: float(kv_bytes_per_token(architecture, layout)) for layout in layouts},
        "window_bytes_per_request": {x: window_bytes_per_request(architecture, x) for x in layouts},
        "state_bytes_per_request": state_bytes_per_request(architecture),
        "draft": None if architecture.draft is None else architecture.draft.kind,
        "keys": dict(architecture.keys),
    }
