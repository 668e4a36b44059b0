"""JSON lines of any client, a request a line, with the usual names; times in seconds.

Sent: `start_s`, `t0`, `start`, `start_time`. Should have been sent: `scheduled_s`, `scheduled`, `scheduled_time`. Spans
since it was sent: `ttft_s`, `ttft`; `content_ttft_s`; `e2el_s`, `e2e`, `latency`. Or a list `chunks` of
[seconds since it was sent, tokens of text in it]: a first chunk without text is a role, not a token.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepscope.readers.clients.record import ClientRequest, ClientResult, duration, number, pick, text, whole
from stepscope.readers.losses import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.readers.losses import LossLog

_EPOCH_FROM_S = 1e9
_SPANS = ("ttft_s", "ttft", "e2el_s", "e2e", "latency", "chunks")


def is_plain(content: Mapping[str, Any]) -> bool:
    """Whether an object is one request."""
    return any(number(content.get(name)) is not None for name in _SPANS) or _chunks(content) is not None


def read_plain(rows: Iterable[Mapping[str, Any]], path: str, losses: LossLog) -> ClientResult:
    """One run."""
    requests = tuple(_request(row) for row in rows)
    starts = [r.start_s for r in requests if r.start_s is not None]
    clock = None if not starts else "epoch" if min(starts) >= _EPOCH_FROM_S else "client"
    knows_content = any(r.content_ttft_s is not None for r in requests)
    return ClientResult(
        reading=Reading(path=path, health=losses.rows()),
        tool="JSON lines",
        clock=clock,
        requests=requests,
        ttft_ends_at="first content" if knows_content else "first chunk",
    )


def _request(row: Mapping[str, Any]) -> ClientRequest:
    usage = row.get("usage") if isinstance(row.get("usage"), dict) else {}
    assert isinstance(usage, dict)
    details = usage.get("prompt_tokens_details")
    start = number(pick(row, "start_s", "t0", "start", "start_time", "dispatched_s"))
    planned = number(pick(row, "scheduled_s", "scheduled", "scheduled_time"))
    chunks = _chunks(row)
    content = [time for time, tokens in chunks or () if tokens > 0]
    status = number(row.get("status"))
    failed = text(row.get("error")) or (f"status {status:.0f}" if status is not None and status >= 400 else None)
    return ClientRequest(
        request_id=text(pick(row, "request_id", "id", "i")),
        start_s=start,
        dispatch_delay_s=None if start is None or planned is None else duration(start - planned),
        ttft_s=chunks[0][0] if chunks else duration(pick(row, "ttft_s", "ttft")),
        content_ttft_s=content[0] if content else duration(row.get("content_ttft_s")),
        e2el_s=_or(duration(pick(row, "e2el_s", "e2e", "latency")), chunks[-1][0] if chunks else None),
        prompt_len=whole(_or(usage.get("prompt_tokens"), pick(row, "prompt_len", "prompt_tokens"))),
        output_len=whole(_or(usage.get("completion_tokens"), pick(row, "output_len", "output_tokens"))),
        cached_tokens=whole(details.get("cached_tokens") if isinstance(details, dict) else pick(row, "cached_tokens")),
        gaps_s=_gaps(row, content),
        error=failed,
    )


def _or(first: Any, second: Any) -> Any:
    return second if first is None else first


def _chunks(row: Mapping[str, Any]) -> tuple[tuple[float, int], ...] | None:
    chunks = row.get("chunks")
    if not isinstance(chunks, list) or not chunks:
        return None
    found = []
    for chunk in chunks:
        pair = chunk if isinstance(chunk, list) and len(chunk) == 2 else (None, None)
        time, tokens = duration(pair[0]), whole(pair[1])
        if time is None or tokens is None:
            return None
        found.append((time, tokens))
    return tuple(sorted(found))


def _gaps(row: Mapping[str, Any], content: list[float]) -> tuple[float, ...] | None:
    given = pick(row, "gaps_s", "itl_s", "itls")
    if isinstance(given, list):
        return tuple(gap for value in given if (gap := duration(value)) is not None)
    return tuple(b - a for a, b in pairwise(content)) if content else None
