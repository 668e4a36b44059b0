"""The recorded signals of the four layers, as the first founding note lists them: count, total, median, p90, share.

A signal's total is the union of its ranges: nested envelopes (acquire_read inside dequeue) are never added up. An
envelope (execute_model, model forward) holds other signals and so gets no share. Quantiles are recorded values
(nearest rank), not interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.intervals import clip, union
from stepscope.store.schema import FRAME, KERNEL, MEMCPY, MEMSET, OP, RUNTIME, SCOPE

if TYPE_CHECKING:
    from stepscope.budget.breakdown import RankBudget
    from stepscope.intervals import Int64
    from stepscope.store.events import EventStore

_DEVICE = (KERNEL, MEMCPY, MEMSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalKind:
    """A signal: what catalog families it consists of, and the layer that it speaks for."""

    name: str
    layer: str
    families: tuple[str, ...]
    kinds: tuple[int, ...]


SIGNAL_KINDS: tuple[SignalKind, ...] = (
    SignalKind(name="dequeue / acquire_read", layer="supply", families=("dequeue",), kinds=(FRAME,)),
    SignalKind(name="execute_model", layer="envelope", families=("execute_model",), kinds=(FRAME,)),
    SignalKind(name="model forward", layer="envelope", families=("model_forward",), kinds=(FRAME,)),
    SignalKind(name="attention", layer="compute", families=("attention",), kinds=(*_DEVICE, OP)),
    SignalKind(name="MLA attention", layer="compute", families=("attention_mla",), kinds=(*_DEVICE, OP)),
    SignalKind(name="sparse attention", layer="compute", families=("attention_sparse",), kinds=(*_DEVICE, OP)),
    SignalKind(name="linear attention", layer="compute", families=("recurrent",), kinds=(*_DEVICE, OP)),
    SignalKind(name="experts", layer="compute", families=("experts",), kinds=(*_DEVICE, OP)),
    SignalKind(
        name="indexer and top-k selection", layer="kv", families=("indexer", "topk_selection"), kinds=(*_DEVICE, OP)
    ),
    SignalKind(
        name="gather / upconvert / copy", layer="kv", families=("gather_upconvert", "kv_copy"), kinds=(*_DEVICE, OP)
    ),
    SignalKind(name="cache write", layer="kv", families=("cache_write", "compressor"), kinds=(*_DEVICE, OP)),
    SignalKind(name="KV transfer", layer="kv", families=("kv_transfer",), kinds=(*_DEVICE, OP, FRAME)),
    SignalKind(
        name="collectives", layer="comm", families=("collective", "dispatch_combine", "peer_copy"), kinds=(*_DEVICE, OP)
    ),
    SignalKind(name="pipeline send / receive", layer="comm", families=("pp_send", "pp_recv"), kinds=(*_DEVICE, OP)),
    SignalKind(name="stream and event sync", layer="comm", families=("stream_sync",), kinds=(RUNTIME,)),
    SignalKind(name="metadata construction", layer="host", families=("metadata",), kinds=(FRAME, OP)),
    SignalKind(name="graph launch", layer="host", families=("graph_launch",), kinds=(RUNTIME,)),
    SignalKind(name="compilation", layer="host", families=("compile",), kinds=(FRAME, SCOPE, OP)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal of one rank. `share` is None for an envelope and where shares are withheld."""

    rank: int | None
    signal: str
    layer: str
    count: int
    total_ns: int
    median_ns: int
    p90_ns: int
    share: float | None
    names: tuple[str, ...]


def find_signals(store: EventStore, budget: RankBudget) -> tuple[Signal, ...]:
    """The signals that this capture holds, in the reading order; those that it does not hold are absent."""
    found = []
    for kind in SIGNAL_KINDS:
        rows = _outermost(store, budget, kind)
        if not len(rows):
            continue
        e = store.events
        ranges = union(e.start_ns[rows], e.end_ns[rows])
        start, end = budget.partition.span
        shareable = kind.layer != "envelope" and budget.coverage.idle_claimable and end > start
        ids, counts = np.unique(e.name_id[rows], return_counts=True)
        found.append(
            Signal(
                rank=store.rank,
                signal=kind.name,
                layer=kind.layer,
                count=len(rows),
                total_ns=ranges.total_ns,
                median_ns=_quantile(e.duration_ns[rows], 0.5),
                p90_ns=_quantile(e.duration_ns[rows], 0.9),
                share=clip(ranges, start, end).total_ns / (end - start) if shareable else None,
                names=tuple(store.names[i] for i in ids[np.argsort(-counts, kind="stable")][:4].tolist()),
            )
        )
    return tuple(found)


def _outermost(store: EventStore, budget: RankBudget, kind: SignalKind) -> Int64:
    """Rows of a signal that stand in no other row of the same signal on their own track."""
    e = store.events
    # with a device lane, an operation is only the launch of its kernels: counting both would count it twice
    kinds = [k for k in kind.kinds if k != OP or not budget.coverage.num_kernels]
    rows = np.flatnonzero(budget.placements.of_family(*kind.families) & np.isin(e.kind, kinds))
    kept = []
    for track in np.unique(e.track_id[rows]).tolist():
        own = rows[e.track_id[rows] == track]
        own = own[np.lexsort((-e.duration_ns[own], e.start_ns[own]))]
        if not store.tracks[track].is_device:
            reach = np.maximum.accumulate(e.end_ns[own])
            own = own[np.append(True, e.start_ns[own][1:] >= reach[:-1])]
        kept.append(own)
    return np.concatenate(kept) if kept else rows


def _quantile(values: Int64, fraction: float) -> int:
    return int(np.quantile(values, fraction, method="inverted_cdf"))
