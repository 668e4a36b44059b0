"""Tables of an export -> rows of one form: times, kind, name, process, thread or stream, correlation.

Each table is read by the columns that it has. What a table lacks is said by name in the health log, and unknown values
are NO_ID. Ids of processes and threads are packed: pid = id / 2^24 mod 2^24, tid = id mod 2^24.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from stepscope.readers.nsys.names import call_name, copy_name, fill_name, range_name
from stepscope.store.events import NO_ID
from stepscope.store.schema import DEVICE_SCOPE, KERNEL, MEMCPY, MEMSET, OVERHEAD, RUNTIME, SCOPE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.intervals import Int64
    from stepscope.readers.nsys.database import Export
    from stepscope.store.health import HealthLog

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
REPLAYS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
READ_TABLES = (KERNELS, COPIES, FILLS, CALLS, RANGES, REPLAYS, *_OVERHEADS)
# kernels have had more than one name column since the first schema: the fullest that is there
_KERNEL_NAMES = ("demangledName", "shortName", "mangledName")
# NVTX event types (ENUM_NSYS_EVENT_TYPE); those that are no events name a category, thread, domain, device or stream
_MARKS, _PUSH_POP, _START_END = (34, 65), (59, 70), (60, 71)
_THREAD_BITS = 24
PROCESS_MASK = ~((1 << _THREAD_BITS) - 1)


@dataclass(slots=True, kw_only=True)
class Rows:
    """Columns of equal length. `lane`: a thread id, or a stream. `is_range`: start/end ranges, which need not nest."""

    start: Int64
    end: Int64
    kind: Int64
    name: Int64
    process: Int64
    lane: Int64
    device: Int64
    context: Int64
    correlation: Int64
    is_range: Int64

    def __len__(self) -> int:
        return len(self.start)

    def take(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Rows:
        """Some of them."""
        return Rows(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


@dataclass(slots=True, kw_only=True)
class Names:
    """Interned names; ids are positions in `known`."""

    known: dict[str, int] = field(default_factory=dict)

    def add(self, name: str) -> int:
        """The id of a name."""
        return self.known.setdefault(name, len(self.known))


@dataclass(slots=True, kw_only=True)
class Declaration:
    """What NVTX names without timing it: a thread, a domain."""

    process: int
    text: str


@dataclass(slots=True, kw_only=True)
class Tables:
    """Everything that was read from an export."""

    export: Export
    health: HealthLog
    names: Names = field(default_factory=Names)
    declarations: list[Declaration] = field(default_factory=list)

    def read(self) -> Rows:
        """All rows, table by table."""
        pieces = [self._kernels(), self._copies(), self._fills(), self._replays(), self._calls(), self._ranges()]
        pieces += [self._overheads(table) for table in _OVERHEADS]
        return Rows(**{f.name: np.concatenate([getattr(piece, f.name) for piece in pieces]) for f in fields(Rows)})

    def _kernels(self) -> Rows:
        column = next((name for name in _KERNEL_NAMES if self.export.has(KERNELS, name)), _KERNEL_NAMES[0])
        self._require(KERNELS, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", column))
        cells = self.export.integers(KERNELS, (*_DEVICE_COLUMNS, column))
        return _device_rows(cells, KERNEL, self._names_of(cells[column], str))

    def _copies(self) -> Rows:
        if COPIES in self.export.tables:
            self._require(COPIES, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "copyKind"))
        cells = self.export.integers(COPIES, (*_DEVICE_COLUMNS, "copyKind", "srcKind", "dstKind"))
        what = np.stack([cells["copyKind"], cells["srcKind"], cells["dstKind"]], axis=1)
        return _device_rows(cells, MEMCPY, self._named(what, lambda row: copy_name(*row)))

    def _fills(self) -> Rows:
        cells = self.export.integers(FILLS, (*_DEVICE_COLUMNS, "memKind"))
        return _device_rows(cells, MEMSET, self._named(cells["memKind"][:, None], lambda row: fill_name(row[0])))

    def _replays(self) -> Rows:
        """Whole graphs: on the device's timeline, but no device work: which kernels ran in them is not recorded."""
        cells = self.export.integers(REPLAYS, (*_DEVICE_COLUMNS, "graphId"))
        self.health.add("graph_as_one_item", count=len(cells["start"]))
        named = self._named(cells["graphId"][:, None], lambda row: "CUDA graph" + _suffix(row[0]))
        return _device_rows(cells, DEVICE_SCOPE, named)

    def _calls(self) -> Rows:
        self._require(CALLS, ("start", "end", "globalTid", "correlationId", "nameId"))
        cells = self.export.integers(CALLS, ("start", "end", "globalTid", "correlationId", "nameId"))
        return _host_rows(cells, RUNTIME, self._names_of(cells["nameId"], call_name), cells["correlationId"])

    def _overheads(self, table: str) -> Rows:
        cells = self.export.integers(table, ("start", "end", "globalTid", "nameId"))
        return _host_rows(cells, OVERHEAD, self._names_of(cells["nameId"], str))

    def _ranges(self) -> Rows:
        self._require(RANGES, ("start", "end", "eventType", "globalTid", "text"))
        cells = self.export.integers(RANGES, ("start", "end", "eventType", "globalTid", "textId"))
        found = [self._range(*cell) for cell in zip(self._texts(cells["textId"]), *_lists(cells), strict=True)]
        names, kinds = (np.array([pair[i] for pair in found], np.int64) for i in (0, 1))
        marks = np.isin(cells["eventType"], _MARKS)
        cells["end"] = np.where(marks & (cells["end"] == NO_ID), cells["start"], cells["end"])
        rows = _host_rows(cells, SCOPE, names)
        rows.kind = kinds
        # a step's own annotation stays on its thread, whatever kind of range it is
        rows.is_range = (np.isin(cells["eventType"], _START_END) & (kinds == SCOPE)).astype(np.int64)
        events = kinds >= 0
        self.health.add("nvtx_declaration", count=int((~events).sum()))
        return rows.take(events)

    def _texts(self, ids: Int64) -> list[str | None]:
        """Names of ranges: written out, or registered and referred to."""
        registered = self.export.strings
        texts = self.export.text(RANGES, "text")
        return [text if text is not None else registered.get(i) for text, i in zip(texts, ids.tolist(), strict=True)]

    def _range(self, text: str | None, event_type: int, thread: int) -> tuple[int, int]:
        """(name, kind) of one row of the NVTX table; kind -1: it times nothing."""
        if event_type not in (*_MARKS, *_PUSH_POP, *_START_END, NO_ID):
            if text:
                self.declarations.append(Declaration(process=thread & PROCESS_MASK, text=text))
            return -1, -1
        if text is None:
            self.health.add("unnamed_event", f"a range in {RANGES}")
            return self.names.add("(unnamed)"), SCOPE
        name, kind = range_name(text)
        return self.names.add(name), kind

    def _require(self, table: str, columns: Sequence[str]) -> None:
        """Say by name what is not there."""
        if table not in self.export.tables:
            self.health.add("schema_table_missing", table)
            return
        if not self.export.count(table):
            self.health.add("empty_table", table)
        for column in columns:
            if not self.export.has(table, column):
                self.health.add("schema_column_missing", f"{table}.{column}")

    def _names_of(self, ids: Int64, shorten: Callable[[str], str]) -> Int64:
        """Ids of StringIds -> ids of names."""
        unique, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        found = []
        for key, count in zip(unique.tolist(), counts.tolist(), strict=True):
            text = self.export.strings.get(key)
            if text is None:
                self.health.add("unnamed_event", f"string {key} of StringIds" if key != NO_ID else "", count)
            found.append(self.names.add("(unnamed)" if text is None else shorten(text)))
        return np.array(found, np.int64)[inverse] if found else ids

    def _named(self, what: np.ndarray[tuple[int, int], np.dtype[np.int64]], name: Callable[[list[int]], str]) -> Int64:
        """One name for each different row of numbers."""
        unique, inverse = unique_rows(what)
        found = np.array([self.names.add(name(row)) for row in unique.tolist()], np.int64)
        return found[inverse] if len(found) else np.empty(0, np.int64)


def unique_rows(
    rows: np.ndarray[tuple[int, int], np.dtype[np.int64]],
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int64]], Int64]:
    """(the different rows, which of them each row is): column by column, since sorting whole rows takes ten times."""
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        _, inverse = np.unique(column, return_inverse=True)
        _, code = np.unique(code * (int(inverse.max(initial=0)) + 1) + inverse, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return rows[first], code


_DEVICE_COLUMNS = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")


def _suffix(number: int) -> str:
    return "" if number == NO_ID else f" {number}"


def _lists(cells: dict[str, Int64]) -> tuple[list[int], list[int]]:
    return cells["eventType"].tolist(), cells["globalTid"].tolist()


def _device_rows(cells: dict[str, Int64], kind: int, names: Int64) -> Rows:
    return Rows(
        start=cells["start"],
        end=cells["end"],
        kind=np.full(len(names), kind, np.int64),
        name=names,
        process=cells["globalPid"],
        lane=cells["streamId"],
        device=cells["deviceId"],
        context=cells["contextId"],
        correlation=cells["correlationId"],
        is_range=np.zeros(len(names), np.int64),
    )


def _host_rows(cells: dict[str, Int64], kind: int, names: Int64, correlation: Int64 | None = None) -> Rows:
    unknown = np.full(len(names), NO_ID, np.int64)
    thread = cells["globalTid"]
    return Rows(
        start=cells["start"],
        end=cells["end"],
        kind=np.full(len(names), kind, np.int64),
        name=names,
        process=np.where(thread == NO_ID, NO_ID, thread & PROCESS_MASK),
        lane=np.where(thread == NO_ID, NO_ID, thread & ~PROCESS_MASK),
        device=unknown,
        context=unknown,
        correlation=unknown if correlation is None else correlation,
        is_range=np.zeros(len(names), np.int64),
    )
