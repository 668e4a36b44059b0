"""Batches of events -> columns: names interned, times as int64 ns, categories as kinds.

Only complete events (X, and B with its E) become rows; instants, flows, counters and metadata are read and counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from stepscope.readers.kineto.inputs import InputColumns
from stepscope.store.events import NO_ID, Events, Track
from stepscope.store.schema import (
    DEVICE_SCOPE,
    FRAME,
    KERNEL,
    LAST_DEVICE_KIND,
    MEMCPY,
    MEMSET,
    OP,
    OTHER,
    OVERHEAD,
    RUNTIME,
    SCOPE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.intervals import Int64
    from stepscope.readers.kineto.event import Event, ExactEvent
    from stepscope.readers.kineto.text import Batch, Float64
    from stepscope.store.events import Int8, Int32, Mask
    from stepscope.store.health import HealthLog

# category, lower-cased, as written by Kineto for CUDA, ROCm, XPU, MTIA, HPU and PrivateUse1 devices (2021 to 2026)
CATEGORY_KIND: dict[str, int] = {
    "kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "hpu_op": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "mtia_runtime": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME,
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": SCOPE,
    "nvtx": SCOPE,
    "python_function": FRAME,
    "gpu_user_annotation": DEVICE_SCOPE,
    "overhead": OVERHEAD,
    "trace": OVERHEAD,
    "cpu_instant_event": OVERHEAD,
}
_COMPLETE, _BEGIN, _END, _META, _REST = range(5)
_PHASES = {"X": _COMPLETE, "B": _BEGIN, "E": _END, "M": _META}

_GET_PHASE = attrgetter("ph")
_GET_CATEGORY = attrgetter("cat")
_GET_NAME = attrgetter("name")
_GET_DURATION = attrgetter("dur")
_GET_TRACK = attrgetter("pid", "tid")


_Key = TypeVar("_Key")
Keep: TypeAlias = "Callable[[Events, Sequence[str]], Mask]"  # events and the names so far -> which to keep


class _Interner(dict[_Key, int]):
    """Numbers new keys in the order in which they come."""

    def __missing__(self, key: _Key) -> int:
        self[key] = number = len(self)
        return number


class _Kinds(dict[str, int]):
    """Category text -> kind, remembering the spelling; counts what it does not know."""

    def __missing__(self, category: str) -> int:
        self[category] = kind = CATEGORY_KIND.get(category.lower(), OTHER)
        return kind


COLUMNS = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "name_id": np.int32,
    "kind": np.int8,
    "track_id": np.int32,
    "correlation_id": np.int64,
}
_FIRST_ROWS = 1 << 16


@dataclass(slots=True)
class _Column:
    """A column that grows by doubling: many small arrays would leave as much memory again in holes between them."""

    dtype: type
    values: Any = None
    length: int = 0

    def append(self, piece: Any) -> None:
        """Some rows more."""
        wanted = self.length + len(piece)
        if self.values is None or wanted > len(self.values):
            grown: Any = np.empty(
                max(2 * self.length, wanted, _FIRST_ROWS), self.dtype
            )  # unwritten, it takes no memory
            grown[: self.length] = self.rows
            self.values = grown
        self.values[self.length : wanted] = piece
        self.length = wanted

    @property
    def rows(self) -> Any:
        """All rows so far, not a copy."""
        return np.empty(0, self.dtype) if self.values is None else self.values[: self.length]


# a start or duration that is not there; no capture lasts 292 years
MISSING_NS = int(np.iinfo(np.int64).min)
# unsigned 64-bit nanoseconds that wrapped below zero show as about 1.8e19; no clock reads this much
FAR_NS = 2**61


@dataclass(slots=True)
class Columns:
    """Columns, batch after batch; where `keep` is given, only of the events that it keeps or that have no time."""

    health: HealthLog
    keep: Keep | None = None
    num_outside: int = 0
    names: _Interner[str] = field(default_factory=_Interner)
    threads: _Interner[tuple[object, object]] = field(default_factory=_Interner)
    labels: dict[tuple[object, object], str] = field(default_factory=dict)
    processes: set[str] = field(default_factory=set)
    kinds: _Kinds = field(default_factory=_Kinds)
    unknown: Counter[str] = field(default_factory=Counter)
    ranges: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    columns: dict[str, _Column] = field(
        default_factory=lambda: {name: _Column(dtype=dtype) for name, dtype in COLUMNS.items()}
    )
    inputs: InputColumns = field(default_factory=InputColumns)

    def add(self, batch: Batch) -> None:
        """Append a batch's complete events; set B, E and M events aside."""
        events, count = batch.events, len(batch.events)
        phases = np.fromiter(map(_PHASE_OF.__getitem__, map(_GET_PHASE, events)), np.int8, count)
        start_us = batch.start_us
        if not (phases == _COMPLETE).all():
            self._set_aside(events, phases)
            rows = np.flatnonzero(phases == _COMPLETE)
            events, count = [events[i] for i in rows.tolist()], len(rows)  # type: ignore[assignment]  # one type stays
            start_us = None if start_us is None else start_us[rows]
        kind = np.fromiter(map(self.kinds.__getitem__, map(_GET_CATEGORY, events)), np.int8, count)
        track = np.fromiter(map(self.threads.__getitem__, map(_GET_TRACK, events)), np.int32, count)
        self._count_unknown(events, kind)
        start, duration = self._times(events, start_us)
        piece = Events(
            start_ns=start,
            duration_ns=duration,
            name_id=np.fromiter(map(self.names.__getitem__, map(_GET_NAME, events)), np.int32, count),
            kind=kind,
            track_id=2 * track + (kind <= LAST_DEVICE_KIND) + (kind == DEVICE_SCOPE),
            correlation_id=_correlations(events, kind),
        )
        self.inputs.add(events, piece, self.names)
        piece = piece if self.keep is None else self._kept(piece, self.keep)
        for name, column in self.columns.items():
            column.append(getattr(piece, name))

    def _kept(self, piece: Events, keep: Keep) -> Events:
        kept = keep(piece, list(self.names)) | missing(piece.start_ns) | missing(piece.duration_ns)
        self.num_outside += int((~kept).sum())
        return piece.take(kept)

    def _times(self, events: list[Event] | list[ExactEvent], start_us: Float64 | None) -> tuple[Int64, Int64]:
        if start_us is None:
            start = _exact_ns([bytes(event.ts) for event in events], self.health)  # type: ignore[arg-type]
            duration = _exact_ns([bytes(event.dur) for event in events], self.health)  # type: ignore[arg-type]
            return start, duration
        duration = _rounded_ns(np.fromiter(map(_GET_DURATION, events), np.float64, len(events)))
        return _rounded_ns(start_us), duration

    def _set_aside(self, events: list[Event] | list[ExactEvent], phases: Int8) -> None:
        for i in np.flatnonzero((phases == _BEGIN) | (phases == _END)).tolist():
            event = events[i]
            at = _exact_ns([str(event.ts).encode() if isinstance(event.ts, float) else bytes(event.ts)], self.health)
            if at[0] == MISSING_NS:
                self.health.add("missing_start")
                continue
            kind = self.kinds[event.cat]
            if phases[i] == _BEGIN and kind == OTHER:
                self.unknown[event.cat] += 1
            thread = self.threads[event.pid, event.tid]
            self.ranges.append((int(at[0]), int(phases[i]), kind, self.names[event.name], thread))
        for i in np.flatnonzero(phases == _META).tolist():
            event = events[i]
            if event.args is None or not event.args.name:
                continue
            if event.name == "thread_name":
                self.labels[event.pid, event.tid] = event.args.name
            elif event.name == "process_name":
                self.processes.add(event.args.name)

    def _count_unknown(self, events: list[Event] | list[ExactEvent], kind: Int8) -> None:
        for i in np.flatnonzero(kind == OTHER).tolist():
            self.unknown[events[i].cat] += 1

    def to_events(self) -> Events:
        """All pieces in one, B and E paired; times may still be MISSING_NS."""
        self._pair_ranges()
        for category, count in sorted(self.unknown.items()):
            self.health.add("unknown_category", f"{category or '(none)'}: {count}", count)
        return Events(**{name: column.rows for name, column in self.columns.items()})

    def to_tracks(self) -> list[Track]:
        """Two tracks a thread, host and device; `track_id` is a position in this list."""
        return [
            Track(
                process=_shown(process),
                thread=_shown(thread),
                is_device=is_device,
                device=_shown(process) if is_device else None,
                label=self.labels.get((process, thread)),
            )
            for process, thread in self.threads
            for is_device in (False, True)
        ]

    def _pair_ranges(self) -> None:
        """B with E, innermost first; a B that never ends is closed at the last timestamp."""
        if not self.ranges:
            return
        last_ns = max([at for at, *_ in self.ranges if at < FAR_NS] + self._ends(), default=0)
        names = list(self.names)
        rows: list[tuple[int, int, int, int, int]] = []
        open_ranges: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for at, phase, kind, name, thread in sorted(self.ranges, key=lambda r: (r[0], r[1] == _BEGIN)):
            stack = open_ranges[thread]
            if phase == _BEGIN:
                stack.append((at, kind, name))
            elif stack:
                start, kind_open, name_open = stack.pop()
                rows.append((start, at - start, kind_open, name_open, _track(thread, kind_open)))
            else:
                self.health.add("end_without_begin")
        for thread, stack in open_ranges.items():
            for start, kind, name in stack:
                self.health.add("begin_without_end", str(names[name]))
                rows.append((start, max(last_ns - start, 0), kind, name, _track(thread, kind)))
        if not rows:
            return
        for column, values in zip(
            ("start_ns", "duration_ns", "kind", "name_id", "track_id"), zip(*rows, strict=True), strict=True
        ):
            self.columns[column].append(np.array(values, np.int64))
        self.columns["correlation_id"].append(np.full(len(rows), NO_ID, np.int64))

    def _ends(self) -> list[int]:
        """The last end so far, times that no clock reads left out."""
        start, duration = self.columns["start_ns"].rows, self.columns["duration_ns"].rows
        usable = (np.abs(start) < FAR_NS) & (duration < FAR_NS) & (start != MISSING_NS)
        return [int(np.max((start + np.maximum(duration, 0))[usable]))] if usable.any() else []


def _track(thread: int, kind: int) -> int:
    """Two tracks a thread: the host's, and the device's."""
    return 2 * thread + (kind <= LAST_DEVICE_KIND or kind == DEVICE_SCOPE)


class _PhaseOf(dict[str, int]):
    def __missing__(self, phase: str) -> int:
        return _REST


_PHASE_OF = _PhaseOf(_PHASES)


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _correlations(events: list[Event] | list[ExactEvent], kind: Int8) -> Int64:
    """Correlation ids of device work and runtime calls; NO_ID for the rest."""
    ids = np.full(len(events), NO_ID, np.int64)
    for i in np.flatnonzero(kind <= RUNTIME).tolist():
        args = events[i].args
        if args is not None and args.correlation is not None:
            ids[i] = _id(args.correlation)
    return ids


def _id(value: int | str) -> int:
    try:
        number = int(value)
    except ValueError:
        return NO_ID
    return number if 0 <= number < 2**63 else NO_ID


_FLOAT_LIMIT_US = 2.0**52  # times 1000 still an int64, and out of every range


def _rounded_ns(microseconds: Float64) -> Int64:
    """Float us -> ns, exact below 2^43 us: whole and fraction apart, so that no product rounds."""
    missing = ~np.isfinite(microseconds)
    if missing.any():
        microseconds = np.where(missing, 0.0, microseconds)
    whole = np.floor(np.clip(microseconds, -_FLOAT_LIMIT_US, _FLOAT_LIMIT_US))
    ns = whole.astype(np.int64) * 1000
    ns += np.rint(np.clip(microseconds - whole, 0.0, 1.0) * 1000).astype(np.int64)
    if missing.any():
        ns[missing] = MISSING_NS
    return ns


def _exact_ns(texts: list[bytes], health: HealthLog) -> Int64:
    """Decimal text of us -> ns, exact. Quotes are allowed; empty, null and text that is no number are missing."""
    quoted = sum(text.startswith(b'"') for text in texts)
    health.add("string_times", count=quoted)
    return np.array([exact_ns(text) for text in texts], np.int64)


_OUT_OF_RANGE_NS = 2**62 - 1  # out of every range, and safe to add to


def exact_ns(text: bytes) -> int:
    """One decimal text of us in ns; MISSING_NS if it is no number."""
    text = text.strip(b'"\t ')
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and (not fraction or (fraction.isdigit() and len(fraction) <= 3)) and len(whole) < 16:
        return int(whole) * 1000 + int((fraction + b"000")[:3])
    try:
        number = Decimal(text.decode("ascii", "replace"))
        if number.is_finite() and number.adjusted() > 18:
            return int(math.copysign(_OUT_OF_RANGE_NS, number))
        ns = int((number * 1000).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return MISSING_NS
    return max(min(ns, _OUT_OF_RANGE_NS), -_OUT_OF_RANGE_NS)


def missing(values: Int64) -> Mask:
    """Which times were not there."""
    gone: Mask = values == MISSING_NS
    return gone


def as_tracks(track_id: Int32, tracks: list[Track]) -> tuple[Int32, list[Track]]:
    """Drop tracks that no event is on."""
    used = np.unique(track_id)
    place = np.full(len(tracks), -1, np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    return place[track_id], [tracks[i] for i in used.tolist()]
