"""Expert counts joined with steps: per layer, how many rows went to the experts and how unevenly.

M_e = rows of expert e. Law: Σ_e M_e = tokens x top_k, of the ranks that are counted together. Imbalance is maximum over
mean of one layer, and only then of several: a mean of counts over layers would hide it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.readers.experts.reader import ExpertCounts, read_markers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.join.observation import NumberKind, TraceSteps
    from stepscope.join.sources import Sources
    from stepscope.readers.experts.reader import Counts
    from stepscope.readers.step_log import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLoad:
    """One layer of one step. `step_id` is the trace's; `adds_up` None where tokens or top_k are not recorded."""

    rank: int | None
    step_id: int | None
    source: str
    source_step: int | None
    layer: int
    num_experts: int
    num_rows: int
    max_rows: int
    num_empty: int
    adds_up: bool | None

    @property
    def imbalance(self) -> float | None:
        """Maximum over mean; None for a layer without rows."""
        return self.max_rows * self.num_experts / self.num_rows if self.num_rows else None


def layer_loads(sources: Sources, ranks: Sequence[TraceSteps]) -> tuple[LayerLoad, ...]:
    """Every layer of every step that any source counted, in the order of sources, steps and layers."""
    return tuple(
        load
        for source, kind, rank, top_k, steps in _counted(sources)
        for step in steps
        for load in _loads(source, step, (rank, top_k), _step_id(ranks, kind, rank, step.step))
    )


def _counted(sources: Sources) -> Iterator[tuple[str, NumberKind, int | None, int | None, Sequence[ExpertCounts]]]:
    for store, _ in sources.ranks:
        steps = read_markers(store.names, store.origin.path).steps
        if steps:
            yield "markers", "step id", store.rank, None, steps
    for stream in sources.step_log.workers if sources.step_log else ():
        steps = _of_stream(stream)
        if steps:
            yield "step log", "step id", stream.number("rank"), stream.experts[0].top_k, steps
    if sources.experts is not None:
        yield "expert recorder", "forward id", None, None, sources.experts.steps


def _of_stream(stream: Stream) -> tuple[ExpertCounts, ...]:
    return tuple(
        ExpertCounts(
            source="step log",
            step=record.step_id,
            rank=stream.number("rank"),
            counts=record.counts,
            layers=record.layers,
            num_tokens=record.num_tokens,
        )
        for record in stream.experts
    )


def _step_id(ranks: Sequence[TraceSteps], kind: NumberKind, rank: int | None, number: int | None) -> int | None:
    """The trace's step of that number, on that rank, or on the first one where the counts are of all ranks."""
    if number is None:
        return None
    for trace in ranks:
        if trace.number_kind == kind and not trace.numbers_doubted and rank in (None, trace.rank):
            return next((i for i, step in enumerate(trace.steps) if step.number == number), None)
    return None


def _loads(
    source: str, step: ExpertCounts, of: tuple[int | None, int | None], step_id: int | None
) -> Iterator[LayerLoad]:
    rank, top_k = of
    expected = None if step.num_tokens is None or top_k is None else step.num_tokens * top_k
    counts: Counts = step.counts
    for place, layer in enumerate(step.layers):
        rows = counts[place]
        total = int(rows.sum())
        yield LayerLoad(
            rank=step.rank if rank is None else rank,
            step_id=step_id,
            source=source,
            source_step=step.step,
            layer=layer,
            num_experts=len(rows),
            num_rows=total,
            max_rows=int(rows.max()) if len(rows) else 0,
            num_empty=int(np.count_nonzero(rows == 0)),
            adds_up=None if expected is None else total == expected,
        )
