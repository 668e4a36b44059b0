"""The commands over captures as a whole: compare (two of them) and export (for a trace viewer)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.answers.compare import compare as compare_accounts
from stepscope.answers.matching import KV_TOLERANCE
from stepscope.cli.options import CatalogFiles, Format, Output, ReportFormat, read_account, write_result
from stepscope.cli.report import _csv, _json
from stepscope.errors import BadInput
from stepscope.report.comparison import (
    ROW_COLUMNS,
    comparison_rows,
    to_comparison_document,
    to_comparison_markdown,
    to_comparison_text,
)

_SIDE = "A trace file, a directory of ranks, a glob, or a run folder"


def compare(
    a: Annotated[str, typer.Argument(help=f"{_SIDE}: the side to compare with.", metavar="A")],
    b: Annotated[str, typer.Argument(help=f"{_SIDE}: deltas are B minus A.", metavar="B")],
    format_: ReportFormat = Format.text,
    kv_tolerance: Annotated[
        float, typer.Option("--kv-tolerance", help="How far kv sums of matched steps may differ, as a fraction.")
    ] = KV_TOLERANCE,
    catalog: CatalogFiles = None,
    output: Output = None,
) -> None:
    """Compare two captures: what differs, matched steps, kernel and idle time, and a verdict or its refusal."""
    if not 0 <= kv_tolerance < 1:
        raise BadInput(f"--kv-tolerance {kv_tolerance}: write a fraction from 0 to below 1, such as 0.1.")
    comparison = compare_accounts(read_account(a, catalog), read_account(b, catalog), kv_tolerance=kv_tolerance)
    document = to_comparison_document(comparison)
    if format_ is Format.csv:
        write_result(_csv(comparison_rows(document), ROW_COLUMNS), output)
        return
    texts = {Format.text: to_comparison_text, Format.md: to_comparison_markdown, Format.json: _json}
    write_result(texts[format_](document), output)
