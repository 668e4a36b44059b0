"""The commands that answer: explain, check, steps, query."""

from __future__ import annotations

import math
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.answers.against_model import compare_with_model
from stepscope.cli.join import (
    ClientFiles,
    ExpertFiles,
    LogFiles,
    MetricsFolder,
    StepLogFolder,
    join_evidence,
    to_paths,
)
from stepscope.cli.join_view import evidence_sections
from stepscope.cli.model_options import (
    CalibrationFile,
    Dp,
    Ep,
    ExpertWeights,
    Fusion,
    HardwareName,
    Kv,
    MaxModelLen,
    Model,
    ModelOptions,
    Tp,
    Weights,
)
from stepscope.cli.options import (
    FORMAT_HELP,
    CatalogFiles,
    Device,
    Format,
    Language,
    MemoryLimit,
    OnRay,
    Output,
    PartSteps,
    PartTime,
    ReportFormat,
    TracePath,
    UseCache,
    Workers,
    as_output_ends,
    choose_concurrency,
    find_kept,
    read_account,
    wanted_part,
    write_result,
)
from stepscope.cli.tabular import TableFormat, TableFormatOption, to_csv, to_json, write_parquet, write_rows
from stepscope.errors import CheckFailed
from stepscope.join.evidence import to_document as joined_document
from stepscope.join.graph_shapes import find_shapes, say_shapes, shapes_document
from stepscope.join.sources import Paths
from stepscope.readers.kineto.graph_capture import read_graphs
from stepscope.report.charts import write_charts
from stepscope.report.document import to_document, to_message_table
from stepscope.report.html import render_html
from stepscope.report.query import run_query
from stepscope.report.tables import arrow_tables, budget_rows, step_rows
from stepscope.report.text import to_check_text, to_markdown, to_text
from stepscope.report.translate import make_translator
from stepscope.store.schema import TABLES

if TYPE_CHECKING:
    from stepscope.answers.account import Account
    from stepscope.answers.against_model import AgainstModel
    from stepscope.answers.modelled_steps import ModelChoice
    from stepscope.join.evidence import Joined

_REASON = ("rank", "code", "withholds", "text", "record_with")


class ExplainFormat(StrEnum):
    """How an explanation is written."""

    text = "text"
    html = "html"
    json = "json"
    csv = "csv"
    md = "md"


ExplainFormatOption = Annotated[
    ExplainFormat, typer.Option("--format", "-f", help=FORMAT_HELP, callback=as_output_ends)
]
Charts = Annotated[Path | None, typer.Option("--charts", help="Write each chart as PNG and SVG into this folder.")]
Tables = Annotated[Path | None, typer.Option("--tables", help="Write each table as CSV and Parquet into this folder.")]


GraphCaptures = Annotated[
    list[Path] | None,
    typer.Option("--graph-capture", help="A trace of the graphs' capture, for shapes inside graphs; may be repeated."),
]


def explain(
    trace: TracePath,
    format_: ExplainFormatOption = ExplainFormat.text,
    catalog: CatalogFiles = None,
    output: Output = None,
    lang: Language = "en",
    device: Device = None,
    charts: Charts = None,
    tables: Tables = None,
    log: LogFiles = None,
    metrics: MetricsFolder = None,
    steps_log: StepLogFolder = None,
    client: ClientFiles = None,
    experts: ExpertFiles = None,
    steps_: PartSteps = None,
    time: PartTime = None,
    workers: Workers = None,
    ray: OnRay = False,
    memory_limit: MemoryLimit = None,
    cache: UseCache = True,
    graph_capture: GraphCaptures = None,
    model: Model = None,
    hardware: HardwareName = None,
    calibration: CalibrationFile = None,
    tp: Tp = None,
    dp: Dp = None,
    ep: Ep = None,
    kv: Kv = None,
    weights: Weights = None,
    expert_weights: ExpertWeights = None,
    fusion: Fusion = None,
    max_model_len: MaxModelLen = None,
) -> None:
    """Say where the time of a recorded run went (csv: budget table), and with --model what it should have been."""
    choice = ModelOptions(
        model=model,
        hardware=hardware,
        calibration=calibration,
        tp=tp,
        dp=dp,
        ep=ep,
        kv=kv,
        weights=weights,
        expert_weights=expert_weights,
        fusion=fusion,
        max_model_len=max_model_len,
    ).choose()
    part, paths = wanted_part(steps_, time), to_paths(log, metrics, steps_log, client, experts)
    kept = find_kept(trace, catalog, device) if cache and part is None and choice is None else None
    is_more = tables is not None or paths != Paths() or bool(graph_capture) or choice is not None
    document = kept.read() if kept is not None and not is_more and format_ is not ExplainFormat.csv else None
    account, joined = None, None
    if document is None:
        account = read_account(trace, catalog, device, choose_concurrency(workers, ray, memory_limit), part)
        joined = _join(account, paths)
        document = to_document(account, _hold_against(account, choice, joined))
        if kept is not None:
            kept.write(document)
    if account is not None and graph_capture:
        _take_shapes(document, account, graph_capture)
    if joined is not None:
        document["joined"] = joined_document(joined)
        document["messages"] |= to_message_table(joined.messages)
    translate = make_translator(lang, document)
    if charts is not None:
        write_charts(document, _folder(charts), translate)
    if account is not None and tables is not None:
        _write_tables(account, _folder(tables))
    if account is not None and format_ is ExplainFormat.csv:
        write_result(to_csv(budget_rows(account), _columns("budget")), output)
    elif format_ is ExplainFormat.json:
        write_result(to_json(document), output)
    elif format_ is ExplainFormat.html:
        write_result(render_html(document, translate), output)
    else:
        more = evidence_sections(joined, lambda message: translate(str(message))) if joined is not None else ()
        to_view = to_markdown if format_ is ExplainFormat.md else to_text
        write_result(to_view(document, translate, more), output)


def _join(account: Account, paths: Paths) -> Joined | None:
    return join_evidence([(rank.store, rank.table) for rank in account.ranks], paths) if paths != Paths() else None


def _hold_against(account: Account, choice: ModelChoice | None, joined: Joined | None) -> AgainstModel | None:
    """The run beside what the model says, if one was named; counted experts come of the files beside the trace."""
    if choice is None:
        return None
    return compare_with_model(account, choice, joined.expert_loads if joined is not None else ())


def _take_shapes(document: dict[str, Any], account: Account, captures: list[Path]) -> None:
    """Operations and shapes of kernels inside graphs, from traces of the graphs' capture."""
    graphs = [graph for path in captures for graph in read_graphs(path)]
    shapes = find_shapes([rank.store for rank in account.ranks], graphs)
    document["graph_shapes"] = shapes_document(shapes, has_capture=True)
    message = say_shapes(shapes, has_capture=True)
    document["messages"] |= to_message_table([message] if message is not None else [])


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _write_tables(account: Account, folder: Path) -> None:
    for name, table in arrow_tables(account).items():
        write_result(to_csv(table.to_pylist(), table.column_names), folder / f"{name}.csv")
        write_parquet(table, folder / f"{name}.parquet")


def check(
    trace: TracePath,
    format_: ReportFormat = Format.text,
    catalog: CatalogFiles = None,
    output: Output = None,
    lang: Language = "en",
) -> None:
    """Say whether a capture carries a claim about idle time."""
    document = to_document(read_account(trace, catalog))
    if format_ is Format.json:
        write_result(to_json({key: document[key] for key in ("schema", "inputs", "coverage", "questions")}), output)
    elif format_ is Format.csv:
        write_result(to_csv(document["coverage"]["reasons"], _REASON), output)
    else:
        text = to_check_text(document, make_translator(lang, document), markdown=format_ is Format.md)
        write_result(text, output)
    if not document["coverage"]["idle_claimable"]:
        codes = sorted({r["code"] for r in document["coverage"]["reasons"] if r["withholds"]}) or [
            "no worker was recorded"
        ]
        raise CheckFailed(f"{trace}: idle time and shares cannot be claimed: {', '.join(codes)}.")


def steps(
    trace: TracePath,
    format_: TableFormatOption = TableFormat.text,
    catalog: CatalogFiles = None,
    output: Output = None,
) -> None:
    """Each step's shape and time as a table."""
    account = read_account(trace, catalog)
    if format_ is TableFormat.parquet:
        write_parquet(arrow_tables(account)["steps"], output)
        return
    write_rows(step_rows(account), format_, output, names=_columns("steps"))


def query(
    trace: TracePath,
    sql: Annotated[str, typer.Argument(help="One SQL statement over the tables of docs/reference.md.", metavar="SQL")],
    format_: TableFormatOption = TableFormat.text,
    catalog: CatalogFiles = None,
    output: Output = None,
) -> None:
    """Ask the tables in SQL, with DuckDB."""
    result = run_query(read_account(trace, catalog), sql)
    if format_ is TableFormat.parquet:
        write_parquet(result, output)
        return
    rows = [{name: _plain(value) for name, value in row.items()} for row in result.to_pylist()]
    write_rows(rows, format_, output, names=result.column_names)


def _columns(table: str) -> list[str]:
    return [column.name for column in TABLES[table]]


def _plain(value: Any) -> Any:
    """A database's value as JSON has it: a sum is a whole number, NaN is unknown, a date is text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | str) else str(value)
