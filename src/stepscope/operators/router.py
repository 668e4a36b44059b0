"""Router: which experts a step's token copies reach, from a model of the router or from a measured histogram.

E: experts, k: top_k, M: tokens, π_e: the probability that a token's top_k holds expert e (Σ_e π_e = k).
Unique (active) experts: Σ_e 1 - (1 - π_e)^M; for a uniform router E (1 - (1 - k/E)^M).
Zipf: expert of popularity rank i has weight i^-s, capped where π would pass 1; ranks are dealt to ids by a seeded
shuffle, for popular experts have no order among ids. Source of the uniform form: coupon collecting with k per draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.errors import BadInput
from stepscope.operators.operator import Amount, Array

ORDERS = 1024  # orders of the experts that a draw uses: one for each token, up to here


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A router model. `skew`: Zipf's s, 0 is uniform; `rows_per_expert`: a measured M_e, which then counts alone.

    A measured histogram of another number of tokens serves as shares: π_e = k M_e / Σ M_e.
    """

    skew: float = 0.0
    seed: int = 0
    rows_per_expert: tuple[int, ...] | None = None

    def inclusion(self, num_experts: int, top_k: int) -> Array:
        """π_e for every expert id.

        Raises:
            BadInput: the histogram is of another number of experts, or empty, or the skew is negative.
        """
        if self.rows_per_expert is not None:
            if len(self.rows_per_expert) != num_experts:
                raise BadInput(
                    f"the histogram has {len(self.rows_per_expert)} experts, the model {num_experts}. Give one M_e "
                    f"each."
                )
            if min(self.rows_per_expert) < 0 or not sum(self.rows_per_expert):
                raise BadInput("the histogram of rows per expert needs counts of at least 0, and not only zeros.")
            return _capped_shares(np.asarray(self.rows_per_expert, dtype=float), top_k)
        if self.skew < 0:
            raise BadInput(f"the router's skew is {self.skew}; 0 (uniform) or more was expected.")
        weights = np.arange(1, num_experts + 1, dtype=float) ** -self.skew
        return _capped_shares(np.random.default_rng(self.seed).permutation(weights), top_k)

    def sample(self, num_experts: int, top_k: int, num_tokens: int) -> tuple[int, ...]:
        """One M_e as this router might give it (the measured one, where its sum is right).

        Each token draws top_k distinct experts by systematic sampling over a random order of them, which keeps every
        π_e exact and ties no experts together. Σ_e M_e = M k.
        """
        if self.rows_per_expert is not None and sum(self.rows_per_expert) == num_tokens * top_k:
            return self.rows_per_expert
        rng, groups = np.random.default_rng(self.seed), max(1, min(num_tokens, ORDERS))
        orders = rng.permuted(np.tile(np.arange(num_experts), (groups, 1)), axis=1)
        edges = np.cumsum(self.inclusion(num_experts, top_k)[orders], axis=1)
        edges[:, -1] = top_k
        group = np.arange(num_tokens) % groups
        points = rng.random((num_tokens, 1)) + np.arange(top_k)
        shift = top_k + 1  # keeps the groups apart in one sorted line
        places = np.searchsorted((edges + shift * np.arange(groups)[:, None]).ravel(), points + shift * group[:, None])
        experts = orders.ravel()[np.minimum(places, (group[:, None] + 1) * num_experts - 1)]
        return tuple(int(count) for count in np.bincount(experts.ravel(), minlength=num_experts))


def _capped_shares(weights: Array, top_k: int) -> Array:
    """Probabilities in proportion to the weights, at most 1, that sum to top_k (less where too few weights are > 0)."""
    shares: Array = np.zeros_like(weights)
    free = weights > 0
    rest = float(min(top_k, int(free.sum())))
    while rest > 0 and free.any():
        scaled = weights * (rest / weights[free].sum())
        over = free & (scaled >= 1)
        if not over.any():
            shares[free] = scaled[free]
            break
        shares[over] = 1.0
        free &= ~over
        rest = float(min(top_k, int((weights > 0).sum()))) - float(shares.sum())
    return shares


def unique_experts(inclusion: Array, num_tokens: Amount) -> float | Array:
    """Expected number of experts with at least one row.

    >>> round(float(unique_experts(np.full(128, 4 / 128), 64)), 1)
    111.2
    """
    levels, counts = np.unique(inclusion, return_counts=True)
    tokens = np.asarray(num_tokens)
    missed = sum(int(count) * (1.0 - level) ** tokens for level, count in zip(levels, counts, strict=True))
    result = inclusion.size - missed
    return float(result) if isinstance(num_tokens, int) else result


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPerExpert:
    """M_e in short: over all experts, the empty ones included."""

    num_experts: int
    copies: int
    active_experts: int
    mean: float
    median: float
    p90: float
    max: int

    @property
    def empty_fraction(self) -> float:
        """Experts without a row."""
        return 1 - self.active_experts / self.num_experts


def summarise(rows_per_expert: Sequence[int]) -> RowsPerExpert:
    """Mean, median, p90 and max of M_e; p90 is the smallest value that 90 % of the experts do not pass.

    >>> summarise([0, 1, 7, 0, 13]).p90, summarise([0, 1, 7, 0, 13]).mean
    (13.0, 4.2)
    """
    values = np.asarray(rows_per_expert)
    return RowsPerExpert(
        num_experts=int(values.size),
        copies=int(values.sum()),
        active_experts=int((values > 0).sum()),
        mean=float(values.mean()),
        median=float(np.median(values)),
        p90=float(np.quantile(values, 0.9, method="inverted_cdf")),
        max=int(values.max()),
    )
