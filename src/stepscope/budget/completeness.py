"""What a capture must hold whichever its lane: a whole file, a known backend, Python stacks; each a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.budget.reason import STACKS, WHOLE_CAPTURE, Reason
from stepscope.messages import say
from stepscope.steps.windows import ran_on_cpu
from stepscope.store.schema import LAST_DEVICE_KIND, OP

if TYPE_CHECKING:
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore

# health codes of files that end early or have holes of unknown size
_DAMAGE = ("truncated_file", "gzip_truncated", "gzip_member_lost")
_LOST = 0.001  # of the events that the file shows traces of


def check_completeness(store: EventStore) -> Reason | None:
    """A profiler does not write in time order: a cut or damaged file may lack any event, not only late ones."""
    damaged = [row.code for row in store.health if row.code in _DAMAGE]
    lost = store.counts.lost
    if not damaged and lost <= _LOST * store.counts.present:
        return None
    return Reason(
        code="capture_incomplete",
        withholds=True,
        text=say(
            "the file is damaged ({codes}; {lost} events are known to be lost, more may be): events of any time may be "
            "missing",
            codes=", ".join(damaged) or "events lost",
            lost=lost,
        ),
        record_with=say("record again, and let the profiler finish writing before the engine ends"),
    )


def check_stacks(store: EventStore) -> Reason | None:
    """Without Python stacks neither a wait for work nor the worker's other doings can be seen."""
    if store.is_simulated or store.has_frames or not (store.events.kind > LAST_DEVICE_KIND).any():
        return None
    return Reason(
        code="no_stacks",
        withholds=False,
        text=say("no Python stacks are recorded: supply and idle cannot be told from each other and stay unknown"),
        record_with=STACKS,
    )


def check_backend(store: EventStore, table: StepTable) -> Reason | None:
    """A profile of CPU activities alone looks like a CPU backend: its operations only launch, and cost little."""
    if store.is_simulated or ran_on_cpu(store) or not (table.steps or (store.events.kind == OP).any()):
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
