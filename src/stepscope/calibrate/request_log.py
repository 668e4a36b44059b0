"""RequestLog: when each request of a real run came, and when its first and last token were there, on one clock.

Read from JSON lines of vLLM's RequestStateStats: arrival_time (the client's, wall clock), queued_ts, first_token_ts and
last_token_ts (the engine's, monotonic), input_toks, output_toks. The engine looks at its queue between steps, so
queued_ts lags the arrival by up to a step; the least lag of the requests that are fitted sets the two clocks' offset.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.latency import RequestTimes
from stepscope.simulate.request import Request

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request of a log."""

    request_id: str
    prompt_len: int
    times: RequestTimes

    def to_request(self) -> Request:
        """What the simulator is told: when it comes and how long it is, not when it was answered."""
        assert self.times.output_len is not None
        return Request(
            request_id=self.request_id,
            arrival_s=self.times.arrival_s,
            prompt_len=self.prompt_len,
            output_len=self.times.output_len,
        )


def read_request_log(path: Path, *, num_fitted: int | None = None, by_queue: bool = False) -> tuple[LoggedRequest, ...]:
    """Requests in order of arrival, seconds from the first arrival on.

    Args:
        path: the JSON lines.
        num_fitted: clocks are aligned by this many first requests alone; None: by all.
        by_queue: a request arrives when the engine saw it (queued_ts), as where the log has no arrival_time.

    Raises:
        BadInput: a line that is no JSON, lacks one of the fields, or has no tokens.
    """
    rows = [_row(path, number, line) for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)]
    if not rows:
        raise BadInput(f"{path} holds no request. Give JSON lines with {', '.join(NEEDED)}.")
    if by_queue or any("arrival_time" not in row for row in rows):
        arrivals = [row["queued_ts"] for row in rows]
    else:
        ordered = sorted(rows, key=lambda row: row["arrival_time"])
        offset = min(row["queued_ts"] - row["arrival_time"] for row in ordered[:num_fitted])
        arrivals = [row["arrival_time"] + offset for row in rows]
    begin = min(arrivals)
    made = [
        _request(number, row, arrival, begin) for number, (row, arrival) in enumerate(zip(rows, arrivals, strict=True))
    ]
    return tuple(sorted(made, key=lambda request: request.times.arrival_s))


def _row(path: Path, number: int, line: str) -> dict[str, float]:
    try:
        told = json.loads(line)
        row = {name: float(told[name]) for name in NEEDED}
        if told.get("arrival_time") is not None:
            row["arrival_time"] = float(told["arrival_time"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path}, line {number}: {error!r}. A line holds {', '.join(NEEDED)} and arrival_time."
        ) from error
    if row["input_toks"] < 1 or row["output_toks"] < 1:
        raise BadInput(f"{path}, line {number}: a request without a prompt or without an output. Leave the line out.")
    return row


def _request(number: int, row: dict[str, float], arrival: float, begin: float) -> LoggedRequest:
    return LoggedRequest(
        request_id=str(number),
        prompt_len=int(row["input_toks"]),
        times=RequestTimes(
            arrival_s=arrival - begin,
            first_token_s=row["first_token_ts"] - begin,
            last_token_s=row["last_token_ts"] - begin,
            output_len=int(row["output_toks"]),
        ),
    )
