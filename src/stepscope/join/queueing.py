"""Waiting that shows in latency and in no queue metric: latency against concurrency, held against what the queue says.

L(c) = mean latency with c requests at a time. A server that runs one after another has L(2c) = 2 L(c), and a request
waits L(c) - L(1) of its latency. Source for the case: public threads on queue metrics that book the wait elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.messages import Message, say
from stepscope.units import show_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERIAL = 1.5  # growth per doubling from which most of the service is serial


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One run at a fixed concurrency."""

    concurrency: int
    latency_s: float
    queue_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitJudgement:
    """Growth per doubling of load; at the highest load, the expected wait and what the metric has of it."""

    growth_per_doubling: tuple[float, ...]
    is_serial: bool
    expected_wait_s: float
    covered_fraction: float | None
    text: Message


def judge_wait(points: Sequence[LoadPoint]) -> WaitJudgement:
    """Whether the waiting is where the queue metric says.

    Raises:
        BadInput: fewer than two loads, or a latency or concurrency that is not positive.
    """
    ordered = sorted(points, key=lambda p: p.concurrency)
    if len({p.concurrency for p in ordered}) < max(2, len(ordered)) or any(
        p.latency_s <= 0 or p.concurrency < 1 for p in ordered
    ):
        raise BadInput("give two loads or more, each once, with positive concurrency and latency.")
    growth = tuple(
        (b.latency_s / a.latency_s) ** (1 / log2(b.concurrency / a.concurrency)) for a, b in pairwise(ordered)
    )
    first, last = ordered[0], ordered[-1]
    wait = max(last.latency_s - first.latency_s, 0.0)
    covered = None if last.queue_s is None or not wait else last.queue_s / wait
    serial = min(growth) >= _SERIAL
    text = say(
        "Latency grows by {growth} per doubling of concurrency: {kind}. At concurrency {concurrency} a request is "
        "expected to wait {wait}; the queue metric covers {covered} of it.",
        growth=", ".join(f"{g:.2f}" for g in growth),
        kind="serial service" if serial else "requests share the server",
        concurrency=last.concurrency,
        wait=f"{wait:.1f} s",
        covered="an unknown part" if covered is None else show_fraction(covered),
    )
    return WaitJudgement(
        growth_per_doubling=growth, is_serial=serial, expected_wait_s=wait, covered_fraction=covered, text=text
    )
