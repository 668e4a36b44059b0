"""Broken JSON text of events -> every event that can be had, one by one.

vLLM itself writes invalid JSON when a range name holds a quote, and writers get killed. Each event is tried in three
ways: as it is; repaired (encoding, NaN, commas, backslashes, a missing brace); by scanning for its fields. What is
left is counted as lost. No defect of one event reaches the next one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from stepscope.readers.kineto.event import Args, ExactEvent, decode_exact_event, decode_exact_events

if TYPE_CHECKING:
    from stepscope.store.health import HealthLog

_PIECE_BYTES = 128 << 10
_MAX_TRIES = 12  # an event closes at one of the first few closing braces
_BLANK = re.compile(rb"[\s,]*")
_CLOSING = re.compile(rb"\}\s*(?=[,\]]|\Z)")
_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:'
_BETWEEN = re.compile(rb"\}\s*(?=,\s*\{\s*" + _KEYS + rb')|\}\s*(?=\]\s*(?:\}|\Z|,\s*"))')
BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")


@dataclass(slots=True)
class Salvage:
    """What a stretch of text gave: `consumed` bytes of it; `closed` once the list of events has ended."""

    events: list[ExactEvent] = field(default_factory=list)
    recovered: int = 0
    lost: int = 0
    consumed: int = 0
    closed: bool = False


def salvage(text: bytes, health: HealthLog, *, final: bool) -> Salvage:
    """Read a stretch that does not decode as a whole: piece by piece, and in a bad piece event by event.

    Unless `final`, an event that the stretch cuts off at its end is left unconsumed.
    """
    total = Salvage()
    while total.consumed < len(text) and not total.closed:
        end = _piece_end(text, total.consumed)
        piece = text[total.consumed : end]
        whole = _decode_piece(piece)
        if whole is not None:
            total.events.extend(whole)
            total.consumed = end
            continue
        part = _scan(piece, health, final=final and end == len(text))
        if not part.consumed and end < len(text):  # the piece ends inside its only event
            part = _scan(text[total.consumed :], health, final=final)
            end = len(text)
        total.events.extend(part.events)
        total.recovered += part.recovered
        total.lost += part.lost
        total.consumed += part.consumed
        total.closed = part.closed
        if not part.consumed and end == len(text):
            break
    return total


def _piece_end(text: bytes, start: int) -> int:
    if len(text) - start <= _PIECE_BYTES:
        return len(text)
    match = BOUNDARY.search(text, start + _PIECE_BYTES)
    return match.end() if match else len(text)


def _decode_piece(piece: bytes) -> list[ExactEvent] | None:
    try:
        return decode_exact_events(b"[" + piece.strip().rstrip(b",") + b"]")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _scan(text: bytes, health: HealthLog, *, final: bool) -> Salvage:
    out = Salvage()
    at = 0
    while True:
        behind = at
        start = at = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string too
        if at >= len(text):
            out.consumed = at
            return out
        if text[at : at + 1] == b"]":
            health.add("stray_comma", count=int(b"," in text[behind:at]))
            out.consumed, out.closed = at + 1, True
            return out
        end = _take_intact(text, start, out.events)
        if end is None:
            end = _broken_end(text, start, final=final)
            if end is None:
                out.consumed = start
                return out
            _take_broken(text[start:end], out, health, is_cut=final and end == len(text))
        at = end


def _take_intact(text: bytes, start: int, events: list[ExactEvent]) -> int | None:
    """Where the event at `start` ends, if it decodes as it is."""
    for tries, match in enumerate(_CLOSING.finditer(text, start)):
        if tries >= _MAX_TRIES:
            return None
        end = match.start() + 1
        try:
            events.append(decode_exact_event(text[start:end]))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        return end
    return None


def _broken_end(text: bytes, start: int, *, final: bool) -> int | None:
    """Where a broken event ends: before something that looks like the next one, or like the end of the list."""
    match = _BETWEEN.search(text, start)
    if match is None and text[start : start + 1] == b'"':
        match = _CLOSING.search(text, start)
    if match is None:
        return len(text) if final else None
    # an event with its opening brace missing stands right after the one before it
    glued = re.compile(rb"\}\s*(?=,\s*" + _KEYS + rb")").search(text, start, match.start())
    return (glued or match).start() + 1


def _take_broken(text: bytes, out: Salvage, health: HealthLog, *, is_cut: bool) -> None:
    event = None if is_cut else repair(text, health) or scan_fields(text, health)
    if event is None:
        out.lost += 1
        health.add("event_lost", text[:120].decode("utf-8", "replace"))
        return
    out.recovered += 1
    out.events.append(event)


_NON_FINITE = re.compile(r'(?<=[:\[,\s])-?(?:NaN|Infinity|nan|inf)(?=\s*[,}\]])')
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_DECIMAL_COMMA = re.compile(r"(:\s*-?\d+),(\d+)(?=\s*[,}])")
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


def repair(text: bytes, health: HealthLog) -> ExactEvent | None:
    """An event from text that is nearly JSON; None if it is not near enough."""
    try:
        fixed, code = text.decode("utf-8"), "invalid_json"
    except UnicodeDecodeError:
        fixed, code = text.decode("utf-8", "replace"), "invalid_utf8"
    if not fixed.lstrip().startswith("{"):
        fixed = "{" + fixed
    finite = _NON_FINITE.sub("null", fixed)
    if finite != fixed:
        fixed, code = finite, "non_finite_number"
    fixed = _BAD_ESCAPE.sub(r"\\\\", _TRAILING_COMMA.sub("", fixed))
    for candidate in (fixed, _DECIMAL_COMMA.sub(r"\1.\2", fixed)):
        try:
            value = json.loads(candidate, strict=False, parse_float=str)
        except ValueError:
            continue
        event = _from_dict(value)
        if event is not None:
            health.add(code, candidate[:120])
        return event
    return None


def _from_dict(value: object) -> ExactEvent | None:
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    args = args if isinstance(args, dict) else {}
    return ExactEvent(
        ph=_text(value.get("ph")),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_key(value.get("pid")),
        tid=_key(value.get("tid")),
        ts=_raw(value.get("ts")),
        dur=_raw(value.get("dur")),
        args=Args(correlation=_id(args.get("correlation"))),
    )


def _text(value: object) -> str:
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def _key(value: object) -> int | str | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None if value is None else _text(value)


def _id(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(b"" if value is None else str(value).encode())


_NUMBER = rb'\s*:\s*"?(-?\d+(?:\.\d+)?)'
_FIELDS = {key: re.compile(b'"' + key.encode() + b'"' + _NUMBER) for key in ("ts", "dur", "pid", "tid", "correlation")}
_SHORT = {key: re.compile(b'"' + key.encode() + rb'"\s*:\s*"([^"\\]*)"') for key in ("ph", "cat")}
_NAME = re.compile(rb'"name"\s*:\s*"(.*?)"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s)"\s*:|\}\s*\Z)', re.DOTALL)


def scan_fields(text: bytes, health: HealthLog) -> ExactEvent | None:
    """An event's fields wherever they stand in broken text; None without a time."""
    numbers = {key: match[1] for key, pattern in _FIELDS.items() if (match := _last(pattern, text))}
    short = {key: match[1].decode() for key, pattern in _SHORT.items() if (match := _last(pattern, text))}
    if "ts" not in numbers or ("dur" not in numbers and short.get("ph", "X") == "X"):
        return None
    name = _NAME.search(text)
    health.add("invalid_json", text[:120].decode("utf-8", "replace"))
    return ExactEvent(
        ph=short.get("ph", "X"),
        cat=short.get("cat", ""),
        name=name[1].decode("utf-8", "replace") if name else "",
        pid=_id(numbers.get("pid", b"").decode()),
        tid=_id(numbers.get("tid", b"").decode()),
        ts=msgspec.Raw(numbers["ts"]),
        dur=msgspec.Raw(numbers.get("dur", b"")),
        args=Args(correlation=_id(numbers.get("correlation", b"").decode())),
    )


def _last(pattern: re.Pattern[bytes], text: bytes) -> re.Match[bytes] | None:
    """The last match: a broken name may hold text that looks like a field, and names stand before times."""
    found = None
    for found in pattern.finditer(text):
        pass
    return found
