"""TTFT, TPOT, ITL, E2EL and goodput of requests: one definition, for measured and simulated runs.

a = arrival, f = first output token, l = last output token, n = output_len; seconds on one clock.
TTFT = f - a; E2EL = l - a; TPOT = (l - f) / (n - 1), for n > 1 (vLLM's serve benchmark; GuideLLM's
`time_per_output_token` is (l - a) / n instead); ITL = the list of gaps between outputs, pooled over requests.
Goodput counts requests that meet every stated limit; a request with n <= 1 meets any TPOT limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, fsum, isfinite
from typing import TYPE_CHECKING

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """One request on one clock. None: not recorded. `gaps_s` are the times between successive outputs.

    Tokens that one step puts out (accepted drafts) are one output, as in a stream's chunks: gaps count steps.
    """

    arrival_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    output_len: int | None = None
    gaps_s: tuple[float, ...] | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def e2el_s(self) -> float | None:
        """End-to-end latency."""
        return None if self.last_token_s is None else self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for an answer of one token.

        >>> RequestTimes(arrival_s=0.0, first_token_s=0.5, last_token_s=1.5, output_len=11).tpot_s
        0.1
        """
        if self.first_token_s is None or self.last_token_s is None or self.output_len is None or self.output_len <= 1:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_len - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a good request keeps within, in seconds; None: not asked."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None


def meets(request: RequestTimes, limits: Limits) -> bool | None:
    """Whether a request keeps every limit; None where a time that is asked for was not recorded."""
    one_token = request.output_len is not None and request.output_len <= 1
    pairs = (
        (request.ttft_s, limits.ttft_s),
        (0.0 if one_token else request.tpot_s, limits.tpot_s),
        (request.e2el_s, limits.e2el_s),
    )
    asked = [(value, limit) for value, limit in pairs if limit is not None]
    if any(value is not None and value > limit for value, limit in asked):
        return False
    return None if any(value is None for value, _ in asked) else True


def goodput_per_s(requests: Iterable[RequestTimes], limits: Limits, *, duration_s: float) -> float | None:
    """Good requests per second; None where it is not known of every request whether it was good.

    Raises:
        BadInput: the duration is not positive.
    """
    if not duration_s > 0:
        raise BadInput(f"goodput over {duration_s} s: the duration must be positive.")
    verdicts = [meets(request, limits) for request in requests]
    return None if None in verdicts else sum(v is True for v in verdicts) / duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and percentiles of a list, with how many values they rest on."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Of ascending values, linear between neighbours.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5

    Raises:
        BadInput: there is no value, or the fraction is outside 0 to 1.
    """
    if not ordered or not 0 <= fraction <= 1:
        raise BadInput(f"percentile {fraction} of {len(ordered)} values: give values and a fraction of 0 to 1.")
    place = fraction * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low + (high - low) * (place - floor(place))


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are known and finite; None if there is none."""
    return spread_of_ascending(sorted(value for value in values if value is not None and isfinite(value)))


def spread_of_ascending(ordered: Sequence[float]) -> Spread | None:
    """Of finite values that are in order already, as columns are; None if there is none."""
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        mean=fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def pooled_itl_s(requests: Iterable[RequestTimes]) -> tuple[float, ...]:
    """All gaps of all requests: long answers weigh more than in the mean TPOT."""
    return tuple(gap for request in requests for gap in request.gaps_s or ())
