"""Threads and streams of one process, as tracks.

Start/end ranges need not nest, so those of a thread have a track of their own; a step's annotation stays on the thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.annotations import parse_annotation
from stepscope.readers.nsys.identity import pid_of
from stepscope.readers.nsys.rows import unique_rows
from stepscope.store.events import NO_ID, Track
from stepscope.store.schema import DEVICE_SCOPE, LAST_DEVICE_KIND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.nsys.database import Export
    from stepscope.readers.nsys.rows import Rows
    from stepscope.store.events import Int32


def find_tracks(export: Export, rows: Rows, names: Sequence[str]) -> tuple[Int32, list[Track]]:
    """(track of each row, the tracks) of the rows of one process."""
    on_device = (rows.kind <= LAST_DEVICE_KIND) | (rows.kind == DEVICE_SCOPE)
    annotations = np.array([bool(parse_annotation(name)) for name in names] or [False])
    apart = rows.is_range.astype(bool) & ~annotations[rows.name] if len(rows) else rows.is_range.astype(bool)
    keys = np.stack(
        [on_device.astype(np.int64), rows.process, rows.device, rows.context, rows.lane, apart.astype(np.int64)], axis=1
    )
    unique, inverse = unique_rows(keys)
    labels = _thread_names(export)
    contexts: dict[tuple[int, int], set[int]] = {}
    for device, context, lane in unique[unique[:, 0] == 1][:, 2:5].tolist():
        contexts.setdefault((device, lane), set()).add(context)
    tracks = []
    for is_device, process, device, context, lane, is_apart in unique.tolist():
        if is_device:
            tracks.append(_stream(device, context, lane, several=len(contexts[device, lane]) > 1))
        else:
            tracks.append(_thread(process, lane, labels.get((process, lane)), is_apart=bool(is_apart)))
    return inverse.astype(np.int32), tracks


def _stream(device: int, context: int, stream: int, *, several: bool) -> Track:
    thread = f"{context}/{stream}" if several else _shown(stream)
    return Track(process=_shown(device), thread=thread, is_device=True, device=_shown(device), label=f"stream {thread}")


def _thread(process: int, thread: int, name: str | None, *, is_apart: bool) -> Track:
    ending = " (start/end ranges)" if is_apart else ""
    pid = pid_of(process)
    return Track(
        process="unknown" if pid is None else str(pid), thread=_shown(thread) + ending, is_device=False, label=name
    )


def _shown(number: int) -> str:
    return "unknown" if number == NO_ID else str(number)


def _thread_names(export: Export) -> dict[tuple[int, int], str]:
    found = {}
    for name_id, thread in export.select("ThreadNames", ("nameId", "globalTid")):
        if isinstance(name_id, int) and isinstance(thread, int) and name_id in export.strings:
            found[(thread >> 24) << 24, thread & 0xFFFFFF] = export.strings[name_id]
    return found
