"""A recorded vLLM server: client, log, metrics, trace and the scheduler's own output, reconciled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepscope.chunks import chunk_len, usable_hit
from stepscope.join.evidence import Joined, join_sources
from stepscope.join.sources import Paths, read_sources
from stepscope.readers.registry import open_trace
from stepscope.steps.step import find_steps
from tests.join.evidence import row, write_step_log

pytestmark = pytest.mark.shared
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def serve() -> Path:
    traces = Path(os.environ.get("STEPSCOPE_TRACES") or ROOT.parent / "shared" / "traces")
    folder = traces / "vllm-cpu" / "serve-nostack"
    if not folder.is_dir():
        pytest.skip("the larger captures are not here: set STEPSCOPE_TRACES to the folder that holds them")
    return folder


@pytest.fixture(scope="module")
def truth(serve: Path) -> list[dict[str, Any]]:
    file = next((serve / "truth").glob("sched.*.jsonl"))
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def to_records(truth: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The scheduler's output as a step log, without integrals."""
    hits: dict[str, int] = {}
    records = []
    for one in truth:
        rows = []
        for r in one["reqs"]:
            if r["new"]:
                hits[r["id"]] = r["computed"]
            phase = "prefill" if r["computed"] < r["prompt"] else "decode"
            index = None if phase == "decode" else 0 if r["new"] else 1
            more = {"prefix_hit_tokens": hits.get(r["id"]), "chunk_index": index, "prompt_len": r["prompt"]}
            rows.append(row(r["id"], r["q"], r["k"], phase, num_preemptions=0, **more))
        records.append(
            {
                "seq": one["step"],
                "kind": "step",
                "step_id": one["step"],
                "time_ns": one["t_ns"],
                "schedule_ns": int(one["sched_us"] * 1_000),
                "num_scheduled_tokens": one["total"],
                "num_requests": len(rows),
                "num_running": one["running"],
                "num_waiting": one["waiting"],
                "num_waiting_before": one["waiting_before"],
                "kv_usage_fraction": one["kv_usage"],
                "preempted": one["preempted"],
                "finished": one["finished"],
                "rows": rows,
                "decodes": None,
            }
        )
    return records


@pytest.fixture(scope="module")
def joined(serve: Path, truth: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Joined:
    steps = write_step_log(tmp_path_factory.mktemp("log") / "steps", to_records(truth))
    trace = open_trace(str(next(serve.glob("manual_rank0*"))))
    ranks = [(store, find_steps(store)) for store in trace.stores]
    paths = Paths(logs=(serve / "server.stdout.log",), metrics=serve, step_log=steps, clients=(serve / "client.jsonl",))
    return join_sources(read_sources(paths, ranks))


def test_every_step_of_the_trace_is_joined_and_agrees(joined: Joined) -> None:
    how = joined.steps.sources[0]
    assert (how.method, how.num_joined, how.num_trace_steps) == ("step id", 133, 133)
    assert joined.steps.disagreements == ()


def test_client_server_counters_and_step_log_have_the_same_tokens(joined: Joined) -> None:
    found = {item.id: item for item in joined.reconciliations}
    for name in ("client_prompt_tokens", "client_cached_tokens", "client_generation_tokens", "step_log_prompt_tokens"):
        assert found[name].residual == 0
    assert found["prompt_by_source"].residual == 0
    assert found["step_log_prompt_tokens"].total == 21_306


def test_latency_residuals_are_named(joined: Joined) -> None:
    found = {item.id: item for item in joined.reconciliations}
    assert found["client_e2el"].count == 36
    assert 0 < found["client_e2el"].residual < 0.02  # HTTP on one host
    # stopping the profiler blocked the server's front end for seconds: no stage of the engine core has that
    assert found["server_e2el"].residual == pytest.approx(0.62, abs=0.01)
    assert "front end" in str(found["server_e2el"].residual_is)
    assert abs(found["log_prompt_tokens"].residual) < 0.05 * found["log_prompt_tokens"].total


def test_queue_length_is_the_time_integral_of_the_waiting_count(joined: Joined, truth: list[dict[str, Any]]) -> None:
    """Little's law: the sum of the requests' queue times over the window, from another source than the counts."""
    queue = next(r for r in joined.figures if r.figure == "queue_time" and r.statistic == "mean")
    length = next(r for r in joined.figures if r.figure == "queue_length" and r.source == "step log")
    assert queue.value is not None
    assert queue.count is not None
    seconds = (truth[-1]["t_ns"] - truth[0]["t_ns"]) * 1e-9
    integral = queue.value * queue.count / seconds
    assert length.low is not None
    assert length.high is not None
    assert length.low - 0.002 <= integral <= length.high
    assert integral == pytest.approx(length.low, rel=0.01)


def test_every_request_is_prefix_first_then_chunk(joined: Joined) -> None:
    assert len(joined.requests) == 36
    for _, request in joined.requests:
        request.check()
        assert request.prefix_hit_tokens is not None
        assert request.prefix_hit_tokens % 128 == 0
        assert all(c.query_len + c.other_prefill_tokens + c.decode_tokens <= 512 for c in request.chunks)


def test_the_traps_of_these_files_are_named(joined: Joined) -> None:
    texts = {trap.code: str(trap.text) for trap in joined.traps}
    assert "14 observations above 512" in texts["iteration_tokens"]
    assert "21,306 of 28,474" in texts["computed_only"]
    assert joined.hits is not None
    assert joined.hits.verdict == "reuse"


def test_the_log_of_the_server_holds_no_line_that_was_not_understood(joined: Joined) -> None:
    log = joined.sources.logs[0]
    assert log.reading.health == ()
    assert [record.kind for record in log.records] == ["vllm_interval"] * 4
    assert (log.num_kv_tokens, log.arguments["max_num_seqs"]) == (262_144, "4")


def test_every_client_request_is_found_at_the_server(joined: Joined) -> None:
    """The client gave its number in X-Request-Id: truth for the join by clock and prompt length."""
    assert len(joined.client_links) == 36
    for link in joined.client_links:
        assert link.method == "clock"
        assert link.server.request_id.startswith(f"cmpl-cli-{link.client.request_id}-")
        assert link.client.cached_tokens == link.server.prefix_hit_tokens
        assert link.residual_ns is not None
        assert link.residual_ns > 0


def test_every_chunk_is_as_long_as_the_rule_says(truth: list[dict[str, Any]]) -> None:
    """The engine's own schedule, row by row in its order: what is left of the budget, or the rest of the prompt."""
    num_chunks = 0
    for one in truth:
        left = 512
        for r in one["reqs"]:
            if r["computed"] < r["prompt"]:
                assert r["q"] == chunk_len(r["prompt"] - r["computed"], budget_left=left)
                num_chunks += 1
            left -= r["q"]
        assert left >= 0
    assert num_chunks == 67


def test_every_hit_is_whole_blocks_and_never_the_last_token(truth: list[dict[str, Any]]) -> None:
    for r in (r for one in truth for r in one["reqs"] if r["new"]):
        assert usable_hit(r["computed"], prompt_len=r["prompt"], block_size=128) == r["computed"]
