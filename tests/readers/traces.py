"""Hand-made traces for the readers' tests: events as values -> text in several layouts -> a store."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hypothesis import strategies as st

from stepscope.readers.kineto import reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.events import EventStore

Layout = Literal["compact", "pretty", "stdlib", "sorted"]
LAYOUTS: tuple[Layout, ...] = ("compact", "pretty", "stdlib", "sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A complete event as it is to be written; `raw_name` replaces the escaped name by these very bytes."""

    name: str
    start_ns: int
    duration_ns: int
    cat: str = "cpu_op"
    pid: int | str = 1
    tid: int | str = 1
    args: dict[str, object] = field(default_factory=dict)
    quoted_times: bool = False
    raw_name: bytes | None = None

    def fields(self) -> dict[str, bytes]:
        return {
            "ph": b'"X"',
            "cat": _json(self.cat),
            "name": _json(self.name) if self.raw_name is None else b'"' + self.raw_name + b'"',
            "pid": _json(self.pid),
            "tid": _json(self.tid),
            "ts": microseconds(self.start_ns, quoted=self.quoted_times),
            "dur": microseconds(self.duration_ns, quoted=self.quoted_times),
            "args": _json(self.args),
        }

    def text(self, layout: Layout) -> bytes:
        fields = self.fields()
        if layout == "pretty":  # Kineto's own: three lines, and one for each argument
            head = b", ".join(_pair(key, fields[key]) for key in ("ph", "cat", "name", "pid", "tid"))
            times = b", ".join(_pair(key, fields[key]) for key in ("ts", "dur"))
            args = b", ".join(b"\n      " + _pair(key, _json(value)) for key, value in self.args.items())
            return b"  {\n    " + head + b",\n    " + times + b',\n    "args": {' + args + b"\n    }\n  }"
        keys = sorted(fields) if layout == "sorted" else list(fields)
        comma, colon = (b",", b":") if layout == "compact" else (b", ", b": ")
        return b"{" + comma.join(b'"%s"%s%s' % (key.encode(), colon, fields[key]) for key in keys) + b"}"


def document(events: Sequence[bytes], layout: Layout, header: str = "") -> bytes:
    """A whole file around written events."""
    if layout == "pretty":
        return b'{\n  "schemaVersion": 1,\n' + header.encode() + b'  "traceEvents": [\n' + b",\n".join(events) + TAIL
    comma, colon = (b",", b":") if layout == "compact" else (b", ", b": ")
    head = b'{"schemaVersion"' + colon + b"1" + comma + header.encode() + b'"traceEvents"' + colon + b"["
    return head + comma.join(events) + b"]}"


TAIL = b'\n  ],\n  "traceName": "t.json",\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1767225600000000000\n}'


def microseconds(ns: int, *, quoted: bool = False, decimals: int | None = None) -> bytes:
    """Decimal text, exact, as few decimals as will do."""
    sign, (whole, part) = "-" if ns < 0 else "", divmod(abs(ns), 1000)
    fraction = f"{part:03d}".rstrip("0") if decimals is None else f"{part:03d}"[:decimals]
    text = f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
    return (f'"{text}"' if quoted else text).encode()


def read(data: bytes, name: str = "trace.json") -> EventStore:
    """Read these bytes as a file of that name, and hold the store to its laws."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        store = reader.read(path)
    store.check()
    assert store.counts.present == store.counts.intact + store.counts.recovered + store.counts.lost
    return store


def rows(store: EventStore) -> list[tuple[int, int, str]]:
    """(start_ns, duration_ns, name), in time order."""
    e = store.events
    return sorted(
        zip(e.start_ns.tolist(), e.duration_ns.tolist(), (store.name(i) for i in e.name_id.tolist()), strict=True)
    )


def content(store: EventStore) -> dict[str, object]:
    """Everything in a store that is no path and no example text."""
    e = store.events
    return {
        "start_ns": e.start_ns.tolist(),
        "duration_ns": e.duration_ns.tolist(),
        "name_id": e.name_id.tolist(),
        "kind": e.kind.tolist(),
        "track_id": e.track_id.tolist(),
        "correlation_id": e.correlation_id.tolist(),
        "names": store.names,
        "tracks": store.tracks,
        "counts": store.counts,
        "base_time_ns": store.origin.base_time_ns,
        "health": {row.code: row.count for row in store.health},
    }


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _pair(key: str, value: bytes) -> bytes:
    return _json(key) + b": " + value


# what a careless reader trips over, all of it valid once escaped
_NASTY = (
    "},{",
    "}, {",
    "]}",
    "]",
    '"',
    '"},{"ph":"X","ts":1,"dur":1',
    "\\",
    "\\u0041",
    "{",
    "NaN",
    ",}",
    '"ts": 5,',
    "é",
    "\n",
)
NAMES = st.lists(st.sampled_from(_NASTY) | st.text(alphabet='abé中😀\u2028 {}[]",:\\', max_size=4), max_size=4).map(
    "".join
)
_KEYS = st.sampled_from(("name", "id", "stream", "Input Dims", "correlation id", "x", "}", '"'))
_SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | NAMES
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=6
)
ARGS = st.dictionaries(_KEYS.filter(lambda key: key != "name"), _VALUES, max_size=3)
CATEGORIES = st.sampled_from(("cpu_op", "user_annotation", "python_function", "cuda_runtime", "kernel", "gpu_memcpy"))


@st.composite
def written_events(draw: st.DrawFn, max_size: int = 8) -> list[Written]:
    """Valid events of one capture: within minutes of each other, near boot or near now, whole or exact to the ns."""
    base_ns = draw(st.sampled_from((1, 10**9, 2**43 * 1000 - 10**6, 1_778_000_000_000_000_125)))
    event = st.builds(
        Written,
        name=NAMES,
        start_ns=st.integers(base_ns, base_ns + 10**11),
        duration_ns=st.integers(0, 10**9),
        cat=CATEGORIES,
        pid=st.sampled_from((0, 1, "Spans")),
        tid=st.sampled_from((1, 7, "stream 7")),
        args=ARGS,
        quoted_times=st.booleans() if draw(st.booleans()) else st.just(False),
    )
    return draw(st.lists(event, max_size=max_size))
