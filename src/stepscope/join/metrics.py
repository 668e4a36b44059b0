"""Sources -> the metrics table: every figure from every source that has it, side by side, with its clock and window.

Two sources that differ stand in two rows. A figure that was not exported or recorded is refused, never 0.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

from stepscope.join.exported import exported_rows
from stepscope.join.figures import FigureRow, known, unknown
from stepscope.join.time_mean import TimeMean, add_means, mean_running, mean_waiting
from stepscope.latency import pooled_itl_s, spread
from stepscope.messages import Message, say
from stepscope.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.batch import BatchShape
    from stepscope.evidence import Grade
    from stepscope.join.sources import Sources
    from stepscope.readers.clients.record import ClientResult
    from stepscope.readers.forward_metrics import ForwardMetrics
    from stepscope.readers.server_log.reader import LogRecord
    from stepscope.readers.step_log import Stream

FIVE = ("queue_length", "running_requests", "batch_size", "batched_tokens", "prefill_batch_size")
_RECORD = say("record a step log: STEPSCOPE_RECORD=1 STEPSCOPE_STEP_LOG=DIR")


def metric_rows(sources: Sources) -> tuple[FigureRow, ...]:
    """The whole table, figure by figure in the order of their definitions."""
    rows = [*_step_log_rows(sources.schedulers), *_trace_rows(sources), *_log_rows(sources.log_records)]
    if sources.metrics is not None:
        rows += exported_rows(sources.metrics)
    if sources.forwards is not None:
        rows += _forward_rows(sources.forwards.iterations)
    for client in sources.clients:
        rows += client_rows(client)
    has_value = {row.figure for row in rows if row.value is not None}
    rows += [unknown(figure, "none", _RECORD) for figure in FIVE if figure not in {row.figure for row in rows}]
    kept = [row for row in rows if row.value is not None or row.figure not in has_value or row.source == "metrics"]
    order = {figure: i for i, figure in enumerate(dict.fromkeys([*FIVE, *(row.figure for row in kept)]))}
    return tuple(sorted(kept, key=lambda row: order[row.figure]))


def _step_log_rows(streams: Sequence[Stream]) -> list[FigureRow]:
    if not streams:
        return []
    rows = []
    for figure, mean_of in (("queue_length", mean_waiting), ("running_requests", mean_running)):
        mean = add_means([mean_of(stream.steps) for stream in streams])
        if mean is None:
            rows.append(unknown(figure, "step log", say("the step log has no counts of the queue")))
        else:
            rows.append(_over_time(figure, mean))
    return [*rows, *_per_step("step log", "engine", [step.shape for stream in streams for step in stream.steps])]


def _over_time(figure: str, mean: TimeMean) -> FigureRow:
    exact = say("integral over every change")
    bounded = say("counts at steps; arrivals in between bound it")
    return known(
        figure,
        mean.low,
        bounds=(mean.low, mean.high),
        source="step log",
        clock="engine",
        window=say("{span}, {how}", span=show_ns(mean.duration_ns), how=exact if mean.is_exact else bounded),
    )


def _per_step(source: str, clock: str, shapes: Iterable[BatchShape], grade: Grade = "derived") -> list[FigureRow]:
    """The three figures per step, over steps that ran tokens."""
    ran = [shape for shape in shapes if shape.num_scheduled_tokens != 0 and shape.phase != "empty"]
    parts: dict[str, list[float]] = {
        "batch_size": [s.num_requests for s in ran if s.num_requests is not None],
        "batched_tokens": [s.num_scheduled_tokens for s in ran if s.num_scheduled_tokens is not None],
        "prefill_batch_size": [s.prefill.num_requests for s in ran if s.prefill.num_requests],
    }
    window = say("{count} steps", count=len(ran))
    return [
        known(
            figure,
            fsum(values) / len(values),
            source=source,
            clock=clock,
            window=window,
            bounds=None,
            grade=grade,
            count=len(values),
        )
        for figure, values in parts.items()
        if values
    ]


def _trace_rows(sources: Sources) -> list[FigureRow]:
    """The first rank that has steps speaks for all: ranks of one engine run the same steps."""
    table = next((table for _, table in sources.ranks if table.counted), None)
    if table is None:
        return []
    is_simulated = all(step.boundary.grade == "simulated" for step in table.counted)
    shapes = [step.boundary.shape for step in table.counted]
    return _per_step("trace", "worker", shapes, "simulated" if is_simulated else "derived")


def _log_rows(records: Sequence[LogRecord]) -> list[FigureRow]:
    rows: list[FigureRow] = []
    for kinds, label, how in (
        (("vllm_interval",), "log intervals", say("one sample at the end of each interval: no average over time")),
        (("sglang_prefill", "sglang_decode"), "log batches", say("one sample per printed batch: busy moments only")),
    ):
        own = [r for r in records if r.kind in kinds and r.num_engines == 1]
        for figure, name in (("queue_length", "num_waiting"), ("running_requests", "num_running")):
            values = [v for r in own if (v := r.number(name)) is not None]
            if values:
                rows.append(_sampled(figure, values, label, say("{count} lines, {how}", count=len(values), how=how)))
    rows += _iteration_rows([r for r in records if r.kind == "vllm_iteration" and not r.values.get("is_dummy")])
    rows += _prefill_rows([r for r in records if r.kind == "sglang_prefill"])
    for figure, name in (
        ("computed_tokens_per_s", "prompt_tokens_per_s"),
        ("generation_tokens_per_s", "generation_tokens_per_s"),
    ):
        values = [v for r in records if r.kind == "vllm_interval" and (v := r.number(name)) is not None]
        if values:
            rows.append(_sampled(figure, values, "log intervals", say("{count} intervals alike", count=len(values))))
    last = next((r for r in reversed(records) if r.number("prefix_hit_fraction") is not None), None)
    if last is not None:
        window = say("the engine's last 1,000 requests, at the last line")
        value = last.number("prefix_hit_fraction") or 0.0
        rows.append(_sampled("prefix_hit_fraction", [value], "log intervals", window))
    return rows


def _sampled(figure: str, values: Sequence[float], source: str, window: Message) -> FigureRow:
    return known(
        figure,
        fsum(values) / len(values),
        source=source,
        clock="server log",
        window=window,
        bounds=(min(values), max(values)),
        count=len(values),
    )


def _iteration_rows(records: Sequence[LogRecord]) -> list[FigureRow]:
    rows = []
    for figure, parts in (
        ("batch_size", ("num_prefill_requests", "num_decode_requests")),
        ("batched_tokens", ("num_prefill_tokens", "num_decode_tokens")),
        ("prefill_batch_size", ("num_prefill_requests",)),
    ):
        sums = [fsum(r.number(name) or 0 for name in parts) for r in records]
        ran = [value for value in sums if value]
        if ran:
            window = say("{count} steps", count=len(ran))
            rows.append(_sampled(figure, ran, "log iterations", window))
    return rows


def _prefill_rows(records: Sequence[LogRecord]) -> list[FigureRow]:
    values = [v for r in records if (v := r.number("num_new_requests"))]
    window = say("{count} prefill batches", count=len(values))
    return [_sampled("prefill_batch_size", values, "log batches", window)] if values else []


def _forward_rows(iterations: Sequence[ForwardMetrics]) -> list[FigureRow]:
    """Weighted by each iteration's duration: time between iterations is not in it."""
    ran = [one for one in iterations if one.wall_ns]
    total = sum(one.wall_ns for one in ran)
    if not total:
        return []
    window = say("{span} in {count} iterations; idle time is not in it", span=show_ns(total), count=len(ran))
    waiting = sum(one.num_waiting * one.wall_ns for one in ran) / total
    rows = [known("queue_length", waiting, source="forward metrics", clock="engine", window=window, count=len(ran))]
    sizes = [one.num_prefill_requests + one.num_decode_requests for one in ran]
    for figure, values in (
        ("batch_size", [float(n) for n in sizes if n]),
        ("prefill_batch_size", [float(one.num_prefill_requests) for one in ran if one.num_prefill_requests]),
    ):
        if values:
            counted = say("{count} iterations", count=len(values))
            mean = fsum(values) / len(values)
            rows.append(
                known(figure, mean, source="forward metrics", clock="engine", window=counted, count=len(values))
            )
    return rows


def client_rows(client: ClientResult) -> list[FigureRow]:
    """Latencies as the client measured them, and from when a request should have been sent, where that is known."""
    requests = client.succeeded
    times = [r.times() for r in requests]
    window = say("{count} requests, from when each was sent", count=len(requests))
    rows: list[FigureRow] = []
    for figure, values in (
        ("ttft", [t.ttft_s for t in times]),
        ("tpot", [t.tpot_s for t in times]),
        ("itl", list(pooled_itl_s(times))),
        ("e2el", [t.e2el_s for t in times]),
    ):
        rows += _spread_rows(figure, values, client.tool, window)
    if any(r.dispatch_delay_s is not None for r in requests):
        rows += _spread_rows("dispatch_delay", [r.dispatch_delay_s for r in requests], client.tool, window)
        planned = say("{count} requests, from when each should have been sent", count=len(requests))
        late = [r.times(from_schedule=True) for r in requests]
        rows += _spread_rows("ttft", [t.ttft_s for t in late], client.tool, planned)
        rows += _spread_rows("e2el", [t.e2el_s for t in late], client.tool, planned)
    return rows


def _spread_rows(figure: str, values: Sequence[float | None], tool: str, window: Message) -> list[FigureRow]:
    found = spread(values)
    if found is None:
        return []
    return [
        known(figure, value, statistic=name, source=tool, clock="client", window=window, count=found.count)
        for name, value in (("mean", found.mean), ("p50", found.p50), ("p99", found.p99))
    ]
