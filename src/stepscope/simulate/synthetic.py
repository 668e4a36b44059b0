"""Synthetic workloads: arrivals, lengths, shared prefixes and conversations from a seeded generator.

Everything takes the generator as an argument and draws from `random()` alone, whose values Python promises to keep:
the same seed gives the same requests. Rates are requests per second, lengths tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, isfinite, log, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.workload import OUTPUTS, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

_VARIATIONS = (0.001, 100.0)  # below, arrivals are even; above, all of a workload come at once
_MOST_EXPONENT = 100.0  # of a length over its median: far beyond the longest, and within a float64


def poisson_arrivals(rng: Random, *, rate_per_s: float, count: int) -> list[float]:
    """Times of a Poisson process."""
    _check_rate(rate_per_s)
    return list(accumulate(_exponential(rng) / rate_per_s for _ in range(count)))


def gamma_arrivals(rng: Random, *, rate_per_s: float, variation: float, count: int) -> list[float]:
    """Gaps of a gamma law; `variation` is their standard deviation over their mean (1: Poisson, above: bursts)."""
    _check_rate(rate_per_s)
    least, most = _VARIATIONS
    if not least <= variation <= most:
        raise BadInput(f"variation of arrivals is {variation}: give {least:g} to {most:g} (1 is Poisson).")
    shape = 1 / variation**2
    return list(accumulate(_gamma(rng, shape) / shape / rate_per_s for _ in range(count)))


def ramp_arrivals(rng: Random, *, first_per_s: float, last_per_s: float, duration_s: float) -> list[float]:
    """A Poisson process whose rate goes from one value to another, evenly, within `duration_s`."""
    if not (first_per_s >= 0 and last_per_s >= 0 and first_per_s + last_per_s > 0 and isfinite(duration_s)):
        raise BadInput(f"a ramp from {first_per_s} to {last_per_s} requests/s: rates are 0 or more, one of them above.")
    if duration_s <= 0:
        raise BadInput(f"a ramp within {duration_s} s: give a duration above 0.")
    slope = (last_per_s - first_per_s) / duration_s
    expected = (first_per_s + last_per_s) / 2 * duration_s
    times: list[float] = []
    passed = _exponential(rng)
    while passed < expected:  # solve first t + slope t^2 / 2 = passed
        root = sqrt(max(first_per_s**2 + 2 * slope * passed, 0.0))
        times.append(2 * passed / (first_per_s + root))
        passed += _exponential(rng)
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Log-normal lengths by median and spread (sigma of the logarithm; 0: all equal), kept within least and most."""

    median: int
    sigma: float = 0.0
    least: int = 1
    most: int = 1 << 20

    def __post_init__(self) -> None:
        if not (1 <= self.least <= self.median <= self.most and isfinite(self.sigma) and self.sigma >= 0):
            raise BadInput(f"{self}: expected 1 <= least <= median <= most and a sigma of 0 or more.")

    def draw(self, rng: Random) -> int:
        """One length."""
        if not self.sigma:
            return self.median
        factor = exp(min(self.sigma * _normal(rng), _MOST_EXPONENT))
        return max(round(min(self.median * factor, self.most)), self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Shared beginnings: each level of the tree has `branches` texts of `length` tokens under every text above it.

    One level of (1, 2000) is a system prompt; ((1, 2000), (50, 500)) adds one of fifty documents. Texts are drawn with
    weights 1, 1/2^skew, 1/3^skew, ...; skew 0: all alike.
    """

    levels: tuple[tuple[int, int], ...]
    skew: float = 0.0

    def __post_init__(self) -> None:
        if any(branches < 1 or length < 1 for branches, length in self.levels) or not self.skew >= 0:
            raise BadInput(f"{self}: every level needs branches and length of 1 or more, the skew is 0 or more.")

    def draw(self, rng: Random) -> tuple[Segment, ...]:
        """One path through the tree."""
        path: list[Segment] = []
        node = 0
        for branches, length in self.levels:
            node = node * branches + self._choose(rng, branches)
            path.append(Segment(source=len(path) << 32 | node, length=length))
        return tuple(path)

    def _choose(self, rng: Random, branches: int) -> int:
        weights = list(accumulate(exp(-self.skew * log(place + 1)) for place in range(branches)))
        drawn = rng.random() * weights[-1]
        return min(sum(weight <= drawn for weight in weights), branches - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Turns: each follow-up prompt is the whole conversation so far and a new question."""

    turns: Lengths
    question: Lengths
    answer: Lengths
    think_s: float = 0.0
    prefixes: PrefixTree = PrefixTree(levels=())

    def __post_init__(self) -> None:
        if not (isfinite(self.think_s) and self.think_s >= 0):
            raise BadInput(f"think_s is {self.think_s}: give 0 or more seconds between an answer and the next turn.")


def single_requests(
    rng: Random, arrivals: Sequence[float], *, question: Lengths, answer: Lengths, prefixes: PrefixTree | None = None
) -> Workload:
    """A request at each arrival: a path of the tree, if there is one, and a question of its own."""
    talk = Conversations(
        turns=Lengths(median=1), question=question, answer=answer, prefixes=prefixes or PrefixTree(levels=())
    )
    return conversations(rng, arrivals, talk)


def conversations(rng: Random, arrivals: Sequence[float], talk: Conversations) -> Workload:
    """A conversation begins at each arrival; a turn comes `think_s` after the answer before it ended."""
    made: list[Request] = []
    for number, arrival_s in enumerate(arrivals):
        text = talk.prefixes.draw(rng)
        for turn in range(talk.turns.draw(rng)):
            asked, told = talk.question.draw(rng), talk.answer.draw(rng)
            source = OUTPUTS + 2 * len(made)
            prompt = (*text, Segment(source=source, length=asked))
            text = (*prompt, Segment(source=source + 1, length=told))
            made.append(
                Request(
                    request_id=f"{number}.{turn}",
                    arrival_s=talk.think_s if turn else arrival_s,
                    prompt_len=sum(part.length for part in prompt),
                    output_len=told,
                    text=text,
                    after=f"{number}.{turn - 1}" if turn else None,
                )
            )
    return Workload(requests=tuple(made))


def closed_loop(requests: Iterable[Request], *, clients: int, think_s: float = 0.0) -> Workload:
    """The same requests from `clients` clients that each send their next one when the last has ended.

    Raises:
        BadInput: there is no client, or a request follows another one already.
    """
    if clients < 1 or not think_s >= 0:
        raise BadInput(f"{clients} clients that think for {think_s} s: give 1 or more clients and 0 or more seconds.")
    made: list[Request] = []
    for place, request in enumerate(requests):
        if request.after is not None:
            raise BadInput(f"request {request.request_id!r} follows {request.after!r}: a closed loop sets the order.")
        before = made[place - clients].request_id if place >= clients else None
        made.append(replace(request, after=before, arrival_s=think_s if before else 0.0))
    return Workload(requests=tuple(made))


def _check_rate(rate_per_s: float) -> None:
    if not (isfinite(rate_per_s) and rate_per_s > 0):
        raise BadInput(f"the arrival rate is {rate_per_s} requests/s: give a number above 0.")


def _exponential(rng: Random) -> float:
    return -log(1.0 - rng.random())


def _normal(rng: Random) -> float:
    return NormalDist().inv_cdf(min(max(rng.random(), 2.0**-53), 1 - 2.0**-53))


def _gamma(rng: Random, shape: float) -> float:
    """Marsaglia and Tsang 2000, ACM TOMS 26(3); below shape 1 by their boost."""
    if shape < 1:
        drawn = 1.0 - rng.random()
        return float(_gamma(rng, shape + 1) * drawn ** (1 / shape))
    d = shape - 1 / 3
    while True:
        x = _normal(rng)
        v = (1 + x / sqrt(9 * d)) ** 3
        if v > 0 and log(1.0 - rng.random()) < x * x / 2 + d - d * v + d * log(v):
            return float(d * v)
