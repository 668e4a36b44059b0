"""What a figure is called in which engine and version: our name -> the series that export it, newest first.

Checked against vLLM 0.16 and 0.32 and SGLang 0.5.23; older names are from public threads of dashboards that broke when
a series was renamed. A figure without a series in a snapshot was *not exported*; it is never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SeriesKind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One series that exports a figure. `caution`: what is different about it."""

    series: str
    era: str
    caution: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure, what kind of series carries it, its unit, and its names. A fraction is never summed over pods."""

    kind: SeriesKind
    unit: str
    meaning: str
    aliases: tuple[Alias, ...]


def _figure(kind: SeriesKind, unit: str, meaning: str, *aliases: tuple[str, ...]) -> Figure:
    return Figure(kind=kind, unit=unit, meaning=meaning, aliases=tuple(_alias(*parts) for parts in aliases))


def _alias(series: str, era: str, caution: str = "") -> Alias:
    return Alias(series=series, era=era, caution=caution)


_VLLM = "vLLM 0.16 to 0.32"
_OLD = "vLLM before 0.16"
_V0 = "vLLM V0"
_SGLANG = "SGLang 0.5"
_S = "seconds"

FIGURES: dict[str, Figure] = {
    "num_running": _figure(
        "gauge",
        "requests",
        "requests in the running list at the scrape",
        ("vllm:num_requests_running", _VLLM),
        ("sglang:num_running_reqs", _SGLANG),
    ),
    "num_waiting": _figure(
        "gauge",
        "requests",
        "requests in the waiting queue at the scrape",
        ("vllm:num_requests_waiting", _VLLM),
        ("sglang:num_queue_reqs", _SGLANG),
    ),
    "num_swapped": _figure("gauge", "requests", "requests swapped to the host", ("vllm:num_requests_swapped", _V0)),
    "kv_usage_fraction": _figure(
        "gauge",
        "fraction",
        "used KV blocks / all",
        ("vllm:kv_cache_usage_perc", _VLLM),
        ("vllm:gpu_cache_usage_perc", _OLD),
        ("sglang:token_usage", _SGLANG),
    ),
    "cpu_kv_usage_fraction": _figure(
        "gauge", "fraction", "used KV blocks of the host pool / all", ("vllm:cpu_cache_usage_perc", _V0)
    ),
    "prefix_hit_tokens": _figure(
        "counter",
        "tokens",
        "tokens found in the prefix cache",
        ("vllm:prefix_cache_hits", _VLLM),
        ("vllm:gpu_prefix_cache_hits", _OLD),
    ),
    "prefix_query_tokens": _figure(
        "counter",
        "tokens",
        "tokens looked up in the prefix cache",
        ("vllm:prefix_cache_queries", _VLLM),
        ("vllm:gpu_prefix_cache_queries", _OLD),
    ),
    "external_hit_tokens": _figure(
        "counter", "tokens", "tokens found by a KV connector", ("vllm:external_prefix_cache_hits", _VLLM)
    ),
    "external_query_tokens": _figure(
        "counter", "tokens", "tokens looked up by a KV connector", ("vllm:external_prefix_cache_queries", _VLLM)
    ),
    "prefix_hit_fraction": _figure(
        "gauge",
        "fraction",
        "hit rate as the engine says",
        ("vllm:gpu_prefix_cache_hit_rate", _V0, "of a window that the engine chose"),
        ("sglang:cache_hit_rate", _SGLANG, "of the last prefill batches"),
    ),
    "prompt_tokens": _figure(
        "counter",
        "tokens",
        "prompt tokens of requests whose prefill ended",
        ("vllm:prompt_tokens", _VLLM, "cached tokens are in it; the log's prompt throughput has computed ones only"),
        ("sglang:prompt_tokens", _SGLANG),
    ),
    "prompt_tokens_by_source": _figure(
        "counter", "tokens", "prompt tokens by where their KV came from", ("vllm:prompt_tokens_by_source", "vLLM 0.32")
    ),
    "cached_tokens_by_source": _figure(
        "counter", "tokens", "cached prompt tokens by tier", ("vllm:prompt_tokens_cached_by_source", "vLLM 0.32")
    ),
    "cached_tokens": _figure(
        "counter",
        "tokens",
        "cached prompt tokens",
        ("vllm:prompt_tokens_cached", "vLLM 0.32"),
        ("sglang:cached_tokens", _SGLANG),
    ),
    "recomputed_tokens": _figure(
        "counter", "tokens", "cached prompt tokens computed again", ("vllm:prompt_tokens_recomputed", "vLLM 0.16")
    ),
    "generation_tokens": _figure(
        "counter",
        "tokens",
        "output tokens",
        ("vllm:generation_tokens", _VLLM),
        ("sglang:generation_tokens", _SGLANG),
    ),
    "num_preemptions": _figure("counter", "", "preemptions", ("vllm:num_preemptions", _VLLM)),
    "num_finished": _figure(
        "counter",
        "requests",
        "requests that ended",
        ("vllm:request_success", _VLLM),
        ("sglang:num_requests", _SGLANG),
    ),
    "ttft_s": _figure(
        "histogram",
        _S,
        "front end took the request, to first token",
        ("vllm:time_to_first_token_seconds", _VLLM),
        ("sglang:time_to_first_token_seconds", _SGLANG),
    ),
    "itl_s": _figure(
        "histogram",
        _S,
        "gaps between outputs, pooled over requests",
        ("vllm:inter_token_latency_seconds", _VLLM),
        ("vllm:time_per_output_token_seconds", _OLD, "the same gaps under the name of TPOT"),
        ("sglang:inter_token_latency_seconds", _SGLANG),
    ),
    "tpot_s": _figure(
        "histogram",
        _S,
        "per request: decode time / (output tokens - 1)",
        ("vllm:request_time_per_output_token_seconds", _VLLM),
    ),
    "e2el_s": _figure(
        "histogram",
        _S,
        "front end took the request, to last token",
        ("vllm:e2e_request_latency_seconds", _VLLM),
        ("sglang:e2e_request_latency_seconds", _SGLANG),
    ),
    "queue_s": _figure(
        "histogram",
        _S,
        "engine core queued the request, to first scheduled",
        ("vllm:request_queue_time_seconds", _VLLM),
        ("sglang:queue_time_seconds", _SGLANG),
    ),
    "prefill_s": _figure(
        "histogram", _S, "first scheduled, to first token", ("vllm:request_prefill_time_seconds", _VLLM)
    ),
    "decode_s": _figure("histogram", _S, "first token, to last token", ("vllm:request_decode_time_seconds", _VLLM)),
    "inference_s": _figure(
        "histogram", _S, "first scheduled, to last token", ("vllm:request_inference_time_seconds", _VLLM)
    ),
    "iteration_tokens": _figure(
        "histogram",
        "tokens",
        "tokens booked per engine step: a prompt is booked whole, in the step in which its prefill ends",
        ("vllm:iteration_tokens_total", _VLLM, "not the batch: a chunked prompt stands in its last step"),
    ),
    "computed_prompt_tokens": _figure(
        "histogram",
        "tokens",
        "prompt tokens really computed, per request",
        ("vllm:request_prefill_kv_computed_tokens", _VLLM),
    ),
    "stage_s": _figure(
        "histogram", _S, "time of a request in a stage", ("sglang:per_stage_req_latency_seconds", _SGLANG)
    ),
    "num_prealloc_queue": _figure(
        "gauge",
        "requests",
        "decode side: waiting for KV room",
        ("sglang:num_decode_prealloc_queue_reqs", _SGLANG),
    ),
    "num_transfer_queue": _figure(
        "gauge", "requests", "decode side: KV on its way", ("sglang:num_decode_transfer_queue_reqs", _SGLANG)
    ),
    "num_bootstrap_queue": _figure(
        "gauge",
        "requests",
        "prefill side: handshake with the decode side",
        ("sglang:num_prefill_bootstrap_queue_reqs", _SGLANG),
    ),
    "num_in_flight_queue": _figure(
        "gauge",
        "requests",
        "prefill side: KV being sent",
        ("sglang:num_prefill_inflight_queue_reqs", _SGLANG),
    ),
}
