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

from stepscope.readers.kineto.event import (
    UNDECODABLE,
    Args,
    ExactEvent,
    decode_exact_event,
    decode_exact_events,
    decode_raw_events,
)

if TYPE_CHECKING:
    from stepscope.store.health import HealthLog

_PIECE_BYTES = 128 << 10
_MAX_TRIES = 12  # an event mostly closes at one of the first few closing braces
_BLANK = re.compile(rb"[\s,]*")
_BLANK_ONLY = re.compile(rb"\s*")
_CLOSING = re.compile(rb"\}\s*(?=[,\]{]|\Z)")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}]', re.DOTALL)
_KEY = rb'"(ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:'
_OWN_KEY = re.compile(rb"\{?\s*" + _KEY)
# between two events (the comma may be missing, or the opening brace), or at the end of their list
_NEXT = re.compile(rb"\}\s*(?=,?\s*\{\s*" + _KEY + rb")")
_NEXT_BARE = re.compile(rb"\}\s*(?=,\s*" + _KEY + rb")")
_LIST_END = re.compile(rb'\}\s*(?=\](?:[}\s]*\Z|[}\s]*[\[{]|\s*,\s*"))')
_PHASE = re.compile(rb'"ph"\s*:')
_BEHIND = re.compile(r'[}\s\0]*(?:\Z|\[|\{(?!\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"))')
_read_prefix = json.JSONDecoder(strict=False).raw_decode
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")


@dataclass(slots=True)
class Salvage:
    """What a stretch of text gave: `consumed` bytes of it; `closed` once the list of events has ended.

    `raw` is each event's own text where it is valid.
    """

    events: list[ExactEvent] = field(default_factory=list)
    raw: list[msgspec.Raw | None] = field(default_factory=list)
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
            total.raw.extend(decode_raw_events(_as_array(piece)))
            total.consumed = end
            continue
        part = _scan(piece, health, final=final and end == len(text))
        if not part.consumed and end < len(text):  # the piece ends inside its only event
            part = _scan(text[total.consumed :], health, final=final)
            end = len(text)
        total.events.extend(part.events)
        total.raw.extend(part.raw)
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
        return decode_exact_events(_as_array(piece))
    except UNDECODABLE:
        return None


def _as_array(piece: bytes) -> bytes:
    return b"[" + piece.strip().rstrip(b",") + b"]"


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
        end = _intact_end(text, start)
        if end is None or not _take_intact(text, start, end, out, health):
            end = end or _broken_end(text, start, final=final)
            if end is None:
                out.consumed = start
                return out
            _take_broken(text[start:end], out, health, is_cut=final and end == len(text))
        at = end


def _intact_end(text: bytes, start: int) -> int | None:
    """Where the valid JSON object at `start` ends; None if there is none."""
    for tries, match in enumerate(_CLOSING.finditer(text, start)):
        if tries >= _MAX_TRIES:
            return _matching_brace(text, start)
        end = match.start() + 1
        try:
            _check_json(text[start:end])
        except (msgspec.DecodeError, RecursionError) as error:
            if "truncated" in str(error):
                continue
            return None
        return end
    return None


def _matching_brace(text: bytes, start: int) -> int | None:
    """Where an object with many braces inside it ends, if it is valid."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {b"{": 1, b"}": -1}.get(token[0], 0)
        if not depth:
            try:
                _check_json(text[start : token.end()])
            except (msgspec.DecodeError, RecursionError):
                return None
            return token.end()
    return None


def _take_intact(text: bytes, start: int, end: int, out: Salvage, health: HealthLog) -> bool:
    """Keep a valid object, if it is an event too. One that no comma separates from the next is counted as repaired."""
    try:
        out.events.append(decode_exact_event(text[start:end]))
    except UNDECODABLE:
        return False
    out.raw.append(msgspec.Raw(text[start:end]))
    following = _BLANK_ONLY.match(text, end)
    if following and text[following.end() : following.end() + 1] == b"{":
        out.recovered += 1
        health.add("invalid_json", "no comma between two events")
    return True


def _broken_end(text: bytes, start: int, *, final: bool) -> int | None:
    """Where a broken event ends: before the next one, or before the end of the list. None if that is still to come.

    A broken name may itself hold JSON that looks like either. But every event has a `"ph"`, on one side of its name;
    so a place inside a name lacks it on the left, or on the right.
    """
    if final and _is_cut(text[start:]):
        return len(text)
    phase = _PHASE.search(text, start)
    if phase:
        end = _next_bare(text, start, phase.end())
        for find in (_next_event, _list_end):  # each closer than the one before, if at all
            end = find(text, start, phase.end(), len(text) if end is None else end) or end
        if end is not None:
            return end
    elif text[start : start + 1] == b'"':
        closing = _CLOSING.search(text, start)
        if closing:
            return closing.start() + 1
    return len(text) if final else None


def _is_cut(text: bytes) -> bool:
    """Whether nothing is wrong with an event but that the text ends in the middle of it."""
    try:
        _check_json(text)
    except (msgspec.DecodeError, RecursionError) as error:
        # of half a surrogate pair it says the same
        return "truncated" in str(error) and not _HALF_PAIR.search(text)
    return False


def _next_event(text: bytes, start: int, after: int, before: int) -> int | None:
    """The end before an opening brace with the same first key as this event's, or with a phase of its own behind it."""
    own = _OWN_KEY.match(text, start)
    place = _NEXT.search(text, after, before)
    while place:
        following = _NEXT.search(text, place.end(), before)
        is_alike = own is not None and own[1] == place[1]
        if is_alike or _PHASE.search(text, place.end(), following.start() if following else before):
            return place.start() + 1
        place = following
    return None


def _next_bare(text: bytes, start: int, after: int) -> int | None:
    """The end before an event whose opening brace is missing: its first key is the same as this one's."""
    own = _OWN_KEY.match(text, start)
    return next((m.start() + 1 for m in _NEXT_BARE.finditer(text, after) if own and own[1] == m[1]), None)


def _list_end(text: bytes, _start: int, after: int, before: int) -> int | None:
    """The end before a bracket that only the document's own metadata follow."""
    for place in _LIST_END.finditer(text, after, before):
        behind = text[place.end() + 1 :].decode("utf-8", "replace").lstrip()
        if behind.startswith(","):
            try:
                _, end = _read_prefix('{"":0' + behind)
            except (ValueError, RecursionError):
                continue
            behind = behind[end - len('{"":0') :]
        if _BEHIND.match(behind):
            return place.start() + 1
    return None


def _take_broken(text: bytes, out: Salvage, health: HealthLog, *, is_cut: bool) -> None:
    event = None if is_cut else repair(text, health) or scan_fields(text, health)
    if event is None:
        out.lost += 1
        health.add("event_lost", text[:120].decode("utf-8", "replace"))
        return
    out.recovered += 1
    out.events.append(event)
    out.raw.append(None)


# a whole string matches first, so that only what stands outside of strings is changed
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"|'
_NON_FINITE = re.compile(_STRING + r"(?<=[:\[,\s])-?(?:nan|inf)(?=\s*[,}\]])", re.DOTALL)
_TRAILING_COMMA = re.compile(_STRING + r",(?=\s*[}\]])", re.DOTALL)
_DECIMAL_COMMA = re.compile(_STRING + r"(:\s*-?\d+),(?=\d+\s*[,}])", re.DOTALL)
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_SURROGATE = re.compile("[\ud800-\udfff]")


def repair(text: bytes, health: HealthLog) -> ExactEvent | None:
    """An event from text that is nearly JSON; None if it is not near enough."""
    as_read = text.decode("utf-8", "replace")
    if not as_read.lstrip().startswith("{"):
        as_read = "{" + as_read
    escaped = _ESCAPE.sub(lambda match: match[0] if match[1] else "\\\\", _change(_TRAILING_COMMA, "", as_read))
    finite = _change(_NON_FINITE, "NaN", escaped)
    for candidate in (as_read, escaped, finite, _change(_DECIMAL_COMMA, r"\1.", finite)):
        non_finite: list[str] = []
        try:
            # a constant is NaN or Infinity: noted, and read as null
            value = json.loads(candidate, strict=False, parse_float=str, parse_constant=non_finite.append)
        except (ValueError, RecursionError):
            continue
        event = _from_dict(value)
        if event is not None:
            is_utf8 = "\ufffd" not in as_read or _is_utf8(text)
            code = "non_finite_number" if non_finite else "invalid_json" if is_utf8 else "invalid_utf8"
            health.add(code, candidate[:120])
        return event
    return None


def _change(pattern: re.Pattern[str], new: str, text: str) -> str:
    return pattern.sub(lambda match: match[0] if match[0].startswith('"') else match.expand(new), text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


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
    return "" if value is None else _SURROGATE.sub("\ufffd", str(value))


def _key(value: object) -> int | str | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None if value is None else _text(value)


def _id(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(b"" if value is None else str(value).encode())


# a number, whole: not the part of one before a decimal comma
_NUMBER = rb'\s*:\s*"?(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?="?\s*(?:\}|,(?!\d)))'
_FIELDS = {key: re.compile(b'"' + key.encode() + b'"' + _NUMBER) for key in ("ts", "dur", "pid", "tid", "correlation")}
_SHORT = {key: re.compile(b'"' + key.encode() + rb'"\s*:\s*"([^"\\]*)"') for key in ("ph", "cat")}
_NAME = re.compile(rb'"name"\s*:\s*"(.*?)"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:|\}\s*\Z)', re.DOTALL)


def scan_fields(text: bytes, health: HealthLog) -> ExactEvent | None:
    """An event's fields wherever they stand in broken text; None without a time."""
    numbers = {key: found for key, pattern in _FIELDS.items() if (found := _last(pattern, text))}
    short = {
        key: found.decode("utf-8", "replace") for key, pattern in _SHORT.items() if (found := _last(pattern, text))
    }
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


def _last(pattern: re.Pattern[bytes], text: bytes) -> bytes | None:
    """The last value: a broken name may hold text that looks like a field, and names stand before times."""
    found = [match[1] for match in pattern.finditer(text)]
    return found[-1] if found else None
