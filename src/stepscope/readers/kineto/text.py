"""Blocks of text -> batches of events, and the metadata around them.

A document is `{..., "traceEvents": [EVENT, ...], ...}` or a bare array. The text is cut after the last `},{` of each
block. A wrong cut (inside a name or an argument) cannot decode, because a bracket or quote stays open on one side;
such a stretch goes to `resync`, which also finds where the list ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from stepscope.errors import AmbiguousInput, UnreadableTrace
from stepscope.readers.kineto.event import (
    FLOAT_EXACT_US,
    UNDECODABLE,
    Event,
    ExactEvent,
    decode_events,
    decode_exact_events,
    decode_raw_events,
)
from stepscope.readers.kineto.resync import Salvage, salvage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.store.health import HealthLog

Float64: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some events in file order; `start_us` is their start as floats, None where only text is exact enough.

    `raw` is their text, where it was asked for; None for an event whose text is broken.
    """

    events: list[Event] | list[ExactEvent]
    start_us: Float64 | None = None
    raw: list[msgspec.Raw] | list[msgspec.Raw | None] | None = None


_GET_START = attrgetter("ts")
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY = re.compile(rb"\s*\[")
_MAX_HEADER_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Document:
    """One trace document while it is read. `metadata` is complete once all batches have been taken."""

    path: str
    health: HealthLog
    with_raw: bool = False
    metadata: dict[str, object] = field(default_factory=dict)
    intact: int = 0
    recovered: int = 0
    lost: int = 0

    def batches(self, blocks: Iterator[bytes]) -> Iterator[Batch]:
        """Decode the document; raises UnreadableTrace if there is no list of events in it."""
        rest = self._open(blocks)
        is_array = "traceEvents" not in self.metadata
        for block in blocks:
            cut = _last_boundary(block)
            if cut < 0:
                rest += block
                continue
            # one copy of the stretch, as an array; the comma at the cut is left out
            array = b"".join((b"[", rest, memoryview(block)[: cut - 1], b"]"))
            rest = block[cut:]
            batch = self._decode(array)
            if batch is not None:
                yield batch
                del batch  # or two batches of events would be alive while the next one is decoded
                continue
            head = array[1:-1] + b","
            salvaged = self._salvage(head, final=False)
            yield Batch(events=salvaged.events, raw=salvaged.raw)
            rest = head[salvaged.consumed :] + rest
            if salvaged.closed:
                self._close(rest + b"".join(blocks))
                return
        salvaged = self._salvage(rest, final=True)
        yield Batch(events=salvaged.events, raw=salvaged.raw)
        if salvaged.closed:
            self._close(rest[salvaged.consumed :])
        elif not is_array:
            self.health.add("truncated_file", f"after {self.intact + self.recovered} events")

    def _open(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; what comes after the list's opening bracket is returned."""
        text = b""
        for block in blocks:
            if not text and block.startswith(_BOM):
                self.health.add("byte_order_mark")
                block = block[len(_BOM) :]  # noqa: PLW2901  # the mark is no part of the text
            text += block
            array = _ARRAY.match(text)
            if array:
                self.health.add("array_form")
                return text[array.end() :]
            opening = _OPENING.search(text)
            if opening:
                self._read_header(text[: opening.start()])
                return text[opening.end() :]
            if len(text) > _MAX_HEADER_BYTES:
                break
        what = 'no `"traceEvents": [` and no array of events'
        if not text.strip():
            is_broken = {"gzip_truncated", "gzip_member_lost"} & self.health.counts.keys()
            what = "nothing in it can be inflated" if is_broken else "the file is empty"
        raise UnreadableTrace(
            self.path,
            what,
            "Expected a torch-profiler (Kineto) trace, .json or .json.gz; let the profiler finish writing",
        )

    def _read_header(self, text: bytes) -> None:
        if b'"traceEvents"' in text:
            self.health.add("nested_trace_events")
        self.metadata["traceEvents"] = None
        starts = [m.start() for m in re.finditer(rb"\{", text)][:50]
        for start in starts:
            try:
                header = msgspec.json.decode(text[start:] + b'"traceEvents":null}')
            except UNDECODABLE:
                continue
            self.metadata.update(header)
            return
        self.health.add("broken_header", text[:120].decode("utf-8", "replace"))

    def _decode(self, array: bytes) -> Batch | None:
        """The events of a stretch that is whole; exact times where floats would not do."""
        try:
            if self.with_raw:
                batch = Batch(events=decode_exact_events(array), raw=decode_raw_events(array))
            else:
                batch = _decode_floats(array) or Batch(events=decode_exact_events(array))
        except UNDECODABLE:
            return None
        self.intact += len(batch.events)
        return batch

    def _salvage(self, text: bytes, *, final: bool) -> Salvage:
        if _OPENING.search(text):  # a name cannot hold it: its quotes would be escaped
            self._refuse_more(b"{")
        result = salvage(text, self.health, final=final)
        self.intact += len(result.events) - result.recovered
        self.recovered += result.recovered
        self.lost += result.lost
        return result

    def _close(self, text: bytes) -> None:
        """The metadata after the list; anything behind it is a second document."""
        tail = text.lstrip(b", \t\r\n")
        if "traceEvents" not in self.metadata:
            self._refuse_more(tail)
            return
        end = _object_end(tail)
        body = tail[:end]
        if body.rstrip(b"} \t\r\n"):
            try:
                self.metadata.update(msgspec.json.decode(b"{" + body))
            except UNDECODABLE:
                self.health.add("broken_header", body[:120].decode("utf-8", "replace"))
        self._refuse_more(tail[end:].lstrip(b"} \t\r\n"))

    def _refuse_more(self, text: bytes) -> None:
        if text.lstrip(b"\xef\xbb\xbf \t\r\n\0").startswith((b"{", b"[")):
            raise AmbiguousInput(
                f"{self.path}: the file holds several trace documents, one behind the other",
                ("several ranks wrote one file",),
                "Split it, and give each rank a file of its own (a profiler directory per rank)",
            )


def _decode_floats(array: bytes) -> Batch | None:
    """None if a time is written as text or is too large to be exact as a float."""
    try:
        events = decode_events(array)
    except msgspec.ValidationError:
        return None
    start_us = np.fromiter(map(_GET_START, events), np.float64, len(events))
    if np.nanmax(np.abs(start_us), initial=0.0) >= FLOAT_EXACT_US:
        return None
    return Batch(events=events, start_us=start_us)


def _last_boundary(text: bytes) -> int:
    """Just behind the comma of the last `},{` (white space allowed between); -1 if there is none."""
    brace = len(text)
    while (brace := text.rfind(b"{", 0, brace)) > 0:
        before = text[max(0, brace - 256) : brace].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            return max(0, brace - 256) + len(before)
    return -1


def _object_end(text: bytes) -> int:
    """Behind the brace that closes the object whose inside `text` starts in (strings and nesting minded)."""
    depth, at, in_string = 1, 0, False
    for match in re.finditer(rb'\\.|["{}]', text, re.DOTALL):
        token, at = match[0], match.end()
        if token == b'"':
            in_string = not in_string
        elif not in_string and token == b"{":
            depth += 1
        elif not in_string and token == b"}":
            depth -= 1
            if not depth:
                return at
    return len(text)
