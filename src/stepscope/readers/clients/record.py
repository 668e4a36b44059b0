"""What a client says of a request, and of a run. Times in seconds; a duration that the file lacks is None, never 0.

`start_s` is when the request was sent (the dispatch). `dispatch_delay_s` is what passed before that since it should
have been sent: the client's own queue. A `clock` is `epoch`, `client` (a counter of the client's process), or None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from stepscope.latency import RequestTimes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.readers.losses import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One request. `ttft_s` ends at the first chunk of any kind, `content_ttft_s` at the first with text in it."""

    request_id: str | None = None
    start_s: float | None = None
    dispatch_delay_s: float | None = None
    ttft_s: float | None = None
    content_ttft_s: float | None = None
    e2el_s: float | None = None
    prompt_len: int | None = None
    output_len: int | None = None
    cached_tokens: int | None = None
    gaps_s: tuple[float, ...] | None = None
    error: str | None = None

    def times(self, *, from_schedule: bool = False) -> RequestTimes:
        """For `latency`: from the dispatch, or from when it should have been sent (then unknown without a delay)."""
        delay = self.dispatch_delay_s if from_schedule else 0.0
        ttft = self.content_ttft_s if self.content_ttft_s is not None else self.ttft_s
        known = delay is not None
        return RequestTimes(
            arrival_s=-(delay or 0.0),
            first_token_s=ttft if known else None,
            last_token_s=self.e2el_s if known else None,
            output_len=self.output_len,
            gaps_s=self.gaps_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResult:
    """One run of one tool: its requests (none where only sums were saved), its own figures, and its settings."""

    reading: Reading
    tool: str
    clock: str | None
    requests: tuple[ClientRequest, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    ttft_ends_at: str = "first chunk"

    @property
    def succeeded(self) -> tuple[ClientRequest, ...]:
        """Requests without an error."""
        return tuple(request for request in self.requests if request.error is None)


def number(value: object) -> float | None:
    """A finite number, not a bool; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def whole(value: object) -> int | None:
    """A count: a whole number, 0 or more."""
    known = number(value)
    return int(known) if known is not None and known >= 0 and known == int(known) and known < 2**53 else None


def duration(value: object, unit_s: float = 1.0) -> float | None:
    """A time span in seconds, 0 or more."""
    known = number(value)
    return None if known is None or known < 0 else known * unit_s


def text(value: object) -> str | None:
    """A text or a number as text."""
    return str(value) if isinstance(value, str | int | float) and value != "" else None


def pick(source: Mapping[str, Any], *names: str) -> Any:
    """The first of some fields that is there and not null."""
    return next((source[name] for name in names if source.get(name) is not None), None)


def figures_of(source: Mapping[str, Any]) -> dict[str, float]:
    """Every number of an object, by its own name."""
    return {str(name): known for name, value in source.items() if (known := number(value)) is not None}


def settings_of(source: Mapping[str, Any]) -> dict[str, str]:
    """Every short text of an object, by its own name."""
    return {str(name): value for name, value in source.items() if isinstance(value, str) and len(value) <= 200}
