"""OpInputs: the input dimensions and types that a capture recorded of its matrix products, beside their events.

A profiler records them where it is asked to (`record_shapes`). They are kept of MATRIX_OPS alone, as text and interned,
and joined to the events by start and name: an op's name and start on one clock are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.store.schema import OP

if TYPE_CHECKING:
    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore

# operations of torch, vLLM and SGLang that multiply two matrices
MATRIX_OPS = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::linear",
        "aten::_scaled_mm",
        "_C::cutlass_scaled_mm",
        "_C::onednn_mm",
    }
)
Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpInput:
    """One op's name, the dims of each input (empty: a scalar, or none) and their type names."""

    name: str
    dims: Dims
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpInputs:
    """`kind` is a position in `kinds`; rows in the order of the file."""

    start_ns: Int64
    kind: Int64
    kinds: tuple[OpInput, ...]


def find_inputs(store: EventStore) -> tuple[Int64, Int64]:
    """(rows of events that have inputs, positions in `kinds`), in the events' order."""
    nothing = np.empty(0, np.int64)
    if store.op_inputs is None:
        return nothing, nothing
    e, inputs = store.events, store.op_inputs
    kinds = {
        (start, inputs.kinds[kind].name): kind
        for start, kind in zip(inputs.start_ns.tolist(), inputs.kind.tolist(), strict=True)
    }
    wanted = np.array([name in MATRIX_OPS for name in store.names] or [False])
    rows = np.flatnonzero((e.kind == OP) & wanted[e.name_id])
    found = [
        kinds.get((start, store.names[name]), -1)
        for start, name in zip(e.start_ns[rows].tolist(), e.name_id[rows].tolist(), strict=True)
    ]
    place = np.array(found, np.int64)
    return rows[place >= 0], place[place >= 0]
