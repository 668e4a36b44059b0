"""What the commands share: their arguments, reading with a progress bar, and writing a result."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from stepscope.answers.account import Account, explain
from stepscope.answers.part import Part, open_part
from stepscope.budget.catalog import load_catalog
from stepscope.errors import BadInput
from stepscope.readers.concurrency import Concurrency
from stepscope.readers.registry import find_files, open_trace
from stepscope.report.answers import KeptAnswer, find_answer
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


AS_MANY_AS_PAY = Concurrency(workers=None)
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


Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes that read files; else as many as pay.")
]
OnRay = Annotated[bool, typer.Option("--ray", help="Read the files on a Ray cluster (pip install 'stepscope[ray]').")]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", help="For all reading processes together: 4GiB, 800MB.", metavar="SIZE")
]
PartSteps = Annotated[
    str | None, typer.Option("--steps", help="These steps alone, the rest is not held: 3 or 3:7.", metavar="A:B")
]
PartTime = Annotated[
    str | None, typer.Option("--time", help="This time alone, from each rank's first event: 1s:2s.", metavar="A:B")
]
UseCache = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep the answer in a run folder, and read it from there.")
]
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?$", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """An amount of memory: 4GiB, 800MB, 512M.

    Raises:
        BadInput: it is none.
    """
    match = _SIZE.match(text.strip())
    if not match or not float(match[1]):
        raise BadInput(f"--memory-limit {text!r} is no amount of memory. Write a number with a unit: 4GiB, 800MB.")
    unit = (match[2] or "").lower()
    power = "kmgt".index(unit[0]) + 1 if unit else 0
    return int(float(match[1]) * (1024 if unit.endswith("i") else 1000) ** power)


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


def read_trace(source: str, concurrency: Concurrency = AS_MANY_AS_PAY, part: Part | None = None) -> Trace:
    """Open a trace or a run, or a part of it, with a bar where it takes long."""
    is_folder = is_run(Path(source).expanduser())
    total = 0 if is_folder else sum(path.stat().st_size for path in find_files(source))
    with _progress(total) if total else nullcontext() as on_progress:
        if part is not None:
            return open_part(source, part, on_progress=on_progress, concurrency=concurrency)
        return open_trace(source, on_progress=on_progress, concurrency=concurrency)


def read_account(
    source: str,
    catalog: list[Path] | None,
    device: str | None = None,
    concurrency: Concurrency = AS_MANY_AS_PAY,
    part: Part | None = None,
) -> Account:
    """Read and account for a capture, or a part of it."""
    trace = read_trace(source, concurrency, part)
    return explain(trace, catalog=load_catalog(catalog or ()), device=device)


def find_kept(source: str, catalog: list[Path] | None, device: str | None) -> KeptAnswer | None:
    """Where the answer about a run folder is kept; None: the source is no run."""
    path = Path(source).expanduser()
    return find_answer(path, catalog or (), device) if is_run(path) else None


def choose_concurrency(workers: int | None, ray: bool, memory_limit: str | None) -> Concurrency:
    """How files are read."""
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    return Concurrency(workers=workers, ray=ray, memory_limit_bytes=limit)


def wanted_part(steps: str | None, time: str | None) -> Part | None:
    """The part that is asked for; None: all of it."""
    return None if steps is None and time is None else Part(steps=steps, time=time)


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
