"""GuideLLM: `benchmarks.json`, with the timings of each request as epoch seconds.

Fields moved: 0.6 has `info.timings` and `first_token_iteration`; 0.4 `scheduler_info.request_timings` and
`first_iteration`; before that `first_token_time` at the request. Its `time_per_output_token_ms` divides by all tokens,
the first included: it is not our TPOT, and is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.readers.clients.record import ClientRequest, ClientResult, duration, number, pick, text, whole
from stepscope.readers.losses import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.readers.losses import LossLog

_GROUPS = ("successful", "incomplete", "errored")


def is_guidellm(content: Mapping[str, Any]) -> bool:
    """Whether an object is a GuideLLM report."""
    benchmarks = content.get("benchmarks")
    return isinstance(benchmarks, list) and any(isinstance(b, dict) and "requests" in b for b in benchmarks)


def read_guidellm(content: Mapping[str, Any], path: str, losses: LossLog) -> tuple[ClientResult, ...]:
    """One result per benchmark of the report."""
    results = []
    for benchmark in content["benchmarks"]:
        groups = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if not isinstance(groups, dict):
            losses.add("client_record_unparsed", "a benchmark without requests")
            continue
        requests = [
            _request(row, group) for group in _GROUPS for row in groups.get(group) or () if isinstance(row, dict)
        ]
        results.append((requests, _settings(benchmark)))
    return tuple(
        ClientResult(
            reading=Reading(path=path, health=losses.rows()),
            tool="GuideLLM",
            clock="epoch",
            requests=tuple(requests),
            settings=settings,
        )
        for requests, settings in results
    )


def _settings(benchmark: Mapping[str, Any]) -> dict[str, str]:
    config = benchmark.get("config")
    strategy = config.get("strategy") if isinstance(config, dict) else None
    return {k: str(v) for k, v in strategy.items() if isinstance(v, str | int)} if isinstance(strategy, dict) else {}


def _timings(row: Mapping[str, Any]) -> Mapping[str, Any]:
    for place in ("info", "scheduler_info"):
        holder = row.get(place)
        if isinstance(holder, dict):
            for name in ("timings", "request_timings"):
                if isinstance(holder.get(name), dict):
                    found: Mapping[str, Any] = holder[name]
                    return found
            return {**row, **holder}
    return row


def _request(row: Mapping[str, Any], group: str) -> ClientRequest:
    timings = _timings(row)
    start = number(pick(timings, "request_start", "resolve_start", "worker_start", "start_time"))
    planned = number(pick(timings, "targeted_start", "targeted_start_time"))
    first = number(pick(timings, "first_token_iteration", "first_iteration", "first_token_time"))
    last = number(pick(timings, "last_token_iteration", "last_iteration", "last_token_time"))
    end = number(pick(timings, "request_end", "resolve_end", "end_time"))
    ended = last if last is not None else end
    return ClientRequest(
        request_id=text(pick(row, "response_id", "request_id")),
        start_s=start,
        dispatch_delay_s=_between(planned, start),
        ttft_s=_between(start, first),
        content_ttft_s=_between(start, first),
        e2el_s=_between(start, ended),
        prompt_len=whole(pick(row, "prompt_tokens", "prompt_tokens_count")),
        output_len=whole(pick(row, "output_tokens", "output_tokens_count")),
        error=None if group == "successful" else text(pick(row, "error")) or group,
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else duration(end - start)
