"""Where engine steps begin and end on the host, and what marks them.

Sources, best first: a step marker or the engine's own annotation; `execute_model` host functions; ProfilerStep; graph
launches; a device event that comes back at equal distances. The last two are patterns, graded `inferred`.
Ranges of one step nest (a marker in an annotation, one dialect in another): the outermost is the step, and what the
inner ones know of the batch is merged into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.annotations import Annotation, parse_annotation
from stepscope.batch import BatchShape, PhaseSums
from stepscope.store.schema import FRAME, LAST_DEVICE_KIND, RUNTIME, SCOPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.evidence import Grade
    from stepscope.store.events import EventStore, Mask

# the engine's step function on the host, for captures without annotations (vLLM V1 and V2 runners, SGLang)
_STEP_FUNCTION = re.compile(
    r"(?:gpu_worker|cpu_worker|xpu_worker|worker_v1|tp_worker)\.py(?:\(\d+\))?: "
    r"(?:execute_model|forward_batch_generation)$"
)
_PROFILER_STEP = re.compile(r"^ProfilerStep#\d+$")
_MIN_REPEATS = 3
_SAME_LENGTH = 0.05  # kernels per step may differ by this fraction and still be one pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One step's host range. For a pattern on the device, `first_work` is the first device row instead."""

    source: str
    grade: Grade
    start_ns: int
    end_ns: int
    track_id: int | None
    shape: BatchShape
    num_padded_tokens: int | None = None
    first_work: int | None = None

    @property
    def is_empty(self) -> bool:
        """An annotation that ran no tokens."""
        return self.shape.phase == "empty"


def find_boundaries(store: EventStore) -> tuple[Boundary, ...]:
    """The steps' host ranges in time order, from the best source that the capture has; none if it has none."""
    for find in (_from_annotations, _from_functions, _from_profiler_steps, _from_graph_launches, _from_repetition):
        found = find(store)
        if found:
            return tuple(sorted(found, key=lambda b: (b.start_ns, b.end_ns)))
    return ()


def _from_annotations(store: EventStore) -> list[Boundary]:
    parsed = {i: a for i, name in enumerate(store.names) if (a := parse_annotation(name)) and a.kind != "capture"}
    found: list[Boundary] = []
    for start, end, track, name_id in _outermost_first(store, _named(store, SCOPE, parsed)):
        annotation = parsed[name_id]
        if found and found[-1].track_id == track and start < found[-1].end_ns:
            found[-1] = _with_inner(found[-1], annotation)
            continue
        found.append(
            Boundary(
                source="simulation" if store.is_simulated else annotation.dialect,
                grade="simulated" if store.is_simulated else "recorded",
                start_ns=start,
                end_ns=end,
                track_id=track,
                shape=annotation.shape,
                num_padded_tokens=annotation.num_padded_tokens,
            )
        )
    return found


def _from_functions(store: EventStore) -> list[Boundary]:
    named = {i for i, name in enumerate(store.names) if _STEP_FUNCTION.search(name)}
    return _outermost(store, _named(store, FRAME, named), "step function", "derived")


def _from_profiler_steps(store: EventStore) -> list[Boundary]:
    named = {i for i, name in enumerate(store.names) if _PROFILER_STEP.match(name)}
    return _outermost(store, _named(store, SCOPE, named), "ProfilerStep", "recorded")


def _outermost(store: EventStore, rows: Mask, source: str, grade: Grade) -> list[Boundary]:
    found: list[Boundary] = []
    for start, end, track, _ in _outermost_first(store, rows):
        if found and found[-1].track_id == track and start < found[-1].end_ns:
            continue
        found.append(
            Boundary(source=source, grade=grade, start_ns=start, end_ns=end, track_id=track, shape=BatchShape())
        )
    return found


def _from_graph_launches(store: EventStore) -> list[Boundary]:
    """One graph launch a step, where every launch replays about as many device events (or none was recorded)."""
    named = {i for i, name in enumerate(store.names) if name.endswith("GraphLaunch")}
    rows = np.flatnonzero(_named(store, RUNTIME, named))
    if len(rows) < _MIN_REPEATS:
        return []
    e = store.events
    ids, counts = np.unique(e.correlation_id[e.kind <= LAST_DEVICE_KIND], return_counts=True)
    replayed = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    sizes = [replayed.get(i, 0) for i in e.correlation_id[rows].tolist()]
    if max(sizes) and min(s for s in sizes if s) < (1 - _SAME_LENGTH) * max(sizes):
        return []
    return [
        Boundary(
            source="graph launch",
            grade="inferred",
            start_ns=int(e.start_ns[row]),
            end_ns=int(e.end_ns[row]),
            track_id=int(e.track_id[row]),
            shape=BatchShape(),
        )
        for row in rows.tolist()
    ]


def _from_repetition(store: EventStore) -> list[Boundary]:
    """A device event that comes back every so many events marks one step each time: the rarest such event."""
    e = store.events
    work = np.flatnonzero(e.kind <= LAST_DEVICE_KIND)
    names = e.name_id[work]
    ids, counts = np.unique(names, return_counts=True)
    for name_id in ids[np.argsort(counts, kind="stable")].tolist():
        places = np.flatnonzero(names == name_id)
        if len(places) < _MIN_REPEATS:
            continue
        gaps = np.diff(places)
        alike = np.abs(gaps - np.median(gaps)) <= _SAME_LENGTH * np.median(gaps)
        if np.median(gaps) < 2 or alike.mean() < 1 - _SAME_LENGTH:
            continue
        source = f"repeating device event, every {int(np.median(gaps))} (confidence {alike.mean():.2f})"
        rows = work[places]
        ends = [*e.start_ns[rows[1:]].tolist(), int(e.end_ns[work].max())]
        return [
            Boundary(
                source=source,
                grade="inferred",
                start_ns=int(e.start_ns[row]),
                end_ns=end,
                track_id=None,
                shape=BatchShape(),
                first_work=int(row),
            )
            for row, end in zip(rows.tolist(), ends, strict=True)
        ]
    return []


def _named(store: EventStore, kind: int, name_ids: Iterable[int]) -> Mask:
    wanted = np.zeros(max(len(store.names), 1), bool)
    wanted[list(name_ids)] = True
    rows: Mask = (store.events.kind == kind) & wanted[store.events.name_id]
    return rows


def _outermost_first(store: EventStore, rows: Mask) -> list[tuple[int, int, int, int]]:
    """(start, end, track, name) of some rows: thread by thread, parents before their children, then by time."""
    e = store.events.take(rows)
    order = np.lexsort((-e.duration_ns, e.start_ns, e.track_id))
    columns = (e.start_ns, e.end_ns, e.track_id, e.name_id)
    return list(zip(*(column[order].tolist() for column in columns), strict=True))


def _with_inner(outer: Boundary, inner: Annotation) -> Boundary:
    """What the inner range knows and the outer does not.

    If they disagree, the engine's own annotation is right: a marker can run a step ahead when a profile starts late.
    """
    a, b = outer.shape, inner.shape
    if (
        None not in (a.num_scheduled_tokens, b.num_scheduled_tokens)
        and a.num_scheduled_tokens != b.num_scheduled_tokens
    ):
        return replace(outer, shape=b, source=inner.dialect) if inner.kind == "step" else outer
    shape = BatchShape(
        prefill=_merged_sums(a.prefill, b.prefill),
        decode=_merged_sums(a.decode, b.decode),
        num_scheduled_tokens=_known(a.num_scheduled_tokens, b.num_scheduled_tokens),
        num_requests=_known(a.num_requests, b.num_requests),
        rows=a.rows if a.rows is not None else b.rows,
        named_phase=a.named_phase or b.named_phase,
    )
    return replace(outer, shape=shape, num_padded_tokens=_known(outer.num_padded_tokens, inner.num_padded_tokens))


def _merged_sums(a: PhaseSums, b: PhaseSums) -> PhaseSums:
    return PhaseSums(
        num_requests=_known(a.num_requests, b.num_requests),
        query_sum=_known(a.query_sum, b.query_sum),
        kv_sum=_known(a.kv_sum, b.kv_sum),
        query_sq_sum=_known(a.query_sq_sum, b.query_sq_sum),
        query_kv_sum=_known(a.query_kv_sum, b.query_kv_sum),
    )


def _known(a: int | None, b: int | None) -> int | None:
    return b if a is None else a
