"""One Kineto event, decoded: only the fields that the store keeps.

Two shapes of the same event: `Event` takes times as JSON numbers, which is fast and exact up to 2^43 us (times since
boot of up to 100 days, with three decimals); `ExactEvent` keeps the times' text, for larger ones and for strings.
"""

from __future__ import annotations

import math

import msgspec

# above this a float64 of microseconds is coarser than 1 ns
FLOAT_EXACT_US = float(2**43)


class Args(msgspec.Struct, gc=False):
    """The few arguments that are read."""

    correlation: int | str | None = None
    name: str | None = None
    input_dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")


class Event(msgspec.Struct, gc=False):
    """An event with float times; NaN where there is none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """An event whose times are still text; empty where there is none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: Args | None = None
    id: int | str | None = None


# what decoding raises for text that is no event: not JSON, of other types, not UTF-8, nested without end
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

decode_events = msgspec.json.Decoder(list[Event]).decode
decode_exact_events = msgspec.json.Decoder(list[ExactEvent]).decode
decode_raw_events = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_exact_event = msgspec.json.Decoder(ExactEvent).decode
