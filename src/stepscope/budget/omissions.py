"""The ways in which device work can be missing from a capture, each a test of one kind of evidence.

A test gives a Reason or None. Thresholds are fractions of what is counted; each stands beside its meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.alignment import clocks_disagree, ids_used_twice, short_steps
from stepscope.budget.reason import NODE_LEVEL, WHOLE_CAPTURE, Evidence, Reason
from stepscope.budget.replays import graphs_as_items, replay_groups
from stepscope.intervals import intersect, overlaps, span, union
from stepscope.messages import say
from stepscope.steps.composition import NO_STEP
from stepscope.store.doubts import find_outliers
from stepscope.store.health import UNTIMED_CODES
from stepscope.store.launches import NO_LAUNCH
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable


# up to this part of the launches may lack device work: the capture's last ones had not run when it stopped
_TAIL = 0.05
_DROPPED = 0.01  # the same of launches with later ones that have work: those had the time to run
_GRAPH_TAIL = 0.02
_REPLAY = 0.98  # a graph's replays are the same work: fewer events than this part of the fullest replay were dropped
_OUTSIDE = 0.10
_OUTLIER = 0.10
_LOST = 0.01


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
    missing, all_of_them = int(x.unanswered.sum()), len(x.launches)
    if x.table.windows.lane == "none" or (missing <= _TAIL * all_of_them and x.num_dropped <= _DROPPED * all_of_them):
        return None
    return Reason(
        code="launches_without_kernels",
        withholds=True,
        text=say(
            "{some} of {all} kernel launches ({share}) have no kernel in the capture",
            some=missing,
            all=all_of_them,
            share=show_fraction(missing / all_of_them),
        ),
        record_with=WHOLE_CAPTURE,
    )


def _launches_pending(x: Evidence) -> Reason | None:
    missing = int(x.unanswered.sum())
    if not missing or x.table.windows.lane == "none" or _launches_without_kernels(x) is not None:
        return None
    return Reason(
        code="launches_pending",
        withholds=False,
        text=say(
            "{some} of {all} kernel launches have no kernel, {last} of them the capture's last ones: it ended before "
            "they ran, so the last step is not whole",
            some=missing,
            all=len(x.launches),
            last=missing - x.num_dropped,
        ),
        record_with=WHOLE_CAPTURE,
    )


def _clocks_disagree(x: Evidence) -> Reason | None:
    text = clocks_disagree(x)
    if text is None:
        return None
    return Reason(
        code="clocks_disagree",
        withholds=True,
        text=text,
        record_with=say("update the driver and its profiler (CUPTI, roctracer), and {recipe}", recipe=WHOLE_CAPTURE),
    )


def _ids_used_twice(x: Evidence) -> Reason | None:
    text = ids_used_twice(x)
    if text is None:
        return None
    return Reason(
        code="ids_used_twice",
        withholds=True,
        text=text,
        record_with=say("give each process a file of its own (a profiler directory per rank)"),
    )


def _steps_short_of_kernels(x: Evidence) -> Reason | None:
    short, alike = short_steps(x)
    if short <= _GRAPH_TAIL * alike:
        return None
    return Reason(
        code="steps_short_of_kernels",
        withholds=True,
        text=say(
            "{some} of {all} eager steps hold far fewer kernels than other steps of the same requests and tokens: "
            "launches and kernels were dropped together",
            some=short,
            all=alike,
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
    _steps_short_of_kernels,
    _kernels_outside_steps,
    _duration_outlier,
    _device_times_lost,
    _clocks_disagree,
    _ids_used_twice,
    _launches_pending,
    _truncated_window,
    _shared_graph_id,
    _ids_missing,
    _inferred_steps,
)
