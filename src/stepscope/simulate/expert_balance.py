"""Expert balance: how much fuller than the mean the fullest rank of an EP group is, before and after EPLB.

c_e: rows of expert e. A placement names the experts of each rank; a copied expert's rows are shared by its copies
alike. imbalance = max over ranks of their rows / mean over ranks. EPLB copies the expert whose copies have most rows,
again and again, then deals the slots out, heaviest first, each to the rank with fewest rows that has a slot left.
Greedy: it need not find the best placement, not even one better than the experts in order. Source: DeepSeek's EPLB, as
vLLM 0.32 has it (distributed/eplb/policy/default.py), with one node and one group of experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from stepscope.errors import BadInput
from stepscope.operators.router import Router
from stepscope.simulate.lockstep import DUMMY
from stepscope.simulate.step_time import checked_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.batch import BatchShape
    from stepscope.simulate.step_time import CostFunction

Placement: TypeAlias = tuple[tuple[int, ...], ...]  # of each rank the experts in its slots
SHARES = 1 << 30  # what popularity is counted in, where a router's is handed on as a histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBalance:
    """max/mean rows over ranks with the experts in order, and as EPLB places them."""

    before: float
    after: float
    placement: Placement


def place_in_order(num_experts: int, num_ranks: int) -> Placement:
    """The engines' own placement without EPLB: each rank has the next experts.

    Raises:
        BadInput: the ranks do not divide the experts.
    """
    if num_ranks < 1 or num_experts % num_ranks:
        raise BadInput(f"{num_experts} experts on {num_ranks} ranks: each must hold equally many.")
    each = num_experts // num_ranks
    return tuple(tuple(range(first, first + each)) for first in range(0, num_experts, each))


def place_balanced(rows_per_expert: Sequence[float], num_ranks: int, num_redundant: int = 0) -> Placement:
    """EPLB's placement for these counts, with `num_redundant` copies beside the experts.

    Raises:
        BadInput: the ranks do not divide the slots.
    """
    num_slots = len(rows_per_expert) + num_redundant
    if num_redundant < 0 or num_ranks < 1 or num_slots % num_ranks:
        raise BadInput(
            f"{len(rows_per_expert)} experts and {num_redundant} copies on {num_ranks} ranks: each must hold as many."
        )
    experts, loads = _replicate(np.asarray(rows_per_expert, dtype=float), num_redundant)
    room = num_slots // num_ranks
    if room == 1:
        return tuple((expert,) for expert in experts)
    slots: list[list[int]] = [[] for _ in range(num_ranks)]
    rows = np.zeros(num_ranks)
    for slot in np.argsort(-loads, kind="stable"):
        rank = int(np.argmin(rows))
        slots[rank].append(experts[slot])
        rows[rank] += loads[slot]
        if len(slots[rank]) == room:
            rows[rank] = np.inf
    return tuple(tuple(held) for held in slots)


def _replicate(rows: np.ndarray, num_redundant: int) -> tuple[list[int], np.ndarray]:
    """The expert in each slot, and its share of that expert's rows."""
    experts = list(range(len(rows)))
    copies = np.ones(len(rows))
    for _ in range(num_redundant):
        hottest = int(np.argmax(rows / copies))
        experts.append(hottest)
        copies[hottest] += 1
    return experts, (rows / copies)[experts]


def imbalance(rows_per_expert: Sequence[float], placement: Placement) -> float:
    """max/mean of the ranks' rows; 1 where there are none.

    >>> imbalance([6, 2, 2, 2], ((0, 1), (2, 3)))
    1.3333333333333333
    """
    copies: dict[int, int] = {}
    for expert in (expert for held in placement for expert in held):
        copies[expert] = copies.get(expert, 0) + 1
    rows = [sum(rows_per_expert[expert] / copies[expert] for expert in held) for held in placement]
    return max(rows) * len(rows) / sum(rows) if any(rows) else 1.0


def balance_experts(rows_per_expert: Sequence[float], num_ranks: int, num_redundant: int = 0) -> ExpertBalance:
    """Both placements, judged by the counts that EPLB was given."""
    placement = place_balanced(rows_per_expert, num_ranks, num_redundant)
    return ExpertBalance(
        before=imbalance(rows_per_expert, place_in_order(len(rows_per_expert), num_ranks)),
        after=imbalance(rows_per_expert, placement),
        placement=placement,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSkew:
    """Imbalance of an EP group by its tokens, from a router of Zipf skew; a mean over `num_draws` layers.

    With `has_eplb` experts lie as EPLB places them by their long-run popularity, and a step's draw still differs from
    that. Draws are made at powers of two and joined by straight lines over log2 of the tokens.
    """

    num_experts: int
    top_k: int
    num_ranks: int
    skew: float = 0.0
    has_eplb: bool = False
    num_redundant: int = 0
    num_draws: int = 8
    seed: int = 0
    _ratios: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_redundant and not self.has_eplb:
            raise BadInput(f"{self.num_redundant} redundant experts without EPLB: nothing would place them.")

    def ratio(self, num_tokens: int) -> float:
        """max/mean rows over the ranks; num_tokens are those of the whole group."""
        place = log2(max(num_tokens, 1))
        low = int(place)
        left = self._at(low)
        return left if place == low else left + (self._at(low + 1) - left) * (place - low)

    def _at(self, exponent: int) -> float:
        found = self._ratios.get(exponent)
        if found is None:
            draws = [self._draw(self.seed + layer, 1 << exponent) for layer in range(self.num_draws)]
            found = self._ratios[exponent] = sum(draws) / len(draws)
        return found

    def _draw(self, layer: int, num_tokens: int) -> float:
        popularity = Router(skew=self.skew, seed=layer).inclusion(self.num_experts, self.top_k)
        counts = tuple(int(share) for share in np.rint(popularity * SHARES))
        rows = Router(rows_per_expert=counts, seed=layer).sample(self.num_experts, self.top_k, num_tokens)
        if self.has_eplb:
            return imbalance(rows, place_balanced(counts, self.num_ranks, self.num_redundant))
        return imbalance(rows, place_in_order(self.num_experts, self.num_ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewedExperts:
    """A group's cost: the slowest rank's time without experts, and the fullest rank's time for its experts' rows.

    Attributes:
        rest: seconds of a rank's step without its experts.
        experts_s: seconds of the experts' part on each rank, by the tokens of the group, where rows are even.
        skew: what the fullest rank has beyond that. Time grows as rows do, which holds where compute binds, and is an
            upper bound where reading the weights does.
    """

    rest: CostFunction
    experts_s: Callable[[int], float]
    skew: ExpertSkew

    def group_ticks(self, shapes: Sequence[BatchShape | None]) -> int:
        """Of one step; a dummy is one token of decode."""
        ran = [DUMMY if shape is None else shape for shape in shapes]
        tokens = sum(shape.num_scheduled_tokens or 0 for shape in ran)
        slowest = max(self.rest(shape) for shape in ran)
        return checked_ticks(slowest + self.experts_s(tokens) * self.skew.ratio(tokens), shapes)
