"""What the commands share: their arguments, reading with a progress bar, and writing a result."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from stepscope.answers.account import Account, explain
from stepscope.budget.catalog import load_catalog
from stepscope.errors import BadInput
from stepscope.readers.registry import find_files, open_trace
from stepscope.store.run import is_run
from stepscope.store.trace import Trace

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


FORMAT_HELP = "How to write it; without it, as --output ends, else text"


def as_output_ends(context: typer.Context, value: StrEnum) -> StrEnum:
    """The format that --output's ending names, where --format is not given and the command has that format."""
    output: Path | None = context.params.get("output")  # what was given is read before what was not
    source = context.get_parameter_source("format_")
    if output is None or source is None or source.name != "DEFAULT":
        return value
    ending = output.suffix.lstrip(".").lower()
    return type(value)(ending) if ending in set(type(value)) else value


ReportFormat = Annotated[Format, typer.Option("--format", "-f", help=FORMAT_HELP, callback=as_output_ends)]


Device = Annotated[
    str | None, typer.Option("--device", help="Of several devices in one file, this one; else the busiest.")
]
Language = Annotated[str, typer.Option("--lang", help="The report's language: en or zh.", metavar="LANG")]


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


def read_account(source: str, catalog: list[Path] | None, device: str | None = None) -> Account:
    """Read and account for a capture."""
    return explain(read_trace(source), catalog=load_catalog(catalog or ()), device=device)


def write_result(text: str, output: Path | None) -> None:
    """To the terminal, or to a file that appears whole or not at all.

    Raises:
        BadInput: it cannot be written.
    """
    if output is not None:
        with whole_file(output) as aside:
            aside.write_text(text, encoding="utf-8")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        with suppress(OSError):
            sys.stdout.close()  # else the interpreter tries again when it ends
        raise BadInput(f"standard output: cannot be written ({error.strerror}). Write to a file (--output).") from error


@contextmanager
def whole_file(output: Path) -> Iterator[Path]:
    """A path beside `output` to write to; it takes the place of `output` at the end, or is gone.

    Raises:
        BadInput: the file cannot be written, or what is there is a directory or a device.
    """
    if output.exists() and not output.is_file():
        raise BadInput(f"{output}: cannot be written (it is there and is no file). Choose another path.")
    try:
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False) as made:
            aside = Path(made.name)
        try:
            yield aside
            aside.chmod(0o644)
            aside.replace(output)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{output}: cannot be written ({reason}). Choose another path.") from error
