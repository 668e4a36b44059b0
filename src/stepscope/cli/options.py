"""What the commands share: their arguments, reading with a progress bar, and writing a result."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from stepscope.answers.account import Account, explain
from stepscope.budget.catalog import load_catalog
from stepscope.errors import BadInput
from stepscope.readers.registry import Trace, find_files, open_trace
from stepscope.store.run import is_run

if TYPE_CHECKING:
    from collections.abc import Callable

TracePath = Annotated[
    str, typer.Argument(help="A trace file, a directory of ranks, a glob, or a run folder.", metavar="TRACE")
]
CatalogFiles = Annotated[
    list[Path] | None, typer.Option("--catalog", help="Own rules (TOML), before the shipped ones; may be repeated.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")]


class Format(StrEnum):
    """How a report is written."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"


ReportFormat = Annotated[Format, typer.Option("--format", "-f", help="How to write it.")]


@contextmanager
def _progress(total_bytes: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr while reading, on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=total_bytes)
        yield lambda size: progress.update(task, advance=size)


def read_trace(source: str) -> Trace:
    """Open a trace or a run, with a bar where it takes long."""
    if is_run(Path(source).expanduser()):
        return open_trace(source)
    total = sum(path.stat().st_size for path in find_files(source))
    with _progress(total) as on_progress:
        return open_trace(source, on_progress=on_progress)


def read_account(source: str, catalog: list[Path] | None) -> Account:
    """Read and account for a capture."""
    return explain(read_trace(source), catalog=load_catalog(catalog or ()))


def write_result(text: str, output: Path | None) -> None:
    """To the terminal, or to a file that appears whole or not at all.

    Raises:
        BadInput: the file cannot be written.
    """
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with tempfile.NamedTemporaryFile("w", dir=output.parent, delete=False, encoding="utf-8") as aside:
            aside.write(text)
        Path(aside.name).chmod(0o644)
        Path(aside.name).replace(output)
    except OSError as error:
        raise BadInput(f"{output}: cannot be written ({error.strerror}). Choose another path.") from error
