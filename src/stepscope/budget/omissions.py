"""The ways in which device work can be missing from a capture, each a test of one kind of evidence.

A test gives a Reason or None. Thresholds are fractions of what is counted; each stands beside its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.catalog import is_graph_launch, is_launch
from stepscope.budget.replays import graphs_as_items, replay_groups
from stepscope.intervals import intersect, overlaps, span, union
from stepscope.messages import Message, say
from stepscope.steps.composition import NO_STEP
from stepscope.steps.windows import ran_on_cpu
from stepscope.store.doubts import find_outliers
from stepscope.store.events import NO_ID
from stepscope.store.health import UNTIMED_CODES
from stepscope.store.launches import NO_LAUNCH, has_constant_ids
from stepscope.store.schema import LAST_DEVICE_KIND, OP, RUNTIME
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.intervals import Int64
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore

# up to this part of the launches may lack device work: the capture's last ones had not run when it stopped
_TAIL = 0.05
_GRAPH_TAIL = 0.02
_REPLAY = 0.98  # a graph's replays are the same work: fewer events than this part of the fullest replay were dropped
_OUTSIDE = 0.10
_OUTLIER = 0.10
_LOST = 0.01

WHOLE_CAPTURE = Message(
    "record CPU and device activities in one profile of few steps "
    "(vLLM: torch_profiler_activities [CPU, CUDA], active_iterations 5, torch_profiler_with_stack false)"
)
NODE_LEVEL = Message(
    "record kernels inside graphs: with Nsight `--cuda-graph-trace=node`; with the torch profiler a shorter window or "
    "a driver whose CUPTI or roctracer reports replayed kernels; or run once with enforce_eager to compare"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One finding of the gate. `withholds`: idle and shares cannot be claimed."""

    code: str
    withholds: bool
    text: Message
    record_with: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the tests look at: launches and how many device events each has."""

    store: EventStore
    table: StepTable
    launches: Int64
    graph_launches: Int64
    replayed: Int64  # device events per graph launch
    unanswered: int  # plain launches without device work

    @classmethod
    def gather(cls, store: EventStore, table: StepTable) -> Evidence:
        """Count launches and the device work of each."""
        e = store.events
        calls = np.flatnonzero(e.kind == RUNTIME)
        names = [store.names[i] for i in e.name_id[calls].tolist()]
        plain = calls[[is_launch(name) and not is_graph_launch(name) for name in names]] if len(calls) else calls
        graphs = calls[[is_graph_launch(name) for name in names]] if len(calls) else calls
        ids = np.sort(e.correlation_id[e.kind <= LAST_DEVICE_KIND])
        counts = np.searchsorted(ids, e.correlation_id[graphs], "right") - np.searchsorted(
            ids, e.correlation_id[graphs], "left"
        )
        counts[e.correlation_id[graphs] == NO_ID] = 0
        known = e.correlation_id[plain]
        unanswered = int((~np.isin(known, ids)).sum())
        if has_constant_ids(e.correlation_id[calls]):
            unanswered, graphs, counts = 0, graphs[:0], counts[:0]  # nothing to count by
        elif not (ids != NO_ID).any() and len(ids):
            unanswered = 0
        return cls(
            store=store, table=table, launches=plain, graph_launches=graphs, replayed=counts, unanswered=unanswered
        )


def check_backend(store: EventStore, table: StepTable) -> Reason | None:
    """A profile of CPU activities alone looks like a CPU backend: its operations only launch, and cost little."""
    if ran_on_cpu(store) or not (table.steps or (store.events.kind == OP).any()):
        return None
    return Reason(
        code="backend_unknown",
        withholds=True,
        text=say(
            "no device work is recorded, and no operation of a CPU backend: the device's activities may have been left "
            "out"
        ),
        record_with=WHOLE_CAPTURE,
    )


def _device_not_recorded(x: Evidence) -> Reason | None:
    if x.table.windows.lane != "none":
        return None
    graphs = len(x.graph_launches)
    what = say("{count} graph launches", count=graphs) if graphs else say("{count} launches", count=len(x.launches))
    return Reason(
        code="device_not_recorded",
        withholds=True,
        text=say("{launches} and no device event: there is no evidence of device time", launches=what),
        record_with=NODE_LEVEL if graphs else WHOLE_CAPTURE,
    )


def _graph_level_capture(x: Evidence) -> Reason | None:
    text = graphs_as_items(x)
    if text is None:
        return None
    return Reason(code="graph_level_capture", withholds=True, text=text, record_with=NODE_LEVEL)


def _launches_without_kernels(x: Evidence) -> Reason | None:
    if x.table.windows.lane == "none" or x.unanswered <= _TAIL * len(x.launches):
        return None
    return Reason(
        code="launches_without_kernels",
        withholds=True,
        text=say(
            "{some} of {all} kernel launches ({share}) have no kernel in the capture",
            some=x.unanswered,
            all=len(x.launches),
            share=show_fraction(x.unanswered / len(x.launches)),
        ),
        record_with=WHOLE_CAPTURE,
    )


def _graph_launches_without_kernels(x: Evidence) -> Reason | None:
    empty = int((x.replayed == 0).sum())
    if x.table.windows.lane == "none" or empty <= _GRAPH_TAIL * len(x.replayed):
        return None
    return Reason(
        code="graph_launches_without_kernels",
        withholds=True,
        text=say(
            "{some} of {all} graph launches have no kernels (replay coverage {share}): the device was busy where it "
            "looks idle",
            some=empty,
            all=len(x.replayed),
            share=show_fraction(1 - empty / len(x.replayed)),
        ),
        record_with=NODE_LEVEL,
    )


def _partial_replays(x: Evidence) -> Reason | None:
    recorded = expected = 0
    for sizes in replay_groups(x):
        if len(sizes) >= 2:
            recorded += sum(sizes)
            expected += max(sizes) * len(sizes)
    if not expected or recorded >= _REPLAY * expected:
        return None
    return Reason(
        code="partial_replays",
        withholds=True,
        text=say(
            "replays of the same graph hold different numbers of kernels: replay coverage {share} of the fullest ones; "
            "the missing kernels look like idle time",
            share=show_fraction(recorded / expected),
        ),
        record_with=say("{recipe}; cross-check the device's own utilisation counter", recipe=NODE_LEVEL),
    )


def _steps_without_kernels(x: Evidence) -> Reason | None:
    steps = x.table.counted
    empty = sum(step.num_kernels == 0 for step in steps)
    if x.table.windows.lane == "none" or empty <= _GRAPH_TAIL * len(steps):
        return None
    return Reason(
        code="steps_without_kernels",
        withholds=True,
        text=say("{some} of {all} steps have no kernel in the capture", some=empty, all=len(steps)),
        record_with=WHOLE_CAPTURE,
    )


def _deferred_burst(x: Evidence) -> Reason | None:
    """Device work that carries no ids and lies past every step: flushed late, so its timestamps are not its times."""
    e, rows = x.store.events, x.table.work.row
    ranges = [step.boundary for step in x.table.counted]
    if not len(rows) or len(ranges) < 2 or (x.table.work.launch != NO_LAUNCH).any() or x.table.work.num_assigned:
        return None
    first, last = ranges[0].start_ns, ranges[-1].end_ns
    outside = ((e.start_ns[rows] >= last) | (e.end_ns[rows] <= first)).mean()
    if outside < 0.9:
        return None
    return Reason(
        code="deferred_burst",
        withholds=True,
        text=say(
            "{count} device events are stamped outside all {steps} steps, in a burst of {length}: these are not the "
            "times at which they ran",
            count=show_count(len(rows)),
            steps=len(ranges),
            length=show_ns(int(e.end_ns[rows].max() - e.start_ns[rows].min())),
        ),
        record_with=WHOLE_CAPTURE,
    )


def _kernels_outside_steps(x: Evidence) -> Reason | None:
    work, windows = x.table.work, [step.window for step in x.table.counted if step.window]
    if not windows:
        return None
    e = x.store.events
    tiled = span(windows[0][0], windows[-1][1])
    inside = intersect(union(e.start_ns[work.row], e.end_ns[work.row]), tiled).total_ns
    rows = work.row[work.boundary != NO_STEP]
    own = intersect(union(e.start_ns[rows], e.end_ns[rows]), tiled).total_ns
    if inside == 0 or inside - own <= _OUTSIDE * inside:
        return None
    return Reason(
        code="kernels_outside_steps",
        withholds=True,
        text=say(
            "{share} of the device time in the steps' windows belongs to no step",
            share=show_fraction((inside - own) / inside),
        ),
        record_with=WHOLE_CAPTURE,
    )


def _duration_outlier(x: Evidence) -> Reason | None:
    e, rows = x.store.events, find_outliers(x.store.events)
    start, end = x.table.windows.span
    if not len(rows) or end <= start:
        return None
    length = overlaps(span(start, end), e.start_ns[rows], e.end_ns[rows]).max() / (end - start)
    if length <= _OUTLIER:
        return None
    worst = rows[np.argmax(e.duration_ns[rows])]
    others = np.setdiff1d(x.table.work.row, rows)
    without = union(e.start_ns[others], e.end_ns[others]).total_ns
    return Reason(
        code="duration_outlier",
        withholds=True,
        text=say(
            "`{name}` lasts {length} over later kernels of its own stream; without it the device is busy for {rest}",
            name=x.store.names[e.name_id[worst]][:60],
            length=show_ns(int(e.duration_ns[worst])),
            rest=show_ns(without),
        ),
        record_with=WHOLE_CAPTURE,
    )


def _device_times_lost(x: Evidence) -> Reason | None:
    lost = sum(row.count for row in x.store.health if row.code in UNTIMED_CODES)
    if lost <= _LOST * max(len(x.table.work.row), 1):
        return None
    return Reason(
        code="device_times_lost",
        withholds=True,
        text=say(
            "{lost} events have no usable times, beside {kept} device events that have",
            lost=lost,
            kept=len(x.table.work.row),
        ),
        record_with=say("update CUPTI or the driver, and {recipe}", recipe=WHOLE_CAPTURE),
    )


def _truncated_window(x: Evidence) -> Reason | None:
    truncated = x.table.windows.truncated
    if not len(truncated):
        return None
    return Reason(
        code="truncated_window",
        withholds=False,
        text=say(
            "for {length} the host waits for device work that is not in the capture: a cut window, neither supply nor "
            "idle; where it leads the capture the first step's window begins after it",
            length=show_ns(truncated.total_ns),
        ),
        record_with=say(
            "start the profiler between steps (vLLM: delay_iterations), or keep the previous step's kernels"
        ),
    )


def _shared_graph_id(x: Evidence) -> Reason | None:
    shared = int(x.replayed[x.replayed > 1].sum())
    if not shared:
        return None
    return Reason(
        code="shared_graph_id",
        withholds=False,
        text=say(
            "{kernels} kernels were replayed by {launches} graph launches and share their ids: no operation and no "
            "shape per kernel; shapes come from the step annotation only",
            kernels=show_count(shared),
            launches=int((x.replayed > 1).sum()),
        ),
        record_with=say("keep the graph capture trace beside it (vLLM: capture_torch_profiler true)"),
    )


def _ids_missing(x: Evidence) -> Reason | None:
    launch = x.table.work.launch
    missing = int((launch == NO_LAUNCH).sum())
    if not missing or missing <= _TAIL * len(launch):
        return None
    return Reason(
        code="ids_missing",
        withholds=False,
        text=say(
            "{some} of {all} device events have no launch in the capture; without any, time joins them",
            some=missing,
            all=len(launch),
        ),
        record_with=WHOLE_CAPTURE,
    )


def _inferred_steps(x: Evidence) -> Reason | None:
    if not x.table.steps or x.table.steps[0].boundary.grade != "inferred":
        return None
    return Reason(
        code="inferred_steps",
        withholds=False,
        text=say(
            "the engine marked no steps; they are inferred from: {source}", source=x.table.steps[0].boundary.source
        ),
        record_with=say(
            "record with the engine's step annotations (vLLM writes them in every profile; docs/capture.md)"
        ),
    )


OMISSIONS: tuple[Callable[[Evidence], Reason | None], ...] = (
    _device_not_recorded,
    _graph_level_capture,
    _graph_launches_without_kernels,
    _partial_replays,
    _launches_without_kernels,
    _deferred_burst,
    _steps_without_kernels,
    _kernels_outside_steps,
    _duration_outlier,
    _device_times_lost,
    _truncated_window,
    _shared_graph_id,
    _ids_missing,
    _inferred_steps,
)
