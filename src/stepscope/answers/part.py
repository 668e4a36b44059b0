"""Some steps, or some time, of a capture -> its selection, and a Trace of that part, read without holding the rest.

Steps are known only once they are found. So a large file is read twice: first what steps are found by (annotations,
operations, device work; no Python stacks), then the chosen part, of which each block leaves behind what it needs alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.errors import BadInput
from stepscope.readers.concurrency import ONE_AT_A_TIME, Concurrency
from stepscope.readers.registry import open_trace, read_file, read_in_two
from stepscope.steps.step import StepTable, find_steps
from stepscope.store.run import is_run
from stepscope.store.selection import Selection, select_events
from stepscope.store.trace import Trace
from stepscope.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.store.events import EventStore

_STEPS = re.compile(r"^(\d+)(?:[-:](\d+))?$")
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NUMBER = r"(\d+(?:\.\d+)?)(ns|us|ms|s)"
_TIME = re.compile(rf"^{_NUMBER}[-:]{_NUMBER}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which part is asked for: step ids (`3`, `3-7`, `3:7`), or a time from the first event (`1s-2s`)."""

    steps: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.time is None):
            raise BadInput("A part is either of steps or of time: give one of --steps A-B and --time A-B.")
        if self.steps is not None:
            _match_steps(self.steps)
        if self.time is not None:
            _match_time(self.time)


def _match_steps(text: str) -> re.Match[str]:
    match = _STEPS.match(text)
    if not match:
        raise BadInput(f"--steps {text!r} is no range. Write a step id or two: 3 or 3-7.")
    return match


def _match_time(text: str) -> re.Match[str]:
    match = _TIME.match(text)
    if not match:
        raise BadInput(f"--time {text!r} is no range. Write two times with units: 10ms-40ms.")
    return match


def choose_part(store: EventStore, table: StepTable, part: Part) -> Selection:
    """The selection of one store.

    Raises:
        BadInput: the steps or the time are not there.
    """
    if part.steps is not None:
        return _of_steps(store, table, part.steps)
    assert part.time is not None
    return _of_time(store, table, part.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReader:
    """Reads one file's part; a task of the pool."""

    part: Part

    def __call__(self, path: Path) -> tuple[EventStore, ...]:
        """The part of each of the file's stores; a process without steps has none of a range of steps."""
        two = read_in_two(path)
        if two is None:
            return self.of_stores(read_file(path))
        chosen = self._choose(two.read_landmarks(path))
        return () if chosen is None else (two.read_part(path, chosen),)

    def of_stores(self, stores: Sequence[EventStore]) -> tuple[EventStore, ...]:
        """The part of stores that are read already."""
        return tuple(select_events(store, chosen) for store in stores if (chosen := self._choose(store)) is not None)

    def _choose(self, store: EventStore) -> Selection | None:
        table = find_steps(store)
        return None if self.part.steps is not None and not table.steps else choose_part(store, table, self.part)


def open_part(
    source: str | Path,
    part: Part,
    *,
    on_progress: Callable[[int], None] | None = None,
    concurrency: Concurrency = ONE_AT_A_TIME,
) -> Trace:
    """A part of a file, of every rank of a directory, or of a Run.

    Raises:
        BadInput: see `open_trace`; or no process holds such a part.
    """
    reader = PartReader(part=part)
    if is_run(Path(source).expanduser()):
        whole = open_trace(source)
        trace = Trace(source=whole.source, stores=reader.of_stores(whole.stores))
    else:
        trace = open_trace(source, on_progress=on_progress, concurrency=concurrency, read_one=reader)
    if not trace.stores:
        raise BadInput(
            f"--steps {part.steps}: {source} holds no step. Choose a time (--time 1s-2s), or take all of it."
        )
    return trace


def _of_steps(store: EventStore, table: StepTable, text: str) -> Selection:
    match = _match_steps(text)
    first, last = int(match[1]), int(match[2] or match[1])
    chosen = [i for i, step in enumerate(table.steps) if first <= step.step_id <= last]
    if not any(table.steps[i].window for i in chosen):
        known = f"0-{table.steps[-1].step_id}" if table.steps else "none"
        why = "the last step comes before the first" if last < first else f"no such step in {store.origin.path}"
        raise BadInput(f"--steps {text}: {why}. Steps that are there: {known}.")
    boundaries = [step.boundary for step in table.steps]
    windows = [window for i in chosen if (window := table.steps[i].window)]
    before = boundaries[chosen[0] - 1].end_ns if chosen[0] else min(windows[0][0], boundaries[chosen[0]].start_ns)
    start = max(before, min(windows[0][0], boundaries[chosen[0]].start_ns)) if chosen[0] else before
    end = boundaries[chosen[-1] + 1].start_ns if chosen[-1] + 1 < len(boundaries) else int(store.events.end_ns.max())
    own = np.isin(table.work.boundary, chosen)
    return _selection(store, table, start, end, own, set(chosen))


def _of_time(store: EventStore, table: StepTable, text: str) -> Selection:
    match = _match_time(text)
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
