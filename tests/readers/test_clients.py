"""Client results of four tools and of plain JSON lines: one meaning of every field, whatever its name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import BadInput, StepscopeError
from stepscope.readers.clients.reader import read_clients
from stepscope.readers.clients.record import ClientResult
from tests.readers.test_fuzz import mutate

VLLM = {
    "backend": "openai-chat",
    "dataset_name": "random",
    "tokenizer_id": "m",
    "max_concurrency": 1,
    "duration": 4.0,
    "completed": 2,
    "mean_ttft_ms": 300.0,
    "mean_e2el_ms": 700.0,
    "input_lens": [100, 200, 50],
    "output_lens": [3, 5, 0],
    "ttfts": [0.2, 0.4, 0.0],
    "itls": [[0.1, 0.1], [0.1, 0.1, 0.1, 0.1], []],
    "start_times": [10.0, 11.0, 12.0],
    "errors": ["", "", "timeout"],
}
SGLANG = {
    "backend": "sglang",
    "mean_e2e_latency_ms": 700.0,
    "total_output_tokens_retokenized": 8,
    "max_concurrency": None,
    "input_lens": [100, 200],
    "output_lens": [3, 5],
    "ttfts": [0.2, 0.4],
    "itls": [[0.1, 0.1], [0.1, 0.1, 0.1, 0.1]],
    "errors": ["", ""],
}
AIPERF = {
    "metadata": {
        "x_request_id": "r1",
        "request_start_ns": 1_759_813_207_500_000_000,
        "request_end_ns": 1_759_813_207_800_000_000,
        "benchmark_phase": "profiling",
    },
    "metrics": {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "time_to_first_token": {"value": 250.0, "unit": "ms"},
        "request_latency": {"value": 300.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [5.0, 5.0], "unit": "ms"},
        "output_sequence_length": {"value": 11, "unit": "tokens"},
    },
    "error": None,
}
AIPERF_FAILED = {
    "metadata": {"request_start_ns": 1, "benchmark_phase": "profiling"},
    "metrics": {"error_isl": {"value": 550, "unit": "tokens"}},
    "error": {"code": 499, "type": "RequestCancellationError", "message": "cancelled"},
}
NEW_GUIDE = {
    "request_id": "g1",
    "response_id": "cmpl-g1",
    "prompt_tokens": 100,
    "output_tokens": 11,
    "time_per_output_token_ms": 136.4,
    "info": {
        "status": "completed",
        "timings": {
            "targeted_start": 1000.0,
            "request_start": 1000.5,
            "first_token_iteration": 1000.9,
            "last_token_iteration": 1001.9,
            "request_end": 1002.0,
        },
    },
}
OLD_GUIDE = {
    "request_id": "g2",
    "start_time": 1000.5,
    "first_token_time": 1000.9,
    "last_token_time": 1001.9,
    "end_time": 1002.0,
    "prompt_tokens": 100,
    "output_tokens": 11,
    "scheduler_info": {"targeted_start_time": 1000.0},
}
PLAIN = {
    "i": 0,
    "t0": 1_795_973_409.5,
    "ttft": 0.2,
    "e2e": 0.5,
    "usage": {"prompt_tokens": 590, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 512}},
    "status": 200,
}


def guide(*requests: dict[str, Any], errored: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    groups = {"successful": list(requests), "errored": list(errored), "incomplete": []}
    return {"metadata": {}, "benchmarks": [{"config": {"strategy": {"type_": "constant"}}, "requests": groups}]}


def read(folder: Path, *objects: Any) -> ClientResult:
    path = folder / "result.json"
    path.write_text("\n".join(json.dumps(one) for one in objects), encoding="utf-8")
    results = read_clients(path)
    assert len(results) == 1
    return results[0]


def test_vllm_bench(tmp_path: Path) -> None:
    result = read(tmp_path, VLLM)
    assert (result.tool, result.clock, len(result.requests), len(result.succeeded)) == (
        "vllm bench serve",
        "client",
        3,
        2,
    )
    first = result.requests[0]
    assert (first.ttft_s, first.output_len) == (0.2, 3)
    assert first.e2el_s == pytest.approx(0.4)
    assert first.times().tpot_s == pytest.approx(0.1)
    assert result.requests[2].ttft_s is None  # a failed request's 0 is no latency
    assert "role" in result.ttft_ends_at
    assert result.figures["max_concurrency"] == 1


def test_sglang_bench_one_run_a_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(SGLANG) + "\n" + json.dumps(SGLANG) + "\n", encoding="utf-8")
    results = read_clients(path)
    assert [r.tool for r in results] == ["SGLang bench_serving"] * 2
    assert results[0].clock is None
    assert results[0].requests[1].e2el_s == pytest.approx(0.8)


def test_aiperf_requests(tmp_path: Path) -> None:
    warmup = {"metadata": AIPERF["metadata"] | {"benchmark_phase": "warmup"}, "metrics": {}}  # type: ignore[operator]
    result = read(tmp_path, AIPERF, AIPERF_FAILED, warmup)
    assert (result.tool, result.clock, len(result.requests)) == ("AIPerf", "epoch", 2)
    first, failed = result.requests
    assert (first.request_id, first.ttft_s, first.e2el_s, first.gaps_s) == ("r1", 0.25, 0.3, (0.005, 0.005))
    assert (failed.error, failed.ttft_s) == ("cancelled", None)


def test_aiperf_knows_when_a_request_was_let_go(tmp_path: Path) -> None:
    start = AIPERF["metadata"]["request_start_ns"]  # type: ignore[index]
    late = {"metadata": AIPERF["metadata"] | {"credit_issued_ns": start - 1_400_000_000}}  # type: ignore[operator]
    one = read(tmp_path, AIPERF | late).requests[0]
    assert one.dispatch_delay_s == pytest.approx(1.4)
    assert one.times(from_schedule=True).e2el_s == pytest.approx(1.7)


def test_aiperf_sums(tmp_path: Path) -> None:
    result = read(tmp_path, {"request_latency": {"unit": "ms", "avg": 6550.0, "p99": 9381.0}, "goodput": None})
    assert result.figures == {"request_latency.avg": 6.55, "request_latency.p99": pytest.approx(9.381)}
    assert result.requests == ()


@pytest.mark.parametrize("request_", [NEW_GUIDE, OLD_GUIDE])
def test_guidellm_of_two_ages(request_: dict[str, Any], tmp_path: Path) -> None:
    result = read(tmp_path, guide(request_))
    one = result.requests[0]
    assert one.dispatch_delay_s == 0.5
    assert one.ttft_s == pytest.approx(0.4)
    assert one.e2el_s == pytest.approx(1.4)
    # its own time_per_output_token is 1.5 s / 11 = 136 ms; ours is 1 s / 10
    assert one.times().tpot_s == pytest.approx(0.1)
    assert one.times(from_schedule=True).e2el_s == pytest.approx(1.9)


def test_guidellm_failures(tmp_path: Path) -> None:
    result = read(tmp_path, guide(NEW_GUIDE, errored=(OLD_GUIDE,)))
    assert [r.error for r in result.requests] == [None, "errored"]


def test_plain_lines(tmp_path: Path) -> None:
    result = read(tmp_path, PLAIN, PLAIN | {"status": 500})
    one = result.requests[0]
    assert (result.clock, one.prompt_len, one.cached_tokens, one.output_len) == ("epoch", 590, 512, 4)
    assert result.requests[1].error == "status 500"
    assert one.times(from_schedule=True).ttft_s is None  # when it should have been sent is not known


def test_chunks_of_a_stream_tell_a_role_from_a_token(tmp_path: Path) -> None:
    result = read(tmp_path, {"chunks": [[0.9, 0], [2.2, 1], [2.22, 1], [2.24, 1]]})
    one = result.requests[0]
    assert (one.ttft_s, one.content_ttft_s, one.e2el_s) == (0.9, 2.2, 2.24)
    assert one.gaps_s == pytest.approx((0.02, 0.02))
    assert result.ttft_ends_at == "first content"


def test_lists_of_different_lengths_are_read_to_the_shortest(tmp_path: Path) -> None:
    result = read(tmp_path, VLLM | {"ttfts": [0.2]})
    assert len(result.requests) == 1
    assert {row.code: row.count for row in result.reading.health} == {"client_lengths_differ": 2}


def test_lines_of_another_kind_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(PLAIN) + "\nnot json\n[1]\n", encoding="utf-8")
    assert {row.code: row.count for row in read_clients(path)[0].reading.health} == {"client_record_unparsed": 2}


def test_impossible_numbers_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"ttft": 0.5, "e2e": NaN, "t0": Infinity, "prompt_len": -3, "output_len": 2.5}', encoding="utf-8")
    one = read_clients(path)[0].requests[0]
    assert (one.e2el_s, one.start_s, one.prompt_len, one.output_len) == (None, None, None, None)


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", "hello", '{"benchmarks": []}', '{"a": 1}\n{"b": 2}'):
        path = tmp_path / "a.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadInput, match="known"):
            read_clients(path)
    with pytest.raises(BadInput):
        read_clients(tmp_path / "nowhere")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("content", [VLLM, SGLANG, AIPERF, guide(NEW_GUIDE, OLD_GUIDE), PLAIN])
def test_damaged_results_are_read_or_refused(seed: int, content: dict[str, Any], tmp_path: Path) -> None:
    random_ = random.Random(seed)
    data = json.dumps(content).encode()
    for _ in range(40):
        path = tmp_path / "a.json"
        path.write_bytes(mutate(data, random_))
        try:
            results = read_clients(path)
        except StepscopeError:
            continue
        for request in (r for result in results for r in result.requests):
            assert request.times().ttft_s is None or request.times().ttft_s >= 0  # type: ignore[operator]
