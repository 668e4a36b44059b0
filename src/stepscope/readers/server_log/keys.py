"""The keys that engines print in their figure lines -> our names, units converted.

Sources: vLLM 0.16 to 0.32 `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py`; SGLang 0.4.6 to 0.5.23 scheduler
metrics. Times become ns, percent becomes a fraction, MB of a KV transfer is 2^20 bytes. A key that is not here is kept
as printed.
"""

from __future__ import annotations

import re

_PERCENT = 0.01
_MS = 1e6
_MIB = 2**20

# printed key (lower case) -> (name, factor to our unit)
KEYS: dict[str, tuple[str, float]] = {
    # vLLM, every interval
    "avg prompt throughput": ("prompt_tokens_per_s", 1),
    "avg generation throughput": ("generation_tokens_per_s", 1),
    "running": ("num_running", 1),
    "waiting": ("num_waiting", 1),
    "pending": ("num_waiting", 1),  # V0
    "swapped": ("num_swapped", 1),  # V0
    "deferred": ("num_deferred", 1),
    "preemptions": ("num_preemptions", 1),
    "kv fetch": ("num_fetch_waiting", 1),
    "in progress": ("num_fetch_running", 1),
    "completed waiting": ("num_fetch_done", 1),
    "corrupted": ("num_corrupted", 1),
    "prefix cache hit rate": ("prefix_hit_fraction", _PERCENT),
    "external prefix cache hit rate": ("external_hit_fraction", _PERCENT),
    "mm cache hit rate": ("multimodal_hit_fraction", _PERCENT),
    # vLLM, every step
    "context requests": ("num_prefill_requests", 1),
    "context tokens": ("num_prefill_tokens", 1),
    "generation requests": ("num_decode_requests", 1),
    "generation tokens": ("num_decode_tokens", 1),
    "iteration elapsed time": ("elapsed_ns", _MS),
    "encoder inputs": ("num_encoder_inputs", 1),
    # vLLM, speculation
    "mean acceptance length": ("accept_len", 1),
    "accepted throughput": ("accepted_tokens_per_s", 1),
    "drafted throughput": ("drafted_tokens_per_s", 1),
    "accepted": ("num_accepted_tokens", 1),
    "drafted": ("num_drafted_tokens", 1),
    "per-position acceptance rate": ("accept_fraction_by_position", 1),
    "avg draft acceptance rate": ("draft_accept_fraction", _PERCENT),
    # vLLM, KV transfer between instances
    "num successful transfers": ("num_transfers", 1),
    "num failed transfers": ("num_failed_transfers", 1),
    "avg xfer time (ms)": ("mean_transfer_ns", _MS),
    "p90 xfer time (ms)": ("p90_transfer_ns", _MS),
    "avg post time (ms)": ("mean_post_ns", _MS),
    "p90 post time (ms)": ("p90_post_ns", _MS),
    "avg mb per transfer": ("mean_transfer_bytes", _MIB),
    "throughput (mb/s)": ("transfer_bytes_per_s", _MIB),
    "avg number of descriptors": ("mean_descriptors", 1),
    # expert balance
    "avg_tokens": ("mean_expert_tokens", 1),
    "max_tokens": ("max_expert_tokens", 1),
    "balancedness": ("balancedness", 1),
    "current_pass_balancedness": ("balancedness", 1),
    "last_10_average_balancedness": ("balancedness_last_10", 1),
    "last_100_average_balancedness": ("balancedness_last_100", 1),
    "last_1000_average_balancedness": ("balancedness_last_1000", 1),
    "gpu_physical_count_sum": ("num_expert_rows", 1),
    "forward_pass_id": ("forward_id", 1),
    # SGLang, every prefill batch and every n-th decode batch
    "#new-seq": ("num_new_requests", 1),
    "#new-token": ("num_prefill_tokens", 1),
    "#cached-token": ("num_cached_tokens", 1),
    "#replay-token": ("num_replay_tokens", 1),
    "#pending-token": ("num_pending_tokens", 1),
    "#running-req": ("num_running", 1),
    "#queue-req": ("num_waiting", 1),
    "#bootstrap-req": ("num_bootstrap", 1),
    "#unbootstrapped-req": ("num_bootstrap", 1),
    "#inflight-req": ("num_in_flight", 1),
    "#transferring-req": ("num_in_flight", 1),
    "#optimistic-req": ("num_optimistic", 1),
    "#prealloc-req": ("num_preallocated", 1),
    "#transfer-req": ("num_transferring", 1),
    "#host-receive-req": ("num_host_receiving", 1),
    "#retracted-req": ("num_retracted", 1),
    "waiting-image-req": ("num_waiting_images", 1),
    "#token": ("num_kv_tokens", 1),
    "#full token": ("num_kv_tokens", 1),
    "#swa token": ("num_window_tokens", 1),
    "token usage": ("kv_usage_fraction", 1),
    "full token usage": ("kv_usage_fraction", 1),
    "swa token usage": ("window_usage_fraction", 1),
    "mamba num": ("num_states", 1),
    "mamba usage": ("state_usage_fraction", 1),
    "pre-allocated usage": ("preallocated_fraction", 1),
    "accept len": ("accept_len", 1),
    "accept rate": ("draft_accept_fraction", 1),
    "cap len": ("cap_len", 1),
    "block accept len": ("block_accept_len", 1),
    "input throughput (token/s)": ("input_tokens_per_s", 1),
    "gen throughput (token/s)": ("generation_tokens_per_s", 1),
    "est. prefill tflops/s (per gpu)": ("flop_per_s", 1e12),
    "est. decode tflops/s (per gpu)": ("flop_per_s", 1e12),
    "est. read bw (gb/s per gpu)": ("read_bytes_per_s", 1e9),
    "est. write bw (gb/s per gpu)": ("write_bytes_per_s", 1e9),
    "fwd occupancy": ("forward_fraction", _PERCENT),
    "fwd+idle occupancy": ("forward_idle_fraction", _PERCENT),
    # LMCache, at admission
    "total tokens": ("prompt_len", 1),
    "lmcache hit tokens": ("num_tier_hit_tokens", 1),
    "inference engine computed tokens": ("num_local_hit_tokens", 1),
    "need to load": ("num_loaded_tokens", 1),
    # SGLang, a request's stages (durations carry their unit)
    "input len": ("prompt_len", 1),
    "input_len": ("prompt_len", 1),
    "output len": ("output_len", 1),
    "output_len": ("output_len", 1),
    "cached_input_len": ("prefix_hit_tokens", 1),
    "rid": ("request_id", 1),
    "bootstrap_room": ("bootstrap_room", 1),
    "type": ("role", 1),
    "queue_duration": ("queue_ns", 1),
    "forward_duration": ("forward_ns", 1),
    "bootstrap_duration": ("bootstrap_ns", 1),
    "bootstrap_queue_duration": ("bootstrap_queue_ns", 1),
    "alloc_wait_duration": ("alloc_wait_ns", 1),
    "prealloc_queue_duration": ("prealloc_queue_ns", 1),
    "transfer_duration": ("transfer_ns", 1),
    "transfer_queue_duration": ("transfer_queue_ns", 1),
    "prefill_run_duration": ("prefill_run_ns", 1),
    "chunked_prefill_duration": ("prefill_run_ns", 1),
    "entry_time": ("entry_s", 1),
    "start_time": ("entry_s", 1),
    "transfer_speed": ("transfer_bytes_per_s", 1e9),
    "transfer_total": ("transfer_bytes", 1e6),
    "#retries": ("num_retries", 1),
}

# keys with the device's or backend's name in front
_BY_PATTERN: tuple[tuple[re.Pattern[str], str, float], ...] = (
    (re.compile(r"^(?:\w+ )?kv cache usage$"), "kv_usage_fraction", _PERCENT),
    (re.compile(r"^(?:cuda|cpu|npu|musa|xpu|hip) graph$"), "is_graph", 1),
)
# durations that stand with their unit, whatever the key
DURATION_NS: dict[str, float] = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def find_key(printed: str) -> tuple[str, float] | None:
    """Our name of a printed key and the factor to our unit; None if it is not known.

    >>> find_key("CPU KV cache usage"), find_key("#new-token")
    (('kv_usage_fraction', 0.01), ('num_prefill_tokens', 1))
    """
    key = " ".join(printed.lower().split())
    if key in KEYS:
        return KEYS[key]
    return next(((name, factor) for pattern, name, factor in _BY_PATTERN if pattern.match(key)), None)
