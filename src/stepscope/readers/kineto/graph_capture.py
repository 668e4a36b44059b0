"""A capture-time trace -> the kernels of each graph in the order of their launch, with operation and shapes.

While a graph is captured its kernels do not run: the trace holds launches, between the calls that begin and end a
capture. ROCm writes the kernel's name into the launch; CUDA does not, and only their order tells. The operation is the
one whose external id the launch has. Engines record it on request (vLLM `capture_torch_profiler`, SGLang
`--enable-profile-cuda-graph`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import UnreadableTrace
from stepscope.readers.inflate import read_blocks
from stepscope.readers.kineto.event import UNDECODABLE
from stepscope.store.health import HealthLog

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LAUNCH = re.compile(r"^(?:cuda|hip|cu)\w*Launch\w*Kernel\w*$|^(?:cuda|hip|cu)LaunchKernel\w*$|^\w*ModuleLaunchKernel$")
_BEGIN, _END = re.compile(r"StreamBeginCapture"), re.compile(r"StreamEndCapture")


class _Args(msgspec.Struct, gc=False):
    external_id: int | str | None = msgspec.field(name="External id", default=None)
    kernel: str | None = None
    dims: Any = msgspec.field(name="Input Dims", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float | str = 0.0
    args: _Args | None = None


class _File(msgspec.Struct, gc=False):
    events: list[_Event] = msgspec.field(name="traceEvents", default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedKernel:
    """One launch of a captured graph. None: the launch does not name its kernel, or no operation has launched it."""

    kernel: str | None
    op: str | None
    dims: str | None


def read_graphs(path: Path) -> tuple[tuple[CapturedKernel, ...], ...]:
    """The graphs that a capture-time trace shows, in the order of their capture; empty ones are left out.

    Raises:
        UnreadableTrace: it is no such trace.
    """
    try:
        text = b"".join(read_blocks(path, HealthLog()))
        events = msgspec.json.decode(text, type=_File).events
    except (OSError, *UNDECODABLE) as error:
        raise UnreadableTrace(
            str(path), f"it cannot be read as a capture trace ({error})", "Expected Kineto JSON of a graph capture"
        ) from error
    graphs = tuple(_graphs(events))
    if not graphs:
        raise UnreadableTrace(
            str(path),
            "it holds no launch between the begin and the end of a graph capture",
            "Record the capture itself (vLLM: capture_torch_profiler; SGLang: --enable-profile-cuda-graph)",
        )
    return graphs


def _graphs(events: list[_Event]) -> Iterable[tuple[CapturedKernel, ...]]:
    ops: dict[int | str, _Event] = {
        event.args.external_id: event
        for event in events
        if event.cat.lower() == "cpu_op" and event.args is not None and event.args.external_id is not None
    }
    calls = [event for event in events if event.ph == "X" and event.cat.lower() in ("cuda_runtime", "cuda_driver")]
    graph: list[CapturedKernel] | None = None
    for call in sorted(calls, key=lambda event: float(event.ts)):
        if _BEGIN.search(call.name):
            graph = []
        elif _END.search(call.name):
            if graph:
                yield tuple(graph)
            graph = None
        elif graph is not None and _LAUNCH.match(call.name):
            graph.append(_captured(call, ops))


def _captured(call: _Event, ops: dict[int | str, _Event]) -> CapturedKernel:
    args = call.args or _Args()
    op = None if args.external_id is None else ops.get(args.external_id)
    dims = None if op is None or op.args is None or not op.args.dims else msgspec.json.encode(op.args.dims).decode()
    return CapturedKernel(kernel=args.kernel, op=None if op is None else op.name, dims=dims)
