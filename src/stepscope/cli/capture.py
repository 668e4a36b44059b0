"""The commands that keep captures: import (a run folder) and cut (a smaller trace)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.answers.part import Part, choose_part
from stepscope.cli.options import CatalogFiles, TracePath, read_account, read_trace
from stepscope.errors import BadInput
from stepscope.readers.kineto.cut import write_cut
from stepscope.report.tables import arrow_tables
from stepscope.steps.step import find_steps
from stepscope.store.run import import_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.events import EventStore
    from stepscope.store.selection import Selection


def import_(
    trace: TracePath,
    folder: Annotated[Path, typer.Option("--output", "-o", help="The run folder to write.")],
    catalog: CatalogFiles = None,
) -> None:
    """Turn a capture into a run folder, which opens fast."""
    account = read_account(trace, catalog)
    tables = {name: table for name, table in arrow_tables(account).items() if name != "events"}
    stores = [*(rank.store for rank in account.ranks), *account.others]
    import_run(stores, folder, tables=tables)
    typer.echo(f"{folder}: {len(stores)} stores, {sum(len(s.events) for s in stores)} events")


def cut(
    trace: TracePath,
    output: Annotated[Path, typer.Option("--output", "-o", help="A file; for several ranks, a folder.")],
    steps: Annotated[str | None, typer.Option("--steps", help="Step ids to keep, as 3 or 3-7.", metavar="A-B")] = None,
    time: Annotated[
        str | None, typer.Option("--time", help="Time to keep, from the rank's first event: 10ms-40ms.", metavar="A-B")
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace host names, paths and request ids.")] = False,
) -> None:
    """Write a smaller trace of chosen steps or time."""
    if (steps is None) == (time is None):
        raise BadInput("cut needs either --steps A-B or --time A-B.")
    stores = read_trace(trace).stores
    targets = _targets(stores, output)
    tables = [find_steps(store) for store in stores]
    chosen: list[tuple[EventStore, Path, Selection]] = []
    for store, table, target in zip(stores, tables, targets, strict=True):
        if steps is not None and not table.steps and any(other.steps for other in tables):
            typer.echo(f"{store.origin.path}: left out, it holds no step (use --time)", err=True)
            continue
        chosen.append((store, target, choose_part(store, table, Part(steps=steps, time=time))))
    for store, target, selection in chosen:  # all of them can be cut: only now is anything written
        target.parent.mkdir(parents=True, exist_ok=True)
        count = write_cut(store, selection, target, redact=redact)
        typer.echo(f"{target}: {count} events")


def _targets(stores: Sequence[EventStore], output: Path) -> list[Path]:
    """The file to write for each store; never one of the captures, never one file for two."""
    names = [Path(store.origin.path).name for store in stores]
    targets = [output / name for name in names] if len(stores) > 1 else [output]
    for target in targets:
        if targets.count(target) > 1:
            raise BadInput(f"{target}: several of the captures have this name. Cut them one at a time.")
        if any(target.exists() and target.samefile(s.origin.path) for s in stores if Path(s.origin.path).exists()):
            raise BadInput(f"{target}: is the capture itself. Choose another output.")
    return targets
