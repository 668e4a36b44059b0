"""The gate before idle: can this capture carry a claim about idle time and shares of wall time at all?

The best-known failure of trace tools is idle time that is not there: kernels that the profiler dropped look like a
device that waits. If one of the tests of `omissions` fails, `supply`, `host`, `idle` and all shares of wall time are
withheld, and the reason says what to record instead. Public cases: docs/why.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.budget.completeness import check_backend, check_completeness, check_stacks
from stepscope.budget.omissions import OMISSIONS
from stepscope.budget.reason import Evidence, Reason

if TYPE_CHECKING:
    from stepscope.budget.placement import Placements
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the gate found for one rank."""

    reasons: tuple[Reason, ...]
    num_kernels: int
    num_in_steps: int
    matched_fraction: float | None

    @property
    def idle_claimable(self) -> bool:
        """Whether idle time and shares of wall time may be stated."""
        return not any(reason.withholds for reason in self.reasons)

    @property
    def num_unassigned(self) -> int:
        """Device events that belong to no step."""
        return self.num_kernels - self.num_in_steps


REASON_MEANING: dict[str, str] = {
    "capture_incomplete": "part of the file is missing or unreadable: any event may be",
    "no_stacks": "no Python stacks: what the worker did outside its operations is not recorded",
    "backend_unknown": "no device work, and nothing says that the model ran on the CPU",
    "device_not_recorded": "launches were recorded and no device work at all",
    "launches_without_kernels": "too many kernel launches have no kernel",
    "graph_level_capture": "graphs are recorded as one item each, without the kernels in them",
    "graph_launches_without_kernels": "graph launches have no kernels: graph-level or dropped",
    "partial_replays": "replays of the same graph have different numbers of kernels",
    "steps_without_kernels": "steps that ran tokens have no kernel",
    "steps_short_of_kernels": "steps have far fewer kernels than steps of the same shape",
    "deferred_burst": "device work is stamped outside the steps, in a burst",
    "kernels_outside_steps": "too much device time inside the windows belongs to no step",
    "duration_outlier": "one event holds much of the time and runs over later ones of its stream",
    "device_times_lost": "device events without usable times",
    "clocks_disagree": "host and device clocks are apart: the cause of idle time cannot be read off the host",
    "ids_used_twice": "several launches share a correlation id, as in a file of two processes",
    "launches_pending": "the capture ended before its last launches ran",
    "truncated_window": "the host waits for device work from before or outside the capture",
    "shared_graph_id": "kernels of a graph share their launch's id: no operation or shape per kernel",
    "ids_missing": "device work without usable correlation ids is joined to steps by time",
    "inferred_steps": "steps come from a pattern, not from the engine",
}


def check_coverage(store: EventStore, table: StepTable, placements: Placements) -> Coverage:
    """Run every test of the gate."""
    if table.windows.lane == "host":
        on_host = (check_completeness(store), check_backend(store, table), check_stacks(store))
        reasons = tuple(reason for reason in on_host if reason is not None)
        return Coverage(reasons=reasons, num_kernels=0, num_in_steps=0, matched_fraction=None)
    evidence = Evidence.gather(store, table)
    found = (check_completeness(store), *(test(evidence) for test in OMISSIONS), check_stacks(store))
    return Coverage(
        reasons=tuple(reason for reason in found if reason is not None),
        num_kernels=len(table.work.row),
        num_in_steps=table.work.num_assigned,
        matched_fraction=placements.matched_fraction,
    )
