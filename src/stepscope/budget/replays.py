"""What a capture shows of graph replays: sizes of those that should be alike, and graphs recorded as one item.

A recorder may write a replay as one item on its stream, without the kernels in it (Nsight's default). The device then
looks idle where it was busy, and nothing says which kernels ran.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from stepscope.messages import Message, say
from stepscope.store.schema import LAST_DEVICE_KIND, SCOPE

if TYPE_CHECKING:
    from stepscope.budget.reason import Evidence

_ALIKE = 0.8  # of the kernel names of two replays, the part in both that makes them one graph's
# a layer's module path, in a layerwise marker or another range
_LAYER = re.compile(r"(?:^|[.'\"\s])(?:layers?|blocks?|h)\.(\d+)\b")


def graphs_as_items(x: Evidence) -> Message | None:
    """How this capture shows that graphs are in it as one item each; None if it does not."""
    metadata = x.store.origin.metadata
    replays = metadata.get("num_graph_replays")
    if isinstance(replays, int) and replays:
        return say("{count} graph replays are recorded as one item each, without the kernels in them", count=replays)
    if metadata.get("graph_trace_mode") == "graph" and (
        len(x.graph_launches) or metadata.get("all_calls_recorded") is not True
    ):
        return say(
            "the recorder was set to write a graph as one item, without its kernels, and its calls do not rule out "
            "that graphs ran"
        )
    return _fewer_kernels_than_layers(x)


def _fewer_kernels_than_layers(x: Evidence) -> Message | None:
    """A step runs several kernels a layer; far fewer kernels than layers are a graph's launch and what is around it."""
    e = x.store.events
    scopes = np.unique(e.name_id[e.kind == SCOPE]).tolist()
    layers = {int(found[1]) for i in scopes if (found := _LAYER.search(x.store.names[i]))}
    kernels = [step.num_kernels for step in x.table.counted if step.num_kernels is not None]
    if len(layers) < 2 or not kernels or x.table.windows.lane != "device":
        return None
    median = int(np.median(kernels))
    if median >= len(layers):
        return None
    return say(
        "a step has {kernels} kernels (median), and the model has {layers} layers: kernels inside graphs are missing",
        kernels=median,
        layers=len(layers),
    )


def replay_groups(x: Evidence) -> list[list[int]]:
    """Kernel counts of the graph launches that should be alike: same kind of step, same place in it, not empty.

    Those that stand alone so (no step or no shape is known, every shape is another) are compared by kernel names.
    """
    e = x.store.events
    steps = x.table.counted
    starts = np.array([step.boundary.start_ns for step in steps], np.int64)
    groups: dict[tuple[object, int], list[int]] = defaultdict(list)
    place: dict[int, int] = defaultdict(int)
    for i in np.argsort(e.start_ns[x.graph_launches], kind="stable").tolist():
        index = int(np.searchsorted(starts, e.start_ns[x.graph_launches[i]], side="right")) - 1
        shape = steps[index].boundary.shape if index >= 0 else None
        what = None if shape is None else (shape.num_requests, shape.num_scheduled_tokens)
        key = index if what in (None, (None, None)) else what
        if x.replayed[i]:
            groups[key, place[index]].append(i)
        place[index] += 1
    alone = [members[0] for members in groups.values() if len(members) == 1]
    together = [x.replayed[members].tolist() for members in groups.values() if len(members) > 1]
    return together + _groups_by_name(x, alone)


def _groups_by_name(x: Evidence, launches: list[int]) -> list[list[int]]:
    """Replays of mostly the same kernel names are taken for the same graph, the fullest ones first."""
    e = x.store.events
    work = np.flatnonzero(e.kind <= LAST_DEVICE_KIND)
    work = work[np.argsort(e.correlation_id[work], kind="stable")]
    first = np.searchsorted(e.correlation_id[work], e.correlation_id[x.graph_launches]).tolist()
    groups: dict[frozenset[int], list[int]] = {}
    for i in sorted(launches, key=lambda i: -int(x.replayed[i])):
        size = int(x.replayed[i])
        names = frozenset(e.name_id[work[first[i] : first[i] + size]].tolist())
        alike = (known for known in groups if len(names & known) >= _ALIKE * len(names | known))
        groups.setdefault(next(alike, names), []).append(size)
    return list(groups.values())
