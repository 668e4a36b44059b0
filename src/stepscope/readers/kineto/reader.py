"""A Kineto file -> an EventStore: reading, doubtful times, rank and parallel layout."""

from __future__ import annotations

import gc
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.errors import UnreadableTrace
from stepscope.readers.inflate import read_blocks
from stepscope.readers.kineto.columns import FAR_NS, Columns, as_tracks, missing
from stepscope.readers.kineto.text import Document
from stepscope.store.doubts import find_doubts
from stepscope.store.events import EventCounts, Events, EventStore, Origin, order_events
from stepscope.store.health import HealthLog
from stepscope.store.schema import FRAME, LAST_DEVICE_KIND
from stepscope.store.selection import OUTSIDE, used_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from stepscope.readers.kineto.columns import Keep
    from stepscope.store.events import Mask
    from stepscope.store.selection import Selection

NAME = "kineto"
# the functions that mark a step, or the end of its work, in `steps`
_LANDMARK = re.compile(r"(?:execute_model|forward_batch_generation|sample_tokens)$")
_ASCEND_PROCESS = "Ascend Hardware"
_YEAR_NS = 366 * 24 * 3600 * 10**9
# an object, or an array of objects (an INI file starts with a bracket too)
_FIRST = re.compile(rb"^(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*(?:[{\],\"]|\Z))")


def sniff(head: bytes) -> bool:
    """Whether the first bytes of (inflated) text look like trace JSON; an empty file does: its error is a clear one."""
    return not head.strip() or bool(_FIRST.match(head))


def read(path: Path, on_progress: Callable[[int], None] | None = None) -> EventStore:
    """Read one file.

    Raises:
        UnreadableTrace: it is empty, holds no list of events, or is the timeline view of an Ascend profile.
        AmbiguousInput: it holds several documents.
    """
    return _read(path, on_progress, None)


def read_landmarks(path: Path, on_progress: Callable[[int], None] | None = None) -> EventStore:
    """What steps are found by: everything but Python functions, of which the engine's own few are kept."""
    return _read(path, on_progress, Landmarks())


def read_part(path: Path, selection: Selection, on_progress: Callable[[int], None] | None = None) -> EventStore:
    """A part of one file; what stands outside it is let go while reading."""
    return _read(path, on_progress, selection.keep, selection)


@dataclass(slots=True)
class Landmarks:
    """Keeps what `steps` finds steps and windows by, and the first and the last event of each thread."""

    is_meant: list[bool] = field(default_factory=list)

    def __call__(self, e: Events, names: Sequence[str]) -> Mask:
        """Which events to keep."""
        self.is_meant += [bool(_LANDMARK.search(name)) for name in names[len(self.is_meant) :]]
        kept: Mask = (e.kind != FRAME) | np.array(self.is_meant, bool)[e.name_id]
        for rows in (np.argsort(e.start_ns), np.argsort(-e.end_ns)):
            kept[rows[np.unique(e.track_id[rows], return_index=True)[1]]] = True
        return kept


def _read(
    path: Path, on_progress: Callable[[int], None] | None, keep: Keep | None, selection: Selection | None = None
) -> EventStore:
    health = HealthLog()
    document = Document(path=str(path), health=health)
    columns = Columns(health=health, keep=keep)
    with _no_garbage_collection():
        for batch in document.batches(read_blocks(path, health, on_progress)):
            columns.add(batch)
            del batch  # see Document.batches
        _refuse_ascend(path, columns.processes)
        events, tracks = columns.to_events(), columns.to_tracks()
    counts = EventCounts(intact=document.intact, recovered=document.recovered, lost=document.lost)
    if not counts.present:
        health.add("no_events")
    events = _mend_times(events, health)
    if "truncated_file" in health.counts and len(events):
        health.details["truncated_file"] += f"; the last one ends at {int(events.end_ns.max())} ns"
    names = [str(name) for name in columns.names]
    if selection is not None:
        kept = selection.keep(events, names)
        health.add(OUTSIDE, count=columns.num_outside + int((~kept).sum()))
        events, names = used_names(selection.clip(events.take(kept)), names)
    track_id, tracks = as_tracks(events.track_id, tracks)
    events = replace(events, track_id=track_id)
    parts = order_events(events, names, tracks)
    find_doubts(parts.events, parts.tracks, health)
    origin = _origin(path, document.metadata, health)
    return EventStore(
        origin=origin,
        events=parts.events,
        names=parts.names,
        tracks=parts.tracks,
        counts=counts,
        health=health.rows(),
        op_inputs=columns.inputs.to_inputs(),
    )


def _refuse_ascend(path: Path, processes: Collection[str]) -> None:
    """Its device work has no category that tells it from the host's: read so, the NPU would seem to do nothing."""
    if _ASCEND_PROCESS in processes:
        raise UnreadableTrace(
            str(path),
            "this is the timeline view of an Ascend profile (trace_view.json, msprof_*.json), one file of several",
            "Pass the profile's directory (*_ascend_pt, or PROF_*)",
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of short-lived events without cycles: collecting them costs half of the time and finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _mend_times(e: Events, health: HealthLog) -> Events:
    """Leave out rows without a usable time; cut unfinished ones at the end of the capture. Each is counted."""
    no_start, no_duration = missing(e.start_ns), missing(e.duration_ns)
    health.add("missing_start", count=int(no_start.sum()))
    health.add("missing_duration", count=int((no_duration & ~no_start).sum()))
    drop = no_start | no_duration
    drop |= _count(health, "out_of_range_time", ~drop & _out_of_range(e, drop))
    unfinished = ~drop & (e.duration_ns == -1000)
    drop |= _count(health, "negative_duration", ~drop & ~unfinished & (e.duration_ns < 0))
    on_device = e.kind <= LAST_DEVICE_KIND
    drop |= _count(health, "zero_time_kernel", ~drop & on_device & (e.start_ns == 0) & (e.duration_ns == 0))
    if unfinished.any():
        health.add("unfinished_duration", count=int(unfinished.sum()))
        settled = ~drop & ~unfinished
        last_ns = int(e.end_ns[settled].max()) if settled.any() else int(e.start_ns[unfinished].max())
        ends = np.maximum(e.start_ns, last_ns)
        e = replace(e, duration_ns=np.where(unfinished, ends - e.start_ns, e.duration_ns))
    if drop.any():
        e = e.take(~drop)
    health.add("zero_duration", count=int(((e.kind <= LAST_DEVICE_KIND) & (e.duration_ns == 0)).sum()))
    return e


def _count(health: HealthLog, code: str, rows: Mask) -> Mask:
    health.add(code, count=int(rows.sum()))
    return rows


def _out_of_range(e: Events, unusable: Mask) -> Mask:
    """Times that no clock reads, or a year and more away from the capture's own median."""
    wild: Mask = (np.abs(e.start_ns) > FAR_NS) | (e.duration_ns > FAR_NS)
    usable = e.start_ns[~unusable & ~wild]
    if len(usable) >= 3:
        middle = int(np.median(usable))
        wild |= np.abs(np.clip(e.start_ns, -FAR_NS, FAR_NS) - middle) > _YEAR_NS
    return wild


# vLLM `dp0_pp0_tp1_dcp0_ep1_rank1.`, older vLLM `-rank-0.`, SGLang `-TP-3-DP-0`, others `rank_3`
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d+)(?!\d)", re.IGNORECASE)
_AXIS_IN_NAME = re.compile(r"(?:^|[^a-z])(dp|pp|tp|dcp|pcp|ep|moe_ep)[-_]?(\d+)(?!\d)", re.IGNORECASE)


def _origin(path: Path, metadata: Mapping[str, object], health: HealthLog) -> Origin:
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    parallel = {axis.lower(): int(index) for axis, index in _AXIS_IN_NAME.findall(path.name)}
    rank, source = _rank(info, path.name, parallel)
    if rank is None:
        health.add("rank_unknown")
    base = _whole(metadata.get("baseTimeNanoseconds"))
    if base is None:
        health.add("no_base_time")
    return Origin(
        path=str(path),
        reader=NAME,
        rank=rank,
        rank_source=source,
        world_size=_whole(info.get("world_size")),
        parallel=parallel,
        base_time_ns=base,
        metadata={key: value for key, value in metadata.items() if key != "traceEvents"},
    )


def _rank(info: Mapping[str, object], file_name: str, parallel: Mapping[str, int]) -> tuple[int | None, str]:
    recorded = _whole(info.get("rank"))
    if recorded is not None:
        return recorded, "distributedInfo"
    in_name = _RANK_IN_NAME.search(file_name)
    if in_name:
        return int(in_name[1]), "file name"
    if "tp" in parallel and set(parallel) <= {"tp"}:
        return parallel["tp"], "file name (TP index)"
    return None, "unknown"


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
