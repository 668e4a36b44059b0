"""The commands of the join: metrics and chunks; and what `explain` adds when more than a trace is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.chunks import ChunkRule, plan_chunks
from stepscope.cli.join_view import chunk_sections, evidence_sections, request_sections
from stepscope.cli.options import Output, read_trace, write_result
from stepscope.cli.tabular import TableFormat, TableFormatOption, to_csv, to_json, write_parquet
from stepscope.errors import BadInput
from stepscope.join.evidence import Joined, join_rows, join_sources, to_document
from stepscope.join.requests import account_requests
from stepscope.join.sources import Paths, Sources, read_sources
from stepscope.join.tables import CHUNKS, METRICS, chunk_rows
from stepscope.readers.step_log import read_step_log
from stepscope.report.section import print_sections
from stepscope.steps.step import find_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.chunks import ChunkPlan
    from stepscope.join.requests import RequestAccount
    from stepscope.report.section import Section
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore
    from stepscope.store.schema import Column

_WIDTH = 118
LogFiles = Annotated[list[Path] | None, typer.Option("--log", help="A server's log; may be repeated.")]
MetricsFolder = Annotated[
    list[Path] | None, typer.Option("--metrics", help="Saved /metrics: a folder over time, or one file.")
]
StepLogFolder = Annotated[Path | None, typer.Option("--steps-log", help="The folder of our step log.")]
ClientFiles = Annotated[list[Path] | None, typer.Option("--client", help="A load generator's result; may be repeated.")]
ExpertFiles = Annotated[
    Path | None, typer.Option("--experts", help="SGLang's expert recorder: a .pt file or a folder.")
]
ForwardFile = Annotated[
    Path | None, typer.Option("--forward-metrics", help="Saved forward-pass metrics: msgpack payloads, or JSON lines.")
]


def metrics(
    trace: Annotated[str | None, typer.Argument(help="A trace, for its steps.", metavar="[TRACE]")] = None,
    log: LogFiles = None,
    metrics: MetricsFolder = None,  # the option's name
    steps_log: StepLogFolder = None,
    client: ClientFiles = None,
    experts: ExpertFiles = None,
    forward_metrics: ForwardFile = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Every number with its definition, clock, window and source."""
    paths = replace(to_paths(log, metrics, steps_log, client, experts), forward_metrics=forward_metrics)
    if trace is None and paths == Paths():
        raise BadInput(
            "there is nothing to read: give a trace, or one of --log, --metrics, --steps-log, --client, --experts."
        )
    joined = join_evidence((), paths) if trace is None else join_evidence(_ranks_of(trace), paths)
    rows = join_rows(joined)["metrics"]
    if format_ is TableFormat.json:
        write_result(to_json(to_document(joined)), output)
    elif not _write_table(rows, METRICS, format_, output):
        write_result(_show(evidence_sections(joined), markdown=format_ is TableFormat.md), output)


def to_paths(
    log: Sequence[Path] | None,
    metrics: Sequence[Path] | None,
    steps_log: Path | None,
    client: Sequence[Path] | None,
    experts: Path | None = None,
) -> Paths:
    """The side files that a command was given.

    Raises:
        BadInput: scrapes were given one by one; only a folder says that they are of one server.
    """
    if metrics is not None and len(metrics) > 1:
        raise BadInput("--metrics takes one folder or file. Put the scrapes of one server into a folder and name that.")
    return Paths(
        logs=tuple(log or ()),
        metrics=metrics[0] if metrics else None,
        step_log=steps_log,
        clients=tuple(client or ()),
        experts=experts,
    )


def join_evidence(ranks: Sequence[tuple[EventStore, StepTable]], paths: Paths) -> Joined:
    """Read the side files and join them with the workers of a trace (each store with its steps)."""
    return join_sources(Sources(ranks=tuple(ranks)) if paths == Paths() else read_sources(paths, ranks))


def _ranks_of(trace: str) -> list[tuple[EventStore, StepTable]]:
    found = [(store, find_steps(store)) for store in read_trace(trace).stores]
    return [(store, table) for store, table in found if table.steps]


def chunks(
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens of the prompt.")] = None,
    hit: Annotated[int, typer.Option(min=0, help="Tokens of it that the prefix cache holds.")] = 0,
    token_budget: Annotated[int, typer.Option(min=1, help="Most tokens of a step.")] = 8192,
    block: Annotated[int, typer.Option(min=1, help="Tokens of a KV block (SGLang: page).")] = 16,
    shared_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that running requests take of each step (one a decode).")
    ] = 0,
    cap: Annotated[int, typer.Option(min=0, help="long_prefill_token_threshold; 0 is off.")] = 0,
    multiple: Annotated[int, typer.Option(min=1, help="What a cut chunk is a multiple of (SGLang: page).")] = 1,
    steps_log: StepLogFolder = None,
    request: Annotated[str | None, typer.Option(help="Of a step log, this request only.", metavar="ID")] = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Prefix first, then chunk: how a prompt is cut, planned or as a step log recorded it."""
    if steps_log is not None:
        _recorded_chunks(steps_log, request, format_, output)
        return
    if prompt is None:
        raise BadInput("there is nothing to plan: give --prompt TOKENS, or --steps-log DIR.")
    rule = ChunkRule(token_budget=token_budget, block_size=block, cap=cap, chunk_multiple=multiple)
    plan = plan_chunks(prompt, rule, found_tokens=hit, shared_tokens=shared_tokens)
    _write_plan(plan, format_, output)


def _write_plan(plan: ChunkPlan, format_: TableFormat, output: Path | None) -> None:
    names = ("chunk_index", "query_len", "context_len", "kv_len", "shared_tokens", "step_tokens")
    rows = [{name: getattr(chunk, name) for name in names} for chunk in plan.chunks]
    if format_ is TableFormat.json:
        sums = ("prompt_len", "found_tokens", "prefix_hit_tokens", "effective_prefill_tokens")
        write_result(to_json({name: getattr(plan, name) for name in sums} | {"chunks": rows}), output)
    elif format_ is TableFormat.csv:
        write_result(to_csv(rows, names), output)
    elif format_ is TableFormat.parquet:
        raise BadInput("a plan is small: choose text, md, csv or json.")
    else:
        write_result(_show(chunk_sections(plan, rows), markdown=format_ is TableFormat.md), output)


def _recorded_chunks(folder: Path, request: str | None, format_: TableFormat, output: Path | None) -> None:
    streams = read_step_log(folder).schedulers
    found: list[tuple[int | None, RequestAccount]] = [
        (stream.number("dp_rank"), account) for stream in streams for account in account_requests(stream)
    ]
    if request is not None:
        found = [(engine, account) for engine, account in found if account.request_id == request]
        if not found:
            raise BadInput(f"{folder}: no request {request!r} is in this step log. Leave --request out to list them.")
    rows = [row for engine, account in found for row in chunk_rows(engine, account)]
    if format_ is TableFormat.json:
        write_result(to_json(rows), output)
    elif not _write_table(rows, CHUNKS, format_, output):
        sections = request_sections([account for _, account in found])
        write_result(_show(sections, markdown=format_ is TableFormat.md), output)


def _write_table(
    rows: list[dict[str, Any]], columns: tuple[Column, ...], format_: TableFormat, output: Path | None
) -> bool:
    """As CSV or Parquet, if that is asked for."""
    names = [column.name for column in columns]
    if format_ is TableFormat.csv:
        write_result(to_csv(rows, names), output)
        return True
    if format_ is TableFormat.parquet:
        import pyarrow as pa  # noqa: PLC0415  # only this format needs it

        types = {"int64": pa.int64(), "float64": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
        schema = pa.schema([(column.name, types[column.dtype]) for column in columns])
        write_parquet(pa.Table.from_pylist(rows, schema=schema), output)
        return True
    return False


def _show(sections: Sequence[Section], *, markdown: bool) -> str:
    if markdown:
        return "\n".join(section.to_markdown() for section in sections)
    return print_sections(sections, _WIDTH)
