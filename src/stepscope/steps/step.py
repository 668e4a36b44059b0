"""Engine steps of one store: boundary, shape, window, device work and named parts, together.

`find_steps` is the stage that later ones build on; all it needs is the store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from stepscope.steps.boundaries import Boundary, find_boundaries
from stepscope.steps.composition import DeviceWork, assign_work, busy_ns, graph_mode
from stepscope.steps.windows import Windows, find_windows
from stepscope.store.schema import RUNTIME, SCOPE
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from stepscope.batch import StepPhase
    from stepscope.steps.composition import GraphMode
    from stepscope.store.events import EventStore

# vLLM with VLLM_CUSTOM_SCOPES_FOR_PROFILING=1, V1 runner
_PART = re.compile(r"^gpu_model_runner: (?P<part>[\w ]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A sub-range of a step that the engine names."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One engine step. `window` is None for an empty step; `num_kernels` and `device_busy_ns` without a device lane."""

    step_id: int
    rank: int | None
    boundary: Boundary
    window: tuple[int, int] | None
    graph_mode: GraphMode | None
    num_kernels: int | None
    device_busy_ns: int | None
    parts: tuple[Part, ...]

    @property
    def phase(self) -> StepPhase | None:
        """prefill, decode, mixed or empty; None where the marker does not tell."""
        return self.boundary.shape.phase

    @property
    def is_empty(self) -> bool:
        """Listed, not counted."""
        return self.boundary.is_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """All steps of one store, with the windows and the device work that they rest on."""

    steps: tuple[Step, ...]
    windows: Windows
    work: DeviceWork

    @property
    def counted(self) -> tuple[Step, ...]:
        """Steps that ran tokens."""
        return tuple(step for step in self.steps if not step.is_empty)


@overload
def find_steps(capture: EventStore) -> StepTable: ...
@overload
def find_steps(capture: Trace) -> tuple[StepTable, ...]: ...
def find_steps(capture: EventStore | Trace) -> StepTable | tuple[StepTable, ...]:
    """The engine steps of one store, or of each store of a trace.

    A table is empty where nothing marks a step; the rank's span is known all the same.
    """
    if isinstance(capture, Trace):
        return tuple(_find_steps(store) for store in capture.stores)
    return _find_steps(capture)


def _find_steps(store: EventStore) -> StepTable:
    boundaries = find_boundaries(store)
    work = assign_work(store, boundaries)
    windows = find_windows(store, boundaries, work)
    launches = _graph_launches(store, boundaries)
    parts = _find_parts(store, boundaries)
    steps = []
    for index, boundary in enumerate(boundaries):
        rows = work.of_step(index)
        on_device = windows.lane == "device"
        steps.append(
            Step(
                step_id=index,
                rank=store.rank,
                boundary=boundary,
                window=windows.of_step[index],
                graph_mode=graph_mode(work, index, launches[index]) if on_device else None,
                num_kernels=len(rows) if on_device else None,
                device_busy_ns=busy_ns(store, rows) if on_device else None,
                parts=parts[index],
            )
        )
    return StepTable(steps=tuple(steps), windows=windows, work=work)


def _graph_launches(store: EventStore, boundaries: tuple[Boundary, ...]) -> list[int]:
    named = np.array([name.endswith("GraphLaunch") for name in store.names] or [False])
    times = store.events.start_ns[named[store.events.name_id] & (store.events.kind == RUNTIME)]
    return [int(((times >= b.start_ns) & (times < b.end_ns)).sum()) for b in boundaries]


def _find_parts(store: EventStore, boundaries: tuple[Boundary, ...]) -> list[tuple[Part, ...]]:
    """Parts go to the last step that had begun: sampling stands after the step's own range."""
    e = store.events
    parts: list[list[Part]] = [[] for _ in boundaries]
    named = {i: match["part"] for i, name in enumerate(store.names) if (match := _PART.match(name))}
    if not named or not boundaries:
        return [tuple(found) for found in parts]
    wanted = np.zeros(len(store.names), bool)
    wanted[list(named)] = True
    starts = np.array([b.start_ns for b in boundaries], np.int64)
    for row in np.flatnonzero((e.kind == SCOPE) & wanted[e.name_id]).tolist():
        index = int(np.searchsorted(starts, e.start_ns[row], side="right")) - 1
        if index >= 0:
            name = named[int(e.name_id[row])]
            parts[index].append(Part(name=name, start_ns=int(e.start_ns[row]), duration_ns=int(e.duration_ns[row])))
    return [tuple(found) for found in parts]
