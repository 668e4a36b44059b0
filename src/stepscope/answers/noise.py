"""How far a difference can be told from noise: medians with a distribution-free interval, and paired differences.

n = number of values. The interval of a median runs from the k-th smallest to the k-th largest value, with the largest k
for which at most 5 % of all samples of n miss the true median (binomial, exact; Conover, Practical Nonparametric
Statistics, 3.2). Below six values there is no such k: the bound is unknown, not zero. It holds the spread inside the
captures only: what differs from one run to the next is seen by recording each several times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.evidence import Grade

MIN_VALUES = 6
_MISSED = 20  # one in so many
_EXACT = 400  # above, the normal approximation of the binomial differs by less than one rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median in ns with its interval; no interval below six values."""

    num_values: int
    median_ns: int
    low_ns: int | None
    high_ns: int | None


def estimate(values: Sequence[int], one_in: int = _MISSED) -> Estimate:
    """The median of some ns (between the middle two, cut towards zero) and its interval: 95 %, or missed `one_in`.

    >>> estimate([5, 1, 4, 2, 3, 6])
    Estimate(num_values=6, median_ns=3, low_ns=1, high_ns=6)
    """
    ordered = sorted(values)
    n = len(ordered)
    middle = ordered[(n - 1) // 2] + ordered[n // 2]
    median = middle // 2 if middle >= 0 else -(-middle // 2)
    rank = _interval_rank(n, one_in)
    if rank is None:
        return Estimate(num_values=n, median_ns=median, low_ns=None, high_ns=None)
    return Estimate(num_values=n, median_ns=median, low_ns=ordered[rank - 1], high_ns=ordered[n - rank])


@lru_cache(maxsize=4096)
def _interval_rank(n: int, one_in: int) -> int | None:
    """The largest k with 2 P(Binomial(n, 1/2) < k) <= 1 / one_in, counted from one; None if there is none."""
    if n > _EXACT:  # n / 2 - z sqrt(n) / 2, rounded outwards
        squared = 38416 if one_in == _MISSED else round(NormalDist().inv_cdf(1 - 0.5 / one_in) ** 2 * 10000)
        return (n - isqrt(n * squared // 10000) - 1) // 2
    missed, rank, term = 0, 0, 1  # term: comb(n, rank)
    while 2 * (missed + term) * one_in <= 2**n:
        missed += term
        rank += 1
        term = term * (n - rank + 1) // rank
    return rank or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """One part of matched steps in A and in B, summed over the pairs, and the pairs' differences (B minus A)."""

    a_ns: int
    b_ns: int
    pairs: Estimate
    grade: Grade

    @property
    def delta_ns(self) -> int:
        """B minus A, over all pairs: exact, so the deltas of parts add up to that of the whole."""
        return self.b_ns - self.a_ns

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval of the pairs' median difference leaves out zero; None: too few pairs to tell."""
        if self.delta_ns == 0 and self.pairs.median_ns == 0:
            return False
        if self.pairs.low_ns is None or self.pairs.high_ns is None:
            return None
        return self.pairs.low_ns > 0 or self.pairs.high_ns < 0


def paired(a: Sequence[int], b: Sequence[int], grade: Grade) -> Delta:
    """The delta of values that belong together one by one.

    >>> paired([10] * 6, [12, 13, 12, 12, 13, 12], "derived").beyond_noise
    True
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    return Delta(a_ns=sum(a), b_ns=sum(b), pairs=estimate(differences), grade=grade)
