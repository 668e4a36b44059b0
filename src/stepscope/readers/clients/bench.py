"""`vllm bench serve --save-result` and SGLang's `bench_serving --output-file`: lists side by side in one object.

Both time a request from when it is sent, so a wait for a free slot (`max_concurrency`) is in no latency. ttfts and itls
are in seconds; `start_times` are of the client's own counter. A failed request has an error and ttft 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.readers.clients.record import (
    ClientRequest,
    ClientResult,
    duration,
    figures_of,
    number,
    settings_of,
    text,
    whole,
)
from stepscope.readers.losses import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.readers.losses import LossLog

_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors", "latencies", "cached_tokens")


def is_bench(content: Mapping[str, Any]) -> bool:
    """Whether an object is a result of one of the two."""
    return "ttfts" in content or "mean_ttft_ms" in content or "mean_e2e_latency_ms" in content


def read_bench(content: Mapping[str, Any], path: str, losses: LossLog) -> ClientResult:
    """One run."""
    is_sglang = "mean_e2e_latency_ms" in content or "total_output_tokens_retokenized" in content
    lists = {name: content[name] for name in _LISTS if isinstance(content.get(name), list) and content[name]}
    requests = _requests(lists, losses)
    backend = str(content.get("backend") or content.get("endpoint_type") or "")
    return ClientResult(
        reading=Reading(path=path, health=losses.rows()),
        tool="SGLang bench_serving" if is_sglang else "vllm bench serve",
        clock="client" if "start_times" in lists else None,
        requests=requests,
        figures=figures_of(content),
        settings=settings_of(content),
        ttft_ends_at="first chunk, role included" if "chat" in backend else "first chunk",
    )


def _requests(lists: Mapping[str, list[Any]], losses: LossLog) -> tuple[ClientRequest, ...]:
    lengths = {len(values) for values in lists.values()}
    if not lengths or "ttfts" not in lists:
        return ()
    count = min(lengths)
    losses.add("client_lengths_differ", count=max(lengths) - count)
    return tuple(_request({name: values[i] for name, values in lists.items()}) for i in range(count))


def _request(row: Mapping[str, Any]) -> ClientRequest:
    error = text(row.get("errors"))
    gaps = row.get("itls")
    known = tuple(gap for value in gaps if (gap := duration(value)) is not None) if isinstance(gaps, list) else None
    ttft = duration(row.get("ttfts")) if error is None else None
    latency = duration(row.get("latencies"))
    if latency is None and ttft is not None and known is not None:
        latency = ttft + sum(known)
    return ClientRequest(
        start_s=number(row.get("start_times")),
        ttft_s=ttft,
        e2el_s=latency if error is None else None,
        prompt_len=whole(row.get("input_lens")),
        output_len=whole(row.get("output_lens")),
        cached_tokens=whole(row.get("cached_tokens")),
        gaps_s=known,
        error=error,
    )
