"""One step as one source saw it: its number in that source, its time, and its facts under common names.

Facts that two sources share can be compared; they are never averaged. q = query_len, k = kv_len.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.store.schema import SCOPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.batch import BatchShape
    from stepscope.readers.experts.reader import ExpertCounts
    from stepscope.readers.forward_metrics import ForwardMetrics
    from stepscope.readers.server_log.reader import LogRecord
    from stepscope.readers.step_log import ExpertRecord, StepRecord, Stream
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore

NumberKind = Literal["step id", "forward id"]
Clock = Literal["epoch", "log"]

# our own marker, any version of it, and SGLang's step range
_MARKER = re.compile(r"^\w+_step v=\d+ (?:\S+ )*?s=(?P<number>\d+)(?: |$)(?:.*?\bn=(?P<tokens>\d+))?")
_FORWARD = re.compile(r"^step\[.*\bforward_id=(?P<number>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """`number` is the source's own count of steps. Times are ns of the source's clock; `facts` may be empty."""

    number: int | None
    start_ns: int | None = None
    end_ns: int | None = None
    facts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSteps:
    """One rank's steps, empty ones too; `numbers_doubted`: a marker contradicts the range that it stands in."""

    rank: int | None
    dp_rank: int | None
    steps: tuple[Observation, ...]
    number_kind: NumberKind | None
    numbers_doubted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Steps as another source has them, in its order. `resolution_ns`: how fine its clock is."""

    source: str
    steps: tuple[Observation, ...]
    number_kind: NumberKind | None
    clock: Clock
    resolution_ns: int = 1
    dp_rank: int | None = None
    time_is: Literal["start", "end"] = "start"


def shape_facts(shape: BatchShape) -> dict[str, int]:
    """What a batch shape says, under the names that every source uses."""
    named = {
        "num_scheduled_tokens": shape.num_scheduled_tokens,
        "num_requests": shape.num_requests,
        "num_prefill_requests": shape.prefill.num_requests,
        "num_prefill_tokens": shape.prefill.query_sum,
        "prefill_kv_sum": shape.prefill.kv_sum,
        "num_decode_requests": shape.decode.num_requests,
        "num_decode_tokens": shape.decode.query_sum,
        "decode_kv_sum": shape.decode.kv_sum,
    }
    return {name: value for name, value in named.items() if value is not None}


def observe_trace(store: EventStore, table: StepTable) -> TraceSteps:
    """A rank's steps with the numbers that markers and ranges carry."""
    base = store.origin.base_time_ns
    numbers, kind, doubted = _find_numbers(store, table)
    steps = tuple(
        Observation(
            number=numbers.get(index),
            start_ns=None if base is None else base + step.boundary.start_ns,
            end_ns=None if base is None else base + step.boundary.end_ns,
            facts=shape_facts(step.boundary.shape),
        )
        for index, step in enumerate(table.steps)
    )
    return TraceSteps(
        rank=store.rank,
        dp_rank=store.origin.parallel.get("dp"),
        steps=steps,
        number_kind=kind,
        numbers_doubted=doubted,
    )


def _find_numbers(store: EventStore, table: StepTable) -> tuple[dict[int, int], NumberKind | None, bool]:
    named: dict[int, tuple[NumberKind, int, int | None]] = {}
    for i, name in enumerate(store.names):
        marker, forward = _MARKER.match(name), _FORWARD.match(name)
        if marker:
            tokens = marker["tokens"]
            named[i] = ("step id", int(marker["number"]), None if tokens is None else int(tokens))
        elif forward:
            named[i] = ("forward id", int(forward["number"]), None)
    if not named or not table.steps:
        return {}, None, False
    e = store.events
    wanted = np.zeros(len(store.names), bool)
    wanted[list(named)] = True
    starts = np.array([step.boundary.start_ns for step in table.steps], np.int64)
    numbers: dict[int, int] = {}
    kinds: set[NumberKind] = set()
    wrong = 0
    for row in np.flatnonzero((e.kind == SCOPE) & wanted[e.name_id]).tolist():
        index = int(np.searchsorted(starts, e.start_ns[row], side="right")) - 1
        if index < 0 or e.start_ns[row] >= max(table.steps[index].boundary.end_ns, starts[index] + 1):
            continue
        kind, number, tokens = named[int(e.name_id[row])]
        own = table.steps[index].boundary.shape.num_scheduled_tokens
        wrong += tokens is not None and own is not None and tokens != own
        numbers[index] = number
        kinds.add(kind)
    kind_found = next(iter(kinds)) if len(kinds) == 1 else "step id" if kinds else None
    return numbers, kind_found, bool(wrong)


def observe_stream(stream: Stream) -> Side:
    """The steps of a scheduler's step log."""
    steps = tuple(
        Observation(number=step.step_id, start_ns=step.time_ns, facts=shape_facts(step.shape) | _queue_facts(step))
        for step in stream.steps
    )
    return Side(source="step log", steps=steps, number_kind="step id", clock="epoch", dp_rank=stream.number("dp_rank"))


def _queue_facts(step: StepRecord) -> dict[str, int]:
    """The queue at that step: no other source has it, so nothing is compared."""
    names = ("num_waiting", "num_waiting_before", "num_running", "num_free_blocks")
    return {name: value for name in names if (value := getattr(step, name)) is not None}


_LOG_FACTS = ("num_prefill_requests", "num_prefill_tokens", "num_decode_requests", "num_decode_tokens")


def observe_log(records: Sequence[LogRecord]) -> tuple[Side, ...]:
    """Per-step lines: vLLM's iterations by engine; SGLang's prefill batches of each data-parallel rank."""
    sides: list[Side] = []
    for engine in sorted({r.engine or 0 for r in records if r.kind == "vllm_iteration"}):
        own = [r for r in records if r.kind == "vllm_iteration" and (r.engine or 0) == engine]
        steps = tuple(_iteration(r) for r in own if not r.values.get("is_dummy"))
        sides.append(_log_side("log iterations", steps, own, None, engine, "end"))
    prefills = [r for r in records if r.kind == "sglang_prefill" and not _is_other_rank(r)]
    for rank in sorted({r.ranks.get("DP", 0) for r in prefills}):
        own = [r for r in prefills if r.ranks.get("DP", 0) == rank]
        steps = tuple(_prefill(r) for r in own)
        kind: NumberKind | None = "forward id" if any(r.step is not None for r in own) else None
        sides.append(_log_side("log prefill batches", steps, own, kind, rank, "start"))
    return tuple(sides)


def _log_side(
    source: str,
    steps: tuple[Observation, ...],
    records: Sequence[LogRecord],
    kind: NumberKind | None,
    dp_rank: int,
    time_is: Literal["start", "end"],
) -> Side:
    return Side(
        source=source,
        steps=steps,
        number_kind=kind,
        clock="log",
        resolution_ns=max(r.resolution_ns for r in records),
        dp_rank=dp_rank,
        time_is=time_is,
    )


def _is_other_rank(record: LogRecord) -> bool:
    """Tensor-parallel ranks print the same batch: the first one speaks."""
    return any(record.ranks.get(group, 0) != 0 for group in ("TP", "PP") if "DP" not in record.ranks)


def _iteration(record: LogRecord) -> Observation:
    facts = {name: int(v) for name in _LOG_FACTS if (v := record.number(name)) is not None}
    if {"num_prefill_tokens", "num_decode_tokens"} <= set(facts):
        facts["num_scheduled_tokens"] = facts["num_prefill_tokens"] + facts["num_decode_tokens"]
    return Observation(number=record.step, end_ns=record.time_ns, facts=facts)


def _prefill(record: LogRecord) -> Observation:
    tokens, requests = record.number("num_prefill_tokens"), record.number("num_new_requests")
    facts = {} if tokens is None else {"num_prefill_tokens": int(tokens)}
    facts |= {} if requests is None else {"num_prefill_requests": int(requests)}
    return Observation(number=record.step, start_ns=record.time_ns, facts=facts)


def observe_forwards(iterations: Sequence[ForwardMetrics]) -> tuple[Side, ...]:
    """Iterations that forward-pass metrics tell of, per data-parallel rank; they have no time of day."""
    sides = []
    for rank in sorted({one.dp_rank for one in iterations}):
        steps = tuple(
            Observation(
                number=one.counter,
                facts={
                    "num_prefill_requests": one.num_prefill_requests,
                    "num_prefill_tokens": one.num_prefill_tokens,
                    "num_decode_requests": one.num_decode_requests,
                    "prefill_kv_sum": one.prefill_context_sum + one.num_prefill_tokens,
                },
            )
            for one in iterations
            if one.dp_rank == rank and one.wall_ns
        )
        sides.append(Side(source="forward metrics", steps=steps, number_kind=None, clock="epoch", dp_rank=rank))
    return tuple(sides)


def observe_experts(steps: Sequence[ExpertCounts | ExpertRecord], source: str, kind: NumberKind) -> Side:
    """Expert counts, by the number that they were recorded under; a step that several ranks have counts once."""
    found: dict[int, Observation] = {}
    for step in steps:
        number = getattr(step, "step", None) if hasattr(step, "step") else step.step_id
        if number is not None:
            facts = {} if step.num_tokens is None else {"num_scheduled_tokens": step.num_tokens}
            found[number] = Observation(number=number, facts=facts)
    ordered = tuple(found[number] for number in sorted(found))
    return Side(source=source, steps=ordered, number_kind=kind, clock="epoch")
