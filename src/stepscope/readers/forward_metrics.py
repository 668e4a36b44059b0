"""Forward-pass metrics that SGLang, vLLM and Dynamo publish -> one record per engine iteration.

A subscriber saves the payloads of the ZMQ messages: appended to one file as msgpack, or as JSON lines. Schema 1:
`wall_time` is the iteration's duration in s (0: an idle heartbeat), `counter_id` counts messages (a gap is a loss), no
message has a time of day. Prefill `kv` tokens are those read (hits, earlier chunks); queued counts are of that moment.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput
from stepscope.readers.losses import LossLog, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "forward metrics"
_VERSION = 1
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardMetrics:
    """One iteration. `wall_ns` 0 is a heartbeat of an idle engine."""

    worker: str
    dp_rank: int
    counter: int | None
    wall_ns: int
    num_prefill_requests: int
    num_prefill_tokens: int
    prefill_context_sum: int
    num_decode_requests: int
    num_queued_prefill: int
    num_queued_decode: int
    queued_prefill_tokens: int

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return self.num_queued_prefill + self.num_queued_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardLog:
    """All iterations of a file, in its order."""

    reading: Reading
    iterations: tuple[ForwardMetrics, ...]


def read_forward_metrics(path: Path) -> ForwardLog:
    """Read one file.

    Raises:
        BadInput: it cannot be read, or holds no such message.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    losses = LossLog()
    messages = _json_lines(data, losses) if data.lstrip()[:1] in (b"{", b"[") else _msgpack_stream(data, losses)
    found = [made for message in messages if (made := _from_message(message, losses)) is not None]
    if not found:
        raise BadInput(
            f"{path}: no forward-pass metrics are in it. Save the message payloads, appended, or as JSON lines."
        )
    _count_gaps(found, losses)
    return ForwardLog(reading=Reading(path=str(path), health=losses.rows()), iterations=tuple(found))


def _count_gaps(found: list[ForwardMetrics], losses: LossLog) -> None:
    last: dict[tuple[str, int], int] = {}
    for one in found:
        key = (one.worker, one.dp_rank)
        if one.counter is not None:
            if key in last and one.counter > last[key] + 1:
                losses.add("forward_message_lost", f"before {one.counter}", count=one.counter - last[key] - 1)
            last[key] = one.counter


def _from_message(message: object, losses: LossLog) -> ForwardMetrics | None:
    parts = message if isinstance(message, dict) else {}
    scheduled, queued = (parts.get(f"{name}_requests") or parts.get(name) for name in ("scheduled", "queued"))
    if not isinstance(scheduled, dict) or not isinstance(queued, dict) or parts.get("version", _VERSION) != _VERSION:
        losses.add("forward_message_unparsed", repr(message)[:80])
        return None
    wall = parts.get("wall_time")
    counter = parts.get("counter_id")
    if isinstance(wall, bool) or not isinstance(wall, int | float) or not 0 <= wall < 1e6:
        losses.add("forward_message_unparsed", f"wall_time {wall!r}")
        return None
    return ForwardMetrics(
        worker=str(parts.get("worker_id", "")),
        dp_rank=_count(parts, "dp_rank"),
        counter=counter if isinstance(counter, int) and not isinstance(counter, bool) else None,
        wall_ns=round(wall * 1e9),
        num_prefill_requests=_count(scheduled, "num_prefill_requests"),
        num_prefill_tokens=_count(scheduled, "sum_prefill_tokens"),
        prefill_context_sum=_count(scheduled, "sum_prefill_kv_tokens"),
        num_decode_requests=_count(scheduled, "num_decode_requests"),
        num_queued_prefill=_count(queued, "num_prefill_requests"),
        num_queued_decode=_count(queued, "num_decode_requests"),
        queued_prefill_tokens=_count(queued, "sum_prefill_tokens"),
    )


def _count(part: dict[Any, Any], name: str) -> int:
    """A count; a field at its default (0) may be left out of a message."""
    value = part.get(name, 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _json_lines(data: bytes, losses: LossLog) -> Iterator[object]:
    for line in data.decode("utf-8", "replace").splitlines():
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                losses.add("forward_message_unparsed", line)


def _msgpack_stream(data: bytes, losses: LossLog) -> Iterator[object]:
    """Message after message; where one is damaged, nothing tells where the next begins, so the rest is given up."""
    reader = _Msgpack(data)
    while reader.place < len(data):
        start = reader.place
        try:
            yield reader.value(0)
        except (ValueError, struct.error, IndexError):
            losses.add("forward_message_unparsed", f"{len(data) - start} bytes from byte {start} on")
            return


class _Msgpack:
    """The parts of msgpack that the messages use: nil, booleans, numbers, text, bytes, lists, maps with text keys."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, length: int) -> bytes:
        end = self.place + length
        if end > len(self.data):
            raise ValueError("cut off")
        part = self.data[self.place : end]
        self.place = end
        return part

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("too deep")
        code = self.take(1)[0]
        if code <= 0x7F or code >= 0xE0:
            return code if code <= 0x7F else code - 0x100
        if code <= 0x8F:
            return self.map(code & 0x0F, depth)
        if code <= 0x9F:
            return [self.value(depth + 1) for _ in range(code & 0x0F)]
        if code <= 0xBF:
            return self.take(code & 0x1F).decode("utf-8", "replace")
        return self.coded(code, depth)

    def map(self, count: int, depth: int) -> dict[str, Any]:
        return {str(self.value(depth + 1)): self.value(depth + 1) for _ in range(count)}

    def coded(self, code: int, depth: int) -> Any:
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            form = _NUMBERS[code]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if code not in _SIZED:
            raise ValueError(f"code {code:#x}")
        kind, form = _SIZED[code]
        length = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if length > len(self.data):
            raise ValueError("longer than the file")
        if kind == "map":
            return self.map(length, depth)
        if kind == "list":
            return [self.value(depth + 1) for _ in range(length)]
        part = self.take(length)
        return part.decode("utf-8", "replace") if kind == "text" else part


_CONSTANTS: dict[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_SIZED = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"), 0xD9: ("text", ">B"), 0xDA: ("text", ">H"),
    0xDB: ("text", ">I"), 0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
