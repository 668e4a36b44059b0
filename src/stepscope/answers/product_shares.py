"""Each matrix product of a capture that recorded its input dims: flop, bytes, and its share of the device's ceiling.

m, k, n: [m, k] x [k, n], `groups` times. flop = 2 m k n groups; bytes: both inputs and the output once, at their types'
sizes. Its time is that of the kernels it launched (on a CPU backend its own); share = max(flop / F, bytes / B) / time,
F and B the device's rates: the roofline's efficiency of this very call. Equal products are added up.
Kernels that a graph replays have no op, and so no shape. A product inside another (linear, addmm) is counted once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.cost.roofline import bound_flop_per_s
from stepscope.errors import BadInput
from stepscope.store.launches import NO_LAUNCH
from stepscope.store.op_inputs import find_inputs

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount
    from stepscope.cost.hardware import Hardware
    from stepscope.intervals import Int64
    from stepscope.store.op_inputs import OpInput

MOST = 10
# op -> positions of its two matrices among its inputs, and whether the second stands as [n, k]
_MATRICES: dict[str, tuple[int, int, bool]] = {
    "aten::mm": (0, 1, False),
    "aten::addmm": (1, 2, False),
    "aten::bmm": (0, 1, False),
    "aten::baddbmm": (1, 2, False),
    "aten::linear": (0, 1, True),
    "aten::_scaled_mm": (0, 1, False),
    "_C::cutlass_scaled_mm": (1, 2, False),
}
_OUTPUT_FIRST = "_C::onednn_mm"  # (out [m, n], a [m, k], ...): its weight is a handle
# type names of torch's profiler -> dtype of `models/dtype.py`, bytes an element
_TYPES: dict[str, tuple[str, int]] = {
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("fp16", 2),
    "float": ("fp32", 4),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "signed char": ("int8", 1),
}
_WIDE = 2  # bytes of an output element whose inputs are narrower


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductShare:
    """All calls of one product of a rank. `share` None: the device has no rate for its dtype."""

    rank: int | None
    op: str
    m: int
    n: int
    k: int
    groups: int
    dtype: str
    calls: int
    sum_ns: int
    flop: int
    moved_bytes: int
    share: float | None
    bound: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    op: str
    m: int
    n: int
    k: int
    groups: int
    dtype: str
    element_bytes: int

    @property
    def flop(self) -> int:
        return 2 * self.m * self.n * self.k * self.groups

    @property
    def moved_bytes(self) -> int:
        inputs = self.element_bytes * (self.m * self.k + self.k * self.n)
        return self.groups * (inputs + max(self.element_bytes, _WIDE) * self.m * self.n)


def find_products(rank: RankAccount, hardware: Hardware) -> tuple[ProductShare, ...]:
    """The MOST products with the most time, longest first; none where no dims, or no kernels of them, are known."""
    rows, kinds = _outermost(rank)
    if not len(rows) or rank.store.op_inputs is None:
        return ()
    shapes = [_shape(found) for found in rank.store.op_inputs.kinds]
    calls: dict[_Shape, list[int]] = {}
    for kind, ns in zip(kinds.tolist(), _times(rank, rows).tolist(), strict=True):
        shape = shapes[kind]
        if shape is not None and ns > 0:
            entry = calls.setdefault(shape, [0, 0])
            entry[0] += 1
            entry[1] += ns
    longest = sorted(calls.items(), key=lambda item: -item[1][1])[:MOST]
    return tuple(_share(rank.rank, shape, count, ns, hardware) for shape, (count, ns) in longest)


def _share(rank: int | None, shape: _Shape, count: int, sum_ns: int, hardware: Hardware) -> ProductShare:
    share, bound = None, None
    try:
        compute_s = count * shape.flop / bound_flop_per_s(hardware, shape.dtype)
        memory_s = count * shape.moved_bytes / hardware.bytes_per_s()
        share, bound = max(compute_s, memory_s) / (1e-9 * sum_ns), "compute" if compute_s > memory_s else "memory"
    except BadInput:  # no rate for this dtype: what is known of the call is shown all the same
        pass
    return ProductShare(
        rank=rank,
        op=shape.op,
        m=shape.m,
        n=shape.n,
        k=shape.k,
        groups=shape.groups,
        dtype=shape.dtype,
        calls=count,
        sum_ns=sum_ns,
        flop=count * shape.flop,
        moved_bytes=count * shape.moved_bytes,
        share=share,
        bound=bound,
    )


def _shape(found: OpInput) -> _Shape | None:
    """m, n, k of an op; None where its inputs are not those that its name takes."""
    if found.name == _OUTPUT_FIRST:
        first, second, is_output = 1, 0, True
    else:
        (first, second, is_transposed), is_output = _MATRICES[found.name], False
    if len(found.dims) <= max(first, second) or len(found.types) <= first or found.types[first] not in _TYPES:
        return None
    a, b = found.dims[first], found.dims[second]
    if len(a) < 2 or len(b) < 2:
        return None
    dtype, element_bytes = _TYPES[found.types[first]]
    is_batched = found.name in ("aten::bmm", "aten::baddbmm")
    m, k = (a[1], a[2]) if is_batched and len(a) == 3 else (int(np.prod(a[:-1])), a[-1])
    if is_output:
        n, depth = b[-1], k
    else:
        n, depth = (b[-2], b[-1]) if is_transposed else (b[-1], b[-2])
    if depth != k or min(m, n, k) < 1:
        return None
    groups = a[0] if is_batched and len(a) == 3 else 1
    return _Shape(op=found.name, m=m, n=n, k=k, groups=groups, dtype=dtype, element_bytes=element_bytes)


def _outermost(rank: RankAccount) -> tuple[Int64, Int64]:
    """Products that stand in no other one; per thread, in the order of their starts."""
    rows, kinds = find_inputs(rank.store)
    e = rank.store.events
    kept: list[int] = []
    ends: dict[int, int] = {}
    for place, row in enumerate(rows.tolist()):  # events are in the order of their starts, the longest first
        track, end = int(e.track_id[row]), int(e.end_ns[row])
        if end > ends.get(track, -1) and int(e.start_ns[row]) >= ends.get(track, -1):
            kept.append(place)
            ends[track] = end
    chosen = np.array(kept, np.int64)
    return rows[chosen], kinds[chosen]


def _times(rank: RankAccount, rows: Int64) -> Int64:
    """Per product, the summed time of the kernels launched inside it on its thread; of the host lane, its own."""
    e, work = rank.store.events, rank.table.work
    if rank.table.windows.lane == "host":
        own: Int64 = e.duration_ns[rows]
        return own
    total = np.zeros(len(rows), np.int64)
    linked = work.launch != NO_LAUNCH
    launches, kernels = work.launch[linked], work.row[linked]
    for track in np.unique(e.track_id[rows]).tolist():
        ours = np.flatnonzero(e.track_id[rows] == track)
        theirs = e.track_id[launches] == track
        times = e.start_ns[launches[theirs]]
        place = np.searchsorted(e.start_ns[rows[ours]], times, side="right") - 1
        inside = (place >= 0) & (times < e.end_ns[rows[ours[np.maximum(place, 0)]]])
        np.add.at(total, ours[place[inside]], e.duration_ns[kernels[theirs][inside]])
    return total
