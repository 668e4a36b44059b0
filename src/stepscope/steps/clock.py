"""Collectives of several ranks, matched and put on one clock.

Rows of every array are ranks, columns are instances of collectives. The k-th collective of a kind on each rank is one
instance; a rank whose capture began later or ended sooner is shifted to where its ends fit best. Each rank's clock is
fitted as `offset_ns + drift * time`. Ranks leave a collective together, so its ends are what is fitted, by medians: a
rank that the scheduler took off its core right then is an outlier, not a clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore

Float64 = np.ndarray[tuple[int], np.dtype[np.float64]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # [rank, instance]
FloatGrid = np.ndarray[tuple[int, int], np.dtype[np.float64]]
GridMask = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
Group = tuple[str, int, int]  # kind, pipeline stage, DP rank

# exchanges of expert parallelism, which spans the DP ranks (DeepEP, pplx, NCCL's all-to-all)
_EXCHANGE = re.compile(r"dispatch|combine|all_?to_?all|deep_?ep|SendRecv", re.IGNORECASE)

_PLACING = 64  # instances that decide where a shorter capture belongs
_CLEARLY = 4.0  # how many times better the best place must be than the next
_ROUNDS = 6  # of medians over ranks and instances in turn; they stand still after a few
_DRIFT_INSTANCES = 16
_DRIFT_SPAN_NS = 50_000_000  # below this a drift of 100 ppm is 5 us: within what ends scatter
_DRIFT_GAIN = 0.8  # of the scatter must be left at most, else there is no drift
_DRIFT_LIMIT = 500e-6  # crystals stay below 100 ppm; a steeper slope is something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Instances of collectives. `row`: of each rank's events, -1 where the rank's capture does not hold it.

    Times are on each rank's own clock, from `base_ns` on, and 0 where there is none. `short`: how many instances of the
    others each rank's capture does not reach; `left_out`: ranks that could not be placed.
    """

    base_ns: tuple[int, ...]
    row: Grid
    start_ns: Grid
    end_ns: Grid
    short: tuple[int, ...]
    left_out: tuple[int, ...]

    @property
    def present(self) -> GridMask:
        """Which rank holds which instance."""
        held: GridMask = self.row >= 0
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Each rank's clock less the common one, at the first instance and per ns.

    `residual_ns`: twice how far each end lies from the ranks' median end (of two ranks, the spread of their ends); NaN
    where a rank does not hold an instance.
    """

    offset_ns: Float64
    drift: Float64
    origin_ns: float
    residual_ns: FloatGrid

    def to_common(self, times: Grid) -> FloatGrid:
        """Times of [rank, instance] on the common clock."""
        on = times - self.offset_ns[:, None]
        common: FloatGrid = on - self.drift[:, None] * (on - self.origin_ns)
        return common

    def residual(self, quantile: float) -> float:
        """Over all ends."""
        return float(np.nanquantile(self.residual_ns, quantile))

    def residual_of_instances(self) -> Float64:
        """The median one of each instance: an end that one rank alone is late with is no doubt about a clock."""
        return _middle(self.residual_ns)


def match_collectives(stores: Sequence[EventStore], collectives: Sequence[Int64]) -> Matched:
    """Instances from each rank's collective rows in time order; none where no two ranks share a kind."""
    pairs = list(zip(stores, collectives, strict=True))
    base = tuple(int(store.events.start_ns[rows[0]]) if len(rows) else 0 for store, rows in pairs)
    sequences: dict[Group, dict[int, Int64]] = {}
    for i, (store, rows) in enumerate(pairs):
        for name, own in _by_name(store, rows).items():
            sequences.setdefault(_group(store, name), {})[i] = own
    short, left_out = [0] * len(stores), set[int]()
    blocks = [_match_kind(stores, sequences[group], short, left_out) for group in sorted(sequences)]
    row = np.concatenate(blocks, axis=1) if blocks else np.empty((len(stores), 0), np.int64)
    row[sorted(left_out)] = -1
    row = row[:, (row >= 0).sum(axis=0) > 1]
    start, end = (_times(stores, row, base, column) for column in ("start_ns", "end_ns"))
    order = np.argsort(np.where(row >= 0, end, np.iinfo(np.int64).min).max(axis=0), kind="stable")
    return Matched(
        base_ns=base,
        row=row[:, order],
        start_ns=start[:, order],
        end_ns=end[:, order],
        short=tuple(short),
        left_out=tuple(sorted(left_out)),
    )


def _by_name(store: EventStore, rows: Int64) -> dict[str, Int64]:
    ids = store.events.name_id[rows]
    return {store.names[i]: rows[ids == i] for i in np.unique(ids).tolist()}


def _group(store: EventStore, name: str) -> Group:
    """Which ranks leave it together: those of one pipeline stage, and of one DP rank unless experts are exchanged."""
    index = store.origin.parallel
    return name, index.get("pp", 0), 0 if _EXCHANGE.search(name) else index.get("dp", 0)


def _times(stores: Sequence[EventStore], row: Grid, base: tuple[int, ...], column: str) -> Grid:
    times = np.zeros(row.shape, np.int64)
    for i, store in enumerate(stores):
        held = row[i] >= 0
        times[i, held] = getattr(store.events, column)[row[i, held]] - base[i]
    return times


def _match_kind(
    stores: Sequence[EventStore], sequences: dict[int, Int64], short: list[int], left_out: set[int]
) -> Grid:
    """Rows of one kind and group, side by side; a shorter sequence stands where its ends fit, or is left out."""
    longest = max(sequences, key=lambda i: (len(sequences[i]), -i))
    length = len(sequences[longest])
    ends = stores[longest].events.end_ns[sequences[longest]]
    row = np.full((len(stores), length), -1, np.int64)
    for i, rows in sequences.items():
        shift = find_place(ends, stores[i].events.end_ns[rows])
        if shift is None:
            left_out.add(i)
            continue
        short[i] += length - len(rows)
        row[i, shift : shift + len(rows)] = rows
    return row


def find_place(long: Int64, short: Int64) -> int | None:
    """Where a run of ends lies in a longer one, whatever the two clocks differ by; None where two places fit alike."""
    places = len(long) - len(short) + 1
    if places == 1:
        return 0
    if len(short) < 3:
        return None
    chosen = np.unique(np.linspace(0, len(short) - 1, min(_PLACING, len(short))).astype(np.int64))
    scatter = np.empty(places)
    for shift in range(places):
        gap = short[chosen] - long[chosen + shift]
        scatter[shift] = np.median(np.abs(gap - np.median(gap)))
    best = int(np.argmin(scatter))
    others = np.delete(scatter, best)
    return best if float(others.min()) > _CLEARLY * max(float(scatter[best]), 1.0) else None


def keep_recorded(matched: Matched, recorded_ns: Sequence[int]) -> Clocks:
    """The clocks as recorded, `recorded_ns` being each rank's base time; the residual says how well they agree."""
    first = min((r + b for r, b in zip(recorded_ns, matched.base_ns, strict=True)), default=0)
    offset = np.array([first - r - b for r, b in zip(recorded_ns, matched.base_ns, strict=True)], np.float64)
    return _with_residual(matched, offset, np.zeros(len(offset)), 0.0)


def fit_clocks(matched: Matched) -> Clocks:
    """Offsets and drifts under which ranks leave each collective together; the first rank's clock is the common one."""
    offset = _first_offsets(matched)
    drift = np.zeros(len(offset))
    held = matched.present
    ends = matched.end_ns.astype(np.float64)
    origin = float((ends - offset[:, None])[held].min()) if held.any() else 0.0
    for _ in range(_ROUNDS):
        clocks = Clocks(offset_ns=offset, drift=drift, origin_ns=origin, residual_ns=np.empty((0, 0)))
        on = np.where(held, clocks.to_common(matched.end_ns), np.nan)
        common = _middle(on)
        for i in np.flatnonzero(held.any(axis=1)).tolist():
            gap, at = (on[i] - common)[held[i]], (common - origin)[held[i]]
            slope = _slope(gap, at)
            drift[i] += slope
            offset[i] += float(np.median(gap - slope * at))
        offset, drift = offset - offset[0], drift - drift[0]
    return _with_residual(matched, offset, drift, origin)


def _first_offsets(matched: Matched) -> Float64:
    """Against the first rank, or a rank already placed: groups that share no instance stay apart."""
    held, ends = matched.present, matched.end_ns.astype(np.float64)
    offset = np.zeros(len(held))
    placed = [0] if len(held) else []
    open_ranks = list(range(1, len(held)))
    while open_ranks:
        shared = held[placed].astype(np.int64) @ held[open_ranks].T.astype(np.int64)
        which, nth = np.unravel_index(int(np.argmax(shared)), shared.shape)
        known, rank = placed[int(which)], open_ranks.pop(int(nth))
        both = held[known] & held[rank]
        if both.any():
            offset[rank] = offset[known] + float(np.median((ends[rank] - ends[known])[both]))
        placed.append(rank)
    return offset


def _middle(values: FloatGrid) -> Float64:
    """Of the ranks, per instance."""
    middle: Float64 = np.nanmedian(values, axis=0)
    return middle


def _slope(gap: Float64, at: Float64) -> float:
    """Theil and Sen's slope of gaps over time, of the first half against the second; 0 where none is evident."""
    half = len(gap) // 2
    if len(gap) < _DRIFT_INSTANCES or at[-1] - at[0] < _DRIFT_SPAN_NS:
        return 0.0
    run = at[-half:] - at[:half]
    slope = float(np.median((gap[-half:] - gap[:half])[run > 0] / run[run > 0])) if (run > 0).any() else 0.0
    if abs(slope) > _DRIFT_LIMIT:
        return 0.0
    before, after = _scatter(gap), _scatter(gap - slope * at)
    return slope if after <= _DRIFT_GAIN * before else 0.0


def _scatter(values: Float64) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _with_residual(matched: Matched, offset: Float64, drift: Float64, origin: float) -> Clocks:
    clocks = Clocks(offset_ns=offset, drift=drift, origin_ns=origin, residual_ns=np.empty((0, 0)))
    ends = np.where(matched.present, clocks.to_common(matched.end_ns), np.nan)
    return replace(clocks, residual_ns=2 * np.abs(ends - _middle(ends)))
