"""Metrics over time: deltas with restarts, percentiles within their bucket, fractions averaged, names by version."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import BadInput, StepscopeError
from stepscope.readers.losses import LossLog
from stepscope.readers.prometheus.aliases import FIGURES
from stepscope.readers.prometheus.reader import MetricsLog, read_metrics
from stepscope.readers.prometheus.series import (
    Histogram,
    bucket_percentile,
    counter_deltas,
    duration_ns,
    find_histogram,
    find_series,
    gauge,
    mean_fraction,
    timed_part,
)
from stepscope.readers.prometheus.text import parse_text
from tests.readers.test_fuzz import mutate

SCRAPE = """# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a \\"b\\" \\\\ \\n"} 3.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0"} 1.5e+03
vllm:e2e_request_latency_seconds_bucket{le="0.5"} 2
vllm:e2e_request_latency_seconds_bucket{le="1.0"} 6
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 8
vllm:e2e_request_latency_seconds_sum 9.5
vllm:e2e_request_latency_seconds_count 8
up 1 1767225600000
"""


def write(folder: Path, **scrapes: str) -> MetricsLog:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scrapes.items():
        (folder / f"{name}.prom").write_text(text, encoding="utf-8")
    return read_metrics(folder)


def test_text_is_read_with_labels_escapes_and_times() -> None:
    losses = LossLog()
    samples = parse_text(SCRAPE, losses)
    assert losses.rows() == ()
    assert samples.time_s == 1_767_225_600
    assert samples.types["vllm:prefix_cache_hits"] == "counter"
    labels = next(labels for name, labels in samples.values if name == "vllm:num_requests_waiting")
    assert dict(labels)["model_name"] == 'a "b" \\ \n'


def test_a_line_that_cannot_be_read_is_counted() -> None:
    losses = LossLog()
    samples = parse_text("a 1\nb{x=1} 2\nc one\na 3\n", losses)
    assert samples.values == {("a", ()): 3.0}
    assert {row.code: row.count for row in losses.rows()} == {"metric_line_unparsed": 2, "metric_duplicate": 1}


@pytest.mark.parametrize(
    ("name", "time_ms"),
    [
        ("metrics.1767225600", 1_767_225_600_000),
        ("metrics.1767225600123", 1_767_225_600_123),
        ("m-2026-01-01T00-00-00", 1_767_225_600_000),
        ("m-20260101_000000", 1_767_225_600_000),
    ],
)
def test_the_time_is_in_the_files_name(tmp_path: Path, name: str, time_ms: int) -> None:
    log = write(tmp_path, **{name: "a 1\n"})
    assert log.snapshots[0].time_ns == time_ms * 1_000_000
    assert not log.snapshots[0].is_relative


def test_a_scrape_without_a_time_is_doubted_and_gives_no_rate(tmp_path: Path) -> None:
    log = write(tmp_path, **{"00-before": "a 1\n", "01-t004s": "a 2\n", "02-t008s": "a 4\n", "99-after": "a 9\n"})
    assert {row.code: row.count for row in log.reading.health} == {"snapshot_without_time": 2}
    assert duration_ns(log.snapshots) is None
    assert duration_ns(timed_part(log.snapshots)) == 4 * 10**9
    assert counter_deltas(log.snapshots, "a")[()].value == 8


def test_scrapes_come_in_the_order_of_time(tmp_path: Path) -> None:
    log = write(tmp_path, **{"b.1767225600": "a 1\n", "a.1767225610": "a 5\n"})
    assert [gauge(s, "a")[()] for s in log.snapshots] == [1, 5]
    assert duration_ns(log.snapshots) == 10 * 10**9


def test_a_restart_is_seen_and_what_it_then_shows_is_counted(tmp_path: Path) -> None:
    log = write(tmp_path, **{"1": "a 10\n", "2": "a 14\n", "3": "a 3\n", "4": "a 5\n"})
    delta = counter_deltas(log.snapshots, "a")[()]
    assert (delta.value, delta.num_resets) == (4 + 3 + 2, 1)


def test_a_source_that_appears_later_began_at_nothing(tmp_path: Path) -> None:
    log = write(tmp_path, **{"1": 'a{e="0"} 10\n', "2": 'a{e="0"} 12\na{e="1"} 7\n'})
    assert {labels[0][1]: d.value for labels, d in counter_deltas(log.snapshots, "a").items()} == {"0": 2, "1": 7}


def test_a_percentile_is_known_as_far_as_its_bucket(tmp_path: Path) -> None:
    histogram = find_histogram(write(tmp_path, a=SCRAPE).snapshots, "vllm:e2e_request_latency_seconds")
    assert histogram is not None
    assert (histogram.count, histogram.mean) == (8, 9.5 / 8)
    p50 = bucket_percentile(histogram, 0.5)
    assert p50 is not None
    assert (p50.low, p50.high, p50.estimate) == (0.5, 1.0, 0.75)  # the 4th of 8: halfway among 4
    p99 = bucket_percentile(histogram, 0.99)
    assert p99 is not None
    assert (p99.low, p99.estimate) == (1.0, None)  # above the last bound: no estimate


@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=60),
    st.lists(st.floats(0.1, 15), min_size=1, max_size=6, unique=True),
    st.floats(0.01, 1),
)
def test_the_true_percentile_is_in_the_bracket(values: list[float], bounds: list[float], fraction: float) -> None:
    edges = (*sorted(bounds), float("inf"))
    counts = tuple(
        float(sum(low < v <= high for v in values)) for low, high in zip((-1.0, *edges[:-1]), edges, strict=True)
    )
    found = bucket_percentile(Histogram(bounds=edges, counts=counts, sum=None, count=len(values)), fraction)
    assert found is not None
    ordered = sorted(values)
    true = next(v for i, v in enumerate(ordered, start=1) if i >= fraction * len(ordered) - 1e-9)
    assert found.low <= true <= found.high or true == 0.0


def test_an_empty_histogram_has_no_percentile() -> None:
    assert bucket_percentile(Histogram(bounds=(1.0,), counts=(0.0,), sum=0.0, count=0), 0.5) is None


def test_fractions_are_averaged_and_weighed_by_capacity() -> None:
    a, b = (("pod", "a"),), (("pod", "b"),)
    assert mean_fraction({a: 0.4, b: 0.4}) == pytest.approx(0.4)  # never 0.8
    assert mean_fraction({a: 0.9, b: 0.1}, {a: 3.0, b: 1.0}) == pytest.approx(0.7)
    assert mean_fraction({a: 0.9, b: 0.1}, {a: 3.0}) == pytest.approx(0.5)  # one capacity unknown: unweighted
    assert mean_fraction({}) is None


def test_a_sub_folder_is_a_pod(tmp_path: Path) -> None:
    for pod in ("a", "b"):
        (tmp_path / pod).mkdir()
        (tmp_path / pod / "m.1767225600.prom").write_text("vllm:kv_cache_usage_perc 0.4\n", encoding="utf-8")
    log = read_metrics(tmp_path)
    pods = {dict(labels)["pod"] for s in log.snapshots for labels in gauge(s, "vllm:kv_cache_usage_perc")}
    assert pods == {"a", "b"}


def test_a_range_query_is_a_scrape_per_time(tmp_path: Path) -> None:
    answer = {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [{"metric": {"__name__": "a", "pod": "x"}, "values": [[1767225600, "1"], [1767225615, "4"]]}],
        },
    }
    (tmp_path / "range.json").write_text(json.dumps(answer), encoding="utf-8")
    log = read_metrics(tmp_path / "range.json")
    assert duration_ns(log.snapshots) == 15 * 10**9
    assert counter_deltas(log.snapshots, "a")[("pod", "x"),].value == 3


@pytest.mark.parametrize("figure", FIGURES)
def test_every_name_of_a_figure_is_found(figure: str, tmp_path: Path) -> None:
    for i, alias in enumerate(FIGURES[figure].aliases):
        suffix = {"gauge": "", "counter": "_total", "histogram": "_bucket"}[FIGURES[figure].kind]
        log = write(tmp_path / f"{figure}{i}", a=f'{alias.series}{suffix}{{le="1"}} 1\n')
        found = find_series(log, figure)
        assert found is not None
        assert found.alias is alias
        assert find_series(log, "num_swapped" if figure != "num_swapped" else "num_running") is None


def test_what_is_no_metrics_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput):
            read_metrics(path)
    (tmp_path / "notes.txt").write_text("nothing to see\n", encoding="utf-8")
    with pytest.raises(BadInput, match="no metric"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_metrics_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    for _ in range(60):
        path = tmp_path / "metrics.1767225600.prom"
        path.write_bytes(mutate(SCRAPE.encode(), random_))
        try:
            log = read_metrics(path)
        except StepscopeError:
            continue
        for name in log.names:
            counter_deltas(log.snapshots, name)
            find_histogram(log.snapshots, name.removesuffix("_bucket"))
