"""A finding of the gate before idle, and what its tests look at: launches and the device work of each.

A launch is answered if device work with its correlation id is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.catalog import is_graph_launch, is_launch
from stepscope.messages import Message
from stepscope.store.events import NO_ID
from stepscope.store.launches import has_constant_ids
from stepscope.store.schema import LAST_DEVICE_KIND, RUNTIME

if TYPE_CHECKING:
    from stepscope.intervals import Int64
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore, Mask

STACKS = Message(
    "record Python stacks: vLLM --profiler-config '{{\"torch_profiler_with_stack\": true, ...}}'; SGLang "
    "/start_profile with with_stack=true"
)
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
    unanswered: Mask  # per plain launch, in time order: no device work is recorded

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
        unanswered = ~np.isin(e.correlation_id[plain], ids)
        if has_constant_ids(e.correlation_id[calls]):
            unanswered, graphs, counts = np.zeros(len(plain), bool), graphs[:0], counts[:0]  # nothing to count by
        elif not (ids != NO_ID).any() and len(ids):
            unanswered = np.zeros(len(plain), bool)
        return cls(
            store=store, table=table, launches=plain, graph_launches=graphs, replayed=counts, unanswered=unanswered
        )

    @property
    def num_dropped(self) -> int:
        """Launches without device work before the last one that has some: those had the time to run."""
        answered = np.flatnonzero(~self.unanswered)
        return int(self.unanswered[: answered[-1]].sum()) if len(answered) else len(self.unanswered)
