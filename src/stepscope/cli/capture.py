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

if TYPE_CHECKING:
    from stepscope.store.events import EventStore

_STEPS = re.compile(r"^(\d+)(?:-(\d+))?$")
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"^([\d.]+)(ns|us|ms|s)[-:]([\d.]+)(ns|us|ms|s)$")


def import_(
    trace: TracePath,
    folder: Annotated[Path, typer.Option("--output", "-o", help="The run folder to write.")],
    catalog: CatalogFiles = None,
) -> None:
    """Turn a capture into a run folder (Parquet tables) that every command opens in milliseconds."""
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
    """Write a smaller trace of chosen steps or time, for Perfetto or for sharing."""
    if (steps is None) == (time is None):
        raise BadInput("cut needs either --steps A-B or --time A-B.")
    stores = read_trace(trace).stores
    if len(stores) > 1:
        output.mkdir(parents=True, exist_ok=True)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
    for store in stores:
        table = find_steps(store)
        selection = _of_steps(store, table, steps) if steps is not None else _of_time(store, table, time or "")
        target = output / Path(store.origin.path).name if len(stores) > 1 else output
        count = write_cut(store, selection, target, redact=redact)
        typer.echo(f"{target}: {count} events")


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
    if end <= start:
        raise BadInput(f"--time {text}: the end is not after the start.")
    e, rows = store.events, table.work.row
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
