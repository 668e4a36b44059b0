"""An Outcome -> a Run folder: an EventStore of its steps, and tables of its requests and of its stretches of steps.

The store has one thread: a range per step, named as vLLM's detailed annotation, and inside it the parts of the step one
after another; between steps the wait for requests and the host's work. Every number in it is simulated, and the
store's reader says so. Times are ns from the simulation's start.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stepscope.errors import BadInput
from stepscope.simulate.step_shares import StepShares, divide_steps
from stepscope.store.events import NO_ID, SIMULATION, EventCounts, Events, EventStore, Origin, Track, order_events
from stepscope.store.run import import_run
from stepscope.store.schema import FRAME, OP, SCOPE, Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stepscope.batch import BatchShape, PhaseSums
    from stepscope.simulate.request import Request
    from stepscope.simulate.scenario import Outcome
    from stepscope.simulate.simulation import SimulatedRequest, SimulatedStep

WAIT, HOST = "simulated engine: wait for requests", "simulated engine: host"
_Event = tuple[int, int, int, str]  # start, end, kind, name


def _column(name: str, dtype: Any, unit: str, doc: str, null: str = "") -> Column:
    return Column(name=name, dtype=dtype, unit=unit, doc=doc, null=null)


SIMULATED_TABLES: dict[str, tuple[Column, ...]] = {
    "simulated_requests": (
        _column("request_id", "string", "", "its name in the load"),
        _column("arrival_s", "float64", "s", "when it arrived, from the simulation's start"),
        _column("prompt_len", "int64", "tokens", "tokens of the prompt"),
        _column("output_len", "int64", "tokens", "tokens put out"),
        _column("max_tokens", "int64", "tokens", "what the scheduler was told", "output_len"),
        _column("after", "string", "", "the request that it follows", "none"),
        _column("wait_s", "float64", "s", "from the end of that request to its arrival", "it follows none"),
        _column("text", "string", "", "source:start:length of each stretch of its text", "a text of its own"),
        _column("prefix_hit_tokens", "int64", "tokens", "found in the prefix cache at the first admission"),
        _column("num_preemptions", "int64", "", "how often it lost its blocks"),
        _column("ttft_s", "float64", "s", "time to first token"),
        _column("tpot_s", "float64", "s", "time per further token", "one token"),
        _column("e2el_s", "float64", "s", "end-to-end latency"),
    ),
    "simulated_steps": (
        _column("start_s", "float64", "s", "start of the first step of the stretch"),
        _column("end_s", "float64", "s", "end of its last step"),
        _column("num_repeats", "int64", "", "steps with the same rows: 1, or a stretch of decode steps"),
        _column("num_prefill_requests", "int64", "rows", "rows in prefill"),
        _column("num_decode_requests", "int64", "rows", "rows in decode"),
        _column("num_scheduled_tokens", "int64", "tokens", "sum of query_len over all rows of one step"),
        _column("prefill_kv_sum", "int64", "tokens", "sum of kv_len over prefill rows"),
        _column("decode_kv_sum", "int64", "tokens", "sum of kv_len over decode rows, of the first step"),
        _column("num_waiting", "int64", "", "requests that waited after scheduling"),
        _column("num_free_blocks", "int64", "", "free blocks after scheduling the last step"),
        _column("num_preempted", "int64", "", "requests that lost their blocks"),
        _column("rank", "int64", "", "the rank or engine that computed them"),
    ),
}
_ARROW = {"int64": pa.int64(), "float64": pa.float64(), "string": pa.string()}


def write_simulated_run(outcome: Outcome, folder: Path, described: Mapping[str, Any]) -> Path:
    """Write the Run, a store a rank; `described` is what was simulated, for its manifest.

    Raises:
        BadInput: its steps overlap, as those of a pipeline do: they have no windows that tile the time.
    """
    if outcome.shown.stages:
        raise BadInput(f"{folder}: steps of a pipeline overlap, and a run folder holds steps one after another.")
    ranks = sorted({step.rank for step in outcome.shown.steps}) or [0]
    stores = [to_store(outcome, described, rank) for rank in ranks]
    tables = {
        "simulated_requests": _table("simulated_requests", _request_rows(outcome)),
        "simulated_steps": _table(
            "simulated_steps", _step_rows(sorted(outcome.shown.steps, key=lambda step: step.rank))
        ),
    }
    return import_run(stores, folder, tables=tables)


def to_store(outcome: Outcome, described: Mapping[str, Any], rank: int = 0) -> EventStore:
    """A rank's steps as an EventStore, empty where none were kept."""
    steps = tuple(step for step in outcome.shown.steps if step.rank == rank)
    timed, calibration = outcome.costs.shown, outcome.scenario.calibration
    events: list[_Event] = []
    if steps:
        served = None if calibration is not None and calibration.cost == "none" else outcome.scenario.served
        parts = divide_steps([step.shape for step in steps], timed.step_time, served)
        events = list(_events(steps, parts, timed.host_s))
    plan = None if outcome.scenario.served is None else outcome.scenario.served.deployment.plan
    return _store(
        events,
        Origin(
            path=f"simulation of {len(outcome.scenario.requests)} requests",
            reader=SIMULATION,
            rank=rank,
            rank_source="simulation",
            world_size=None if plan is None else plan.world_size,
            metadata={"engine": "simulated", "simulation": dict(described)},
        ),
    )


def _events(steps: Sequence[SimulatedStep], parts: StepShares, host_s: float) -> Iterator[_Event]:
    """Steps, their parts, and what stands before each."""
    before = 0
    cuts = np.cumsum(parts.shares, axis=1)
    for place, step in enumerate(steps):
        start, end = _ns(step.start_s), max(_ns(step.end_s), _ns(step.start_s))
        prepared = max(start - _ns(host_s), before)
        for first, last, name in ((before, prepared, WAIT), (prepared, start, HOST)):
            if last > first:
                yield first, last, FRAME, name
        yield start, end, SCOPE, step_name(step.shape)
        at = start
        for name, cut in zip(parts.names, cuts[place].tolist(), strict=True):
            until = end if name == parts.names[-1] else min(start + round(cut * (end - start)), end)
            if until > at:
                yield at, until, OP, f"simulated::{name}"
                at = until
        before = end


def step_name(shape: BatchShape) -> str:
    """As vLLM's detailed annotation has it."""
    return f"execute_context_{_phase(shape.prefill)}_generation_{_phase(shape.decode)}"


def _phase(sums: PhaseSums) -> str:
    query, kv, query_sq, query_kv = (
        getattr(sums, name) or 0 for name in ("query_sum", "kv_sum", "query_sq_sum", "query_kv_sum")
    )
    return f"{sums.num_requests or 0}(sq{query}sk{kv}sqsq{query_sq}sqsk{query_kv})"


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _store(found: Sequence[_Event], origin: Origin) -> EventStore:
    ids: dict[str, int] = {}
    for event in found:
        ids.setdefault(event[3], len(ids))
    count = len(found)
    events = Events(
        start_ns=np.array([event[0] for event in found], np.int64),
        duration_ns=np.array([event[1] - event[0] for event in found], np.int64),
        name_id=np.array([ids[event[3]] for event in found], np.int32),
        kind=np.array([event[2] for event in found], np.int8),
        track_id=np.zeros(count, np.int32),
        correlation_id=np.full(count, NO_ID, np.int64),
    )
    parts = order_events(events, tuple(ids), (Track(process="0", thread="0", is_device=False, label="engine"),))
    return EventStore(
        origin=origin,
        events=parts.events,
        names=parts.names,
        tracks=parts.tracks,
        counts=EventCounts(intact=count, recovered=0, lost=0),
        health=(),
    )


def _request_rows(outcome: Outcome) -> list[dict[str, Any]]:
    pairs = zip(outcome.scenario.requests, outcome.shown.requests, strict=True)
    return [_request_row(asked, done) for asked, done in pairs]


def _request_row(asked: Request, done: SimulatedRequest) -> dict[str, Any]:
    text = " ".join(f"{part.source}:{part.start}:{part.length}" for part in asked.text)
    return {
        "request_id": done.request_id,
        "arrival_s": asked.arrival_s if asked.after is None else done.times.arrival_s,
        "prompt_len": done.prompt_len,
        "output_len": done.times.output_len,
        "max_tokens": asked.max_tokens,
        "after": asked.after,
        "wait_s": None if asked.after is None else asked.arrival_s,
        "text": text or None,
        "prefix_hit_tokens": done.prefix_hit_tokens,
        "num_preemptions": done.num_preemptions,
        "ttft_s": done.times.ttft_s,
        "tpot_s": done.times.tpot_s,
        "e2el_s": done.times.e2el_s,
    }


def _step_rows(steps: Iterable[SimulatedStep]) -> list[dict[str, Any]]:
    """Runs of decode steps with as many rows, nobody preempted and as many waiting, are one row."""
    rows = []
    for _, group in groupby(enumerate(steps), key=_stretch_key):
        stretch = [step for _, step in group]
        first, last = stretch[0], stretch[-1]
        rows.append(
            {
                "start_s": first.start_s,
                "end_s": last.end_s,
                "num_repeats": len(stretch),
                "num_prefill_requests": first.shape.prefill.num_requests,
                "num_decode_requests": first.shape.decode.num_requests,
                "num_scheduled_tokens": first.shape.num_scheduled_tokens,
                "prefill_kv_sum": first.shape.prefill.kv_sum,
                "decode_kv_sum": first.shape.decode.kv_sum,
                "num_waiting": first.num_waiting,
                "num_free_blocks": last.num_free_blocks,
                "num_preempted": first.num_preempted,
                "rank": first.rank,
            }
        )
    return rows


def _stretch_key(numbered: tuple[int, SimulatedStep]) -> tuple[int, ...]:
    place, step = numbered
    if step.shape.prefill.num_requests or step.num_preempted:
        return (place,)
    return (-1, step.rank, step.shape.decode.num_requests or 0, step.shape.num_scheduled_tokens or 0, step.num_waiting)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = SIMULATED_TABLES[name]
    schema = pa.schema([(column.name, _ARROW[column.dtype]) for column in columns])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
