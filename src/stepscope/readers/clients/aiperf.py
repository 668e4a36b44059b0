"""AIPerf: `profile_export.jsonl` (a request a line) and `profile_export_aiperf.json` (sums only).

A metric is {"value": ..., "unit": "ms"}. `request_start_ns` is epoch time at which the request was sent; a
`credit_issued_ns`, where the version has it, is when the load generator let it go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.readers.clients.record import ClientRequest, ClientResult, duration, number, pick, text, whole
from stepscope.readers.losses import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.readers.losses import LossLog

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_STATISTICS = ("avg", "min", "max", "p50", "p90", "p95", "p99", "std")


def is_record(content: Mapping[str, Any]) -> bool:
    """Whether an object is one request."""
    metadata = content.get("metadata")
    return isinstance(metadata, dict) and ("request_start_ns" in metadata or isinstance(content.get("metrics"), dict))


def is_summary(content: Mapping[str, Any]) -> bool:
    """Whether an object is the sums of a run."""
    latency = content.get("request_latency") or content.get("request_throughput")
    return isinstance(latency, dict) and "avg" in latency


def read_records(rows: Iterable[Mapping[str, Any]], path: str, losses: LossLog) -> ClientResult:
    """Requests of the profiling phase; a warm-up is left out."""
    wanted = [row for row in rows if (row.get("metadata") or {}).get("benchmark_phase") != "warmup"]
    return ClientResult(
        reading=Reading(path=path, health=losses.rows()),
        tool="AIPerf",
        clock="epoch",
        requests=tuple(_request(row) for row in wanted),
    )


def read_summary(content: Mapping[str, Any], path: str, losses: LossLog) -> ClientResult:
    """Figures as `name.statistic`, times in seconds."""
    figures = {}
    for name, metric in content.items():
        if isinstance(metric, dict):
            scale = _UNITS.get(str(metric.get("unit")), 1.0)
            for statistic in _STATISTICS:
                value = number(metric.get(statistic))
                if value is not None:
                    figures[f"{name}.{statistic}"] = value * scale
    return ClientResult(
        reading=Reading(path=path, health=losses.rows()), tool="AIPerf", clock=None, requests=(), figures=figures
    )


def _request(row: Mapping[str, Any]) -> ClientRequest:
    metadata = row.get("metadata") if isinstance(row.get("metadata"), dict) else {}
    metrics = row.get("metrics") if isinstance(row.get("metrics"), dict) else {}
    assert isinstance(metadata, dict)
    assert isinstance(metrics, dict)
    start_ns, credit_ns = number(metadata.get("request_start_ns")), number(metadata.get("credit_issued_ns"))
    delay = None if start_ns is None or credit_ns is None else duration((start_ns - credit_ns) * 1e-9)
    return ClientRequest(
        request_id=text(metadata.get("x_request_id")),
        start_s=None if start_ns is None else start_ns * 1e-9,
        dispatch_delay_s=delay,
        ttft_s=_seconds(metrics, "time_to_first_token"),
        content_ttft_s=_seconds(metrics, "time_to_first_token"),
        e2el_s=_seconds(metrics, "request_latency"),
        prompt_len=whole(_value(metrics, "input_sequence_length")),
        output_len=whole(_value(metrics, "output_sequence_length")),
        gaps_s=_gaps(metrics),
        error=_error(row.get("error")),
    )


def _error(error: object) -> str | None:
    if isinstance(error, dict):
        return text(pick(error, "message", "type", "code")) or "failed"
    return text(error)


def _value(metrics: Mapping[str, Any], name: str) -> Any:
    metric = metrics.get(name)
    return metric.get("value") if isinstance(metric, dict) else None


def _seconds(metrics: Mapping[str, Any], name: str) -> float | None:
    metric = metrics.get(name)
    unit = _UNITS.get(str(metric.get("unit"))) if isinstance(metric, dict) else None
    return None if unit is None else duration(_value(metrics, name), unit)


def _gaps(metrics: Mapping[str, Any]) -> tuple[float, ...] | None:
    metric = metrics.get("inter_chunk_latency")
    values = _value(metrics, "inter_chunk_latency")
    unit = _UNITS.get(str(metric.get("unit"))) if isinstance(metric, dict) else None
    if unit is None or not isinstance(values, list):
        return None
    return tuple(gap for value in values if (gap := duration(value, unit)) is not None)
