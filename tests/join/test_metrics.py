"""The metrics table: five figures with five values, each with its clock, window and source; nothing missing is 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.evidence import GRADES
from stepscope.join.figures import DEFINITIONS, FigureRow
from stepscope.join.metrics import FIVE, metric_rows
from stepscope.join.reconcile import reconcile
from stepscope.join.sources import Paths, read_sources
from stepscope.join.time_mean import mean_of_integral, mean_of_steps
from stepscope.join.traps import TRAPS, find_traps
from tests.join.evidence import MS, START_NS, interval, iteration, row, sources, step, write_step_log

if TYPE_CHECKING:
    from collections.abc import Iterable

SECOND = 10**9


def by_figure(rows: Iterable[FigureRow], source: str) -> dict[str, float | None]:
    return {row.figure: row.value for row in rows if row.source == source and row.statistic == "mean"}


# 3 s: 20 wait in the first, 46 in the second, 2.82 on average in the third (the integral says so)
QUEUED = [
    step(
        i,
        rows,
        time_ns=START_NS + i * SECOND,
        num_waiting=waiting,
        num_running=len(rows),
        waiting_request_ns=integral,
        running_request_ns=running,
        stream_ns=i * SECOND,
    )
    for i, (rows, waiting, integral, running) in enumerate(
        [
            ([row("a", 512, 512)], 20, 0, 0),
            ([row("a", 88, 600), row("b", 400, 400)], 46, 20 * SECOND, 1 * SECOND),
            ([row("a", 1, 601, "decode"), row("b", 1, 401, "decode")], 2, 66 * SECOND, 3 * SECOND),
            ([], 0, 68_820_000_000, 5 * SECOND),
        ]
    )
]


def test_five_figures_have_five_values(tmp_path: Path) -> None:
    rows = metric_rows(sources(tmp_path, steps=QUEUED))
    found = by_figure(rows, "step log")
    assert found == {
        "queue_length": pytest.approx(22.94),  # 68.82 request-seconds over 3 s
        "running_requests": pytest.approx(5 / 3),
        "batch_size": pytest.approx(5 / 3),
        "batched_tokens": pytest.approx((512 + 488 + 2) / 3),
        "prefill_batch_size": pytest.approx(1.5),
    }
    assert len({round(value or 0, 3) for value in found.values()}) == 4  # running and rows agree here, by chance
    assert [row.figure for row in rows][:5] == list(FIVE)


def test_every_row_says_what_it_is(tmp_path: Path) -> None:
    rows = metric_rows(sources(tmp_path, steps=QUEUED, log=[iteration(0, (1, 5), (0, 0))], scrapes={"a": "up 1\n"}))
    for one in rows:
        assert one.definition
        assert one.grade in GRADES
        assert (one.value is None) == (one.missing is not None) == (one.grade == "refused")
        if one.value is not None:
            assert one.clock
            assert str(one.window)
            assert one.low is not None
            assert one.low <= one.value


def test_a_figure_that_nobody_recorded_is_refused(tmp_path: Path) -> None:
    rows = metric_rows(sources(tmp_path, log=["nothing to see"]))
    assert {one.figure for one in rows} == set(FIVE)
    assert {one.value for one in rows} == {None}
    assert "step log" in str(rows[0].missing)


def test_engines_add_up_in_counts(tmp_path: Path) -> None:
    made = sources(tmp_path, steps=QUEUED)
    write_step_log(tmp_path / "steps", QUEUED, dp_rank=1)
    both = metric_rows(sources(tmp_path, steps=QUEUED, log=["x"]))
    assert by_figure(metric_rows(made), "step log")["queue_length"] == pytest.approx(22.94)
    assert by_figure(both, "step log")["queue_length"] == pytest.approx(45.88)
    assert by_figure(both, "step log")["batch_size"] == pytest.approx(5 / 3)


def test_without_integrals_arrivals_between_steps_bound_the_queue(tmp_path: Path) -> None:
    plain = [
        step(0, [row("a", 8, 8)], num_waiting=2, num_waiting_before=3),
        step(1, [row("b", 8, 8)], num_waiting=4, num_waiting_before=4),
        step(2, [], num_waiting=0, num_waiting_before=4),
    ]
    one = next(r for r in metric_rows(sources(tmp_path, steps=plain)) if r.figure == "queue_length")
    assert (one.low, one.high) == (3.0, 4.0)
    assert "arrivals" in str(one.window)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_time_integral_lies_within_the_bounds(changes: list[tuple[int, int, int]]) -> None:
    """Arrivals at any time between steps: what an independent integral gives is never outside."""
    times, after, before, integral = [0], [3], [3], 0
    for gap, waiting_after, arrived in changes:
        late = gap // 2  # all of them arrive halfway
        integral += after[-1] * gap + arrived * (gap - late)
        before.append(after[-1] + arrived)
        times.append(times[-1] + gap)
        after.append(min(waiting_after, before[-1]))
    found = mean_of_steps(times, after, before)
    assert found is not None
    assert found.low - 1e-9 <= integral / times[-1] <= found.high + 1e-9


def test_an_integral_needs_two_points() -> None:
    assert mean_of_integral([5], [10]) is None
    assert mean_of_integral([5, None], [10, 20]) is None
    found = mean_of_integral([0, None, 30], [0, 5, 10])
    assert found is not None
    assert (found.low, found.high, found.is_exact) == (3.0, 3.0, True)


def test_samples_of_a_log_are_called_samples(tmp_path: Path) -> None:
    lines = [
        interval(f"Avg prompt throughput: 10.0 tokens/s, Running: {n} reqs, Waiting: {n + 1} reqs") for n in (1, 3)
    ]
    rows = metric_rows(sources(tmp_path, log=lines))
    one = next(r for r in rows if r.figure == "queue_length")
    assert (one.value, one.low, one.high, one.source) == (3.0, 2.0, 4.0, "log intervals")
    assert "no average over time" in str(one.window)


def test_aggregated_lines_are_not_counted_twice(tmp_path: Path) -> None:
    lines = [
        interval("Running: 1 reqs, Waiting: 4 reqs").replace("Running", "Avg prompt throughput: 1.0 tokens/s, Running"),
        interval("Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 4 reqs").replace(
            "Engine 000", "2 Engines Aggregated"
        ),
    ]
    assert next(r for r in metric_rows(sources(tmp_path, log=lines)) if r.figure == "queue_length").count == 1


SERVED = {
    "a.1767225600": "vllm:prompt_tokens_total 0\nvllm:prompt_tokens_cached_total 0\nvllm:generation_tokens_total 0\n"
    + "".join(
        f'vllm:{name}_seconds_bucket{{le="+Inf"}} 0\nvllm:{name}_seconds_sum 0\n'
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time")
    ),
    "b.1767225610": "vllm:prompt_tokens_total 1000\nvllm:prompt_tokens_cached_total 400\n"
    "vllm:generation_tokens_total 20\n"
    + "".join(
        f'vllm:{name}_seconds_bucket{{le="+Inf"}} 2\nvllm:{name}_seconds_sum {total}\n'
        for name, total in (
            ("e2e_request_latency", 4.0),
            ("request_queue_time", 0.6),
            ("request_prefill_time", 1.0),
            ("request_decode_time", 2.2),
        )
    ),
}


def test_latency_is_its_stages_and_a_residual(tmp_path: Path) -> None:
    client = [{"e2e": 2.1, "ttft": 0.9, "prompt_len": 500, "output_len": 10, "cached_tokens": 200} for _ in range(2)]
    found = {item.id: item for item in reconcile(sources(tmp_path, scrapes=SERVED, client=client))}
    server = found["server_e2el"]
    assert server.total == 2.0
    assert dict(server.parts) == {"queue": 0.3, "prefill": 0.5, "decode": 1.1}
    assert server.residual == pytest.approx(0.1)
    assert found["client_e2el"].residual == pytest.approx(0.1)
    assert [found[f"client_{name}"].residual for name in ("prompt_tokens", "cached_tokens", "generation_tokens")] == [
        0
    ] * 3


def test_a_client_with_other_requests_says_so(tmp_path: Path) -> None:
    found = {item.id: item for item in reconcile(sources(tmp_path, scrapes=SERVED, client=[{"e2e": 2.1}]))}
    assert "other requests" in str(found["client_e2el"].residual_is)


def test_log_throughput_is_held_against_the_counters(tmp_path: Path) -> None:
    lines = [interval(f"Avg prompt throughput: {rate} tokens/s", seconds) for rate, seconds in ((20.0, 10), (40.0, 20))]
    found = {item.id: item for item in reconcile(sources(tmp_path, scrapes=SERVED, log=lines))}
    item = found["log_prompt_tokens"]
    assert (item.total, dict(item.parts)) == (600.0, {"log throughput x interval": 600.0})
    assert item.residual == 0


def test_parts_and_residual_are_the_total(tmp_path: Path) -> None:
    for item in reconcile(sources(tmp_path, scrapes=SERVED, steps=QUEUED)):
        assert sum(item.parts.values()) + item.residual == pytest.approx(item.total)


def test_the_batch_that_is_none_is_warned_of(tmp_path: Path) -> None:
    scrapes = {
        "a": 'vllm:iteration_tokens_total_bucket{le="512"} 10\nvllm:iteration_tokens_total_bucket{le="+Inf"} 26\n'
        "vllm:iteration_tokens_total_sum 9000\nvllm:num_requests_waiting 0\n"
    }
    budget = "Chunked prefill is enabled with max_num_batched_tokens=512."
    log = [f"(APIServer pid=1) INFO 01-01 00:00:00 [scheduler.py:307] {budget}"]
    traps = {trap.code: str(trap.text) for trap in find_traps(sources(tmp_path, scrapes=scrapes, log=log))}
    assert set(traps) == {"iteration_tokens", "sampled_queue"}
    assert "16 observations above 512" in traps["iteration_tokens"]


def test_every_trap_and_figure_is_explained() -> None:
    assert all(TRAPS.values())
    assert all(len(parts) == 3 for parts in DEFINITIONS.values())


def test_the_step_log_counts_no_empty_steps(tmp_path: Path) -> None:
    rows = metric_rows(sources(tmp_path, steps=[step(0, [row("a", 8, 8)]), step(1, [])]))
    assert by_figure(rows, "step log")["batch_size"] == 1.0
    assert MS == 10**6


def test_forward_metrics_weigh_the_queue_by_iteration_time(tmp_path: Path) -> None:
    def message(counter: int, wall_s: float, waiting: int) -> dict[str, object]:
        scheduled = {"num_prefill_requests": 1, "sum_prefill_tokens": 8, "num_decode_requests": 2}
        queued = {"num_prefill_requests": waiting}
        return {
            "counter_id": counter,
            "wall_time": wall_s,
            "scheduled_requests": scheduled,
            "queued_requests": queued,
        }

    path = tmp_path / "fpm.jsonl"
    messages = [message(0, 0.1, 40), message(1, 0.3, 4), message(2, 0.0, 99)]  # the last is a heartbeat
    path.write_text("\n".join(json.dumps(m) for m in messages), encoding="utf-8")
    found = by_figure(metric_rows(read_sources(Paths(forward_metrics=path))), "forward metrics")
    assert found == {"queue_length": pytest.approx(13.0), "batch_size": 3.0, "prefill_batch_size": 1.0}
