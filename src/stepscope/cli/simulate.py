"""The command that simulates a serving engine: simulate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.answers.recorded_load import read_measured_times
from stepscope.answers.whatif import compare_latencies
from stepscope.cli.load_options import (
    OutputLenOption,
    PromptOption,
    RateOption,
    RequestsOption,
    SeedOption,
    WorkloadOption,
    read_load,
)
from stepscope.cli.predict import Model, Size
from stepscope.cli.predict_view import write_view
from stepscope.cli.simulate_view import simulation_sections, to_simulation_document
from stepscope.cli.tabular import TableFormat
from stepscope.cost.calibration_file import read_calibration
from stepscope.errors import BadInput
from stepscope.latency import Limits
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.simulate.run_store import write_simulated_run
from stepscope.simulate.scenario import EngineOptions, Scenario, run_scenario
from stepscope.simulate.settings import apply_setting, split_setting
from stepscope.simulate.step_costs import Served
from stepscope.simulate.summary import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.simulate.scenario import Outcome

MOST_STEPS = 200_000  # that a run folder holds

FormatOption = Annotated[TableFormat, typer.Option("--format", "-f", help="How to write it: text, md, csv or json.")]
TtftLimit = Annotated[float | None, typer.Option("--ttft", help="A good request's longest TTFT, in seconds.")]
TpotLimit = Annotated[float | None, typer.Option("--tpot", help="A good request's longest TPOT, in seconds.")]
CalibrationOption = Annotated[
    Path | None, typer.Option("--calibration", help="Step times as this file of `stepscope calibrate` scales them.")
]
Hardware = Annotated[str, typer.Option("--hardware", help="A device (see `stepscope hardware`) or its file.")]


def simulate(
    model: Model,
    *,
    hardware: Hardware,
    workload: WorkloadOption = "poisson",
    rate: RateOption = None,
    requests: RequestsOption = None,
    prompt_len: PromptOption = "1024",
    output_len: OutputLenOption = "128",
    seed: SeedOption = 0,
    chunk: Annotated[
        int, typer.Option("--chunk", "--max-num-batched-tokens", help="Token budget of a step: the longest chunk.")
    ] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Most running requests.")] = 256,
    max_model_len: Annotated[int | None, typer.Option(help="Longest sequence (default: the model's).")] = None,
    num_blocks: Annotated[
        int | None, typer.Option(help="KV blocks, as the engine logs them (default: what fits in memory).")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens of a KV block.")] = 16,
    prefix_caching: Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching")] = True,
    async_: Annotated[bool, typer.Option("--async/--no-async", help="Schedule a step while one is in flight.")] = True,
    host_s: Annotated[
        float | None, typer.Option(help="Host work per step, in seconds (default: the calibration's, else 0).")
    ] = None,
    utilisation: Annotated[float, typer.Option(help="Share of the device's memory that the engine takes.")] = 0.9,
    tp: Annotated[int, Size] = 1,
    ep: Annotated[int, Size] = 1,
    dp: Annotated[int, Size] = 1,
    pp: Annotated[int, Size] = 1,
    cp: Annotated[int, Size] = 1,
    prefill_engines: Annotated[int, typer.Option(min=0, help="Engines that only prefill; with --decode-engines.")] = 0,
    decode_engines: Annotated[int, typer.Option(min=0, help="Engines that only decode; KV is sent to them.")] = 0,
    policy: Annotated[str, typer.Option(help="Whose scheduler: vllm or sglang.")] = "vllm",
    speculative_tokens: Annotated[int, typer.Option(min=0, help="Drafts of a decode row in each step.")] = 0,
    acceptance: Annotated[
        str | None, typer.Option(help="Accepted share of each draft position, as 0.8/0.6, or one chance for all.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="dtype of the projections (default: the checkpoint's).")] = None,
    experts: Annotated[str | None, typer.Option(help="dtype of the routed experts (default: as --weights).")] = None,
    kv: Annotated[str, typer.Option(help="Layout of the KV cache.")] = "bf16",
    fusion: Annotated[str, typer.Option(help="none, vllm or sglang: what runs as one GEMM.")] = "none",
    calibration: CalibrationOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, as name=value; may be repeated.")
    ] = None,
    ttft: TtftLimit = None,
    tpot: TpotLimit = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="A measured run beside it: a client's result file, a step log, or a simulated run."),
    ] = None,
    format_: FormatOption = TableFormat.text,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write this run folder.")] = None,
) -> None:
    """Simulate a serving engine: TTFT, TPOT, ITL and E2EL, throughput, goodput, and what binds, with intervals."""
    load, told = read_load(
        workload, rate=rate, requests=requests, prompt_len=prompt_len, output_len=output_len, seed=seed
    )
    deployment = Deployment(
        plan=ParallelPlan(tp=tp, dp=dp, ep=ep, pp=pp, cp=cp),
        weights=weights,
        experts=experts,
        kv=kv,
        fusion=fusion,
        max_model_len=max_model_len,
    )
    engine = EngineOptions(
        max_num_batched_tokens=chunk,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=prefix_caching,
        async_scheduling=async_,
        host_s=host_s,
        utilisation=utilisation,
        speculative_tokens=speculative_tokens,
        prefill_engines=prefill_engines,
        decode_engines=decode_engines,
        policy=policy,
    )
    served = Served(model=model, hardware=hardware, deployment=deployment)
    fitted = None if calibration is None else read_calibration(calibration)
    whole = Scenario(requests=load, engine=engine, served=served, calibration=fitted)
    said = [] if acceptance is None else [f"acceptance={acceptance}"]
    scenario = with_settings(whole, [*said, *(settings or ())])
    measured = None if compare is None else read_measured_times(compare)
    outcome = run_scenario(scenario)
    document = to_simulation_document(outcome, make_limits(ttft, tpot), told)
    if measured is not None:
        rows = [asdict(row) | {"error": row.error} for row in compare_latencies(outcome, measured, STATISTICS)]
        document["compared"] = {"source": str(compare), "requests": len(measured), "rows": rows}
    if output is not None:
        keep_run(outcome, output, document)
    write_simulation(document, format_)


def keep_run(outcome: Outcome, folder: Path, document: dict[str, Any]) -> None:
    """Write a run folder.

    Raises:
        BadInput: it would hold more steps than a report can show, or cannot be written.
    """
    if len(outcome.shown.steps) > MOST_STEPS:
        raise BadInput(
            f"{folder}: the simulation has {len(outcome.shown.steps):,} steps, and a run folder holds {MOST_STEPS:,} "
            "at most. Simulate fewer requests (--requests), or leave --output out."
        )
    described = {name: value for name, value in document.items() if name != "figures"}
    try:
        write_simulated_run(outcome, folder, described)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{folder}: cannot be written ({reason}). Choose another folder.") from error
    document["run"] = str(folder)


def make_limits(ttft: float | None, tpot: float | None) -> Limits:
    """What a good request keeps within.

    Raises:
        BadInput: a limit that is no number above 0.
    """
    for name, value in (("--ttft", ttft), ("--tpot", tpot)):
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"{name} {value}: a limit in seconds, above 0, was expected. Leave it out for none.")
    return Limits(ttft_s=ttft, tpot_s=tpot)


def with_settings(scenario: Scenario, settings: Sequence[str]) -> Scenario:
    """The scenario with every `name=value` applied, in order."""
    for text in settings:
        scenario = apply_setting(scenario, *split_setting(text))
    return scenario


def write_simulation(document: dict[str, Any], format_: TableFormat) -> None:
    """To the terminal; CSV holds the figures."""
    write_view(document, document["figures"], format_, None, simulation_sections)
