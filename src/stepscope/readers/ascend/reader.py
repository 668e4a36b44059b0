"""An Ascend profile -> an EventStore: the database where there is a whole one, else tables and timeline.

Both give the same kernels and times. In the text export a kernel's times, type and core are the table's, its stream
and launch the timeline's: the two name one task by its name and start. Without a timeline there is no host lane, and
why the device was idle is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.errors import UnreadableTrace
from stepscope.readers.ascend.database import Database, is_database
from stepscope.readers.ascend.layout import SQLITE, Layout, find_layout, is_profile
from stepscope.readers.ascend.official import read_communication, read_json, read_step_times, settings_of
from stepscope.readers.ascend.pmu import setting_of, to_counters
from stepscope.readers.ascend.table import is_task_table, read_tables
from stepscope.readers.ascend.task import (
    EVENT_KIND,
    NO_DEVICE,
    NOT_SAID,
    HostEvent,
    Task,
    core_name,
    event_name,
    stream_name,
)
from stepscope.readers.ascend.timeline import Timeline
from stepscope.store.doubts import find_doubts
from stepscope.store.events import NO_ID, EventCounts, Events, EventStore, EventStoreParts, Origin, Track, order_events
from stepscope.store.health import HealthLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stepscope.intervals import Int64
    from stepscope.store.counters import Counters

NAME = "ascend"
_HEAD_BYTES = 1 << 16
# torch_npu writes times as text in an array of events, and its hardware lanes long after the host's
_QUOTED_TIME = re.compile(rb'"ts": ?"\d+\.\d{3}"')
_LANES = (b'"Ascend Hardware"', b'"Overlap Analysis"', b'"CANN"', b'"cat": "async_npu"', b'"Enqueue"')
# a table's start and the timeline's are roundings of one counter, to 0.001 us
_ROUNDING_NS = (0, 1, -1, 2, -2)
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d+)(?!\d)", re.IGNORECASE)


def sniff(head: bytes) -> bool:
    """Whether the first bytes of a text are those of a table of kernels, or of a timeline of Ascend's tools."""
    return is_task_table(head.decode("utf-8", errors="replace")) or (
        head.lstrip().startswith(b"[")
        and (_QUOTED_TIME.search(head) is not None or any(mark in head for mark in _LANES))
    )


def knows(path: Path) -> bool:
    """Whether a directory is one rank's profile, or a file a table, timeline or database of one."""
    if path.is_dir():
        return is_profile(path)
    if not path.is_file():
        return False
    with path.open("rb") as source:
        head = source.read(_HEAD_BYTES)
    if head.startswith(SQLITE):
        return is_database(path) or path.name.startswith(("ascend_pytorch_profiler", "msprof_"))
    return sniff(head)


@dataclass(slots=True)
class _Content:
    """What was read, whichever export it was."""

    tasks: list[Task]
    host: list[HostEvent] = field(default_factory=list)
    lost: int = 0
    rank: int | None = None
    source: str = ""
    has_counters: bool = False
    steps: list[tuple[int, int, int]] = field(default_factory=list)


def read(path: Path, on_progress: Callable[[int], None] | None = None) -> EventStore:
    """Read one rank's profile: its directory, or one file of it.

    Raises:
        UnreadableTrace: it was never analysed, holds nothing, or is broken beyond reading.
    """
    health = HealthLog()
    layout = find_layout(path)
    content = _read_content(layout, health)
    if on_progress is not None:
        on_progress(sum(p.stat().st_size for p in (layout.database, *layout.kernels, *layout.timelines) if p))
    info = read_json(layout.info, health)
    metadata = _metadata(layout, info, content, health)
    parts = _assemble(content)
    if not len(parts.events):
        health.add("no_events")
    find_doubts(parts.events, parts.tracks, health)
    return EventStore(
        origin=_origin(layout, info, content, metadata, health),
        events=parts.events,
        names=parts.names,
        tracks=parts.tracks,
        counts=EventCounts(intact=len(parts.events), recovered=0, lost=content.lost),
        health=health.rows(),
        counters=_counters(content, parts.order, metadata),
    )


def _read_content(layout: Layout, health: HealthLog) -> _Content:
    if layout.database is None:
        return _read_text(layout, health)
    try:
        database = Database(layout.database, health)
    except UnreadableTrace as error:
        if not layout.has_text:
            raise
        problem = str(error).removeprefix(f"{layout.database}: ")
        health.add("table_missing", f"{layout.database.name}: {problem}")
        return _read_text(layout, health)
    if layout.has_text:
        health.add("export_left_aside", "the text export beside the database")
    return _Content(
        tasks=database.tasks,
        host=database.host,
        lost=database.lost,
        rank=database.rank,
        source=layout.database.name,
        has_counters=database.has_pmu,
        steps=database.steps,
    )


def _read_text(layout: Layout, health: HealthLog) -> _Content:
    kernels, lost, _ = read_tables(layout.kernels, health)
    timeline = Timeline(health=health)
    for path in layout.timelines:
        timeline.read(path)
    listed = timeline.tasks
    if not layout.timelines and layout.tasks:
        listed, more, _ = read_tables(layout.tasks, health)
        lost += more
    if layout.kind != "file" and not layout.kernels:
        health.add("table_missing", "kernel_details.csv or op_summary: types and cores of kernels")
    used = layout.kernels or layout.tasks or layout.timelines
    return _Content(
        tasks=_mark_parts(_join(kernels, listed, health)),
        host=timeline.host,
        lost=lost + timeline.lost,
        source=", ".join(path.name for path in used),
        has_counters=any(task.readings for task in kernels),
    )


def _join(kernels: Sequence[Task], listed: Sequence[Task], health: HealthLog) -> list[Task]:
    """The table's kernels with stream and launch of the timeline, and what only the timeline has."""
    if not listed:
        return list(kernels)
    waiting: dict[tuple[str, int], list[int]] = {}
    for i, task in enumerate(listed):
        waiting.setdefault((task.name, task.start_ns), []).append(i)
    joined, taken = [], set()
    for kernel in kernels:
        places = next((w for d in _ROUNDING_NS if (w := waiting.get((kernel.name, kernel.start_ns + d)))), None)
        if places is None:
            health.add("not_in_timeline", kernel.name)
            joined.append(kernel)
            continue
        other = listed[places.pop(0)]
        taken.add(id(other))
        joined.append(
            kernel._replace(
                stream=other.stream if kernel.stream == NOT_SAID else kernel.stream,
                device=other.device if kernel.device == NO_DEVICE else kernel.device,
                connection=other.connection,
            )
        )
    return joined + [task for task in listed if id(task) not in taken]


def _mark_parts(tasks: Sequence[Task]) -> list[Task]:
    """Waits, copies and writes that a collective consists of are its parts: their time is the collective's."""
    inside = {task.connection for task in tasks if task.role == "communication"} - {NO_ID}
    return [
        task._replace(role="part") if task.connection in inside and task.role in ("wait", "mark", "copy") else task
        for task in tasks
    ]


def _assemble(content: _Content) -> EventStoreParts:
    names: dict[str, int] = {}
    tracks: dict[Track, int] = {}
    rows: list[tuple[int, int, int, int, int, int]] = []
    devices = {task.device for task in content.tasks} - {NO_DEVICE}
    only = next(iter(devices)) if len(devices) == 1 else NO_DEVICE
    for task in content.tasks:
        track = _device_track(task, only)
        name = names.setdefault(event_name(task.name, task.type), len(names))
        place = tracks.setdefault(track, len(tracks))
        rows.append((task.start_ns, task.duration_ns, name, EVENT_KIND[task.role], place, task.connection))
    for event in content.host:
        track = Track(process=event.process, thread=event.thread, is_device=False)
        name = names.setdefault(event.name, len(names))
        place = tracks.setdefault(track, len(tracks))
        rows.append((event.start_ns, event.duration_ns, name, event.kind, place, event.connection))
    table = np.array(rows, np.int64).reshape(-1, 6)
    events = Events(
        start_ns=table[:, 0].copy(),
        duration_ns=table[:, 1].copy(),
        name_id=table[:, 2].astype(np.int32),
        kind=table[:, 3].astype(np.int8),
        track_id=table[:, 4].astype(np.int32),
        correlation_id=table[:, 5].copy(),
    )
    return order_events(events, list(names), list(tracks))


def _device_track(task: Task, only: str) -> Track:
    device = only if task.device == NO_DEVICE else task.device
    stream = stream_name(task.stream, task.name, task.role)
    return Track(
        process=f"NPU {device}" if device != NO_DEVICE else NO_DEVICE, thread=stream, is_device=True, device=device
    )


def _counters(content: _Content, order: Int64, metadata: dict[str, Any]) -> Counters | None:
    """The counters of the kernels; tasks come before host events, and `order` says where each event stood."""
    kernels = [i for i, task in enumerate(content.tasks) if task.role in ("compute", "communication")]
    recorded = metadata.get("aic_metrics")
    if not kernels or not (content.has_counters or recorded):
        return None
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    columns = {name for i in kernels for name in content.tasks[i].readings or ()}
    return to_counters(
        place[np.array(kernels, np.int64)],
        [core_name(content.tasks[i].core, content.tasks[i].role) for i in kernels],
        [content.tasks[i].readings for i in kernels],
        content.source,
        setting_of(str(recorded) if recorded else None, columns),
    )


def _metadata(layout: Layout, info: dict[str, Any], content: _Content, health: HealthLog) -> dict[str, Any]:
    settings = settings_of(info)
    steps = read_step_times(layout, health)
    communication = read_communication(layout.communication, health)
    found: dict[str, Any] = {
        "recorder": "msprof" if layout.kind == "msprof" else "torch_npu",
        "profiler_level": settings.get("_profiler_level"),
        "aic_metrics": settings.get("_aic_metrics"),
        "step_trace_time": steps,
        "communication_times": communication,
        "steps": [list(step) for step in content.steps],
    }
    return {key: value for key, value in found.items() if value not in (None, [])}


def _origin(
    layout: Layout, info: dict[str, Any], content: _Content, metadata: dict[str, Any], health: HealthLog
) -> Origin:
    rank, source = _rank(layout, info, content)
    if rank is None:
        health.add("rank_unknown")
    arguments = read_json(layout.metadata, health).get("distributed_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    size = arguments.get("world_size")
    return Origin(
        path=str(layout.path),
        reader=NAME,
        rank=rank,
        rank_source=source,
        world_size=size if isinstance(size, int) else None,
        base_time_ns=0,  # the exports have wall-clock times
        metadata=metadata,
    )


def _rank(layout: Layout, info: dict[str, Any], content: _Content) -> tuple[int | None, str]:
    recorded = info.get("rank_id")
    if isinstance(recorded, int) and recorded >= 0:
        return recorded, "profiler_info"
    if content.rank is not None:
        return content.rank, "RANK_DEVICE_MAP"
    if layout.file_rank is not None:
        return layout.file_rank, "file name"
    in_name = _RANK_IN_NAME.search(layout.path.name)
    if in_name:
        return int(in_name[1]), "directory name"
    return None, "unknown"
