"""The windows that tile a rank's span: one a step, from the end of the previous step's last work to its own.

Work is device work where there is a device lane; else, on a CPU backend, the worker thread's operations, with
sampling. The wait before a step is therefore in that step.

A capture can begin inside a host call that waits for device work from before it. The device then looks idle while it
was busy: such a stretch is `truncated`. At the start of a capture the first window begins after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.intervals import NOTHING, Spans, subtract, union
from stepscope.store.launches import NO_LAUNCH, find_launches
from stepscope.store.schema import FRAME, LAST_DEVICE_KIND, OP, RUNTIME

if TYPE_CHECKING:
    from stepscope.intervals import Int64
    from stepscope.steps.boundaries import Boundary
    from stepscope.steps.composition import DeviceWork
    from stepscope.store.events import EventStore, Int32, Mask

Lane = Literal["device", "host", "none"]

# calls that return only when device work has ended: the catalog's `stream_sync` of runtime calls, which stands above
BLOCKING_CALL = re.compile(
    r"^(?:cuda|hip|cu|musa|acl)\w*Synchronize\w*$|^synchronize(?:Stream)?$|^hipMemcpyWithStream$"
    r"|^(?:cuda|hip)Memcpy(?:2D|3D|ToSymbol|FromSymbol|Peer)?(?:_v\d+)?$|^(?:cu|hip)Memcpy(?:HtoD|DtoH|DtoD)?(?:_v\d+)?$"
)
# a sync that finds nothing to wait for returns sooner than this
SYNC_RETURN_NS = 100_000
# receiving from another pipeline stage happens before the step that it is for
_RECEIVE = re.compile(r"recv", re.IGNORECASE)
# torch.distributed backends that move device memory
_DEVICE_BACKENDS = ("nccl", "rccl", "hccl", "xccl", "mccl")
# oneDNN and MKL-DNN products, the CPU kernels of vLLM, its shared-memory collectives
_CPU_OPERATION = re.compile(r"onednn|mkldnn|(?:^|[:_])cpu_|_cpu$|::shm_")
_SAMPLING = re.compile(r"(?:worker|model_runner)\w*\.py(?:\(\d+\))?: sample_tokens$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Per boundary [start_ns, end_ns), None for an empty step; `span` of the rank; what was cut off before it."""

    lane: Lane
    span: tuple[int, int]
    of_step: tuple[tuple[int, int] | None, ...]
    truncated: Spans


def find_windows(store: EventStore, boundaries: tuple[Boundary, ...], work: DeviceWork) -> Windows:
    """Tile the rank's span into the steps' windows."""
    if len(work.row):
        return _device_windows(store, boundaries, work)
    lane: Lane = "none" if used_device(store) else "host"
    return _host_windows(store, boundaries, lane)


def used_device(store: EventStore) -> bool:
    """Whether a device was used although none of its work may be recorded: launches, its driver, its collectives."""
    called = [store.names[i] for i in np.unique(store.events.name_id[store.events.kind == RUNTIME]).tolist()]
    if any(name.endswith("GraphLaunch") or "LaunchKernel" in name for name in called):
        return True
    info = store.origin.metadata.get("distributedInfo")
    backend = str(info.get("backend")) if isinstance(info, dict) else ""
    return bool(store.origin.metadata.get("deviceProperties")) or any(name in backend for name in _DEVICE_BACKENDS)


def ran_on_cpu(store: EventStore) -> bool:
    """Whether something recorded says that the model ran on the CPU: an operation of a CPU backend, gloo alone."""
    info = store.origin.metadata.get("distributedInfo")
    if isinstance(info, dict) and info.get("backend") == "gloo":
        return True
    operations = np.unique(store.events.name_id[store.events.kind == OP]).tolist()
    return any(_CPU_OPERATION.search(store.names[i]) for i in operations)


def _device_windows(store: EventStore, boundaries: tuple[Boundary, ...], work: DeviceWork) -> Windows:
    e = store.events
    current = _current(store, work)
    start, end, boundary_of = e.start_ns[work.row][current], e.end_ns[work.row][current], work.boundary[current]
    span_start, span_end = int(start.min()), int(end.max())
    truncated = find_truncated(store, union(start, end))
    windows: list[tuple[int, int] | None] = []
    previous_end: int | None = None
    for index, boundary in enumerate(boundaries):
        if boundary.is_empty:
            windows.append(None)
            continue
        own = boundary_of == index
        if previous_end is None:
            first = int(start[own].min()) if own.any() else max(boundary.start_ns, span_start)
            before = end[~own & (end <= first)]
            previous_end = int(before.max()) if len(before) else first
            resumed = _resumed(truncated, previous_end, int(end[own].max()) if own.any() else boundary.end_ns)
            if resumed is not None:
                previous_end = span_start = resumed
        last = max(int(end[own].max()) if own.any() else boundary.end_ns, previous_end)
        windows.append((previous_end, last))
        previous_end = last
    span_end = max(span_end, previous_end or span_end)
    return Windows(lane="device", span=(span_start, span_end), of_step=tuple(windows), truncated=truncated)


def _current(store: EventStore, work: DeviceWork) -> Mask:
    """Device work of this capture: not what an earlier session left behind (unless there is nothing else)."""
    e = store.events
    host = e.kind > LAST_DEVICE_KIND
    if not host.any():
        return np.ones(len(work.row), bool)
    stale = (work.launch == NO_LAUNCH) & (e.start_ns[work.row] < int(e.start_ns[host][0]))
    return np.ones(len(work.row), bool) if stale.all() else ~stale


def _resumed(truncated: Spans, start_ns: int, end_ns: int) -> int | None:
    """Where device work is seen again after a truncated wait inside [start_ns, end_ns)."""
    inside = (truncated.starts >= start_ns) & (truncated.ends <= end_ns)
    return int(truncated.ends[inside].max()) if inside.any() else None


def find_truncated(store: EventStore, busy: Spans) -> Spans:
    """Where the device is idle under a blocking call for longer than a call without anything to await takes."""
    e = store.events
    blocking = np.array([bool(BLOCKING_CALL.match(name)) for name in store.names] or [False])
    rows = (e.kind == RUNTIME) & blocking[e.name_id] & (e.duration_ns > SYNC_RETURN_NS)
    if not rows.any():
        return NOTHING
    waits = union(e.start_ns[rows], e.end_ns[rows])
    idle = subtract(waits, busy)
    long = (idle.ends - idle.starts) > SYNC_RETURN_NS
    long &= ~_answered_beside(store, idle, np.unique(e.track_id[rows]))
    return Spans(starts=idle.starts[long], ends=idle.ends[long])


def _answered_beside(store: EventStore, idle: Spans, waiting: Int32) -> Mask:
    """Per stretch, whether the work that ends it was launched by a thread that does not wait.

    torch_npu's task queue launches on a thread of its own: a sync waits until the queue has launched, and nothing is
    missing from the capture.
    """
    e = store.events
    work, launch = find_launches(e)
    own = launch != NO_LAUNCH
    own[own] = ~np.isin(e.track_id[launch[own]], waiting)
    beside: Mask = np.isin(idle.ends, e.start_ns[work[own]])
    return beside


def _host_windows(store: EventStore, boundaries: tuple[Boundary, ...], lane: Lane) -> Windows:
    ran = [b for b in boundaries if not b.is_empty]
    track = ran[0].track_id if ran else None
    e = store.events
    on_thread = e.track_id == track if track is not None else e.kind >= RUNTIME
    if not on_thread.any():
        return Windows(lane=lane, span=(0, 0), of_step=tuple(None for _ in boundaries), truncated=NOTHING)
    span_start = int(e.start_ns[on_thread].min())
    work_end, work_start = _thread_work(store, on_thread)
    limits = [b.start_ns for b in ran[1:]] + [int(e.end_ns[on_thread].max()) + 1]
    windows: list[tuple[int, int] | None] = []
    previous_end, place = span_start, 0
    for boundary in boundaries:
        if boundary.is_empty:
            windows.append(None)
            continue
        inside = (work_start >= boundary.start_ns) & (work_start < limits[place])
        last = max(int(work_end[inside].max()) if inside.any() else 0, boundary.end_ns, previous_end)
        windows.append((previous_end, last))
        previous_end, place = last, place + 1
    span_end = previous_end if ran else int(e.end_ns[on_thread].max())
    return Windows(lane=lane, span=(span_start, span_end), of_step=tuple(windows), truncated=NOTHING)


def _thread_work(store: EventStore, on_thread: Mask) -> tuple[Int64, Int64]:
    """(end, start) of what counts as a step's work on a thread: operations and the sampling functions."""
    e = store.events
    receive = np.array([bool(_RECEIVE.search(name)) for name in store.names] or [False])
    sampling = np.array([bool(_SAMPLING.search(name)) for name in store.names] or [False])
    rows = on_thread & (((e.kind == OP) & ~receive[e.name_id]) | ((e.kind == FRAME) & sampling[e.name_id]))
    return e.end_ns[rows], e.start_ns[rows]
