"""The commands of cost: crossover, hardware, probe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.cost_view import crossover_sections, hardware_document, hardware_sections, probe_sections
from stepscope.cli.options import Output, write_result
from stepscope.cli.predict_view import write_view
from stepscope.cli.report import Charts
from stepscope.cli.tabular import TableFormat, TableFormatOption
from stepscope.cost.crossover_document import CrossoverPlan, crossover_document
from stepscope.cost.hardware import hardware_names, load_hardware
from stepscope.cost.probe import ProbePlan, choose_backend, run_probe, to_hardware_toml
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.router import Router
from stepscope.operators.shape import parse_counts
from stepscope.report.model_charts import crossover_charts, write_model_charts

Size = typer.Option(min=1)
HardwareName = Annotated[str, typer.Option("--hardware", help="A device (see `stepscope hardware`), or a .toml file.")]


def crossover(
    model: Annotated[
        str, typer.Argument(help="A bundled model (`stepscope models`) or a config.json path.", metavar="MODEL")
    ],
    hardware: HardwareName,
    *,
    batches: Annotated[str, typer.Option(help="Decode rows, with commas.")] = "1,2,4,8,16,32,64,128,256,512",
    contexts: Annotated[str, typer.Option(help="Context of each row, with commas; k is 1024.")] = "1k,8k,32k,128k",
    tokens: Annotated[str, typer.Option(help="Tokens of the EP domain, for the experts.")] = "1,16,64,256,1k,2k,8k,32k",
    tp: Annotated[int, Size] = 1,
    dp: Annotated[int, Size] = 1,
    ep: Annotated[int, Size] = 1,
    pp: Annotated[int, Size] = 1,
    weights: Annotated[str | None, typer.Option(help="dtype of the projections (default: the checkpoint's).")] = None,
    experts: Annotated[str | None, typer.Option(help="dtype of the routed experts.")] = None,
    activations: Annotated[str | None, typer.Option(help="dtype of the GEMMs' inputs.")] = None,
    kv: Annotated[str, typer.Option(help="Layout of the KV cache.")] = "bf16",
    fusion: Annotated[str, typer.Option(help="none, vllm or sglang: what runs as one GEMM.")] = "none",
    router_skew: Annotated[float, typer.Option(help="Zipf skew of the router; 0 is uniform.")] = 0.0,
    peak: Annotated[
        bool, typer.Option("--peak", help="Use ridge_peak even where an effective ridge is known.")
    ] = False,
    charts: Charts = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Find where the binding resource changes: dense GEMM, experts, decode over batch x context."""
    deployment = Deployment(
        plan=ParallelPlan(tp=tp, dp=dp, ep=ep, pp=pp),
        weights=weights,
        experts=experts,
        activations=activations,
        kv=kv,
        fusion=fusion,
        router=Router(skew=router_skew),
    )
    plan = CrossoverPlan(
        batches=_positive(batches, "--batches"),
        context_lens=_positive(contexts, "--contexts"),
        tokens=_positive(tokens, "--tokens"),
        use_peak=peak,
    )
    document = crossover_document(read_model(model), load_hardware(hardware), deployment, plan)
    if charts is not None:
        write_model_charts(crossover_charts(document), charts)
    rows = [
        {**cell, **{f"{name}_fraction": value for name, value in cell["part_fractions"].items()}}
        for cell in document["decode"]["cells"]
    ]
    for row in rows:
        del row["part_fractions"]
    write_view(document, rows, format_, output, crossover_sections)


def _positive(text: str, what: str) -> tuple[int, ...]:
    values = tuple(dict.fromkeys(parse_counts(text, what)))
    if min(values) < 1:
        raise BadInput(f"{what}: every value has to be at least 1.")
    return values


def hardware(
    name: Annotated[
        str | None, typer.Argument(help="A device, or a .toml file; all that ship without it.", metavar="[NAME]")
    ] = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Devices: peak by dtype, bandwidth and links, each number with its source and date."""
    names = hardware_names() if name is None else (name,)
    documents = [hardware_document(load_hardware(each)) for each in names]
    rows = [{"name": d["name"], **figure} for d in documents for figure in d["figures"]]
    write_view(
        documents if name is None else documents[0], rows, format_, output, lambda _: hardware_sections(documents)
    )


def probe(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a hardware file (.toml) that --hardware takes.")
    ] = None,
    *,
    k: Annotated[int, Size] = 4096,
    n: Annotated[int, Size] = 4096,
    m: Annotated[str, typer.Option("--m", help="Rows of the GEMM's input, with commas.")] = "1,16,128,1024",
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32; without torch fp32 only.")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    library: Annotated[str, typer.Option(help="auto, torch or numpy.")] = "auto",
    copy_mib: Annotated[int, typer.Option(min=1, help="Size of the copy in MiB; well above the caches.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.01, help="Spent on each kernel at most.")] = 1.0,
    format_: TableFormatOption = TableFormat.text,
) -> None:
    """Measure this machine's effective flop/s and bytes/s: GEMM over m, copy, attention, grouped GEMM."""
    if output is not None and output.suffix != ".toml":
        raise BadInput(f"{output}: a hardware file ends in .toml.")
    backend = choose_backend(dtype, device, library)
    plan = ProbePlan(
        k=k,
        n=n,
        m=_positive(m, "--m"),
        dtype=backend.dtype,
        copy_bytes=copy_mib * 2**20,
        seconds_each=seconds,
        device=backend.device,
    )
    measured = run_probe(plan, backend)
    rows = []
    for found in measured:
        rate = found.rate(found.task.moved_bytes)
        rows.append(
            {
                "kernel": found.task.kernel,
                "label": found.task.label,
                "seconds": found.seconds,
                "flop_per_s": found.task.flop / found.seconds,
                "bytes_per_s": rate[0],
                "bytes_per_s_low": rate[1],
                "bytes_per_s_high": rate[2],
                "repeats": len(found.repeats),
            }
        )
    if output is not None:
        write_result(to_hardware_toml(measured, plan, backend, output.stem), output)
    write_view(
        {"library": backend.name, "device": backend.device, "dtype": backend.dtype, "kernels": rows},
        rows,
        format_,
        None,
        lambda _: probe_sections(rows),
    )
