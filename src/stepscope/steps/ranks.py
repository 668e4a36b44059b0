"""Collectives of several ranks side by side: who arrives late, apart from how long the transfer takes.

The k-th collective of each rank is one instance. All ranks leave a collective together, so the spread of its ends is
how well the clocks agree (the residual); the spread of its starts is arrival skew. A skew within the residual is no
evidence of a late rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSkew:
    """Times in ns over all matched instances. `awaited_ns`: per rank, the skew of the instances that it was last at."""

    num_instances: int
    residual_ns: int
    total_skew_ns: int
    largest_skew_ns: int
    largest_late_rank: int
    awaited_ns: dict[int, int]

    @property
    def late_rank(self) -> int:
        """The rank that the others wait for most."""
        return max(self.awaited_ns, key=lambda rank: (self.awaited_ns[rank], -rank))

    @property
    def is_evidence(self) -> bool:
        """Whether the largest skew exceeds what the clocks leave open."""
        return self.largest_skew_ns > 2 * self.residual_ns


def find_skew(stores: Sequence[EventStore], collectives: Sequence[Int64]) -> ArrivalSkew | str:
    """Arrival skew from each rank's collective rows in time order, or why it cannot be given."""
    if len(stores) < 2:
        return "one rank only"
    if any(store.origin.base_time_ns is None or store.rank is None for store in stores):
        return "a capture without wall-clock time or rank"
    counts = {len(rows) for rows in collectives}
    if counts == {0}:
        return "no collective is recorded"
    if len(counts) > 1:
        return f"the ranks hold different numbers of collectives ({', '.join(str(len(rows)) for rows in collectives)})"
    pairs = list(zip(stores, collectives, strict=True))
    names = [[store.names[i] for i in store.events.name_id[rows].tolist()] for store, rows in pairs]
    if any(other != names[0] for other in names[1:]):
        return "the ranks' collectives differ in kind or order"
    start = np.stack([_absolute(store, store.events.start_ns[rows]) for store, rows in pairs])
    end = np.stack([_absolute(store, store.events.end_ns[rows]) for store, rows in pairs])
    skew = start.max(axis=0) - start.min(axis=0)
    worst = int(np.argmax(skew))
    last = np.argmax(start, axis=0)
    alone = (start == start.max(axis=0)).sum(axis=0) == 1  # of several that come last together none is awaited
    ranks = [store.rank for store in stores]
    return ArrivalSkew(
        num_instances=len(skew),
        residual_ns=int(np.median(end.max(axis=0) - end.min(axis=0))),
        total_skew_ns=int(skew.sum()),
        largest_skew_ns=int(skew[worst]),
        largest_late_rank=ranks[int(last[worst])] or 0,
        awaited_ns={rank or 0: int(skew[(last == i) & alone].sum()) for i, rank in enumerate(ranks)},
    )


def _absolute(store: EventStore, times: Int64) -> Int64:
    return times + (store.origin.base_time_ns or 0)
