"""A SQLite export of Nsight Systems -> one EventStore for each process in it.

Times are ns already. A process that used several devices is one store, and `--device` chooses. A graph that was
recorded as one item is kept as a range on its stream; its kernels are not in the export, and the store says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepscope.errors import UnreadableTrace
from stepscope.readers.nsys import identity as who
from stepscope.readers.nsys.database import HEADER_BYTES, MAGIC, Export, open_export
from stepscope.readers.nsys.rows import CALLS, READ_TABLES, REPLAYS, Rows, Tables
from stepscope.readers.nsys.times import mend_times
from stepscope.readers.nsys.tracks import find_tracks
from stepscope.store.doubts import find_doubts
from stepscope.store.events import NO_ID, EventCounts, Events, EventStore, Origin, order_events
from stepscope.store.health import HealthLog
from stepscope.store.schema import DEVICE_SCOPE, LAST_DEVICE_KIND

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.readers.nsys.identity import Identity

NAME = "nsys"
OLDEST, NEWEST = (3, 11), (3, 25)  # schema versions that were tried
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_EXPORT = "nsys export --type sqlite"
# tables whose rows say nothing of when the engine did what
_SILENT = ("ENUM_", "TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "NVTX_PAYLOAD_", "sqlite_")
_KNOWN = ("StringIds", "PROCESSES", "ThreadNames", "ANALYSIS_DETAILS", "ANALYSIS_FILE", "ProcessStreams")


def sniff(head: bytes) -> bool:
    """Whether this is a SQLite database; whose, `read` finds out."""
    return head.startswith(MAGIC) and len(head) >= HEADER_BYTES


def knows(path: Path) -> bool:
    """Whether this is a SQLite database, or a report that was not exported yet: `read` says what to do with it."""
    if not path.is_file():
        return False
    with path.open("rb") as source:
        return sniff(source.read(HEADER_BYTES)) or path.suffix in _REPORTS


def read(path: Path, on_progress: Callable[[int], None] | None = None) -> tuple[EventStore, ...]:
    """Read one export.

    Raises:
        UnreadableTrace: it is truncated, damaged, or no export of Nsight Systems.
    """
    if path.suffix in _REPORTS:
        raise UnreadableTrace(str(path), "a report in Nsight's own format", f"Export it: {_EXPORT} {path.name}")
    health = HealthLog()
    with open_export(path) as export:
        _doubt_schema(export, health)
        tables = Tables(export=export, health=health)
        rows = tables.read()
        _doubt_recorder(export, health)
        _list_unread(export, health)
        stores = _stores(tables, rows)
    if on_progress:
        on_progress(path.stat().st_size)
    return stores


def _stores(tables: Tables, rows: Rows) -> tuple[EventStore, ...]:
    """One store a process, in the order of the packed ids."""
    export = tables.export
    processes = np.unique(rows.process).tolist()
    on_device = (rows.kind <= LAST_DEVICE_KIND) | (rows.kind == DEVICE_SCOPE)
    workers = np.unique(rows.process[on_device]).tolist()
    people = who.find_identities(export, processes, workers, tables.declarations)
    shared = Origin(
        path=export.path,
        reader=NAME,
        base_time_ns=who.base_time_ns(export, int(rows.start[rows.start > NO_ID].min(initial=2**62))),
        metadata=_metadata(export),
    )
    if not processes:
        empty = HealthLog(counts=tables.health.counts.copy(), details=dict(tables.health.details))
        empty.add("no_events")
        return (_store(tables, rows, shared, empty),)
    stores = []
    for process in processes:
        own = rows.take(rows.process == process)
        health = HealthLog(counts=tables.health.counts.copy(), details=dict(tables.health.details))
        origin = _origin(shared, people[process], own, who.device_properties(export) if process in workers else [])
        if process in workers and origin.rank is None:
            health.add("rank_unknown")
        stores.append(_store(tables, own, origin, health))
    return tuple(stores)


def _store(tables: Tables, rows: Rows, origin: Origin, health: HealthLog) -> EventStore:
    counts = EventCounts(intact=len(rows), recovered=0, lost=0)
    if origin.base_time_ns is None:
        health.add("no_base_time", "no wall-clock time of the start of recording")
    rows = mend_times(rows, health)
    known = list(tables.names.known)
    used, name_id = np.unique(rows.name, return_inverse=True)
    names = [known[i] for i in used.tolist()]
    rows.name = name_id.astype(np.int64)
    track_id, tracks = find_tracks(tables.export, rows, names)
    events = Events(
        start_ns=rows.start.copy(),
        duration_ns=rows.end - rows.start,
        name_id=rows.name.astype(np.int32),
        kind=rows.kind.astype(np.int8),
        track_id=track_id,
        correlation_id=rows.correlation.copy(),
    )
    parts = order_events(events, names, tracks)
    find_doubts(parts.events, parts.tracks, health)
    return EventStore(
        origin=origin, events=parts.events, names=parts.names, tracks=parts.tracks, counts=counts, health=health.rows()
    )


def _origin(shared: Origin, person: Identity, rows: Rows, devices: list[dict[str, object]]) -> Origin:
    metadata = {**shared.metadata, "num_graph_replays": int((rows.kind == DEVICE_SCOPE).sum())}
    if person.pid is not None:
        metadata["pid"] = person.pid
    if person.name:
        metadata["process"] = person.name
    if devices:
        used = set(np.unique(rows.device).tolist())
        metadata["deviceProperties"] = [device for device in devices if device.get("id") in used]
    return Origin(
        path=shared.path,
        reader=NAME,
        rank=person.rank,
        rank_source=person.rank_source,
        parallel=person.parallel,
        base_time_ns=shared.base_time_ns,
        metadata=metadata,
    )


def _metadata(export: Export) -> dict[str, object]:
    """What the recorder says of its own setting; `graph_trace_mode`: graph (one item) or node (its kernels)."""
    own = export.metadata
    capture = [(str(name), str(value)) for name, value in export.select("META_DATA_CAPTURE", ("name", "value"))]
    modes = {value.lower() for name, value in capture if name.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")}
    skips = {value for name, value in capture if name.endswith("CUDA_SKIP_SOME_API_CALLS")}
    product = own.get("EXPORT_PRODUCT_NAME", "Nsight Systems")
    found: dict[str, object] = {
        "recorder": f"{product} {own.get('EXPORT_PRODUCT_VERSION', '')}".strip(),
        "export_schema": own.get("EXPORT_SCHEMA_VERSION", "not recorded"),
        "all_calls_recorded": bool(export.count(CALLS)) and skips == {"false"},
    }
    if "graph" in modes or export.count(REPLAYS):
        found["graph_trace_mode"] = "graph"
    elif "node" in modes:
        found["graph_trace_mode"] = "node"
    return found


def _doubt_schema(export: Export, health: HealthLog) -> None:
    version = export.metadata.get("EXPORT_SCHEMA_VERSION", "")
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        health.add("untried_schema", f"schema version {version or 'not recorded'}")
    elif not OLDEST <= (int(parts[0]), int(parts[1])) <= NEWEST:
        health.add("untried_schema", f"schema version {version}; tried are 3.11 to 3.25")
    if "StringIds" not in export.tables:
        raise UnreadableTrace(
            export.path, "the export has no table StringIds, so nothing in it has a name", "Export all tables"
        )


def _doubt_recorder(export: Export, health: HealthLog) -> None:
    """Warnings and errors that the recorder itself left."""
    levels = export.select("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", ("id", "label"))
    serious = {level for level, label in levels if label in ("Warning", "Error")} or {2, 3}
    for severity, text in export.select("DIAGNOSTIC_EVENT", ("severity", "text")):
        if severity in serious:
            health.add("recorder_warning", str(text))


def _list_unread(export: Export, health: HealthLog) -> None:
    """Tables with rows that no part of the account uses: named, not dropped in silence."""
    unread = [
        name
        for name in export.tables
        if name not in (*READ_TABLES, *_KNOWN, "DIAGNOSTIC_EVENT")
        and not name.startswith(_SILENT)
        and export.count(name)
    ]
    health.add("table_not_read", ", ".join(unread), len(unread))
