"""The commands that keep captures: import (a run folder) and cut (a smaller trace)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from stepscope.cli.options import CatalogFiles, TracePath, read_account, read_trace
from stepscope.errors import BadInput
from stepscope.readers.kineto.cut import Selection, write_cut
from stepscope.report.tables import arrow_tables
from stepscope.steps.step import StepTable, find_steps
from stepscope.store.run import import_run
from stepscope.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.events import EventStore

_STEPS = re.compile(r"^(\d+)(?:-(\d+))?$")
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NUMBER = r"(\d+(?:\.\d+)?)(ns|us|ms|s)"
_TIME = re.compile(rf"^{_NUMBER}[-:]{_NUMBER}$")


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
        selection = _of_steps(store, table, steps) if steps is not None else _of_time(store, table, time or "")
        chosen.append((store, target, selection))
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


def _of_steps(store: EventStore, table: StepTable, text: str) -> Selection:
    match = _STEPS.match(text)
    if not match:
        raise BadInput(f"--steps {text!r} is no range. Write a step id or two: 3 or 3-7.")
    first, last = int(match[1]), int(match[2] or match[1])
    chosen = [i for i, step in enumerate(table.steps) if first <= step.step_id <= last]
    if not any(table.steps[i].window for i in chosen):
        known = f"0-{table.steps[-1].step_id}" if table.steps else "none"
        raise BadInput(f"--steps {text}: no such step in {store.origin.path}. Steps that are there: {known}.")
    boundaries = [step.boundary for step in table.steps]
    windows = [window for i in chosen if (window := table.steps[i].window)]
    before = boundaries[chosen[0] - 1].end_ns if chosen[0] else min(windows[0][0], boundaries[chosen[0]].start_ns)
    start = max(before, min(windows[0][0], boundaries[chosen[0]].start_ns)) if chosen[0] else before
    end = boundaries[chosen[-1] + 1].start_ns if chosen[-1] + 1 < len(boundaries) else int(store.events.end_ns.max())
    own = np.isin(table.work.boundary, chosen)
    return _selection(store, table, start, end, own, set(chosen))


def _of_time(store: EventStore, table: StepTable, text: str) -> Selection:
    match = _TIME.match(text)
    if not match:
        raise BadInput(f"--time {text!r} is no range. Write two times with units: 10ms-40ms.")
    origin = int(store.events.start_ns[0]) if len(store.events) else 0
    start = origin + round(float(match[1]) * _UNITS_NS[match[2]])
    end = origin + round(float(match[3]) * _UNITS_NS[match[4]])
    e, rows = store.events, table.work.row
    if end <= start:
        raise BadInput(f"--time {text}: the end is not after the start.")
    if len(e) and start > int(e.end_ns.max()):
        raise BadInput(
            f"--time {text}: {store.origin.path} holds {show_ns(int(e.end_ns.max()) - origin)} only. Choose less."
        )
    own = (e.start_ns[rows] >= start) & (e.start_ns[rows] < end)
    inside = {i for i, s in enumerate(table.steps) if s.boundary.start_ns < end and s.boundary.end_ns > start}
    return _selection(store, table, start, end, own, inside)


def _selection(
    store: EventStore,
    table: StepTable,
    start: int,
    end: int,
    own: np.ndarray[tuple[int], np.dtype[np.bool_]],
    kept: set[int],
) -> Selection:
    e, rows = store.events, table.work.row
    keys = zip(e.start_ns[rows[own]].tolist(), e.correlation_id[rows[own]].tolist(), strict=True)
    own_ids = set(e.correlation_id[rows[own]].tolist())
    starts = {step.boundary.start_ns for i, step in enumerate(table.steps) if i not in kept}
    return Selection(
        start_ns=start,
        end_ns=end,
        device=frozenset(keys),
        foreign_ids=frozenset(set(e.correlation_id[rows[~own]].tolist()) - own_ids),
        other_steps=frozenset(
            (int(e.start_ns[i]), store.names[int(e.name_id[i])])
            for i in np.flatnonzero(np.isin(e.start_ns, list(starts))).tolist()
        ),
    )
