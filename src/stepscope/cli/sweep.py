"""The commands sweep plan, sweep run and sweep report."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli.options import Output, write_result
from stepscope.cli.predict import CostOption, Size
from stepscope.cli.predict_view import write_view
from stepscope.cli.report import Charts
from stepscope.cli.sweep_view import sweep_sections
from stepscope.cli.tabular import TableFormat, TableFormatOption
from stepscope.errors import BadInput, CheckFailed
from stepscope.report.model_charts import write_model_charts
from stepscope.report.sweep_charts import sweep_charts
from stepscope.sweep.conditions import hash_config
from stepscope.sweep.model import load_model_config
from stepscope.sweep.plan import GRIDS, Held, Window, make_plan, read_plan, to_yaml
from stepscope.sweep.report import cell_row, sweep_document
from stepscope.sweep.run import RunOptions, read_sweep, run_sweep
from stepscope.sweep.vllm_engine import EngineSetup

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.sweep.plan import Plan
    from stepscope.sweep.result import Result

app = typer.Typer(
    help="Sweep prefill sizes and decode batches over an engine or a model of one; measure the three crossovers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class EngineOption(StrEnum):
    """What runs the cells."""

    vllm = "vllm"
    server = "server"
    simulator = "simulator"
    cost = "cost"


class ClockOption(StrEnum):
    """What times a step."""

    wall = "wall"
    busy = "busy"


@app.command("plan")
def plan(
    *,
    grid: Annotated[str, typer.Option(help=f"The cells: {', '.join(GRIDS)}; edit the file for others.")] = "demo",
    engine: Annotated[EngineOption, typer.Option(help="What runs the cells.")] = EngineOption.vllm,
    model: Annotated[
        str, typer.Option(help="A folder or config.json, a bundled name, or demo: tiny, random weights.")
    ] = "demo",
    hardware: Annotated[
        str | None, typer.Option(help="Prices simulator and cost, and predictions beside what was measured.")
    ] = None,
    cost: Annotated[CostOption, typer.Option(help="Times of engine cost.")] = CostOption.model,
    url: Annotated[str | None, typer.Option(help="Of engine server, such as http://localhost:8000.")] = None,
    tp: Annotated[int, Size] = 1,
    dp: Annotated[int, Size] = 1,
    ep: Annotated[int, Size] = 1,
    weights: Annotated[
        str | None, typer.Option(help="dtype of the projections, for the cost model (default: the checkpoint's).")
    ] = None,
    experts: Annotated[str | None, typer.Option(help="dtype of the routed experts (default: as --weights).")] = None,
    kv: Annotated[str, typer.Option(help="Layout of the KV cache.")] = "bf16",
    router_skew: Annotated[float, typer.Option(help="Zipf skew of a modelled router; 0 is uniform.")] = 0.0,
    clock: Annotated[
        ClockOption, typer.Option(help="wall, or busy: CPU seconds of a CPU engine's thread, on a shared machine.")
    ] = ClockOption.wall,
    steps: Annotated[int, typer.Option(min=2, help="Decode steps of a window.")] = 16,
    repeats: Annotated[int, typer.Option(min=2, help="Prompts of a prefill cell.")] = 5,
    profiled: Annotated[int, typer.Option(min=0, help="Steps profiled after each window, for families; 0: none.")] = 6,
    engine_arg: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of vLLM's LLM, VALUE as JSON or text; may be repeated.")
    ] = None,
    output: Output = None,
) -> None:
    """Write a sweep's plan: its cells, its engine, and what is held fixed."""
    held = Held(
        checkpoint_hash=_hash_of(model),
        weights=weights,
        experts=experts,
        kv=kv,
        tp=tp,
        dp=dp,
        ep=ep,
        router_skew=router_skew,
        engine_args=_arguments(engine_arg or []),
    )
    found = make_plan(
        grid,
        engine=engine.value,
        model=model,
        hardware=hardware,
        cost=cost.value,
        url=url,
        window=Window(decode_steps=steps, prefill_repeats=repeats, profiled_steps=profiled, clock=clock.value),
        held=held,
    )
    write_result(to_yaml(found), output)


def _hash_of(model: str) -> str | None:
    """Of a config.json that is here; another name is the engine's to find."""
    try:
        return hash_config(load_model_config(model)[0])
    except BadInput:
        return None


def _arguments(texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, is_there, value = text.partition("=")
        if not is_there or not name.isidentifier():
            raise BadInput(f"--engine-arg {text}: NAME=VALUE was expected, such as block_size=32.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


@app.command("run")
def run(
    file: Annotated[Path, typer.Argument(help="A plan, as `stepscope sweep plan` writes it.", metavar="PLAN")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The sweep's folder; what is there is kept.")],
    engine_python: Annotated[Path | None, typer.Option(help="The interpreter that has vLLM, for engine vllm.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, for simulator and cost (default: one a processor).")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Cells on a Ray cluster (pip install 'stepscope[ray]').")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed and invalid cells again.")] = False,
    timeout_s: Annotated[
        float, typer.Option(help="Longest time of one cell of a real engine, and of its start.")
    ] = 1800.0,
) -> None:
    """Run a sweep's cells that have no result yet, one result file a cell; an interrupted sweep goes on here."""
    found = read_plan(file)
    setup = EngineSetup(python=engine_python, environment=dict(os.environ), timeout_s=timeout_s)
    options = RunOptions(
        workers=workers, ray=ray, retry_failed=retry_failed, setup=setup, on_result=_teller(found, output)
    )
    results = run_sweep(found, output, options)
    counts = {status: sum(r["status"] == status for r in results) for status in ("ok", "invalid", "failed")}
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    typer.echo(f"{output}: {len(results)} cells: {told}. Show them with `stepscope sweep report {output}`.")
    bad = next((r for r in results if r["status"] != "ok"), None)
    if bad is not None:
        why = "; ".join(bad["reasons"]).removesuffix(".")
        raise CheckFailed(
            f"{bad['cell']['name']} is {bad['status']}: {why}. All are in the report; --retry-failed runs them again."
        )


def _teller(plan: Plan, folder: Path) -> Callable[[Result], None] | None:
    """A line a cell on a terminal; elsewhere the files tell."""
    if not sys.stderr.isatty():
        return None

    def tell(result: Result) -> None:
        done = len(read_sweep(folder)[1])
        row = cell_row(result)
        seconds = row["step_s"] or row["tpot_s"]
        took = "" if seconds is None else f" {1000 * seconds:.4g} ms"
        typer.echo(f"{done}/{len(plan.cells)} {row['cell']} {row['status']}{took} {row['reasons']}".rstrip(), err=True)

    return tell


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder.", metavar="DIR")],
    *,
    hardware: Annotated[
        str | None, typer.Option(help="Predict on this device beside what was measured (default: the plan's).")
    ] = None,
    charts: Charts = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Show a sweep: its cells, the three crossovers measured beside predicted, and what was held fixed."""
    found, results = read_sweep(folder)
    if not results:
        raise BadInput(
            f"{folder}: no cell has a result yet. Run it: stepscope sweep run {folder}/plan.yaml -o {folder}."
        )
    document = sweep_document(found, results, hardware)
    if charts is not None:
        write_model_charts(sweep_charts(document), charts)
    write_view(document, document["cells"], format_, output, sweep_sections)
