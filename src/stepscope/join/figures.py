"""Every figure of the metrics table: its name, unit and definition, once; what a row of the table holds.

Queue Length, Running Requests, Batch Size, Batched Tokens and Prefill Batch Size are five figures: the first two are
averages over time, the others over steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.messages import Message, say

if TYPE_CHECKING:
    from stepscope.evidence import Grade

_TIME = "averaged over time, so it may be fractional"

# figure -> (name, unit, definition)
DEFINITIONS: dict[str, tuple[str, str, str]] = {
    "queue_length": ("Queue Length", "requests", f"requests that wait to be scheduled, {_TIME}; it is no batch size"),
    "running_requests": ("Running Requests", "requests", f"requests that are admitted and not finished, {_TIME}"),
    "batch_size": ("Batch Size", "rows", "requests that one step computes; mean over steps that ran tokens"),
    "batched_tokens": ("Batched Tokens", "tokens", "scheduled tokens of one step; mean over steps that ran tokens"),
    "prefill_batch_size": ("Prefill Batch Size", "rows", "prefill rows of one step; mean over steps that have any"),
    "ttft": ("TTFT", "s", "arrival to first output"),
    "tpot": ("TPOT", "s", "per request (last - first output) / (output tokens - 1)"),
    "itl": ("ITL", "s", "gaps between outputs, pooled over requests: long answers weigh more than in TPOT"),
    "e2el": ("E2EL", "s", "arrival to last output"),
    "queue_time": ("Queue Time", "s", "queued in the engine core, to first scheduled"),
    "prefill_time": ("Prefill Time", "s", "first scheduled, to first output"),
    "decode_time": ("Decode Time", "s", "first output, to last output"),
    "dispatch_delay": ("Dispatch Delay", "s", "when the client should have sent the request, to when it did"),
    "prompt_tokens_per_s": ("Prompt Tokens/s", "tokens/s", "prompt tokens of ended prefills, cached ones among them"),
    "computed_tokens_per_s": ("Computed Prompt Tokens/s", "tokens/s", "prompt tokens computed; cached ones are not in"),
    "generation_tokens_per_s": ("Generation Tokens/s", "tokens/s", "output tokens"),
    "prefix_hit_fraction": ("Prefix Hit Fraction", "fraction", "tokens found / tokens looked up, over the window"),
    "kv_usage_fraction": ("KV Usage", "fraction", "used KV blocks / all; mean over engines, never their sum"),
    "num_preemptions": ("Preemptions", "", "requests that lost their blocks"),
    "num_swapped": ("Swapped Requests", "requests", "requests whose blocks are in host memory (vLLM V0)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One number with all that it means. `low` and `high` bound it where it is not exact; `value` None: see `missing`.

    `statistic`: mean, p50, p99, max or total.
    """

    figure: str
    statistic: str
    value: float | None
    low: float | None
    high: float | None
    clock: str
    window: Message
    source: str
    grade: Grade
    count: int | None = None
    missing: Message | None = None

    @property
    def name(self) -> str:
        """As tables show it."""
        return DEFINITIONS[self.figure][0]

    @property
    def unit(self) -> str:
        """Of the value."""
        return DEFINITIONS[self.figure][1]

    @property
    def definition(self) -> str:
        """What the number is."""
        return DEFINITIONS[self.figure][2]


def known(  # noqa: PLR0913  # a row of the table
    figure: str,
    value: float,
    *,
    source: str,
    clock: str,
    window: Message,
    statistic: str = "mean",
    bounds: tuple[float, float] | None = None,
    grade: Grade = "derived",
    count: int | None = None,
) -> FigureRow:
    """A figure that has a value."""
    low, high = bounds if bounds is not None else (value, value)
    return FigureRow(
        figure=figure,
        statistic=statistic,
        value=value,
        low=low,
        high=high,
        clock=clock,
        window=window,
        source=source,
        grade=grade,
        count=count,
    )


def unknown(figure: str, source: str, missing: Message) -> FigureRow:
    """A figure that no given source carries: refused, never 0."""
    return FigureRow(
        figure=figure,
        statistic="mean",
        value=None,
        low=None,
        high=None,
        clock="",
        window=say(""),
        source=source,
        grade="refused",
        missing=missing,
    )
