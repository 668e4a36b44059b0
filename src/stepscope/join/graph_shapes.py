"""Replayed kernels with the operation and the shapes that a capture-time trace has of them.

All kernels of a graph launch share its id, so nothing in the trace of a run says which operation each is. A replay runs
its graph's kernels in the order of capture: it is set against the captured graph whose sequence of kernel names fits it
best, and each kernel whose name stands at the same place takes that launch's operation and shapes. Where the capture
has no names (CUDA), a graph of the same length is taken, if there is one alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.messages import Message, say
from stepscope.store.launches import NO_LAUNCH, find_launches
from stepscope.store.schema import KERNEL
from stepscope.units import show_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.kineto.graph_capture import CapturedKernel
    from stepscope.store.events import EventStore

Graph = tuple["CapturedKernel", ...]
_FITS = 0.5  # of a replay's kernels must stand in the graph in order, else it is another graph


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """Replayed kernels of one operation and shape."""

    op: str
    dims: str | None
    num_kernels: int
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShapes:
    """What replayed kernels compute, the longest first; durations are summed, overlaps count twice."""

    num_replays: int
    num_kernels: int
    num_matched: int
    rows: tuple[ShapeRow, ...]

    @property
    def share(self) -> float | None:
        """Of the kernels inside graphs, those with an operation; None without any."""
        return self.num_matched / self.num_kernels if self.num_kernels else None


def find_shapes(stores: Sequence[EventStore], graphs: Sequence[Graph]) -> GraphShapes:
    """Match the replays of all stores; without captured graphs nothing is matched, and all are counted."""
    found: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    num_replays = num_kernels = 0
    fits: dict[tuple[str, ...], dict[int, CapturedKernel]] = {}  # replays repeat: each sequence is matched once
    for store in stores:
        for rows in _replays(store):
            names = tuple(store.names[i] for i in store.events.name_id[rows].tolist())
            num_replays, num_kernels = num_replays + 1, num_kernels + len(names)
            if names not in fits:
                fits[names] = match_replay(names, graphs)
            for place, kernel in fits[names].items():
                if kernel.op is not None:
                    found[kernel.op, kernel.dims].append(int(store.events.duration_ns[rows[place]]))
    made = (
        ShapeRow(op=op, dims=dims, num_kernels=len(times), total_ns=sum(times)) for (op, dims), times in found.items()
    )
    shapes = tuple(sorted(made, key=lambda row: (-row.total_ns, row.op, row.dims or "")))
    matched = sum(row.num_kernels for row in shapes)
    return GraphShapes(num_replays=num_replays, num_kernels=num_kernels, num_matched=matched, rows=shapes)


def _replays(store: EventStore) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Per graph launch, its kernels' rows in the order of their start; copies are nodes too, but launch no kernel."""
    is_graph = np.array([name.endswith("GraphLaunch") for name in store.names] or [False])
    work, launch = find_launches(store.events)
    own = (launch != NO_LAUNCH) & (store.events.kind[work] == KERNEL)
    own[own] = is_graph[store.events.name_id[launch[own]]]
    order = np.argsort(launch[own], kind="stable")
    work, launch = work[own][order], launch[own][order]
    return np.split(work, np.flatnonzero(np.diff(launch)) + 1) if len(work) else []


def match_replay(names: Sequence[str], graphs: Sequence[Graph]) -> dict[int, CapturedKernel]:
    """Place in the replay -> the captured launch; nothing where no graph fits."""
    best: dict[int, CapturedKernel] = {}
    for graph in dict.fromkeys(graphs):
        captured = [kernel.kernel for kernel in graph]
        if captured == list(names):
            return dict(enumerate(graph))
        if None in captured:
            continue
        blocks = SequenceMatcher(None, captured, list(names), autojunk=False).get_matching_blocks()
        found = {b + i: graph[a + i] for a, b, size in blocks for i in range(size)}
        best = max(best, found, key=len)
    if len(best) >= _FITS * len(names):
        return best
    same = {graph for graph in graphs if len(graph) == len(names) and all(kernel.kernel is None for kernel in graph)}
    return dict(enumerate(same.pop())) if len(same) == 1 else {}


def say_shapes(shapes: GraphShapes, *, has_capture: bool) -> Message | None:
    """How far shapes inside graphs are known; None without replays."""
    if not shapes.num_replays:
        return None
    if not has_capture:
        return say(
            "{count} kernels ran inside {replays} graph launches: shapes from the step annotation only (pass the trace "
            "of the graph capture with --graph-capture).",
            count=shapes.num_kernels,
            replays=shapes.num_replays,
        )
    return say(
        "{matched} of {count} kernels inside {replays} graph launches ({share}) take operation and shapes from the "
        "graph capture, by their order.",
        matched=shapes.num_matched,
        count=shapes.num_kernels,
        replays=shapes.num_replays,
        share=show_fraction(shapes.share or 0.0),
    )


def shapes_document(shapes: GraphShapes, *, has_capture: bool) -> dict[str, Any]:
    """As data; `grade` is `joined` where a capture was given."""
    message = say_shapes(shapes, has_capture=has_capture)
    return {
        "replays": shapes.num_replays,
        "kernels": shapes.num_kernels,
        "matched": shapes.num_matched if has_capture else None,
        "grade": "joined" if has_capture else "recorded",
        "text": None if message is None else str(message),
        "rows": [
            {"op": row.op, "dims": row.dims, "kernels": row.num_kernels, "total_ns": row.total_ns}
            for row in shapes.rows
        ],
    }
