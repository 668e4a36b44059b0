"""Balancer: which rank or engine a request goes to when it arrives.

Round robin; least loaded, as vLLM's data-parallel client scores; by prefix affinity, as SGLang's router; or by hand.
Sources: vLLM DPLBAsyncMPClient.get_core_engine_for_request (0.16 to 0.24: 4 x waiting + running; 0.28 and 0.32: the
greater of requests in flight and waiting + running, and 6 x waiting x (KV usage - 0.5) where that is above 0; counts
are renewed every 100 ms, and each choice adds one waiting request to them). SGLang's model gateway, policy cache_aware.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Literal, Protocol

from stepscope.errors import BadInput
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.request import block_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.simulate.policy import Policy
    from stepscope.simulate.request import Request

LoadFormula = Literal["in_flight", "waiting_x4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """A rank as its scheduler reports it; `num_inside`: requests sent to it that have not ended."""

    num_waiting: int
    num_running: int
    kv_usage: float
    num_inside: int

    @classmethod
    def of(cls, policy: Policy, *, num_blocks: int, num_inside: int) -> RankLoad:
        """Of a scheduler whose cache has `num_blocks` in all."""
        return cls(
            num_waiting=policy.num_waiting,
            num_running=policy.num_running,
            kv_usage=1 - policy.num_free_blocks / num_blocks if num_blocks else 0.0,
            num_inside=num_inside,
        )


class Chooser(Protocol):
    """A balancer at work."""

    def choose(self, request: Request, now: int, loads: Sequence[RankLoad], /) -> int:
        """The rank for a request that arrives now (ticks)."""
        ...


class Balancer(Protocol):
    """A way to balance."""

    def start(self, num_ranks: int, /) -> Chooser:
        """One to use in one simulation."""
        ...


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """One after another."""

    def start(self, num_ranks: int, /) -> Chooser:
        """Begins with rank 0."""
        return _InTurn(num_ranks)


@dataclass(slots=True)
class _InTurn:
    num_ranks: int
    next: int = 0

    def choose(self, _request: Request, _now: int, _loads: Sequence[RankLoad], /) -> int:
        chosen = self.next
        self.next = (chosen + 1) % self.num_ranks
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded:
    """The lowest score by vLLM's formula; of equal ones the first from a place on that moves with each choice.

    `refresh_s`: how old the counts may be that it looks at (0: never old). With "waiting_x4" the place stays at rank 0.
    """

    formula: LoadFormula = "in_flight"
    refresh_s: float = 0.1

    def start(self, _num_ranks: int, /) -> Chooser:
        """Without counts yet."""
        return _ByScore(self.formula, to_ticks(self.refresh_s, "refresh_s"), counts=[])


@dataclass(slots=True)
class _ByScore:
    formula: LoadFormula
    refresh: int
    counts: list[tuple[int, int, float]]  # waiting, running, KV usage
    renewed: int = 0
    first: int = 0

    def choose(self, _request: Request, now: int, loads: Sequence[RankLoad], /) -> int:
        if not self.counts or now - self.renewed >= self.refresh:
            self.counts = [(load.num_waiting, load.num_running, load.kv_usage) for load in loads]
            self.renewed = now
        best, chosen = inf, 0
        for place in range(len(loads)):
            rank = (self.first + place) % len(loads)
            score = self._score(rank, loads[rank].num_inside)
            if score < best:
                best, chosen = score, rank
        waiting, running, usage = self.counts[chosen]
        self.counts[chosen] = (waiting + 1, running, usage)
        if self.formula == "in_flight":
            self.first = (self.first + 1) % len(loads)
        return chosen

    def _score(self, rank: int, num_inside: int) -> float:
        waiting, running, usage = self.counts[rank]
        if self.formula == "waiting_x4":
            return 4 * waiting + running
        return max(num_inside, waiting + running) + waiting * 6.0 * max(0.0, usage - 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixAffinity:
    """The rank that was sent most of the prompt's beginning before; where that is too little, the least loaded one.

    Attributes:
        least_match: share of the prompt that must match.
        abs_threshold, rel_threshold: where the most and the least loaded rank differ by more than both (in requests,
            and as a ratio), load alone decides.
        block_size: tokens that are compared at a time.
    """

    least_match: float = 0.3
    abs_threshold: int = 64
    rel_threshold: float = 1.5
    block_size: int = 16

    def start(self, num_ranks: int, /) -> Chooser:
        """Nothing was sent anywhere yet."""
        return _ByPrefix(self, [set() for _ in range(num_ranks)])


@dataclass(slots=True)
class _ByPrefix:
    rules: PrefixAffinity
    sent: list[set[int]] = field(default_factory=list)

    def choose(self, request: Request, _now: int, loads: Sequence[RankLoad], /) -> int:
        spans = [(part.source, part.start, part.length) for part in request.text]
        keys = block_keys(spans, self.rules.block_size)[: request.prompt_len // self.rules.block_size]
        inside = [load.num_inside for load in loads]
        chosen = inside.index(min(inside))
        is_even = max(inside) - min(inside) <= self.rules.abs_threshold or max(
            inside
        ) <= self.rules.rel_threshold * min(inside)
        if is_even and keys:
            matches = [self._match(rank, keys) for rank in range(len(loads))]
            longest = max(matches)
            if longest * self.rules.block_size > self.rules.least_match * request.prompt_len:
                chosen = matches.index(longest)
        self.sent[chosen].update(keys)
        return chosen

    def _match(self, rank: int, keys: Sequence[int]) -> int:
        sent = self.sent[rank]
        return next((count for count, key in enumerate(keys) if key not in sent), len(keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """Each request's rank by its name."""

    ranks: Mapping[str, int]

    def start(self, num_ranks: int, /) -> Chooser:
        """The same for every simulation.

        Raises:
            BadInput: a rank that does not exist.
        """
        wrong = next(((name, rank) for name, rank in self.ranks.items() if not 0 <= rank < num_ranks), None)
        if wrong is not None:
            raise BadInput(f"request {wrong[0]!r} is sent to rank {wrong[1]} of {num_ranks}: they count from 0.")
        return _Told(self.ranks)


@dataclass(slots=True)
class _Told:
    ranks: Mapping[str, int]

    def choose(self, request: Request, _now: int, _loads: Sequence[RankLoad], /) -> int:
        rank = self.ranks.get(request.request_id)
        if rank is None:
            raise BadInput(f"request {request.request_id!r} has no rank among the {len(self.ranks)} that were given.")
        return rank
