"""Collectives of several ranks side by side: who arrives late, apart from how long the transfer takes.

On one clock how far ends of an instance lie apart says how well the clocks agree (the residual); the spread of its
starts is arrival skew, and what follows the last arrival is transfer. A skew within twice the residual is no evidence
of a late rank, and is given to none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.steps.clock import Clocks, Matched, fit_clocks, keep_recorded, match_collectives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.steps.clock import FloatGrid
    from stepscope.store.events import EventStore

ClockMethod = Literal["recorded clocks", "fitted to the ends of collectives"]

NOBODY = -1
MIN_FITTED = 3  # instances: with fewer an offset fits every end, and the residual says nothing
_AGREE_NS = 2_000.0  # recorded clocks that agree about as well as fitted ones are kept
_SURE = 2.0  # how many residuals a skew must exceed


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Per matched collective, in time order: skew, transfer, what balance would gain, the late rank's position.

    `balance_ns` is the last arrival less the mean one: so much sooner the transfer would begin if the same work were
    spread evenly. `late` is NOBODY where the skew is within the residual or several came last.
    """

    matched: Matched
    arrival_ns: FloatGrid
    skew_ns: Int64
    transfer_ns: Int64
    balance_ns: Int64
    late: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSkew:
    """Times in ns over all matched instances. `awaited_ns`: per rank, the skew of the instances that it was last at."""

    num_instances: int
    residual_ns: int
    residual_p95_ns: int
    total_skew_ns: int
    largest_skew_ns: int
    largest_late_rank: int
    awaited_ns: dict[int, int]
    method: ClockMethod
    offset_ns: dict[int, int]  # of each rank's clock against the first one's, at the first instance
    drift_ppm: dict[int, float]
    left_out: tuple[int, ...]
    instances: Instances = field(compare=False, repr=False)

    @property
    def late_rank(self) -> int:
        """The rank that the others wait for most."""
        return max(self.awaited_ns, key=lambda rank: (self.awaited_ns[rank], -rank))

    @property
    def is_evidence(self) -> bool:
        """Whether any skew exceeds what the clocks leave open."""
        return any(self.awaited_ns.values())


def find_skew(stores: Sequence[EventStore], collectives: Sequence[Int64]) -> ArrivalSkew | str:
    """Arrival skew from each rank's collective rows in time order, or why it cannot be given."""
    if len(stores) < 2:
        return "one rank only"
    if any(store.rank is None for store in stores):
        return "a capture without rank"
    matched = match_collectives(stores, collectives)
    if not matched.row.shape[1]:
        return _why_unmatched([len(rows) for rows in collectives])
    chosen = _choose_clocks(stores, matched)
    if chosen is None:
        return "a capture without wall-clock time, and fewer than 3 collectives to fit its clock by"
    return _to_skew(stores, matched, *chosen)


def _why_unmatched(counts: list[int]) -> str:
    if not any(counts):
        return "no collective is recorded"
    if len(set(counts)) > 1:
        return f"the ranks hold different numbers of collectives ({', '.join(map(str, counts))})"
    return "the ranks' collectives differ in kind or order"


def _choose_clocks(stores: Sequence[EventStore], matched: Matched) -> tuple[Clocks, ClockMethod] | None:
    """The recorded clocks where they agree; else the fitted ones, where there is enough to fit."""
    bases = [store.origin.base_time_ns for store in stores]
    recorded = keep_recorded(matched, [b or 0 for b in bases]) if None not in bases else None
    fitted = fit_clocks(matched) if matched.row.shape[1] >= MIN_FITTED else None
    if fitted is None:
        return None if recorded is None else (recorded, "recorded clocks")
    if recorded is not None and recorded.residual(0.5) <= _SURE * fitted.residual(0.5) + _AGREE_NS:
        return recorded, "recorded clocks"
    return fitted, "fitted to the ends of collectives"


def _to_skew(stores: Sequence[EventStore], matched: Matched, clocks: Clocks, method: ClockMethod) -> ArrivalSkew:
    found = measure_instances(matched, clocks)
    worst = int(np.argmax(found.skew_ns))
    ranks = [store.rank or 0 for store in stores]
    whole = [base + (store.origin.base_time_ns or 0) for base, store in zip(matched.base_ns, stores, strict=True)]
    return ArrivalSkew(
        num_instances=len(found.skew_ns),
        residual_ns=int(clocks.residual(0.5)),
        residual_p95_ns=int(clocks.residual(0.95)),
        total_skew_ns=int(found.skew_ns.sum()),
        largest_skew_ns=int(found.skew_ns[worst]),
        largest_late_rank=ranks[int(np.where(matched.present, found.arrival_ns, -np.inf)[:, worst].argmax())],
        awaited_ns={rank: int(found.skew_ns[found.late == i].sum()) for i, rank in enumerate(ranks)},
        method=method,
        offset_ns={
            rank: round(clocks.offset_ns[i] - clocks.offset_ns[0]) + whole[i] - whole[0] for i, rank in enumerate(ranks)
        },
        drift_ppm={rank: round(float(clocks.drift[i]) * 1e6, 3) for i, rank in enumerate(ranks)},
        left_out=tuple(ranks[i] for i in matched.left_out),
        instances=found,
    )


def measure_instances(matched: Matched, clocks: Clocks) -> Instances:
    """Arrivals and ends of every instance on one clock."""
    held = matched.present
    arrival, end = clocks.to_common(matched.start_ns), clocks.to_common(matched.end_ns)
    last = np.where(held, arrival, -np.inf).max(axis=0)
    skew = last - np.where(held, arrival, np.inf).min(axis=0)
    mean = np.where(held, arrival - last, 0.0).sum(axis=0) / held.sum(axis=0)
    sure = skew > _SURE * np.maximum(clocks.residual_of_instances(), clocks.residual(0.5))
    alone = (held & (arrival == last)).sum(axis=0) == 1  # of several that come last together none is awaited
    late = np.where(sure & alone, np.where(held, arrival, -np.inf).argmax(axis=0), NOBODY)
    transfer = np.maximum(np.where(held, end, -np.inf).max(axis=0) - last, 0.0)
    return Instances(
        matched=matched,
        arrival_ns=arrival,
        skew_ns=np.rint(skew).astype(np.int64),
        transfer_ns=np.rint(transfer).astype(np.int64),
        balance_ns=np.rint(-mean).astype(np.int64),
        late=late.astype(np.int64),
    )
