"""Prometheus snapshots -> rows of the metrics table: samples, deltas and percentiles that carry their bucket error."""

from __future__ import annotations

from math import fsum, inf
from typing import TYPE_CHECKING

from stepscope.join.figures import FigureRow, known, unknown
from stepscope.messages import Message, say
from stepscope.readers.prometheus.aliases import FIGURES
from stepscope.readers.prometheus.series import (
    Exported,
    bucket_percentile,
    counter_deltas,
    duration_ns,
    find_histogram,
    find_series,
    gauge,
    mean_fraction,
    timed_part,
)
from stepscope.units import show_ns

if TYPE_CHECKING:
    from stepscope.readers.prometheus.reader import MetricsLog

_SOURCE = "metrics"
_COUNTS = (("queue_length", "num_waiting"), ("running_requests", "num_running"), ("num_swapped", "num_swapped"))
_TIMES = (
    ("ttft", "ttft_s"),
    ("tpot", "tpot_s"),
    ("itl", "itl_s"),
    ("e2el", "e2el_s"),
    ("queue_time", "queue_s"),
    ("prefill_time", "prefill_s"),
    ("decode_time", "decode_s"),
)
_RATES = (("prompt_tokens_per_s", "prompt_tokens"), ("generation_tokens_per_s", "generation_tokens"))


def exported_rows(log: MetricsLog) -> list[FigureRow]:
    """Every figure that these snapshots can carry; those not exported are named as such."""
    rows: list[FigureRow] = []
    for figure, series in _COUNTS:
        rows.append(_count_row(log, figure, series))
    for figure, series in _TIMES:
        rows += _time_rows(log, figure, series)
    for figure, series in _RATES:
        rows.append(_rate_row(log, figure, series))
    return [*rows, _hit_row(log), _usage_row(log), _total_row(log, "num_preemptions", "num_preemptions")]


def _not_exported(figure: str, series: str) -> FigureRow:
    names = ", ".join(alias.series for alias in FIGURES[series].aliases)
    return unknown(figure, _SOURCE, say("not exported (looked for {names})", names=names))


def _window(log: MetricsLog) -> Message:
    span = duration_ns(log.snapshots)
    if len(log.snapshots) == 1:
        return say("since the server started, at one scrape")
    if span is None:
        return say("first to last of {count} scrapes, of unknown length", count=len(log.snapshots))
    return say("{span}, first to last of {count} scrapes", span=show_ns(span), count=len(log.snapshots))


def _clock(exported: Exported) -> str:
    return f"server, {exported.name}"


def _count_row(log: MetricsLog, figure: str, series: str) -> FigureRow:
    """Counts of all engines add up in a scrape; scrapes are averaged, which is no integral over time."""
    found = find_series(log, series)
    if found is None:
        return _not_exported(figure, series)
    sums = [fsum(values.values()) for s in log.snapshots if (values := gauge(s, found.name))]
    if not sums:
        return unknown(figure, _SOURCE, say("{name} holds no number", name=found.name))
    window = say("{count} scrapes: samples, no average over time", count=len(sums))
    return known(
        figure,
        fsum(sums) / len(sums),
        bounds=(min(sums), max(sums)),
        source=_SOURCE,
        clock=_clock(found),
        window=window,
        count=len(sums),
    )


def _time_rows(log: MetricsLog, figure: str, series: str) -> list[FigureRow]:
    found = find_series(log, series)
    histogram = None if found is None else find_histogram(log.snapshots, found.name)
    if found is None or histogram is None:
        return [_not_exported(figure, series)]
    window, clock, count = _window(log), _clock(found), round(histogram.count)
    if not count:
        return [unknown(figure, _SOURCE, say("{name} counted nothing in this window", name=found.name))]
    rows = []
    if histogram.mean is not None:
        rows.append(known(figure, histogram.mean, source=_SOURCE, clock=clock, window=window, count=count))
    for statistic, fraction in (("p50", 0.5), ("p99", 0.99)):
        bracket = bucket_percentile(histogram, fraction)
        if bracket is not None:
            value = bracket.low if bracket.estimate is None else bracket.estimate
            rows.append(
                known(
                    figure,
                    value,
                    statistic=statistic,
                    bounds=(bracket.low, bracket.high),
                    source=_SOURCE,
                    clock=clock,
                    window=window,
                    count=count,
                    grade="inferred" if bracket.high == inf or bracket.low < bracket.high else "derived",
                )
            )
    return rows


def _rate_row(log: MetricsLog, figure: str, series: str) -> FigureRow:
    found = find_series(log, series)
    if found is None:
        return _not_exported(figure, series)
    part = timed_part(log.snapshots)
    span = duration_ns(part)
    if span is None:
        return unknown(figure, _SOURCE, say("no two scrapes have a time on one clock"))
    total = fsum(delta.value for delta in counter_deltas(part, found.name).values())
    window = say("{span}, {count} scrapes with a time", span=show_ns(span), count=len(part))
    return known(figure, total / (span * 1e-9), source=_SOURCE, clock=_clock(found), window=window)


def hit_fraction(log: MetricsLog) -> float | None:
    """Δhits / Δqueries over all engines; never the other way round, never a mean of gauges."""
    hits, queries = find_series(log, "prefix_hit_tokens"), find_series(log, "prefix_query_tokens")
    if hits is None or queries is None:
        return None
    window = log.snapshots if len(log.snapshots) > 1 else (log.snapshots[0], log.snapshots[0])
    if len(log.snapshots) == 1:
        found, asked = (fsum(gauge(window[0], e.name).values()) for e in (hits, queries))
    else:
        found, asked = (fsum(d.value for d in counter_deltas(window, e.name).values()) for e in (hits, queries))
    return found / asked if asked else None


def _hit_row(log: MetricsLog) -> FigureRow:
    fraction = hit_fraction(log)
    if fraction is None:
        return _not_exported("prefix_hit_fraction", "prefix_hit_tokens")
    found = find_series(log, "prefix_hit_tokens")
    assert found is not None
    return known("prefix_hit_fraction", fraction, source=_SOURCE, clock=_clock(found), window=_window(log))


def _usage_row(log: MetricsLog) -> FigureRow:
    """The mean over engines, by capacity where it is exported; over scrapes, the mean and the range."""
    found = find_series(log, "kv_usage_fraction")
    if found is None:
        return _not_exported("kv_usage_fraction", "kv_usage_fraction")
    means = []
    for snapshot in log.snapshots:
        values = gauge(snapshot, found.name)
        blocks = {
            _engine(labels): float(dict(labels).get("num_gpu_blocks", "nan"))
            for labels in gauge(snapshot, "vllm:cache_config_info")
            if dict(labels).get("num_gpu_blocks", "").isdigit()
        }
        weights = {labels: blocks[_engine(labels)] for labels in values if _engine(labels) in blocks}
        mean = mean_fraction(values, weights)
        if mean is not None:
            means.append(mean)
    if not means:
        return unknown("kv_usage_fraction", _SOURCE, say("{name} holds no number", name=found.name))
    return known(
        "kv_usage_fraction",
        fsum(means) / len(means),
        bounds=(min(means), max(means)),
        source=_SOURCE,
        clock=_clock(found),
        window=say("{count} scrapes; engines averaged, never added", count=len(means)),
        count=len(means),
    )


def _engine(labels: tuple[tuple[str, str], ...]) -> tuple[str | None, str | None, str | None]:
    named = dict(labels)
    return named.get("pod"), named.get("instance"), named.get("engine")


def _total_row(log: MetricsLog, figure: str, series: str) -> FigureRow:
    found = find_series(log, series)
    if found is None:
        return _not_exported(figure, series)
    if len(log.snapshots) == 1:
        total = fsum(gauge(log.snapshots[0], found.name).values())
    else:
        total = fsum(d.value for d in counter_deltas(log.snapshots, found.name).values())
    return known(figure, total, statistic="total", source=_SOURCE, clock=_clock(found), window=_window(log))
