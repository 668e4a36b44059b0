"""A smaller trace of chosen time or steps, in Kineto's own format: the kept events' text is kept as it stands.

Host ranges that cross the edge are cut there; device work is kept by its launch, not by its time. With `redact`, host
names, absolute paths and request ids are replaced, and only harmless metadata stays.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import msgspec

from stepscope.errors import BadInput
from stepscope.readers.inflate import read_blocks
from stepscope.readers.kineto.columns import CATEGORY_KIND, MISSING_NS, exact_ns
from stepscope.readers.kineto.text import Document
from stepscope.store.events import NO_ID
from stepscope.store.health import HealthLog
from stepscope.store.schema import DEVICE_SCOPE, KINDS, LAST_DEVICE_KIND, RUNTIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.readers.kineto.event import Event, ExactEvent
    from stepscope.store.events import EventStore
    from stepscope.store.selection import Selection

_SAFE_METADATA = frozenset(
    {
        "schemaVersion",
        "deviceProperties",
        "distributedInfo",
        "displayTimeUnit",
        "baseTimeNanoseconds",
        "with_stack",
        "record_shapes",
        "profile_memory",
        "vllm_version",
        "cupti_version",
        "cuda_runtime_version",
        "cuda_driver_version",
        "roctracer_version",
    }
)
# an absolute path: a string that is one, up to its last slash (spaces too); in other text, up to a space or bracket
_PART = rb'(?:\\u[0-9a-f]{4}|[^/\s"\\:;,()<>\[\]{}])'
_PATH = re.compile(
    rb'(?<=")/[^"]*/(?P<own>[^"/\s]*)|(?:(?<![\w.])|(?<=\\[nrt]))/(?:%s+/)+(?P<last>%s*)' % (_PART, _PART),
    re.IGNORECASE,
)
_PACKAGE = re.compile(rb"(?:site|dist)-packages/((?:[\w.+-]+/)*[\w.+-]+\.\w+[^/]*)$")
_FILE = re.compile(rb"[\w.+-]+\.[a-z]{1,5}\b")
_REQUEST = re.compile(rb"\b(?:(?:cmpl|chatcmpl|req)-[\w-]{4,}|[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b)")
_MARKER = re.compile(rb'(?<=[ ,=])[^:\s,"=]+(?=:\d+:\d+:\d+:[cg])')
_HOST_KEY = re.compile(rb'("(?:host_?name|user_?name|Host|User)"\s*:\s*)"[^"]*"')
_TELLING = re.compile(r"[\w.-]*[\d.-][\w.-]*")  # a host name that is no plain word of a trace


def write_cut(store: EventStore, selection: Selection, output: Path, *, redact: bool) -> int:
    """Write the chosen part of a store's capture; returns the number of events written.

    Raises:
        BadInput: the output cannot be written.
    """
    if output.exists() and not output.is_file():
        raise BadInput(f"{output}: cannot be written (it is there and is no file). Choose another path.")
    kept = _from_capture(store, selection) if Path(store.origin.path).is_file() else _from_store(store, selection)
    metadata = {k: v for k, v in store.origin.metadata.items() if not redact or k in _SAFE_METADATA}
    host = _host(store.origin.metadata)
    count = 0
    try:
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False) as aside:
            try:
                with _opened(output, aside) as out:
                    out.write(msgspec.json.encode(metadata)[:-1] + (b"," if metadata else b"") + b'"traceEvents":[\n')
                    for text in kept:
                        out.write((b",\n" if count else b"") + (_redacted(text, host) if redact else text))
                        count += 1
                    out.write(b"\n]}\n")
            except BaseException:
                Path(aside.name).unlink(missing_ok=True)
                raise
        Path(aside.name).chmod(0o644)
        Path(aside.name).replace(output)
    except OSError as error:
        raise BadInput(f"{output}: cannot be written ({error.strerror}). Choose another path.") from error
    return count


def _opened(output: Path, aside: IO[bytes]) -> IO[bytes]:
    if output.name.endswith(".gz"):
        return cast("IO[bytes]", gzip.GzipFile(filename="", fileobj=aside, mode="wb", mtime=0))
    return cast("IO[bytes]", open(aside.name, "wb"))  # noqa: PTH123  # closed by the caller's `with`


def _host(metadata: Mapping[str, object]) -> re.Pattern[bytes] | None:
    """The recorded host name, to be found in other text too."""
    name = metadata.get("host_name") or metadata.get("hostname")
    if not isinstance(name, str) or not _TELLING.fullmatch(name):
        return None
    return re.compile(rb"(?<![\w-])%s(?![\w-])" % re.escape(name.encode()))


def _redacted(text: bytes, host: re.Pattern[bytes] | None) -> bytes:
    text = _HOST_KEY.sub(rb'\1"host"', text.replace(rb"\/", b"/"))
    if host is not None:
        text = host.sub(b"host", text)
    text = _PATH.sub(_short_path, text)
    return _REQUEST.sub(_pseudonym, _MARKER.sub(_pseudonym, text))


def _pseudonym(request: re.Match[bytes]) -> bytes:
    """The same for the same id in every rank's cut, so that a request can still be followed."""
    return b"request-" + hashlib.sha256(request[0]).hexdigest()[:8].encode()


def _short_path(path: re.Match[bytes]) -> bytes:
    """What an installed package calls its file stays, else the file's own name: steps and families are found by it."""
    package = _PACKAGE.search(path[0])
    if package:
        return b".../" + package[1]
    last = path["last"] if path["own"] is None else path["own"]
    return b".../" + (last if _FILE.match(last) else b"")


def _from_capture(store: EventStore, selection: Selection) -> Iterator[bytes]:
    """The kept events' own text, from the capture that the store was read from."""
    health = HealthLog()
    path = Path(store.origin.path)
    for batch in Document(path=str(path), health=health, with_raw=True).batches(read_blocks(path, health)):
        raws: list[msgspec.Raw | None] = [*batch.raw] if batch.raw is not None else [None] * len(batch.events)
        for event, raw in zip(batch.events, raws, strict=True):
            edge = _edge(cast("ExactEvent", event), selection)
            if edge is None:
                continue
            if raw is not None and edge == (0, 0):
                yield bytes(raw)
            else:
                yield _clipped(cast("ExactEvent", event), raw, selection)


def _edge(event: ExactEvent, selection: Selection) -> tuple[int, int] | None:
    """How much of an event stands out before and behind the range, in ns; None: leave it out."""
    if event.ph == "M":
        return 0, 0
    start = _ns(event.ts)
    if start == MISSING_NS:
        return None
    kind = CATEGORY_KIND.get(event.cat.lower())
    own_id = event.args.correlation if event.args is not None else None
    if event.ph == "X" and kind is not None and kind <= LAST_DEVICE_KIND:
        return (0, 0) if (start, _id(own_id)) in selection.device else None
    if _is_foreign(event, kind, start, selection):
        return None
    end = start + max(_ns(event.dur), 0) if event.ph == "X" else start
    if not (start < selection.end_ns and (end > selection.start_ns or start >= selection.start_ns)):
        return None
    return max(selection.start_ns - start, 0), max(end - selection.end_ns, 0)


def _is_foreign(event: ExactEvent, kind: int | None, start_ns: int, selection: Selection) -> bool:
    """Flows and launches of work that is left out, and annotations of other steps."""
    if event.ph in ("s", "f", "t"):
        return _id(event.id) in selection.foreign_ids
    own_id = event.args.correlation if event.args is not None else None
    if kind == RUNTIME and _id(own_id) in selection.foreign_ids:
        return True
    return (start_ns, event.name) in selection.other_steps or kind == DEVICE_SCOPE


def _clipped(event: ExactEvent, raw: msgspec.Raw | None, selection: Selection) -> bytes:
    fields = msgspec.json.decode(raw) if raw is not None else _fields(event)
    if event.ph == "X":
        start = max(_ns(event.ts), selection.start_ns) if event.cat else _ns(event.ts)
        end = min(_ns(event.ts) + max(_ns(event.dur), 0), selection.end_ns)
        fields["ts"], fields["dur"] = _us(start), _us(max(end - start, 0))
    return msgspec.json.encode(fields)


def _fields(event: Event | ExactEvent) -> dict[str, object]:
    """A repaired event, written anew; its broken text is not."""
    fields: dict[str, object] = {
        "ph": event.ph,
        "cat": event.cat,
        "name": event.name,
        "pid": event.pid,
        "tid": event.tid,
    }
    fields["ts"] = _us(_ns(cast("ExactEvent", event).ts))
    if event.args is not None and event.args.correlation is not None:
        fields["args"] = {"correlation": event.args.correlation}
    return fields


def _us(time_ns: int) -> msgspec.Raw:
    """Exact decimal text: a float would lose digits."""
    sign = "-" if time_ns < 0 else ""
    return msgspec.Raw(f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}".encode())


def _ns(text: msgspec.Raw) -> int:
    return exact_ns(bytes(text))


def _id(value: int | str | None) -> int:
    try:
        return NO_ID if value is None else int(value)
    except ValueError:
        return NO_ID


_CATEGORY_OF = {kind: category for category, kind in reversed(CATEGORY_KIND.items())}


def _from_store(store: EventStore, selection: Selection) -> Iterator[bytes]:
    """From a run whose capture is no longer there: name, times, track and correlation are all that it holds."""
    e = store.events
    for i in range(len(e)):
        kind, track = int(e.kind[i]), store.tracks[int(e.track_id[i])]
        start, end, own_id = int(e.start_ns[i]), int(e.end_ns[i]), int(e.correlation_id[i])
        name = store.names[int(e.name_id[i])]
        if kind <= LAST_DEVICE_KIND:
            if (start, own_id) not in selection.device:
                continue
        elif (
            start >= selection.end_ns
            or (end <= selection.start_ns and start < selection.start_ns)
            or own_id in selection.foreign_ids
            or (start, name) in selection.other_steps
            or kind == DEVICE_SCOPE
        ):
            continue
        else:
            start, end = max(start, selection.start_ns), min(end, selection.end_ns)
        fields: dict[str, object] = {
            "ph": "X",
            "cat": _CATEGORY_OF.get(kind, KINDS[kind]),
            "name": name,
            "pid": _number(track.process),
            "tid": _number(track.thread),
            "ts": _us(start),
            "dur": _us(end - start),
        }
        if own_id != NO_ID:
            fields["args"] = {"correlation": own_id}
        yield msgspec.json.encode(fields)


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
