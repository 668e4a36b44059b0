"""Log lines of vLLM and SGLang, every form and version: read as key-value lists, unknown keys kept, damage survived."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from stepscope.errors import BadInput, StepscopeError
from stepscope.readers.server_log.fields import read_fields
from stepscope.readers.server_log.reader import LogRecord, parse_server_log, read_server_log
from tests.readers.test_fuzz import mutate

VLLM = "(APIServer pid=4121) INFO 10-12 14:03:20 [loggers.py:335] Engine 000: "
INTERVAL = (
    f"{VLLM}Avg prompt throughput: 8123.4 tokens/s, Avg generation throughput: 1204.8 tokens/s, Running: 64 reqs, "
    "Waiting: 23 reqs, GPU KV cache usage: 61.3%, Prefix cache hit rate: 42.7%"
)
FETCHING = (
    f"{VLLM}Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 2310.5 tokens/s, Running: 128 reqs, "
    "Waiting: 0 reqs, Deferred: 4 reqs, KV fetch: 3 waiting to start, 2 in progress, 1 completed waiting, "
    "Preemptions: 2, GPU KV cache usage: 97.8%, Prefix cache hit rate: 55.0%, Corrupted: 0 reqs, "
    "External prefix cache hit rate: 12.5%, MM cache hit rate: 3.0%"
)
AGGREGATED = VLLM.replace("Engine 000: ", "2 Engines Aggregated: ") + "Avg prompt throughput: 8123.4 tokens/s"
ITERATION = (
    f"{VLLM}Iteration(5210): 1 context requests, 16320 context tokens, 64 generation requests, 64 generation tokens, "
    "iteration elapsed time: 412.55 ms, GPU KV cache usage: 61.3%"
)
DUMMY = ITERATION.replace("412.55 ms", "28.90 ms (dummy)")
SPECULATION = (
    f"{VLLM}SpecDecoding metrics: Mean acceptance length: 2.51, Accepted throughput: 12.10 tokens/s, Drafted "
    "throughput: 24.00 tokens/s, Accepted: 121 tokens, Drafted: 240 tokens, Per-position acceptance rate: 0.836, "
    "0.420, 0.254, Avg Draft acceptance rate: 50.4%"
)
TRANSFER = (
    f"{VLLM}KV Transfer metrics: Num successful transfers=4, Avg xfer time (ms)=1.381, P90 xfer time (ms)=2.601, "
    "Avg post time (ms)=0.672, P90 post time (ms)=0.801, Avg MB per transfer=2.25, Throughput (MB/s)=1629.549, "
    "Avg number of descriptors=72.0"
)
EPLB = (
    "(Worker_TP0 pid=1) INFO 10-12 14:03:20 [eplb_state.py:163] EPLB step: 40 for model glm: avg_tokens=12.50, "
    "max_tokens=31, balancedness=0.4032, steps until the next rearrangement: 60"
)
SGLANG = "[2026-10-12 14:03:22 DP3 TP12 EP12] "
PREFILL = (
    f"{SGLANG}Prefill batch [18422], #new-seq: 4, #new-token: 2048, #cached-token: 0, token usage: 0.31, #running-req: "
    "0, #queue-req: 7, #pending-token: 0, #bootstrap-req: 2, #inflight-req: 1, #optimistic-req: 0, cuda graph: False, "
    "input throughput (token/s): 20554.73"
)
OLD_PREFILL = (
    "[2025-09-20 08:11:02 TP0] Prefill batch. #new-seq: 1, #new-token: 512, #cached-token: 1536, token usage: 0.12, "
    "#running-req: 5, #queue-req: 0, "
)
DECODE = (
    f"{SGLANG}Decode batch, #running-req: 96, #full token: 811008, full token usage: 0.52, mamba num: 97, mamba usage: "
    "0.38, pre-allocated usage: 0.03, #prealloc-req: 2, #transfer-req: 5, #retracted-req: 0, cuda graph: True, gen "
    "throughput (token/s): 4120.55, #queue-req: 0, fwd occupancy: 93.41%, fwd+idle occupancy: 95.02%"
)
SPECULATIVE_DECODE = (
    "[2026-10-12 14:03:31 TP0 EP0] Decode batch [20961], #running-req: 24, #token: 233600, token usage: 0.66, accept "
    "len: 3.05, accept rate: 0.68, npu graph: True, gen throughput (token/s): 639.06, #queue-req: 2"
)
BALANCE = (
    "[2026-10-12 14:04:00 TP0 EP0] [Expert Balancedness] forward_pass_id=20962 current_pass_balancedness=0.731 "
    "last_10_average_balancedness=0.745 last_100_average_balancedness=0.752 last_1000_average_balancedness=0.748 "
    "gpu_physical_count_sum=15744"
)
STAGES = (
    "[2026-10-12 14:04:01 TP0] Req Time Stats(rid=abc, bootstrap_room=77, input len=100, output len=1, type=Prefill): "
    "bootstrap_duration=2.00ms, alloc_wait_duration=1.00ms, queue_duration=3.00ms, forward_duration=5.00ms, "
    "entry_time=50.000, transfer_speed=2.50 GB/s, transfer_total=10.00 MB, #retries=0"
)
LOOKUP = (
    "[2026-01-01 00:00:00,123] LMCache INFO: Reqid: cmpl-1, Total tokens 15444, LMCache hit tokens: 15444, need to "
    "load: 3 (vllm_v1_adapter.py:570:lmcache)"
)
ALL = (
    INTERVAL, FETCHING, AGGREGATED, ITERATION, DUMMY, SPECULATION, TRANSFER, EPLB, PREFILL, OLD_PREFILL, DECODE,
    SPECULATIVE_DECODE, BALANCE, STAGES,
)  # fmt: skip


def one(line: str) -> LogRecord:
    log = parse_server_log([line])
    assert len(log.records) == 1
    return log.records[0]


def test_an_interval_line() -> None:
    record = one(INTERVAL)
    assert (record.kind, record.engine, record.process) == ("vllm_interval", 0, "APIServer")
    assert record.values == {
        "prompt_tokens_per_s": 8123.4,
        "generation_tokens_per_s": 1204.8,
        "num_running": 64,
        "num_waiting": 23,
        "kv_usage_fraction": 0.613,
        "prefix_hit_fraction": 0.427,
    }


def test_an_interval_line_with_everything_that_can_be_in_it() -> None:
    values = one(FETCHING).values
    assert (values["num_fetch_waiting"], values["num_fetch_running"], values["num_fetch_done"]) == (3, 2, 1)
    assert (values["num_preemptions"], values["num_deferred"], values["external_hit_fraction"]) == (2, 4, 0.125)


def test_an_aggregated_line_says_of_how_many_engines() -> None:
    assert (one(AGGREGATED).engine, one(AGGREGATED).num_engines) == (None, 2)


def test_the_first_engine_generation_prints_no_engine() -> None:
    record = one(
        "INFO 03-01 10:00:00 metrics.py:455] Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 "
        "tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 3 reqs, GPU KV cache usage: 1.5%, CPU KV cache usage: "
        "0.0%."
    )
    assert (record.values["num_waiting"], record.values["num_swapped"]) == (3, 0)
    assert record.values["kv_usage_fraction"] == 0.015
    assert record.unknown == {"CPU KV cache usage": "0.0%"}  # the swap space: not the same figure


def test_an_iteration_line_and_a_dummy_one() -> None:
    record = one(ITERATION)
    assert (record.kind, record.step) == ("vllm_iteration", 5210)
    assert record.values["num_prefill_tokens"] == 16320
    assert record.values["elapsed_ns"] == 412_550_000
    assert one(DUMMY).values["is_dummy"] is True


def test_rates_per_position_are_one_list() -> None:
    values = one(SPECULATION).values
    assert values["accept_fraction_by_position"] == (0.836, 0.42, 0.254)
    assert (values["accept_len"], values["draft_accept_fraction"]) == (2.51, 0.504)


def test_a_transfer_line_in_bytes_and_ns() -> None:
    values = one(TRANSFER).values
    assert values["mean_transfer_ns"] == 1_381_000
    assert values["mean_transfer_bytes"] == 2.25 * 2**20
    assert values["num_transfers"] == 4


def test_other_vllm_figures() -> None:
    assert one(EPLB).values["balancedness"] == 0.4032
    assert one(EPLB).step == 40
    flop = one(f"{VLLM}MFU: 212.4 TF/s/device 1310.2 GB/s/device").values
    assert flop == {"flop_per_s": pytest.approx(212.4e12), "bytes_per_s": pytest.approx(1310.2e9)}
    other = one(f"{VLLM}Brand new figure: 3 things")
    assert (other.kind, other.unknown) == ("vllm_other", {"Brand new figure": "3 things"})


def test_sglang_prefill_lines_of_two_ages() -> None:
    new, old = one(PREFILL), one(OLD_PREFILL)
    assert (new.step, new.ranks) == (18422, {"DP": 3, "TP": 12, "EP": 12})
    assert (new.values["num_prefill_tokens"], new.values["num_bootstrap"], new.values["is_graph"]) == (2048, 2, False)
    assert (old.step, old.values["num_cached_tokens"], old.values["num_waiting"]) == (None, 1536, 0)


def test_sglang_decode_lines() -> None:
    values = one(DECODE).values
    assert (values["num_kv_tokens"], values["num_states"], values["num_transferring"]) == (811_008, 97, 5)
    assert values["forward_fraction"] == 0.9341
    assert one(SPECULATIVE_DECODE).values["accept_len"] == 3.05


def test_expert_balance_is_joined_by_forward_id() -> None:
    record = one(BALANCE)
    assert (record.step, record.values["balancedness"], record.values["num_expert_rows"]) == (20962, 0.731, 15744)


def test_a_requests_stages_are_in_ns_whatever_their_unit() -> None:
    values = one(STAGES).values
    assert (values["bootstrap_ns"], values["queue_ns"], values["forward_ns"]) == (2_000_000, 3_000_000, 5_000_000)
    assert (values["transfer_bytes_per_s"], values["transfer_bytes"]) == (2.5e9, 10_000_000)
    assert (values["request_id"], values["role"], values["bootstrap_room"]) == ("abc", "Prefill", 77)


def test_a_cache_lookup_line() -> None:
    values = one(LOOKUP).values
    assert (values["num_tier_hit_tokens"], values["prompt_len"]) == (15444, 15444)
    assert values["request_id"] == "cmpl-1"


@pytest.mark.parametrize("line", ALL)
def test_every_form_is_known_to_its_last_key(line: str) -> None:
    log = parse_server_log([line])
    assert log.records[0].values
    assert log.records[0].unknown == {} if line is not EPLB else True
    assert "log_line_unparsed" not in {row.code for row in log.reading.health}


@pytest.mark.parametrize("line", ALL)
def test_an_unknown_key_is_kept_and_counted(line: str) -> None:
    separator, pair = (" ", "surprise=7") if line is BALANCE else (", ", "surprise: 7")
    log = parse_server_log([line.rstrip().rstrip(",") + separator + pair])
    assert log.records[0].unknown["surprise"] == "7"
    assert log.records[0].values
    assert "log_key_unknown" in {row.code for row in log.reading.health}


@pytest.mark.parametrize("line", ALL)
def test_the_order_of_keys_does_not_matter(line: str) -> None:
    _, _, rest = line.partition("batch, ")
    if rest:
        items = [item for item in rest.split(", ") if item]
        assert read_fields(", ".join(reversed(items))) == read_fields(", ".join(items))


def test_times_are_read_with_and_without_a_year() -> None:
    dated, undated = one(PREFILL), one(INTERVAL)
    assert (dated.time_ns, dated.has_year) == (1_791_813_802_000_000_000, True)
    assert not undated.has_year
    assert one(PREFILL.replace("14:03:22", "14:03:22.250")).time_ns == 1_791_813_802_250_000_000


def test_a_log_goes_over_new_year() -> None:
    log = parse_server_log([INTERVAL.replace("10-12", "12-31"), INTERVAL.replace("10-12", "01-01")])
    first, second = (record.time_ns for record in log.records)
    assert first is not None
    assert second is not None
    assert second - first == 86_400 * 10**9


def test_an_impossible_time_is_counted_and_the_figures_stay() -> None:
    log = parse_server_log([INTERVAL.replace("10-12", "13-45")])
    assert log.records[0].values["num_running"] == 64
    assert [row.code for row in log.reading.health] == ["log_time_missing"]


def test_arguments_of_both_engines() -> None:
    server = "(APIServer pid=1) INFO 10-12 14:03:20"
    given = "{'model': 'm', 'max_num_batched_tokens': 512, 'profiler_config': ProfilerConfig(profiler='torch')}"
    log = parse_server_log(
        [
            f"{server} [api_utils.py:286] non-default args: {given}",
            "[2026-10-12 14:03:22] server_args=ServerArgs(model_path='m', chunked_prefill_size=32768, dp_size=2)",
            f"{server} [kv_cache_utils.py:2327] GPU KV cache size: 262,144 tokens, Maximum concurrency",
        ]
    )
    assert log.arguments["max_num_batched_tokens"] == "512"
    assert (log.arguments["chunked_prefill_size"], log.arguments["dp_size"]) == ("32768", "2")
    assert log.num_kv_tokens == 262_144


def test_other_lines_are_counted_and_colours_do_not_hide_a_line() -> None:
    log = parse_server_log(["INFO:     Started server process [4298]", f"\x1b[36m{INTERVAL}\x1b[0m", ""])
    assert (log.num_lines, log.num_other_lines, len(log.records)) == (3, 2, 1)


def test_a_file_plain_or_packed(tmp_path: Path) -> None:
    text = "\n".join(ALL)
    (tmp_path / "a.log").write_text(text, encoding="utf-8")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.log").write_bytes(b"\xff\xfe" + text.encode())
    plain, packed, broken = (read_server_log(tmp_path / name) for name in ("a.log", "b.log.gz", "c.log"))
    assert plain.records == packed.records
    assert len(broken.records) == len(ALL)
    assert "text_not_utf8" in {row.code for row in broken.reading.health}
    with pytest.raises(BadInput):
        read_server_log(tmp_path / "nowhere.log")


@pytest.mark.parametrize("seed", range(6))
def test_damaged_logs_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    seeds = "\n".join((*ALL, LOOKUP)).encode()
    for _ in range(60):
        path = tmp_path / "damaged.log"
        path.write_bytes(mutate(seeds, random_))
        try:
            log = read_server_log(path)
        except StepscopeError:
            continue
        assert log.num_other_lines + len(log.records) <= log.num_lines
