"""A server's log -> its figure lines as records: what was printed, when, by which engine, step and rank.

A line is a head (which kind) and a list of `key: value`, `key=value` or `value words`; only the head is matched, so a
new key or another order never loses a line. Forms: vLLM interval, iteration, speculation, MFU, KV transfer and EPLB
lines; SGLang prefill and decode batches, expert balance and request stages; the arguments that both print at start.
Times are as printed, read as UTC; vLLM prints no year (`has_year` False: 2000 stands for it).
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stepscope.errors import BadInput
from stepscope.readers.losses import LossLog, Reading
from stepscope.readers.server_log.fields import read_arguments, read_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAME = "server log"
Value: TypeAlias = "float | int | bool | str | tuple[float, ...] | None"
_YEAR = 2000  # a leap year, so that every printed day exists
_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_VLLM = re.compile(
    r"(?:\((?P<process>[^()]*?)(?: pid=(?P<pid>\d+))?\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) \[?[\w./]+:\d+\] (?P<body>.*)$"
)
_SGLANG = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<ranks>(?: [A-Z_]+\d+)*)\] (?P<body>.*)$"
)
_RANK = re.compile(r"([A-Z_]+?)(\d+)")
_ENGINE = r"(?:Engine (?P<engine>\d+)|(?P<engines>\d+) Engines Aggregated): "

# kind and head; what follows the head is the list
_HEADS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("vllm_iteration", re.compile(_ENGINE + r"Iteration\((?P<step>\d+)\): ")),
    ("vllm_interval", re.compile(rf"(?:{_ENGINE})?(?=Avg prompt throughput: )")),
    ("vllm_spec_decode", re.compile(rf"(?:{_ENGINE})?(?:SpecDecoding|Speculative) metrics: ")),
    ("vllm_mfu", re.compile(rf"(?:{_ENGINE})?(?=MFU: )")),
    ("vllm_kv_transfer", re.compile(rf"(?:{_ENGINE})?KV Transfer metrics: ")),
    ("vllm_experts", re.compile(r"EPLB step: (?P<step>\d+) for model (?P<model>.*?): ")),
    ("sglang_prefill", re.compile(r"Prefill batch(?: \[(?P<step>\d+)\])?[.,] ")),
    ("sglang_decode", re.compile(r"Decode batch(?: \[(?P<step>\d+)\])?[.,] ")),
    ("sglang_experts", re.compile(r"\[Expert Balancedness\] ")),
    ("sglang_request", re.compile(r"Req ?Time ?Stats\((?P<inside>[^)]*)\): ")),
    ("lmcache_lookup", re.compile(r"(?:LMCache INFO: )?Reqid: (?P<request>[^,]+), (?=Total tokens \d)")),
    (
        "arguments",
        re.compile(
            r"non-default args: (?=\{)|server_args=(?=ServerArgs\()|"
            r"Chunked prefill is enabled with "
        ),
    ),
    ("kv_size", re.compile(r"\w+ KV cache size: (?=[\d,]+ tokens)")),
    ("vllm_other", re.compile(_ENGINE)),
)

# a line without any of these has no head: most lines of a log are told by this alone
_HINTS = (
    "Engine ",
    "Engines Aggregated",
    "throughput: ",
    "metrics: ",
    "MFU: ",
    "EPLB step: ",
    "fill batch",
    "code batch",
    "Balancedness]",
    "Stats(",
    "Reqid: ",
    "default args: ",
    "server_args=",
    "max_num_batched_tokens",
    "KV cache size: ",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One figure line. `step`: the engine's own count of steps or forwards, where it is printed."""

    kind: str
    line_number: int
    time_ns: int | None
    has_year: bool
    resolution_ns: int
    process: str | None = None
    engine: int | None = None
    num_engines: int = 1
    step: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """A value that is a number; None where it was not printed."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """The figure lines of one log in its order; `arguments` as the engine printed them; other lines are counted."""

    reading: Reading
    records: tuple[LogRecord, ...]
    arguments: Mapping[str, str]
    num_kv_tokens: int | None
    num_lines: int
    num_other_lines: int

    def of_kind(self, *kinds: str) -> tuple[LogRecord, ...]:
        """Records of some kinds."""
        return tuple(record for record in self.records if record.kind in kinds)


def read_server_log(path: Path) -> ServerLog:
    """Read one log file, plain or gzip.

    Raises:
        BadInput: it cannot be opened, or is no text.
    """
    losses = LossLog()
    try:
        return parse_server_log(_lines(path, losses), str(path), losses)
    except (OSError, EOFError) as error:
        raise BadInput(f"{path}: the log cannot be read ({error}). Check the path.") from error


def _lines(path: Path, losses: LossLog) -> Iterator[str]:
    with path.open("rb") as plain:
        is_gzip = plain.read(2) == _GZIP
    with gzip.open(path) if is_gzip else path.open("rb") as source:
        for raw in source:
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError:
                losses.add("text_not_utf8", repr(raw[:80]))
                yield raw.decode("utf-8", "replace")


def parse_server_log(lines: Iterable[str], path: str = "", losses: LossLog | None = None) -> ServerLog:
    """The same, of lines that are already text."""
    losses = LossLog() if losses is None else losses
    records: list[LogRecord] = []
    arguments: dict[str, str] = {}
    clock = _Clock()
    num_kv_tokens, num_lines, num_other = None, 0, 0
    for num_lines, raw in enumerate(lines, start=1):
        line = _COLOUR.sub("", raw).rstrip("\r\n")
        found = _find_head(line)
        if found is None:
            num_other += 1
            continue
        if found.kind == "arguments":
            arguments |= read_arguments(found.rest)
        elif found.kind == "kv_size":
            num_kv_tokens = int(found.rest.split()[0].replace(",", ""))
        else:
            records.append(_record(found, num_lines, clock, losses))
    return ServerLog(
        reading=Reading(path=path, health=losses.rows()),
        records=tuple(records),
        arguments=arguments,
        num_kv_tokens=num_kv_tokens,
        num_lines=num_lines,
        num_other_lines=num_other,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    kind: str
    prefix: re.Match[str] | None
    match: re.Match[str]
    rest: str


def _find_head(line: str) -> _Head | None:
    if not any(hint in line for hint in _HINTS):
        return None
    prefix = _SGLANG.search(line) or _VLLM.search(line)
    body = prefix["body"] if prefix else line
    for kind, pattern in _HEADS:
        match = pattern.match(body) if prefix else pattern.search(body)
        if match:
            return _Head(kind=kind, prefix=prefix, match=match, rest=body[match.end() :])
    return None


@dataclass(slots=True)
class _Clock:
    """Log times as ns; a month that falls back is a new year."""

    year: int = _YEAR
    month: int = 0

    def read(self, text: str) -> int | None:
        stamp = text.replace(",", ".")
        has_year = len(stamp.partition(" ")[0]) > len("12-31")
        try:
            if has_year:
                return _to_ns(datetime.fromisoformat(stamp))
            month = int(stamp[:2])
            if month < self.month and self.month == 12:
                self.year += 1
            self.month = month
            return _to_ns(datetime.fromisoformat(f"{self.year}-{stamp}"))
        except ValueError:
            return None


def _to_ns(moment: datetime) -> int:
    utc = moment.replace(tzinfo=UTC)
    return int(utc.replace(microsecond=0).timestamp()) * 1_000_000_000 + utc.microsecond * 1_000


def _record(head: _Head, line_number: int, clock: _Clock, losses: LossLog) -> LogRecord:
    named = head.match.groupdict()
    stamp = head.prefix["time"] if head.prefix else None
    time_ns = clock.read(stamp) if stamp else None
    if time_ns is None:
        losses.add("log_time_missing", f"line {line_number}")
    rest = head.rest if named.get("inside") is None else f"{named['inside']}, {head.rest}"
    values, unknown = read_fields(rest, words=head.kind == "sglang_experts")
    if not values:
        losses.add("log_line_unparsed", f"line {line_number}: {head.rest}")
    losses.add("log_key_unknown", ", ".join(unknown), count=len(unknown))
    if named.get("request"):
        values["request_id"] = named["request"]
    step = named.get("step") or values.get("forward_id")
    prefix = head.prefix.groupdict() if head.prefix else {}
    return LogRecord(
        kind=head.kind,
        line_number=line_number,
        time_ns=time_ns,
        has_year=bool(stamp and len(stamp.partition(" ")[0]) > len("12-31")),
        resolution_ns=1_000_000 if stamp and ("." in stamp or "," in stamp) else 1_000_000_000,
        process=prefix.get("process"),
        engine=_int(named.get("engine")),
        num_engines=_int(named.get("engines")) or 1,
        step=_int(step),
        ranks={name: int(number) for name, number in _RANK.findall(prefix.get("ranks") or "")},
        values=values,
        unknown=unknown,
    )


def _int(value: object) -> int | None:
    return int(value) if isinstance(value, str | int | float) and str(value).isdigit() else None
