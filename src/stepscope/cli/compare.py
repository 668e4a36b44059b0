"""The commands over captures as a whole: compare (two of them) and export (for a trace viewer)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.answers.compare import compare as compare_accounts
from stepscope.answers.matching import KV_TOLERANCE
from stepscope.cli.options import (
    CatalogFiles,
    Format,
    Language,
    Output,
    ReportFormat,
    TracePath,
    read_account,
    whole_file,
    write_result,
)
from stepscope.cli.tabular import to_csv, to_json
from stepscope.errors import BadInput
from stepscope.report.comparison import ROW_COLUMNS, comparison_rows, to_comparison_document
from stepscope.report.comparison_text import to_comparison_markdown, to_comparison_text
from stepscope.report.perfetto import write_tracks, write_with_trace
from stepscope.report.translate import make_translator
from stepscope.store.run import is_run

if TYPE_CHECKING:
    from stepscope.answers.account import Account

_SIDE = "A trace file, a directory of ranks, a glob, or a run folder"


def compare(
    a: Annotated[str, typer.Argument(help=f"{_SIDE}: the side to compare with.", metavar="A")],
    b: Annotated[str, typer.Argument(help=f"{_SIDE}: deltas are B minus A.", metavar="B")],
    *,
    format_: ReportFormat = Format.text,
    kv_tolerance: Annotated[
        float, typer.Option("--kv-tolerance", help="How far kv sums of matched steps may differ, as a fraction.")
    ] = KV_TOLERANCE,
    catalog: CatalogFiles = None,
    output: Output = None,
    lang: Language = "en",
) -> None:
    """Compare two captures: what differs, matched steps, kernel and idle time, and a verdict or its refusal."""
    if not 0 <= kv_tolerance < 1:
        raise BadInput(f"--kv-tolerance {kv_tolerance}: write a fraction from 0 to below 1, such as 0.1.")
    comparison = compare_accounts(read_account(a, catalog), read_account(b, catalog), kv_tolerance=kv_tolerance)
    document = to_comparison_document(comparison)
    if format_ is Format.csv:
        write_result(to_csv(comparison_rows(document), ROW_COLUMNS), output)
        return
    translate = make_translator(lang, document)
    if format_ is Format.json:
        write_result(to_json(document), output)
    else:
        to_view = to_comparison_markdown if format_ is Format.md else to_comparison_text
        write_result(to_view(document, translate), output)


def export(
    trace: TracePath,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .json or .json.gz file; for several whole ranks, a folder.")
    ],
    *,
    perfetto: Annotated[bool, typer.Option("--perfetto", help="For ui.perfetto.dev (the one format so far).")] = False,
    tracks_only: Annotated[
        bool, typer.Option("--tracks-only", help="Only the added tracks, all ranks, small.")
    ] = False,
    catalog: CatalogFiles = None,
) -> None:
    """Write the trace with tracks for steps, phases, the budget and gaps with their cause, for a trace viewer."""
    if not perfetto:
        raise BadInput("export needs to know the format: write --perfetto.")
    if is_run(Path(trace).expanduser()) and not tracks_only:
        raise BadInput(
            f"{trace}: a run holds no text of the trace's events. Pass --tracks-only, or the capture itself."
        )
    account = read_account(trace, catalog)
    if tracks_only or not account.ranks:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(output) as aside:
            count = write_tracks(account, aside, is_gzip=output.suffix == ".gz")
        typer.echo(f"{output}: {count} slices of {len(account.ranks)} ranks")
        return
    targets = _targets(account, output)
    for rank, target in zip(account.ranks, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as aside:
            count = write_with_trace(rank, aside, is_gzip=target.suffix == ".gz")
        typer.echo(f"{target}: {count} events")


def _targets(account: Account, output: Path) -> list[Path]:
    """The file for each rank; never one of the captures, never one file for two."""
    sources = [Path(rank.store.origin.path) for rank in account.ranks]
    targets = [output / source.name for source in sources] if len(sources) > 1 else [output]
    if len(sources) > 1 and output.exists() and not output.is_dir():
        raise BadInput(f"{output}: {len(sources)} ranks need a folder. Name one, or pass --tracks-only for one file.")
    for target in targets:
        if targets.count(target) > 1:
            raise BadInput(f"{target}: several of the captures have this name. Export them one at a time.")
        if any(target.exists() and source.exists() and target.samefile(source) for source in sources):
            raise BadInput(f"{target}: is the capture itself. Choose another output.")
    return targets
