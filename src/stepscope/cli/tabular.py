"""Rows and documents -> JSON, CSV, Parquet or text: what every command writes its tables with."""

from __future__ import annotations

import csv
import io
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli.options import FORMAT_HELP, as_output_ends, whole_file, write_result
from stepscope.errors import BadInput
from stepscope.report.text import to_table_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class TableFormat(StrEnum):
    """How a table is written."""

    text = "text"
    csv = "csv"
    json = "json"
    md = "md"
    parquet = "parquet"


TableFormatOption = Annotated[
    TableFormat, typer.Option("--format", "-f", help=f"{FORMAT_HELP} (parquet needs -o)", callback=as_output_ends)
]


def write_rows(
    rows: Sequence[dict[str, Any]], format_: TableFormat, output: Path | None, *, names: Sequence[str]
) -> None:
    """Rows as text, Markdown, JSON or CSV."""
    if format_ is TableFormat.json:
        write_result(to_json(list(rows)), output)
    elif format_ is TableFormat.csv:
        write_result(to_csv(rows, names), output)
    else:
        write_result(to_table_text(rows, names, markdown=format_ is TableFormat.md), output)


def write_parquet(table: Any, output: Path | None) -> None:
    """An Arrow table.

    Raises:
        BadInput: no file is named, or it cannot be written.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415  # only this format needs it

    if output is None:
        raise BadInput("parquet is binary: name a file with --output FILE.")
    with whole_file(output) as aside:
        pq.write_table(table, aside, compression="zstd")


def to_json(value: object) -> str:
    """Indented, in any script."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def to_csv(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Unknown is an empty field."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
