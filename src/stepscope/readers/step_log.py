"""Our step logs (one file, or a folder of streams) -> steps, forwards, expert counts and request events, per stream.

The format and the meaning of every field are in record/step_log.py, which writes it. A stream is one process of the
engine: its scheduler, or one worker. What is missing is counted: broken frames, drops that the log confesses, and gaps
in `seq` that nothing explains.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from stepscope.batch import BatchShape, PhaseSums, Row
from stepscope.errors import BadInput
from stepscope.readers.losses import LossLog, Reading
from stepscope.record.step_log import DECODE_FIELDS, ROW_FIELDS, SUFFIX, Damage, is_step_log, split_frames

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "step log"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRow:
    """One request in one step; fields as in ROW_FIELDS."""

    request_id: str
    query_len: int
    kv_len: int
    phase: Literal["prefill", "decode"]
    prefix_hit_tokens: int | None = None
    chunk_index: int | None = None
    prompt_len: int | None = None
    num_output_tokens: int | None = None
    num_draft_tokens: int | None = None
    num_preemptions: int | None = None
    external_hit_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDecodes:
    """Sums over decode rows that were too many to list."""

    num_requests: int
    query_sum: int | None = None
    kv_sum: int | None = None
    query_sq_sum: int | None = None
    query_kv_sum: int | None = None
    kv_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One schedule() call; fields as in STEP_FIELDS. `rows` lacks the decodes where `decodes` sums them."""

    seq: int
    step_id: int
    time_ns: int
    num_scheduled_tokens: int
    schedule_ns: int | None = None
    num_requests: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    num_waiting_before: int | None = None
    waiting_request_ns: int | None = None
    running_request_ns: int | None = None
    stream_ns: int | None = None
    kv_usage_fraction: float | None = None
    num_free_blocks: int | None = None
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    rows: tuple[LoggedRow, ...] = ()
    decodes: LoggedDecodes | None = None

    @property
    def shape(self) -> BatchShape:
        """What the step computed."""
        rows = tuple(
            Row(
                query_len=row.query_len,
                context_len=row.kv_len - row.query_len,
                phase=row.phase,
                request_id=row.request_id,
                prefix_hit_tokens=row.prefix_hit_tokens,
            )
            for row in self.rows
        )
        if self.decodes is None:
            return BatchShape.from_rows(rows)
        listed = PhaseSums.from_rows(tuple(row for row in rows if row.phase == "prefill"))
        d = self.decodes
        decodes = PhaseSums(
            num_requests=d.num_requests,
            query_sum=d.query_sum,
            kv_sum=d.kv_sum,
            query_sq_sum=d.query_sq_sum,
            query_kv_sum=d.query_kv_sum,
        )
        return BatchShape.from_sums(listed, decodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRecord:
    """One execute_model call of a worker; fields as in FORWARD_FIELDS."""

    seq: int
    step_id: int
    time_ns: int
    is_stamped: bool = False
    host_ns: int | None = None
    num_scheduled_tokens: int | None = None
    num_requests: int | None = None
    is_profiled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRecord:
    """Rows per expert of one step on one rank; fields as in EXPERTS_FIELDS."""

    seq: int
    step_id: int
    num_experts: int
    layers: tuple[int, ...]
    rows_per_expert: bytes
    is_stamped: bool = False
    num_tokens: int | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.num_experts < 1 or len(self.rows_per_expert) != 4 * self.num_experts * len(self.layers):
            raise ValueError(f"{len(self.rows_per_expert)} bytes are no table of {self.num_experts} experts")

    @property
    def counts(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Token copies, [layers, experts]."""
        return np.frombuffer(self.rows_per_expert, "<i4").reshape(-1, self.num_experts).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request was queued, or ended; fields as in REQUEST_FIELDS."""

    seq: int
    event: str
    request_id: str
    time_ns: int
    arrival_ns: int | None = None
    prompt_len: int | None = None
    num_output_tokens: int | None = None
    num_preemptions: int | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One process's records in the order in which they were offered; `header` as written."""

    stream_id: str
    role: str
    header: Mapping[str, Any]
    steps: tuple[StepRecord, ...] = ()
    forwards: tuple[ForwardRecord, ...] = ()
    experts: tuple[ExpertRecord, ...] = ()
    requests: tuple[RequestRecord, ...] = ()
    num_dropped: int = 0
    num_unexplained: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether no record is missing."""
        return not self.num_dropped and not self.num_unexplained

    def number(self, name: str) -> int | None:
        """A number of the header."""
        value = self.header.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLog:
    """All streams of a folder, schedulers first."""

    reading: Reading
    streams: tuple[Stream, ...]

    @property
    def schedulers(self) -> tuple[Stream, ...]:
        """One per engine core."""
        return tuple(stream for stream in self.streams if stream.role == "scheduler")

    @property
    def workers(self) -> tuple[Stream, ...]:
        """One per rank."""
        return tuple(stream for stream in self.streams if stream.role == "worker")


def log_files(path: Path) -> list[Path]:
    """The files of a log: the file itself, or all step logs below a folder."""
    return [path] if path.is_file() else sorted(path.rglob(f"*{SUFFIX}"))


def holds_step_log(path: Path) -> bool:
    """Whether it is a step log or a folder with one, by name."""
    return path.suffix == SUFFIX or (path.is_dir() and any(path.rglob(f"*{SUFFIX}")))


def read_step_log(path: Path) -> StepLog:
    """Read a file or a folder.

    Raises:
        BadInput: there is no step log.
    """
    losses = LossLog()
    try:
        parts: dict[str, _Parts] = {}
        for file in log_files(path):
            _read_file(file, parts, losses)
    except OSError as error:
        raise BadInput(f"{error.filename or path}: cannot be read ({error.strerror}). Check the path.") from error
    if not parts:
        raise BadInput(f"{path}: no step log (*{SUFFIX}) is there. Record with STEPSCOPE_STEP_LOG=DIR.")
    streams = [part.close(losses) for part in parts.values()]
    streams.sort(key=lambda s: (s.role != "scheduler", s.number("dp_rank") or 0, s.number("rank") or 0, s.stream_id))
    return StepLog(reading=Reading(path=str(path), health=losses.rows()), streams=tuple(streams))


_TYPES: dict[str, type] = {
    "step": StepRecord,
    "forward": ForwardRecord,
    "experts": ExpertRecord,
    "request": RequestRecord,
}


@dataclass(slots=True)
class _Parts:
    """A stream while its files are read."""

    header: dict[str, Any]
    records: dict[int, Any] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    first_seq: int = 0
    next_seq: int = 0

    def close(self, losses: LossLog) -> Stream:
        last = max([self.next_seq - 1, *self.seen, *self.dropped])
        held = {seq for seq in self.seen if seq >= self.first_seq}
        dropped = {seq for seq in self.dropped if seq >= self.first_seq} - held
        missing = last + 1 - self.first_seq - len(held) - len(dropped)
        losses.add("step_record_lost", f"gap of {missing} in {self.header['stream_id']}", count=max(missing, 0))
        ordered = [self.records[seq] for seq in sorted(self.records)]
        return Stream(
            stream_id=str(self.header["stream_id"]),
            role=str(self.header.get("role")),
            header=self.header,
            steps=tuple(r for r in ordered if isinstance(r, StepRecord)),
            forwards=tuple(r for r in ordered if isinstance(r, ForwardRecord)),
            experts=tuple(r for r in ordered if isinstance(r, ExpertRecord)),
            requests=tuple(r for r in ordered if isinstance(r, RequestRecord)),
            num_dropped=len(dropped),
            num_unexplained=max(missing, 0),
        )


_MOST_DROPS = 10_000_000  # a forged range must not fill the memory


def _read_file(file: Path, parts: dict[str, _Parts], losses: LossLog) -> None:
    data = file.read_bytes()
    if not is_step_log(data[:64]):
        losses.add("step_record_unknown", f"{file.name} does not begin with a header")
        return
    stream: _Parts | None = None
    place = 0
    for item in split_frames(data):
        if isinstance(item, Damage):
            place = item.offset + item.num_bytes
            losses.add("step_log_unfinished" if place == len(data) else "step_record_lost", file.name)
            continue
        record = _decode(item, losses)
        if record is None:
            continue
        kind = record.get("kind")
        if kind == "header":
            stream = _open_stream(record, parts)
        elif stream is None:
            losses.add("step_record_lost", f"{file.name}: a record before the header")
        else:
            _take(kind, record, stream, losses)


def _decode(item: bytes, losses: LossLog) -> dict[str, Any] | None:
    try:
        record = json.loads(item)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        losses.add("step_record_lost", repr(item[:80]))
        return None
    return record


def _open_stream(header: dict[str, Any], parts: dict[str, _Parts]) -> _Parts:
    key = str(header.get("stream_id"))
    first = header.get("first_seq")
    first = first if isinstance(first, int) and header.get("num_removed_files") else 0
    if key not in parts:
        parts[key] = _Parts(header=header | {"stream_id": key}, first_seq=first)
    stream = parts[key]
    stream.first_seq = min(stream.first_seq, first)
    return stream


def _take(kind: object, record: dict[str, Any], stream: _Parts, losses: LossLog) -> None:
    if kind == "drops":
        _take_drops(record, stream, losses)
    elif kind == "close":
        next_seq = record.get("next_seq")
        stream.next_seq = max(stream.next_seq, next_seq if isinstance(next_seq, int) else 0)
    elif kind in _TYPES:
        try:
            made: Any = msgspec.convert(_named(record), _TYPES[str(kind)], strict=True)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            losses.add("step_record_lost", str(error))
            return
        stream.records[made.seq] = made
        stream.seen.add(made.seq)
    else:
        losses.add("step_record_unknown", str(kind))
        seq = record.get("seq")
        stream.seen |= {seq} if isinstance(seq, int) else set()


def _named(record: dict[str, Any]) -> dict[str, Any]:
    """Rows and sums by name; what a later version appends to them is left out. A null list is an empty one."""
    if "rows" in record:
        record["rows"] = [dict(zip(ROW_FIELDS, row, strict=False)) for row in record["rows"] or []]
    if record.get("decodes") is not None and "decodes" in record:
        record["decodes"] = dict(zip(DECODE_FIELDS, record["decodes"], strict=False))
    return {name: value for name, value in record.items() if value is not None}


def _take_drops(record: dict[str, Any], stream: _Parts, losses: LossLog) -> None:
    first, last = record.get("first_seq"), record.get("last_seq")
    if not isinstance(first, int) or not isinstance(last, int) or not 0 <= last - first < _MOST_DROPS or first < 0:
        losses.add("step_record_lost", f"drops from {first} to {last}")
        return
    losses.add("step_record_dropped", str(record.get("reason")), count=last - first + 1)
    stream.dropped.update(range(first, last + 1))
