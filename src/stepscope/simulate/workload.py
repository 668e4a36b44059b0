"""Workload: the requests of a trace file, as Mooncake, Azure and BurstGPT publish them, or of a CSV of one's own.

Arrivals are seconds after the trace's first. What a trace does not tell is not made up: only Mooncake says which
prompts share a beginning (hash_ids: one per 512 tokens, equal where the prefix up to there is), and one's own CSV can.
Sources: Mooncake FAST25 traces; AzurePublicDataset LLM inference 2023 and 2024; BurstGPT release 1.1 and later.
"""

from __future__ import annotations

import csv
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput
from stepscope.simulate.request import Request, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

MOONCAKE_BLOCK = 512
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_SHOWN = 40  # characters of a bad value
OUTPUTS = 1 << 40  # sources of output texts; those of prompts are smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of arrival, those of one's own CSV in the order of its lines.

    `num_left_out`: lines without a prompt or without an output, which nothing runs.
    """

    requests: tuple[Request, ...]
    num_left_out: int = 0

    def first(self, count: int) -> Workload:
        """Only the first `count` requests."""
        return replace(self, requests=self.requests[:count])

    def sped_up(self, factor: float) -> Workload:
        """Arrivals (and waits between turns) `factor` times as dense.

        Raises:
            BadInput: the factor is not positive.
        """
        if not (isfinite(factor) and factor > 0):
            raise BadInput(f"arrivals {factor} times as dense: give a factor above 0.")
        return replace(self, requests=tuple(replace(r, arrival_s=r.arrival_s / factor) for r in self.requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What a CSV calls arrival, prompt and output, and how it writes a time."""

    arrival: str
    prompt: str
    output: str
    to_seconds: Callable[[str], float]


def _iso_seconds(text: str) -> float:
    """Seconds since 2000, UTC where no zone is told; Azure 2023 writes 7 digits of a second, of which 6 count."""
    moment = datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


AZURE = _Columns(arrival="TIMESTAMP", prompt="ContextTokens", output="GeneratedTokens", to_seconds=_iso_seconds)
BURSTGPT = _Columns(arrival="Timestamp", prompt="Request tokens", output="Response tokens", to_seconds=float)
OWN = _Columns(arrival="arrival_s", prompt="prompt_len", output="output_len", to_seconds=float)


def read_azure(path: Path, *, limit: int | None = None) -> Workload:
    """Azure's 2023 and 2024 traces: lengths and times only."""
    return _read_lengths(path, AZURE, limit)


def read_burstgpt(path: Path, *, limit: int | None = None) -> Workload:
    """BurstGPT: lengths and times only; failed calls, which have no output, are left out and counted."""
    return _read_lengths(path, BURSTGPT, limit)


def read_csv(path: Path, *, limit: int | None = None) -> Workload:
    """One's own requests, a line each.

    Columns arrival_s, prompt_len and output_len must be there. May be there: request_id, max_tokens, after (with it
    arrival_s is the wait after that request's end), prefix and prefix_len: lines of one prefix share their prompts'
    first prefix_len tokens.
    """
    made: list[Request] = []
    sources: dict[str, int] = {}
    for line, row in _rows(path, OWN, limit):
        prompt, output, arrival = _numbers(path, line, row, OWN)
        shared = _whole(path, line, row, "prefix_len") or 0
        prefix = row.get("prefix") or None
        if not 0 <= shared <= max(prompt, 0) or (prefix is None) != (shared == 0):
            raise BadInput(
                f"{path}, line {line}: prefix {prefix!r} with prefix_len {shared}: give both, the length within the "
                f"prompt's {prompt} tokens, or neither."
            )
        text: tuple[Segment, ...] = ()
        if prefix is not None:
            source = sources.setdefault(prefix, len(sources))
            own = Segment(source=OUTPUTS + line, length=prompt - shared + output)
            text = (Segment(source=source, length=shared), own)
        with _told_where(path, line):
            made.append(
                Request(
                    request_id=row.get("request_id") or str(len(made)),
                    arrival_s=arrival,
                    prompt_len=prompt,
                    output_len=output,
                    max_tokens=_whole(path, line, row, "max_tokens"),
                    text=text,
                    after=row.get("after") or None,
                )
            )
    return Workload(requests=tuple(made))


def read_mooncake(path: Path, *, limit: int | None = None) -> Workload:
    """Mooncake's JSON lines, shared prefixes included; an output's text is nobody else's."""
    made: list[Request] = []
    left_out = 0
    for number, line in enumerate(islice(_lines(path), limit), 1):
        try:
            told = json.loads(line)
            prompt, output = int(told["input_length"]), int(told["output_length"])
            arrival_s, ids = float(told["timestamp"]) / 1000, [int(each) for each in told["hash_ids"]]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise BadInput(
                f"{path}, line {number}: {error!r}. A line of a Mooncake trace holds timestamp (ms), input_length, "
                "output_length and hash_ids."
            ) from error
        if prompt < 1 or output < 1:
            left_out += 1
            continue
        with _told_where(path, number):
            made.append(
                Request(
                    request_id=str(number - 1),
                    arrival_s=arrival_s,
                    prompt_len=prompt,
                    output_len=output,
                    text=(*_hashed(prompt, ids), Segment(source=OUTPUTS + number, length=output)),
                )
            )
    return Workload(requests=_from_zero(made), num_left_out=left_out)


def _lines(path: Path) -> Iterator[str]:
    """Lines of text, a byte order mark left out.

    Raises:
        BadInput: it is no text.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is no UTF-8 text ({error.reason}). Save it as UTF-8.") from error


@contextmanager
def _told_where(path: Path, line: int) -> Iterator[None]:
    """What is wrong with a request is said with its line."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{path}, line {line}: {error}") from error


def _hashed(prompt: int, ids: list[int]) -> Iterable[Segment]:
    if len(ids) != -(-prompt // MOONCAKE_BLOCK):
        raise BadInput(
            f"{len(ids)} hash_ids for {prompt:.7g} tokens; Mooncake writes one per {MOONCAKE_BLOCK} tokens, the last "
            "one for what is left."
        )
    if not all(0 <= each < OUTPUTS for each in ids):
        raise BadInput(f"a hash_id below 0 or above {OUTPUTS - 1}: it would be taken for another text.")
    for place, each in enumerate(ids):
        yield Segment(source=each, length=min(MOONCAKE_BLOCK, prompt - place * MOONCAKE_BLOCK))


def _read_lengths(path: Path, columns: _Columns, limit: int | None) -> Workload:
    made: list[Request] = []
    left_out = 0
    for line, row in _rows(path, columns, limit):
        prompt, output, arrival = _numbers(path, line, row, columns)
        if prompt < 1 or output < 1:
            left_out += 1
            continue
        with _told_where(path, line):
            made.append(Request(request_id=str(line - 2), arrival_s=arrival, prompt_len=prompt, output_len=output))
    return Workload(requests=_from_zero(made), num_left_out=left_out)


def _from_zero(requests: list[Request]) -> tuple[Request, ...]:
    begin = min((request.arrival_s for request in requests), default=0.0)
    moved = (replace(request, arrival_s=request.arrival_s - begin) for request in requests)
    return tuple(sorted(moved, key=lambda request: request.arrival_s))


def _rows(path: Path, columns: _Columns, limit: int | None) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(_lines(path))
    try:
        names = list(reader.fieldnames or ())
        missing = [name for name in (columns.arrival, columns.prompt, columns.output) if name not in names]
        if missing:
            raise BadInput(f"{path} has no column {', '.join(missing)}; its columns are {names}.")
        if len(set(names)) < len(names):
            raise BadInput(f"{path} has two columns of one name; its columns are {names}. Leave one out.")
        for row in islice(reader, limit):
            if None in row or None in row.values():
                raise BadInput(f"{path}, line {reader.line_num}: {len(names)} values were expected, one a column.")
            yield reader.line_num, row
    except csv.Error as error:
        raise BadInput(
            f"{path}, after line {reader.line_num}: {error}. A CSV with {len(names)} columns was expected."
        ) from error


def _numbers(path: Path, line: int, row: Mapping[str, Any], columns: _Columns) -> tuple[int, int, float]:
    read: dict[str, Callable[[str], Any]]
    read = {columns.prompt: int, columns.output: int, columns.arrival: columns.to_seconds}
    found: dict[str, Any] = {}
    for name, convert in read.items():
        try:
            found[name] = convert(row[name])
        except (ValueError, OverflowError) as error:
            shown = row[name] if len(row[name]) <= _SHOWN else f"{row[name][:_SHOWN]}..."
            raise BadInput(
                f"{path}, line {line}: {name} is {shown!r}. Lengths are whole tokens, arrivals seconds or, in Azure's "
                "traces, dates."
            ) from error
    return found[columns.prompt], found[columns.output], found[columns.arrival]


def _whole(path: Path, line: int, row: Mapping[str, str | None], name: str) -> int | None:
    text = row.get(name)
    try:
        return int(text) if text else None
    except ValueError as error:
        raise BadInput(f"{path}, line {line}: {name} is {text!r}; give a whole number or leave it empty.") from error
