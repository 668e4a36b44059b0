"""Steps of two captures -> workloads: groups of the same phase and shape, their steps paired one by one.

A workload has one number of requests and of query tokens in each phase. kv_len grows from step to step, so steps of
one shape whose kv sums follow each other within the tolerance are one workload, and a gap starts the next: a decode at
kv 200 and one at kv 4000 are never put together. Inside a workload each step of A is paired with one of B: of the
same kv sums where there is one, else in their order. What has no partner is listed with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.intervals import overlaps, union
from stepscope.messages import say
from stepscope.store.schema import LAST_DEVICE_KIND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.answers.account import RankAccount
    from stepscope.messages import Message
    from stepscope.steps.step import Step

KV_TOLERANCE = 0.10
COLD = 0.05  # of its window in compilation: no steady state
SideName = Literal["a", "b"]

# phase, then requests and query tokens of the prefill and of the decode rows
_Shape = tuple[str, int | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A counted step with its place among the counted ones (the budget's order)."""

    place: int
    step: Step
    compile_ns: int

    @property
    def kv_sums(self) -> tuple[int, int] | None:
        """(sum of kv_len, sum of query_len*kv_len) over both phases; None where kv_len was not recorded."""
        prefill, decode = self.step.boundary.shape.prefill, self.step.boundary.shape.decode
        if prefill.kv_sum is None or decode.kv_sum is None:
            return None
        products = (prefill.query_kv_sum, decode.query_kv_sum)
        return prefill.kv_sum + decode.kv_sum, sum(p for p in products if p is not None)

    @property
    def is_cold(self) -> bool:
        """Whether it compiles for a notable part of its window."""
        window = self.step.window
        return window is not None and self.compile_ns >= COLD * max(window[1] - window[0], 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Matched steps of one phase and shape on one rank; `pairs` are places in the two sides' counted steps."""

    rank: int | None
    phase: str
    num_prefill: int | None
    num_decode: int | None
    num_tokens: int | None
    kv_range: tuple[int, int] | None
    pairs: tuple[tuple[int, int], ...]

    @property
    def label(self) -> Message:
        """In words."""
        requests = say("{count}", count=self.num_decode if self.phase == "decode" else self.num_prefill)
        if self.phase == "mixed":
            requests = say("{prefill} prefill and {decode} decode", prefill=self.num_prefill, decode=self.num_decode)
        base = say("{phase}: requests {n}, tokens {tokens}", phase=self.phase, n=requests, tokens=self.num_tokens)
        if self.kv_range is None:
            return base
        low, high = self.kv_range
        kv = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return say("{base}, kv {kv}", base=base, kv=kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """Steps of one side and rank that are not compared, and why."""

    side: SideName
    rank: int | None
    phase: str | None
    num_tokens: int | None
    step_ids: tuple[int, ...]
    reason: Message
    is_cold: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """One rank's workloads, in the order of their shapes, and what was left over. `has_kv`: matched by kv sums too."""

    workloads: tuple[Workload, ...]
    unmatched: tuple[Unmatched, ...]
    has_kv: bool


def match_steps(a: RankAccount, b: RankAccount, *, kv_tolerance: float = KV_TOLERANCE) -> Matching:
    """Pair the steps of one rank in two captures; swapping them swaps the pairs."""
    sides: dict[SideName, list[Placed]] = {"a": _placed(a), "b": _placed(b)}
    left: dict[SideName, dict[int, Message]] = {"a": {}, "b": {}}
    groups: dict[_Shape, dict[SideName, list[Placed]]] = {}
    for side, steps in sides.items():
        for placed in steps:
            shape = _shape(placed.step)
            if placed.is_cold:
                left[side][placed.place] = say("it compiles: a cold step, no steady state")
            elif shape is None or placed.step.window is None:
                left[side][placed.place] = say("its shape or its window was not recorded")
            else:
                groups.setdefault(shape, {"a": [], "b": []})[side].append(placed)
    workloads, has_kv = [], True
    for shape in sorted(groups, key=_sort_key):
        for group in _clusters(groups[shape], kv_tolerance):
            pairs = _pair(group, kv_tolerance)
            known = _has_kv(group)
            if pairs:
                has_kv = has_kv and known
                workloads.append(_workload(b.rank if a.rank is None else a.rank, shape, group, pairs))
            _leave(left, group, pairs)
    unmatched = [u for side, steps in sides.items() for u in _listed(side, steps, left[side])]
    return Matching(workloads=tuple(workloads), unmatched=tuple(unmatched), has_kv=has_kv)


def _placed(rank: RankAccount) -> list[Placed]:
    e, steps = rank.store.events, rank.table.counted
    compiles = rank.budget.placements.of_family("compile") & (e.kind > LAST_DEVICE_KIND)
    windows = [step.window or (0, 0) for step in steps]
    starts, ends = (np.array([window[i] for window in windows], np.int64) for i in (0, 1))
    times = overlaps(union(e.start_ns[compiles], e.end_ns[compiles]), starts, ends).tolist()
    return [Placed(place=i, step=step, compile_ns=ns) for i, (step, ns) in enumerate(zip(steps, times, strict=True))]


def _shape(step: Step) -> _Shape | None:
    shape = step.boundary.shape
    if step.phase is None or shape.num_scheduled_tokens is None:
        return None
    prefill, decode = shape.prefill, shape.decode
    return (step.phase, prefill.num_requests, prefill.query_sum, decode.num_requests, decode.query_sum)


def _sort_key(shape: _Shape) -> tuple[str, int, int, int, int]:
    phase, *counts = shape
    first, second, third, fourth = (-1 if count is None else count for count in counts)
    return phase, first, second, third, fourth


def _clusters(group: dict[SideName, list[Placed]], tolerance: float) -> list[dict[SideName, list[Placed]]]:
    """Split where the kv sums of both sides together leave a gap; one group where a side does not know them."""
    if not _has_kv(group):
        return [group]
    everyone = [(placed.kv_sums or (0, 0), side, placed) for side, steps in group.items() for placed in steps]
    clusters: list[dict[SideName, list[Placed]]] = []
    last = 0
    for (kv, _), side, placed in sorted(everyone, key=lambda item: (item[0], item[2].place)):
        if not clusters or kv > last * (1 + tolerance):
            clusters.append({"a": [], "b": []})
        clusters[-1][side].append(placed)
        last = kv
    return clusters


def _has_kv(group: dict[SideName, list[Placed]]) -> bool:
    return all(placed.kv_sums is not None for steps in group.values() for placed in steps)


def _pair(group: dict[SideName, list[Placed]], tolerance: float) -> list[tuple[Placed, Placed]]:
    """Steps of the very same kv sums first; then both sides' others in the order of their sums, the nearest ones."""
    by_kv = _has_kv(group)

    def order(placed: Placed) -> tuple[tuple[int, int], int]:
        return (placed.kv_sums or (0, 0)) if by_kv else (0, 0), placed.place

    a, b = sorted(group["a"], key=order), sorted(group["b"], key=order)
    same = _walk(a, b, lambda x, y: order(x)[0] == order(y)[0], order)
    in_a, in_b = {x.place for x, _ in same}, {y.place for _, y in same}
    a, b = [x for x in a if x.place not in in_a], [y for y in b if y.place not in in_b]

    def alike(x: Placed, y: Placed) -> bool:
        sums = zip(order(x)[0], order(y)[0], strict=True)
        return all(abs(p - q) <= tolerance * max(p, q) for p, q in sums if p and q)

    return same + _walk(a, b, alike, order)


def _walk(
    a: Sequence[Placed],
    b: Sequence[Placed],
    alike: Callable[[Placed, Placed], bool],
    order: Callable[[Placed], tuple[tuple[int, int], int]],
) -> list[tuple[Placed, Placed]]:
    """Go along both sides; of two that are not alike, the smaller has no partner."""
    pairs, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if alike(a[i], b[j]):
            pairs.append((a[i], b[j]))
            i, j = i + 1, j + 1
        elif order(a[i])[0] < order(b[j])[0]:
            i += 1
        else:
            j += 1
    return pairs


def _workload(
    rank: int | None, shape: _Shape, group: dict[SideName, list[Placed]], pairs: list[tuple[Placed, Placed]]
) -> Workload:
    phase, num_prefill, _, num_decode, _ = shape
    sums = [kv[0] for pair in pairs for placed in pair if (kv := placed.kv_sums)]
    return Workload(
        rank=rank,
        phase=phase,
        num_prefill=num_prefill,
        num_decode=num_decode,
        num_tokens=pairs[0][0].step.boundary.shape.num_scheduled_tokens,
        kv_range=(min(sums), max(sums)) if _has_kv(group) else None,
        pairs=tuple((x.place, y.place) for x, y in sorted(pairs, key=lambda pair: (pair[0].place, pair[1].place))),
    )


def _leave(
    left: dict[SideName, dict[int, Message]], group: dict[SideName, list[Placed]], pairs: list[tuple[Placed, Placed]]
) -> None:
    """Give the steps of a group that found no partner their reason."""
    found: dict[SideName, set[int]] = {"a": {x.place for x, _ in pairs}, "b": {y.place for _, y in pairs}}
    for side, steps in group.items():
        other: SideName = "b" if side == "a" else "a"
        name = other.upper()
        reason = say("{other} has no step of this shape", other=name)
        if group[other]:
            reason = say("{other} has no further step of this shape and kv_len", other=name)
        left[side] |= {placed.place: reason for placed in steps if placed.place not in found[side]}


def _listed(side: SideName, steps: Sequence[Placed], left: dict[int, Message]) -> list[Unmatched]:
    """The steps that are not compared, those alike in shape and reason in one row."""
    rows: dict[tuple[str | None, int | None, str], list[Placed]] = {}
    for placed in steps:
        if placed.place in left:
            tokens = placed.step.boundary.shape.num_scheduled_tokens
            rows.setdefault((placed.step.phase, tokens, str(left[placed.place])), []).append(placed)
    return [
        Unmatched(
            side=side,
            rank=own[0].step.rank,
            phase=phase,
            num_tokens=tokens,
            step_ids=tuple(placed.step.step_id for placed in own),
            reason=left[own[0].place],
            is_cold=own[0].is_cold,
        )
        for (phase, tokens, _), own in rows.items()
    ]
