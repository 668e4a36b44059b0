"""Public cases A12 to A16, A18, A37 and A38: their numbers in, their stated conclusions out."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.chunks import ChunkRule
from stepscope.join.exported import hit_fraction
from stepscope.join.hits import find_tiers, judge_hits
from stepscope.join.limits import StepSpan, find_binding_budget, find_starvation
from stepscope.join.metrics import metric_rows
from stepscope.join.queueing import LoadPoint, judge_wait
from stepscope.join.traps import find_traps, time_chunks
from stepscope.latency import spread
from stepscope.readers.clients.reader import read_clients
from stepscope.readers.prometheus.aliases import FIGURES
from stepscope.readers.prometheus.reader import read_metrics
from stepscope.readers.prometheus.series import find_series
from stepscope.readers.server_log.reader import parse_server_log
from tests.join.evidence import interval, row, sources, step


def test_a12_a_wait_in_the_client_is_shown_on_its_own_clock(tmp_path: Path) -> None:
    # a request every 0.1 s, 0.5 s of service, one at a time: request i is sent 0.4 i s late
    late = [{"scheduled_s": 0.1 * i, "start_s": 0.5 * i, "ttft": 0.1, "e2e": 0.506} for i in range(8)]
    made = sources(tmp_path, client=late)
    requests = made.clients[0].succeeded
    delay = spread(r.dispatch_delay_s for r in requests)
    planned = spread(r.times(from_schedule=True).e2el_s for r in requests)
    assert delay is not None
    assert planned is not None
    assert delay.mean == pytest.approx(1.4, abs=0.05)  # the thread: 1.43 s
    assert planned.mean == pytest.approx(1.93, abs=0.05)  # the thread: 1932 ms, and p99 3330 ms
    assert planned.p99 == pytest.approx(3.33, abs=0.1)
    traps = {trap.code: str(trap.text) for trap in find_traps(made)}
    assert "0.506 s from when they were sent" in traps["client_wait"]
    windows = {str(r.window) for r in metric_rows(made) if r.figure == "e2el"}
    assert len(windows) == 2  # both clocks stand in the table


def test_a12_without_the_schedule_the_wait_is_unknown(tmp_path: Path) -> None:
    run = {"mean_ttft_ms": 1.0, "max_concurrency": 1, "ttfts": [0.1], "itls": [[0.4]], "input_lens": [5]}
    made = sources(tmp_path, client=[run])
    text = str(find_traps(made)[0].text)
    assert "exclude client queueing, by an unknown time" in text
    assert not [r for r in metric_rows(made) if r.figure == "dispatch_delay"]


def test_a13_a_role_is_no_token(tmp_path: Path) -> None:
    stream = {"prompt_len": 5000, "chunks": [[0.9, 0], [2.2, 1], [2.22, 1], [2.24, 1]]}
    made = sources(tmp_path, client=[stream])
    request = made.clients[0].requests[0]
    assert request.times().ttft_s == 2.2
    assert request.gaps_s == pytest.approx((0.02, 0.02))
    traps = {trap.code: str(trap.text) for trap in find_traps(made)}
    assert "0.900" in traps["role_chunk"]
    assert "2.200" in traps["role_chunk"]
    timed = time_chunks(request, ChunkRule(token_budget=2048))
    assert timed is not None
    assert (timed.first_tokens, timed.rest_tokens) == (2048, 2952)  # 2k, then 3k, as timed
    assert timed.first_s == 0.9
    assert timed.rest_s == pytest.approx(1.3)


A14 = interval(
    "Avg prompt throughput: 6102.8 tokens/s, Avg generation throughput: 1221.7 tokens/s, Running: 259 reqs, Waiting: "
    "535 reqs, GPU KV cache usage: 82.3%, Prefix cache hit rate: 32.2%"
)


def test_a14_hits_on_random_prompts_are_recomputation(tmp_path: Path) -> None:
    run = {"mean_ttft_ms": 1.0, "dataset_name": "random", "ttfts": [0.1], "itls": [[]], "input_lens": [1024]}
    scrapes = {"a.1": "vllm:num_preemptions_total 0\n", "b.2": "vllm:num_preemptions_total 310\n"}
    found = judge_hits(sources(tmp_path, log=[A14], client=[run], scrapes=scrapes))
    assert found is not None
    assert found.verdict == "recomputation"
    assert "32.2 %" in str(found.text)
    assert "no reuse" in str(found.text)
    assert "no gain in TTFT" in str(found.text)
    assert "preempted_hits" in {t.code for t in find_traps(sources(tmp_path, log=[A14], client=[run], scrapes=scrapes))}


def test_a14_the_step_log_tells_reuse_from_recomputation(tmp_path: Path) -> None:
    steps = [
        step(0, [row("a", 96, 96, prompt_len=96, prefix_hit_tokens=0, chunk_index=0, num_preemptions=0)]),
        step(1, [row("b", 32, 96, prompt_len=96, prefix_hit_tokens=64, chunk_index=0)], preempted=["a"]),
        step(2, [row("a", 17, 97, prompt_len=96, prefix_hit_tokens=80, chunk_index=0, num_preemptions=1)]),
    ]
    found = judge_hits(sources(tmp_path, steps=steps))
    assert found is not None
    assert found.totals is not None
    assert (found.totals.local_hit_tokens, found.totals.recovered_tokens, found.totals.recomputed_tokens) == (
        64,
        80,
        16,
    )
    assert found.verdict == "mixed"


def test_a14_without_preemptions_hits_are_reuse(tmp_path: Path) -> None:
    scrapes = {"a.1": "vllm:num_preemptions_total 0\n", "b.2": "vllm:num_preemptions_total 0\n"}
    found = judge_hits(sources(tmp_path, log=[A14], scrapes=scrapes))
    assert found is not None
    assert found.verdict == "reuse"
    alone = judge_hits(sources(tmp_path, log=[A14]))
    assert alone is not None
    assert alone.verdict == "unknown"  # preemptions were not recorded


def test_a15_a_warm_local_cache_shows_nothing_of_the_external_one() -> None:
    lookup = "Total tokens 15444, LMCache hit tokens: 15444, need to load: 3"
    line = f"[2026-01-01 00:00:00] LMCache INFO: Reqid: cmpl-1, {lookup}"
    tiers = find_tiers(parse_server_log([line]).records)
    assert tiers is not None
    assert (tiers.local_tokens, tiers.external_tokens) == (15_441, 3)
    assert not tiers.shows_external
    assert "cannot show what the external tier gains" in str(tiers.text)


def a16(arguments: str, tokens: int = 15_000) -> list[str]:
    head = "[2026-01-01 00:00:00]"
    batch = f"#new-seq: {tokens // 5000}, #new-token: {tokens}, #cached-token: 0, token usage: 0.30, #running-req: 0"
    return [f"{head} server_args=ServerArgs({arguments})", *[f"{head} Prefill batch. {batch}, #queue-req: 42, "] * 3]


def test_a16_the_tighter_budget_wins() -> None:
    found = find_binding_budget(parse_server_log(a16("model_path='m', chunked_prefill_size=32768")))
    assert found is not None
    assert (found.name, found.tokens, found.largest_batch_tokens) == ("max_prefill_tokens", 16_384, 15_000)
    assert "Raising chunked_prefill_size (32,768) alone changes nothing." in str(found.text)


def test_a16_with_dp_attention_the_chunk_is_divided() -> None:
    arguments = "chunked_prefill_size=32768, max_prefill_tokens=65536, dp_size=2, enable_dp_attention=True"
    found = find_binding_budget(parse_server_log(a16(arguments)))
    assert found is not None
    assert (found.name, found.tokens) == ("chunked_prefill_size / dp_size", 16_384)


def test_a16_no_budget_is_named_where_none_was_reached_or_nobody_waited() -> None:
    assert find_binding_budget(parse_server_log(a16("chunked_prefill_size=65536, max_prefill_tokens=65536"))) is None
    idle = [line.replace("#queue-req: 42", "#queue-req: 0") for line in a16("chunked_prefill_size=32768")]
    assert find_binding_budget(parse_server_log(idle)) is None


def test_a18_one_long_prompt_stops_decoding() -> None:
    decode = StepSpan(phase="decode", duration_ns=17_000_000, num_running_decodes=1)
    prefill = StepSpan(phase="prefill", duration_ns=1_330_000_000, num_prefill_tokens=3_456, num_running_decodes=1)
    found = find_starvation([decode, *[prefill] * 58, decode])
    assert found is not None
    assert found.num_steps == 58
    assert found.duration_ns == pytest.approx(77e9, rel=0.01)  # the thread: 77 s by 58 prefill steps
    assert found.num_prefill_tokens == 200_448  # the prompt had 200,019
    # one decode step after every 4 chunks: the victim waits for 4 chunks at a time
    assert found.wait_with_decodes_every(4) == pytest.approx(4 * 1.33e9, rel=0.01)


def test_a37_the_wait_is_not_where_the_queue_metric_is() -> None:
    latency, queue = (30.07, 48.18, 87.26, 165.47), (0.00021, 0.00051, 0.00053, 0.131)
    points = [
        LoadPoint(concurrency=c, latency_s=s, queue_s=q) for c, s, q in zip((1, 2, 4, 8), latency, queue, strict=True)
    ]
    found = judge_wait(points)
    assert [round(growth, 2) for growth in found.growth_per_doubling] == [1.6, 1.81, 1.9]
    assert found.is_serial
    assert found.expected_wait_s == pytest.approx(135.4)
    assert found.covered_fraction == pytest.approx(0.001, abs=1e-4)
    assert "0.1 % of it" in str(found.text)


def test_a38_old_and_new_names_are_one_figure(tmp_path: Path) -> None:
    for i, name in enumerate(("gpu_cache_usage_perc", "kv_cache_usage_perc")):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "a.prom").write_text(f"vllm:{name} 0.4\n", encoding="utf-8")
        found = find_series(read_metrics(folder), "kv_usage_fraction")
        assert found is not None
        assert found.name == f"vllm:{name}"


def test_a38_percentages_of_pods_are_not_added(tmp_path: Path) -> None:
    scrape = 'vllm:kv_cache_usage_perc{pod="a"} 0.4\nvllm:kv_cache_usage_perc{pod="b"} 0.4\n'
    made = sources(tmp_path, scrapes={"a": scrape})
    usage = next(r for r in metric_rows(made) if r.figure == "kv_usage_fraction")
    assert usage.value == pytest.approx(0.4)  # the dashboard showed 80 %
    assert "several_engines" in {trap.code for trap in find_traps(made)}


def test_a38_a_metric_that_is_gone_is_not_exported_and_not_zero(tmp_path: Path) -> None:
    rows = metric_rows(sources(tmp_path, scrapes={"a": "vllm:kv_cache_usage_perc 0.4\n"}))
    swapped = next(r for r in rows if r.figure == "num_swapped")
    assert swapped.value is None
    assert "not exported" in str(swapped.missing)
    assert "vllm:num_requests_swapped" in str(swapped.missing)


def test_a38_a_hit_rate_is_hits_over_queries_of_the_window(tmp_path: Path) -> None:
    for i, (hits, queries) in enumerate(((100, 1000), (400, 1600))):
        text = f"vllm:prefix_cache_hits_total {hits}\nvllm:prefix_cache_queries_total {queries}\n"
        (tmp_path / f"m.176722560{i}.prom").write_text(text, encoding="utf-8")
    assert hit_fraction(read_metrics(tmp_path)) == pytest.approx(300 / 600)


def test_a38_a_name_with_another_meaning_is_warned_of(tmp_path: Path) -> None:
    name = "vllm:time_per_output_token_seconds"
    scrapes = {"a": f'{name}_bucket{{le="+Inf"}} 4\n{name}_sum 0.2\n'}
    traps = {trap.code: str(trap.text) for trap in find_traps(sources(tmp_path, scrapes=scrapes))}
    assert "under the name of TPOT" in traps["renamed"]
    rows = {r.figure: r.value for r in metric_rows(sources(tmp_path, scrapes=scrapes)) if r.statistic == "mean"}
    assert rows["itl"] == pytest.approx(0.05)
    assert rows["tpot"] is None


def test_every_alias_says_of_which_version_it_is() -> None:
    assert all(alias.era for figure in FIGURES.values() for alias in figure.aliases)


def test_a_client_file_is_read_where_the_cases_need_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ttft": 1.0}', encoding="utf-8")
    assert read_clients(tmp_path / "a.json")[0].tool == "JSON lines"
