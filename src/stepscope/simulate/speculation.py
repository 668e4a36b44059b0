"""Speculation: how many drafts a request accepts, what drafting costs, and when it pays.

k = drafts per step, r_i = share of steps that accept draft i (and so all before it), r_1 >= r_2 >= ... A step with
drafts puts out 1 + Σ r_i tokens in the mean. vLLM's "per-position acceptance rate" is r_i, its "acceptance rate" their
mean, its "mean acceptance length" 1 + Σ r_i. A draft's own chance, given that all before it were accepted, is
r_i / r_(i-1). Rejected drafts cost their share of the step all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import fsum, isfinite
from operator import mul
from typing import TYPE_CHECKING, Literal

from stepscope.batch import BatchShape, PhaseSums
from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepscope.simulate.step_time import CostFunction

DraftMethod = Literal["mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model", "medusa", "ngram"]
_FROM_HIDDEN_STATES = ("mtp", "eagle", "eagle3", "dflash", "dspark")
_HALVINGS = 60  # of an interval of 1: below the last bit of a float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """`rates[i]`: the share of steps that accept draft i + 1. The same request accepts the same under any schedule.

    A draw depends on `seed`, the request's name and how many tokens it has put out, on nothing that ran beside it; and
    with fewer drafts a step accepts the same, cut to their number.

    Raises:
        BadInput: a rate outside 0 to 1, or above the one before it.
    """

    rates: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(isfinite(rate) and 0 <= rate <= 1 for rate in self.rates):
            raise BadInput(f"acceptance rates {self.rates}: each is a share of the steps, 0 to 1.")
        if any(later > earlier for earlier, later in pairwise(self.rates)):
            raise BadInput(
                f"acceptance rates {self.rates} rise: a draft is only accepted if all before it are. "
                "Give chances of each draft by its own to Acceptance.from_chances."
            )

    @classmethod
    def from_chances(cls, chances: Iterable[float], *, seed: int = 0) -> Acceptance:
        """From each draft's chance to be accepted if all before it were.

        >>> Acceptance.from_chances([0.8, 0.5]).rates
        (0.8, 0.4)
        """
        given = tuple(chances)
        if not all(isfinite(chance) and 0 <= chance <= 1 for chance in given):
            raise BadInput(f"acceptance chances {given}: each must be 0 to 1.")
        return cls(rates=tuple(accumulate(given, mul)), seed=seed)

    @classmethod
    def from_mean_length(cls, mean_length: float, num_drafts: int, *, seed: int = 0) -> Acceptance:
        """Of `num_drafts` drafts that all have the same chance, as many accepted in the mean as the length says.

        >>> round(Acceptance.from_mean_length(1.75, 2).rates[0], 6)
        0.5
        """
        _check_length(mean_length, num_drafts)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if 1 + fsum(middle**i for i in range(1, num_drafts + 1)) < mean_length:
                low = middle
            else:
                high = middle
        return cls.from_chances([high] * num_drafts, seed=seed)

    @classmethod
    def from_counts(cls, counts: Sequence[int], *, seed: int = 0) -> Acceptance:
        """From a histogram: `counts[a]` steps accepted a drafts.

        >>> Acceptance.from_counts([1, 1, 2]).rates
        (0.75, 0.5)
        """
        total = sum(counts)
        if total <= 0 or min(counts) < 0:
            raise BadInput(f"counts of accepted drafts {tuple(counts)}: give 0 or more each, and at least one step.")
        return cls(rates=tuple(sum(counts[place:]) / total for place in range(1, len(counts))), seed=seed)

    @classmethod
    def from_lengths(cls, lengths: Mapping[int, float], num_drafts: int, *, seed: int = 0) -> Acceptance:
        """From mean lengths by number of drafts, for drafts that do not depend on how many are made (MTP, EAGLE).

        Draft i adds what the mean length grows by from i - 1 to i drafts. Where a later draft would add more than an
        earlier one (the lengths are measured and rounded), neighbours share what they add; the sum stays.

        Raises:
            BadInput: a length is missing, or more drafts have a shorter length: then those drafts are others.
        """
        missing = [i for i in range(1, num_drafts + 1) if i not in lengths]
        if missing:
            raise BadInput(f"no mean length for {missing} drafts: give those of 1 to {num_drafts}.")
        _check_length(lengths[num_drafts], num_drafts)
        told = [1.0, *(lengths[i] for i in range(1, num_drafts + 1))]
        groups: list[tuple[float, int]] = []
        for before, after in pairwise(told):
            gain, count = after - before, 1
            while groups and groups[-1][0] * count < gain * groups[-1][1]:
                earlier, width = groups.pop()
                gain, count = gain + earlier, count + width
            groups.append((gain, count))
        if groups and groups[-1][0] < -1e-9:
            raise BadInput(
                f"mean lengths {told[1:]} fall: with more drafts each is another draft, so one length does not follow "
                "from the others. Use Acceptance.from_mean_length with the length of the number you ask for."
            )
        return cls(rates=tuple(max(gain / count, 0.0) for gain, count in groups for _ in range(count)), seed=seed)

    @property
    def mean_length(self) -> float:
        """Tokens that a step with all drafts puts out, in the mean."""
        return 1 + fsum(self.rates)

    @property
    def rate(self) -> float | None:
        """Accepted drafts per draft: the mean over positions; None without drafts."""
        return fsum(self.rates) / len(self.rates) if self.rates else None

    def first(self, num_drafts: int) -> Acceptance:
        """The same with fewer drafts.

        Raises:
            BadInput: nothing is known of so many.
        """
        if num_drafts > len(self.rates):
            raise BadInput(f"acceptance is known of {len(self.rates)} drafts, not of {num_drafts}.")
        return Acceptance(rates=self.rates[:num_drafts], seed=self.seed)

    def draw(self, request_id: str, output_len: int, num_drafts: int) -> int:
        """How many of its drafts a request accepts in the step after it has put out `output_len` tokens."""
        digest = blake2b(f"{self.seed}/{request_id}/{output_len}".encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "little") / 2**64
        accepted = 0
        for rate in self.rates[:num_drafts]:
            if share >= rate:
                break
            accepted += 1
        return accepted


def accept_length(num_drafts: int, rate: float) -> float:
    """Mean accepted length from the overall acceptance rate: 1 + k x rate.

    >>> round(accept_length(1, 0.836), 3), round(accept_length(8, 0.42525), 3)
    (1.836, 4.402)
    """
    _check_length(1 + num_drafts * rate, num_drafts)
    return 1 + num_drafts * rate


def step_of_tpot(tpot_s: float, mean_length: float) -> float:
    """Seconds between a request's output steps that a TPOT means, with so many tokens a step.

    Tokens of one step come together, in one chunk of a stream, so ITL counts steps and TPOT tokens.

    >>> round(step_of_tpot(0.0275, 4.402), 4)
    0.1211
    """
    return tpot_s * mean_length


def _check_length(mean_length: float, num_drafts: int) -> None:
    if num_drafts < 1 or not 1 <= mean_length <= 1 + num_drafts:
        raise BadInput(
            f"a mean accepted length of {mean_length} with {num_drafts} drafts: give 1 or more drafts, and a length of "
            "1 to 1 + drafts (the token that the model itself puts out counts)."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Who drafts, under vLLM's option names, and what is accepted.

    MTP with several modules of its own and `num_speculative_tokens_per_batch_size` are not modelled.

    Attributes:
        acceptance: what the target accepts; needed as soon as there are drafts.
        method: vLLM's `method`.
        parallel_drafting: all drafts in one pass (dflash and dspark always are).
        disable_eagle_block_drop: keep the last block of a prefix hit, which drafting from hidden states computes again.
    """

    acceptance: Acceptance | None = None
    method: DraftMethod = "mtp"
    parallel_drafting: bool = False
    disable_eagle_block_drop: bool = False

    @property
    def is_parallel(self) -> bool:
        """Whether one pass makes all drafts of a step."""
        return self.parallel_drafting or self.method in ("dflash", "dspark")

    @property
    def drops_last_hit(self) -> bool:
        """Whether a prefix hit loses its last block, whose hidden states the drafter needs."""
        return self.method in _FROM_HIDDEN_STATES and not self.disable_eagle_block_drop

    def num_lookahead_tokens(self, num_drafts: int) -> int:
        """Slots that each row holds for the drafter's own KV beyond the row's tokens."""
        if self.method == "dflash":
            return num_drafts + 1
        return num_drafts if self.method in _FROM_HIDDEN_STATES or self.method == "draft_model" else 0

    def num_budget_slots(self, num_drafts: int) -> int:
        """Tokens of the step's budget that each row costs beyond its own."""
        if self.method == "dflash" or (self.parallel_drafting and self.method == "draft_model"):
            return num_drafts
        if self.is_parallel:
            return num_drafts - 1
        return 1 if self.method == "draft_model" else 0

    def check(self, asked: int, *, max_num_batched_tokens: int, long_prefill_token_threshold: int) -> None:
        """Whether an engine runs with so many drafts and these options.

        Raises:
            BadInput: nothing is known of a draft's acceptance, or a row with its drafts would be cut.
        """
        known = len(self.acceptance.rates) if self.acceptance else 0
        if known < asked:
            raise BadInput(
                f"num_speculative_tokens is {asked} and acceptance is known of {known} drafts: give "
                "drafts=Drafts(acceptance=...) with a rate for each."
            )
        least = 1 + asked + self.num_budget_slots(asked)
        if max_num_batched_tokens < least:
            raise BadInput(
                f"max_num_batched_tokens {max_num_batched_tokens} does not hold one row with its drafts and the "
                f"drafter's slots: the engine may wait for ever for an admission of that length. Give {least} or more."
            )
        if 0 < long_prefill_token_threshold <= asked:
            raise BadInput(
                f"long_prefill_token_threshold {long_prefill_token_threshold} cuts a row of 1 + {asked} tokens, "
                f"and the engine fails on it. Give {asked + 1} or more, or 0 for no cap."
            )

    def num_passes(self, num_drafts: int) -> int:
        """Passes of the drafter per step."""
        return 0 if num_drafts == 0 else 1 if self.is_parallel else num_drafts


NO_DRAFTS = Drafts()


def with_draft_cost(cost: CostFunction, *, pass_s: float, num_passes: int) -> CostFunction:
    """A step's cost with the drafter's: `num_passes` of `pass_s` in each step that has decode rows.

    Raises:
        BadInput: a negative time or number of passes.
    """
    if not (isfinite(pass_s) and pass_s >= 0 and num_passes >= 0):
        raise BadInput(f"{num_passes} draft passes of {pass_s} s: give 0 or more.")

    def both(shape: BatchShape) -> float:
        return cost(shape) + (num_passes * pass_s if shape.decode.num_requests else 0.0)

    return both


def decode_shape(num_rows: int, query_len: int, context_len: int) -> BatchShape:
    """A step of equal decode rows; 1 + k tokens each verify k drafts."""
    kv = context_len + query_len
    sums = PhaseSums(
        num_requests=num_rows,
        query_sum=num_rows * query_len,
        kv_sum=num_rows * kv,
        query_sq_sum=num_rows * query_len**2,
        query_kv_sum=num_rows * query_len * kv,
    )
    return BatchShape.from_sums(PhaseSums.from_rows(()), sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """What a target and its drafter cost, and what is accepted; for decode steps of equal rows.

    Attributes:
        cost: seconds of a step of the target.
        acceptance: by number of drafts k: the same drafts cut to k (`lambda k: known.first(k)`), or others for each k.
        draft_s: seconds that drafting adds to a step, by number of drafts.
        context_len: KV length of each row.
    """

    cost: CostFunction
    acceptance: Callable[[int], Acceptance]
    draft_s: Callable[[int], float]
    context_len: int

    def seconds_per_token(self, num_rows: int, num_drafts: int) -> float:
        """Of one request, in steps of `num_rows` rows."""
        step_s = self.cost(decode_shape(num_rows, 1 + num_drafts, self.context_len))
        if num_drafts == 0:
            return step_s
        return (step_s + self.draft_s(num_drafts)) / self.acceptance(num_drafts).mean_length

    def speedup(self, num_rows: int, num_drafts: int) -> float:
        """Tokens per second with drafts over without: E[len] x t(B, 1) / (t(B, 1 + k) + draft). Below 1 it is a loss.

        Raises:
            BadInput: the cost function gives no positive time for these rows.
        """
        with_drafts = self.seconds_per_token(num_rows, num_drafts)
        if not with_drafts > 0:
            raise BadInput(f"a step of {num_rows} rows takes {with_drafts} s: the cost must be above 0.")
        return self.seconds_per_token(num_rows, 0) / with_drafts

    def best_num_drafts(self, num_rows: int, at_most: int) -> int:
        """The k of 0 to `at_most` with the most tokens per second; of equal ones the fewest drafts."""
        return min(range(at_most + 1), key=lambda k: (self.seconds_per_token(num_rows, k), k))

    def break_even(self, num_drafts: int, at_most: int) -> int | None:
        """The first number of rows, 1 to `at_most`, at which k drafts no longer gain; None if they gain throughout."""
        return next((rows for rows in range(1, at_most + 1) if self.speedup(rows, num_drafts) <= 1), None)
