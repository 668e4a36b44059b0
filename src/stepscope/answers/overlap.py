"""A recorder's own overlap figures beside ours, with the difference explained.

Ascend's step_trace_time calls Computing every kernel that is no HCCL operation, so a MoE dispatch is computing there
and comm here; copies and device-side waits are in neither of its lanes, so they are Free there (Preparing, before the
first kernel). The same sets are laid over our events: what is then left of the difference is rounding, or events of no
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.intervals import merge, subtract, union
from stepscope.messages import Message, say
from stepscope.store.schema import KERNEL, LAST_DEVICE_KIND
from stepscope.units import show_ns

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount
    from stepscope.intervals import Spans
    from stepscope.store.events import Mask

METADATA = "step_trace_time"
_HCCL = ("collective", "pp_send", "pp_recv")
_MIXED = ("dispatch_combine", "fused_comm")
_WAITS = ("device_wait",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapAccount:
    """Both accounts in ns, over all steps that the recorder lists.

    `residual_ns`: Computing + Communication(Not Overlapped) + Free - Stage - Bubble, the recorder's own law.
    `mixed_ns`: dispatch, combine and fused communication, inside its Computing. `neither_ns`: copies and device waits
    beside which nothing else runs, inside its Free.
    """

    computing_ns: int
    communication_not_overlapped_ns: int
    free_ns: int
    residual_ns: int
    our_computing_ns: int
    our_communication_not_overlapped_ns: int
    mixed_ns: int
    neither_ns: int


def find_overlap(rank: RankAccount) -> OverlapAccount | None:
    """The recorder's figures of one rank and the same sets over our events; None where it left none."""
    rows = rank.store.origin.metadata.get(METADATA)
    if not isinstance(rows, list) or not rows:
        return None
    e, placements = rank.store.events, rank.budget.placements
    hccl, waits = placements.of_family(*_HCCL), placements.of_family(*_WAITS)
    computing = _union(rank, (e.kind == KERNEL) & ~hccl & ~waits)
    communication = _union(rank, (e.kind == KERNEL) & hccl)
    neither = _union(rank, ((e.kind <= LAST_DEVICE_KIND) & (e.kind != KERNEL)) | ((e.kind == KERNEL) & waits))
    free = _sum(rows, "free_ns")
    official, exposed = _sum(rows, "computing_ns"), _sum(rows, "communication_not_overlapped_ns")
    return OverlapAccount(
        computing_ns=official,
        communication_not_overlapped_ns=exposed,
        free_ns=free,
        residual_ns=official + exposed + free - _sum(rows, "stage_ns") - _sum(rows, "bubble_ns"),
        our_computing_ns=computing.total_ns,
        our_communication_not_overlapped_ns=subtract(communication, computing).total_ns,
        mixed_ns=_union(rank, (e.kind == KERNEL) & placements.of_family(*_MIXED)).total_ns,
        neither_ns=subtract(neither, merge([computing, communication])).total_ns,
    )


def overlap_sentences(rank: RankAccount, of: Message) -> list[Message]:
    """The recorder's account, ours, and why they differ."""
    found = find_overlap(rank)
    if found is None:
        return []
    ours = rank.budget.total.exclusive_ns
    return [
        say(
            "{rank}: the recorder's own figures are Computing {computing}, Communication(Not Overlapped) {exposed}, "
            "Free {free}; ours are compute, kv and unmatched {work}, comm {comm}. The difference: {mixed} of dispatch, "
            "combine and fused communication is computing there and comm here; {neither} of copies and device waits is "
            "Free or Preparing there and work here.",
            rank=of,
            computing=show_ns(found.computing_ns),
            exposed=show_ns(found.communication_not_overlapped_ns),
            free=show_ns(found.free_ns),
            work=show_ns(sum(ours[name] or 0 for name in ("compute", "kv", "unmatched"))),
            comm=show_ns(ours["comm"] or 0),
            mixed=show_ns(found.mixed_ns),
            neither=show_ns(found.neither_ns),
        )
    ]


def _union(rank: RankAccount, rows: Mask) -> Spans:
    e = rank.store.events
    chosen = np.flatnonzero(rows)
    return union(e.start_ns[chosen], e.end_ns[chosen])


def _sum(rows: list[Any], name: str) -> int:
    return sum(int(row.get(name) or 0) for row in rows if isinstance(row, dict))
