"""An account -> tracks for a trace viewer (ui.perfetto.dev, chrome://tracing), alone or added to the capture itself.

Each rank is one process, `stepscope rank N`, with a thread a track: step, phase, budget (the exclusive partition) and
gaps (its supply, host, idle and unknown pieces, named by their cause). Slices of one track never overlap: a viewer
drops those that do. Times are decimal text of whole ns; viewers read it exactly below 2^53 ns, so later times are
moved, and the file says by how much.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from stepscope.budget.breakdown import WITHHELD
from stepscope.budget.partition import OWN_FAMILIES
from stepscope.errors import BadInput
from stepscope.intervals import merge
from stepscope.readers.inflate import read_blocks
from stepscope.readers.kineto import reader as kineto
from stepscope.readers.kineto.columns import exact_ns
from stepscope.readers.kineto.text import Document
from stepscope.store.health import HealthLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.intervals import Spans
    from stepscope.readers.kineto.event import ExactEvent
    from stepscope.steps.step import Step
    from stepscope.store.events import EventStore

TRACKS = ("step", "phase", "budget", "gaps")
_EXACT_NS = 2**53
_FIRST_ID = 2_000_000_000  # above any process or thread id of an operating system, below 2^31
_GAPS = ("supply", "host", "idle", "unknown")
_COMPRESSION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One slice of a track, in the capture's own ns."""

    track: str
    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, object]


def find_slices(rank: RankAccount) -> Iterator[Slice]:
    """All added slices of a rank, track by track, in time order."""
    yield from _step_slices(rank)
    yield from _budget_slices(rank)
    yield from _gap_slices(rank)


def _step_slices(rank: RankAccount) -> Iterator[Slice]:
    windows = [(step, step.window) for step in rank.table.counted if step.window is not None]
    for step, (start, end) in windows:
        yield Slice(track="step", name=f"step {step.step_id}", start_ns=start, end_ns=end, args=_facts(step))
    for step, (start, end) in windows:
        args = {"step": step.step_id}
        yield Slice(track="phase", name=step.phase or "unknown phase", start_ns=start, end_ns=end, args=args)


def _facts(step: Step) -> dict[str, object]:
    """What is known of a step; what is not is left out."""
    shape = step.boundary.shape
    facts = {
        "phase": step.phase,
        "scheduled tokens": shape.num_scheduled_tokens,
        "prefill requests": shape.prefill.num_requests,
        "decode requests": shape.decode.num_requests,
        "prefill kv sum": shape.prefill.kv_sum,
        "decode kv sum": shape.decode.kv_sum,
        "graph mode": step.graph_mode,
        "padded tokens": step.boundary.num_padded_tokens,
        "kernels": step.num_kernels,
        "marked by": step.boundary.source,
        "grade": step.boundary.grade,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _shown(rank: RankAccount, category: str) -> str:
    """The category under which the budget shows it: what is withheld is unknown."""
    withheld = category in WITHHELD and not rank.budget.coverage.idle_claimable
    return "unknown" if withheld else category


def _budget_slices(rank: RankAccount) -> Iterator[Slice]:
    by_category: dict[str, list[Spans]] = {}
    for (category, _), part in rank.budget.partition.parts.items():
        by_category.setdefault(_shown(rank, category), []).append(part)
    pieces = [(start, end, name) for name, parts in by_category.items() for start, end in _pairs(merge(parts))]
    for start, end, name in sorted(pieces):
        yield Slice(track="budget", name=name, start_ns=start, end_ns=end, args={})


def _gap_slices(rank: RankAccount) -> Iterator[Slice]:
    pieces = []
    for account, part in rank.budget.partition.parts.items():
        shown = _shown(rank, account[0])
        if shown in _GAPS:
            cause = "withheld" if shown != account[0] else account[1]
            pieces += [(start, end, cause, shown, OWN_FAMILIES.get(account, "")) for start, end in _pairs(part)]
    for start, end, cause, category, meaning in sorted(pieces):
        args = {"category": category} | ({"meaning": meaning} if meaning and cause != "withheld" else {})
        yield Slice(track="gaps", name=cause, start_ns=start, end_ns=end, args=args)


def _pairs(spans: Spans) -> Iterator[tuple[int, int]]:
    return zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)


def write_tracks(account: Account, output: Path, *, is_gzip: bool) -> int:
    """Only the added tracks, all ranks in one file on one clock where the captures have one; the number of slices.

    Raises:
        BadInput: there is no rank, or the file cannot be written.
    """
    if not account.ranks:
        raise BadInput(f"{account.source}: no worker is in this capture, so there are no steps and no budget to show.")
    bases = [rank.store.origin.base_time_ns for rank in account.ranks]
    one_clock = None not in bases
    shifts = [(base or 0) - min(b or 0 for b in bases) if one_clock else 0 for base in bases]
    spans = [rank.budget.partition.span for rank in account.ranks]
    moved = _move([(start + s, end + s) for (start, end), s in zip(spans, shifts, strict=True)])
    metadata: dict[str, Any] = {
        "displayTimeUnit": "ms",
        "stepscope": {"one_clock": one_clock or len(bases) == 1, "subtracted_ns": moved},
    }
    if one_clock:
        metadata["baseTimeNanoseconds"] = min(b or 0 for b in bases)
    first = _free_id([rank.store for rank in account.ranks])
    texts = (
        text
        for i, rank in enumerate(account.ranks)
        for text in _texts(rank, first + i * (len(TRACKS) + 1), shifts[i] - moved)
    )
    return _write(output, metadata, texts, is_gzip=is_gzip) - len(account.ranks) * (2 + 2 * len(TRACKS))


def write_with_trace(rank: RankAccount, output: Path, *, is_gzip: bool) -> int:
    """A rank's capture, its events' own text as it stands, and the added tracks behind it; the number of events.

    Raises:
        BadInput: the capture is not there as text, or the file cannot be written.
    """
    source, store = Path(rank.store.origin.path), rank.store
    if store.origin.reader != kineto.NAME or not source.is_file():
        raise BadInput(f"{source}: the events' text is not there. Pass the torch-profiler file, or use --tracks-only.")
    e = store.events
    moved = _move([(int(e.start_ns.min()), int(e.end_ns.max()))] if len(e) else [])
    metadata = {**store.origin.metadata, "stepscope": {"subtracted_ns": moved}}

    def texts() -> Iterator[bytes]:
        yield from _capture(source, moved)
        yield from _texts(rank, _free_id([store]), -moved)

    return _write(output, metadata, texts(), is_gzip=is_gzip)


def _move(spans: Sequence[tuple[int, int]]) -> int:
    """What is to be subtracted from all times so that a viewer reads them exactly; 0 where it does anyway."""
    if not spans or max(end for _, end in spans) < _EXACT_NS:
        return 0
    return min(start for start, _ in spans) // 1_000_000_000 * 1_000_000_000


def _free_id(stores: Sequence[EventStore]) -> int:
    """An id above every process and thread of the captures."""
    texts = [text for store in stores for track in store.tracks for text in (track.process, track.thread)]
    return max([_FIRST_ID, *(int(text) + 1 for text in texts if text.isdigit() and len(text) < 16)])


def _texts(rank: RankAccount, process: int, shift_ns: int) -> Iterator[bytes]:
    """Names and order of the process and its tracks, then the slices."""
    name = f"stepscope rank {'?' if rank.rank is None else rank.rank}"
    yield _named("process_name", process, process, {"name": name})
    yield _named("process_sort_index", process, process, {"sort_index": -1})
    for i, track in enumerate(TRACKS, start=1):
        yield _named("thread_name", process, process + i, {"name": track})
        yield _named("thread_sort_index", process, process + i, {"sort_index": i})
    for piece in find_slices(rank):
        args = json.dumps(piece.args, ensure_ascii=False)
        yield (
            f'{{"ph":"X","cat":"stepscope","name":{json.dumps(piece.name)},"pid":{process},'
            f'"tid":{process + 1 + TRACKS.index(piece.track)},"ts":{_us(piece.start_ns + shift_ns)},'
            f'"dur":{_us(piece.end_ns - piece.start_ns)},"args":{args}}}'
        ).encode()


def _named(what: str, process: int, thread: int, args: Mapping[str, object]) -> bytes:
    event = {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": args}
    return json.dumps(event, separators=(",", ":")).encode()


def _us(time_ns: int) -> str:
    """Microseconds as exact decimal text: a float would lose digits."""
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


def _capture(path: Path, moved_ns: int) -> Iterator[bytes]:
    """The events' text; repaired ones are written anew, since their own text is broken."""
    health = HealthLog()
    for batch in Document(path=str(path), health=health, with_raw=True).batches(read_blocks(path, health)):
        raws: list[msgspec.Raw | None] = [*batch.raw] if batch.raw is not None else [None] * len(batch.events)
        for event, raw in zip(batch.events, raws, strict=True):
            exact = cast("ExactEvent", event)
            if raw is not None and (not moved_ns or exact.ph == "M"):
                yield bytes(raw)
            else:
                yield _rewritten(exact, raw, moved_ns)


def _rewritten(event: ExactEvent, raw: msgspec.Raw | None, moved_ns: int) -> bytes:
    fields: dict[str, object]
    if raw is not None:
        fields = dict(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))
    else:
        fields = {"ph": event.ph, "cat": event.cat, "name": event.name, "pid": event.pid, "tid": event.tid}
        if bytes(event.dur):
            fields["dur"] = event.dur
        if event.args is not None:
            fields["args"] = {k: v for k in ("name", "correlation") if (v := getattr(event.args, k)) is not None}
        if event.id is not None:
            fields["id"] = event.id
    if bytes(event.ts):
        fields["ts"] = msgspec.Raw(_us(exact_ns(bytes(event.ts)) - moved_ns).encode()) if moved_ns else event.ts
    return msgspec.json.encode(fields)


def _write(output: Path, metadata: Mapping[str, object], texts: Iterator[bytes], *, is_gzip: bool) -> int:
    """One document; returns the number of events."""
    count = 0
    with output.open("wb") as plain:
        out = gzip.GzipFile("", "wb", _COMPRESSION, plain, mtime=0) if is_gzip else plain
        with cast("IO[bytes]", out):
            out.write(msgspec.json.encode(metadata)[:-1] + b',"traceEvents":[\n')
            for text in texts:
                out.write((b",\n" if count else b"") + text)
                count += 1
            out.write(b"\n]}\n")
    return count
