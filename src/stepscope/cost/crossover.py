"""Where the binding resource changes: one dense GEMM, the experts of a layer, a whole decode step.

R: ridge (flop per byte), K, N: the weight's sizes, b_x, b_w, b_y: bytes per element of input, weight and output.
  2 M K N / F = (b_w K N + M (b_x K + b_y N)) / B   =>   M = R b_w K N / (2 K N - R (b_x K + b_y N)),
  "never" (None) where the denominator is not positive: input and output alone keep the memory busy at any M.
R b_w / 2 is the approximation that leaves input and output out; it is always too small.
Experts: the same equality summed, Σ_e [M_e > 0] b_w K N + Σ_e M_e (b_x K + b_y N) against 2 K N Σ_e M_e / R: weights
are paid per ACTIVE expert, so the answer depends on how M_e is distributed, not on its mean.
Decode: every operator's terms over a grid of batch x context. Source: the second founding note, 2, 7; docs/cost.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.cost.roofline import TERMS, Bound
from stepscope.cost.step_cost import StepCost
from stepscope.errors import BadInput
from stepscope.operators.operator import Operator
from stepscope.operators.router import Router, summarise, unique_experts

Array = np.ndarray[Any, np.dtype[Any]]
MOST_TOKENS = 1 << 24  # of one step: a crossover beyond this is "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One matrix and the bytes per element around it."""

    name: str
    k: int
    n: int
    x_bytes: float
    w_bytes: float
    y_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCrossover:
    """Rows of input at which compute and memory take equally long; None: never."""

    weight: Weight
    ridge: float
    crossover_tokens: float | None
    approximation: float

    def intensity(self, m: float) -> float:
        """Flop per byte at m rows."""
        w = self.weight
        moved = w.w_bytes * w.k * w.n + m * (w.x_bytes * w.k + w.y_bytes * w.n)
        return 2 * m * w.k * w.n / moved

    @property
    def most_intensity(self) -> float:
        """What intensity tends to as m grows: 2 K N / (b_x K + b_y N)."""
        w = self.weight
        return 2 * w.k * w.n / (w.x_bytes * w.k + w.y_bytes * w.n)


def gemm_crossover(weight: Weight, ridge: float) -> GemmCrossover:
    """Where one GEMM turns compute-bound.

    >>> w = Weight(name="wq_a", k=4096, n=1024, x_bytes=2, w_bytes=2, y_bytes=2)
    >>> found = gemm_crossover(w, 200.0)
    >>> round(found.crossover_tokens, 3), found.approximation
    (264.599, 200.0)
    >>> gemm_crossover(w, 900.0).crossover_tokens is None
    True

    Raises:
        BadInput: a ridge or size that is not above 0.
    """
    if ridge <= 0 or weight.k <= 0 or weight.n <= 0:
        raise BadInput(f"ridge {ridge}, k {weight.k} and n {weight.n} have to be above 0.")
    elements = weight.k * weight.n
    denominator = 2 * elements - ridge * (weight.x_bytes * weight.k + weight.y_bytes * weight.n)
    return GemmCrossover(
        weight=weight,
        ridge=ridge,
        crossover_tokens=ridge * weight.w_bytes * elements / denominator if denominator > 0 else None,
        approximation=ridge * weight.w_bytes / 2,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPoint:
    """One number of tokens in the EP domain: its rows per expert (one draw), and what they are bound by.

    compute_bound_fraction: of the active experts; compute_bound_copies_fraction: of the token copies.
    """

    tokens: int
    mean: float
    median: float
    p90: float
    max: int
    active_experts: int
    empty_fraction: float
    compute_bound_fraction: float
    compute_bound_copies_fraction: float
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCrossover:
    """Where a layer's experts turn compute-bound.

    `crossover_rows`: M_e of one expert; `crossover_tokens`: of the domain, all experts summed, by expectation;
    `mean_crossover_tokens`: what the mean M_e alone would say.
    """

    gemm: GemmCrossover
    num_experts: int
    top_k: int
    crossover_tokens: float | None
    mean_crossover_tokens: float | None
    points: tuple[ExpertPoint, ...]

    @property
    def crossover_rows(self) -> float | None:
        """M_e at which one expert's GEMM turns compute-bound."""
        return self.gemm.crossover_tokens


def expert_crossover(
    gemm: GemmCrossover, num_experts: int, top_k: int, tokens: Sequence[int], router: Router | None = None
) -> ExpertCrossover:
    """Over the distribution of M_e that a router gives.

    Raises:
        BadInput: more experts per token than there are.
    """
    if not 0 < top_k <= num_experts:
        raise BadInput(f"top_k {top_k} of {num_experts} experts: expected 1 up to the number of experts.")
    chooser = router or Router()
    shares = chooser.inclusion(num_experts, top_k)
    rows = gemm.crossover_tokens
    points = tuple(_point(gemm, list(chooser.sample(num_experts, top_k, m)), m) for m in tokens)
    return ExpertCrossover(
        gemm=gemm,
        num_experts=num_experts,
        top_k=top_k,
        crossover_tokens=_first_positive(lambda m: _surplus(gemm, float(unique_experts(shares, m)), m * top_k)),
        mean_crossover_tokens=None if rows is None else rows * num_experts / top_k,
        points=points,
    )


def _surplus(gemm: GemmCrossover, active: float, copies: float) -> float:
    """Compute less memory, in bytes' worth of time."""
    w = gemm.weight
    memory = active * w.w_bytes * w.k * w.n + copies * (w.x_bytes * w.k + w.y_bytes * w.n)
    return 2 * w.k * w.n * copies / gemm.ridge - memory


def _first_positive(surplus: Callable[[int], float]) -> float | None:
    """The whole number of tokens from which on the surplus is positive; None up to MOST_TOKENS."""
    low, high = 1, 1
    while surplus(high) <= 0:
        low, high = high, high * 2
        if high > MOST_TOKENS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if surplus(middle) > 0 else (middle, high)
    return float(high)


def _point(gemm: GemmCrossover, rows_per_expert: list[int], tokens: int) -> ExpertPoint:
    found = summarise(rows_per_expert)
    limit = np.inf if gemm.crossover_tokens is None else gemm.crossover_tokens
    m_e = np.array(rows_per_expert)
    beyond = m_e >= limit
    active, copies = int((m_e > 0).sum()), int(m_e.sum())
    return ExpertPoint(
        tokens=tokens,
        mean=found.mean,
        median=found.median,
        p90=found.p90,
        max=found.max,
        active_experts=active,
        empty_fraction=found.empty_fraction,
        compute_bound_fraction=float(beyond.sum() / max(active, 1)),
        compute_bound_copies_fraction=float(m_e[beyond].sum() / max(copies, 1)),
        bound="compute" if _surplus(gemm, active, copies) > 0 else "memory",
    )


PARTS = ("dense", "experts", "history", "network", "rest")


def part_of(operator: Operator) -> str:
    """Which part of a step an operator belongs to.

    history: attention cores, indexers, states and KV traffic; rest: norms, activations, lookups.
    """
    if operator.kind == "collective":
        return "network"
    if operator.kind == "grouped_gemm":
        return "experts"
    if operator.kind in ("gemm", "batched_gemm"):
        return "dense"
    if operator.kind in ("attention", "sparse_attention", "indexer", "recurrent", "convolution", "state"):
        return "history"
    return "history" if operator.role == "kv" else "rest"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeBindings:
    """A decode step over batch x context (arrays of that shape). Times in seconds of the lower bound.

    `terms`: what each resource would need alone; `parts`: each part's share of the bound; `time_s`: the prediction.
    """

    batches: tuple[int, ...]
    context_lens: tuple[int, ...]
    lower_bound_s: Array
    serial_bound_s: Array
    time_s: Array | None
    terms: dict[str, Array]
    parts: dict[str, Array]
    bound: Array

    @property
    def leading_part(self) -> Array:
        """The part that takes most of each cell's bound."""
        stacked = np.stack([self.parts[name] for name in PARTS])
        return np.asarray(np.array(PARTS)[np.argmax(stacked, axis=0)])

    def crossover_batch(self, position: int) -> int | None:
        """The least batch at a context whose step is compute-bound, as are all larger ones; None: none of these."""
        is_compute = self.bound[:, position] == "compute"
        last_other = int(np.flatnonzero(~is_compute).max(initial=-1))
        return None if last_other + 1 >= len(self.batches) else self.batches[last_other + 1]


def decode_grid(
    operators: Sequence[Operator], cost: StepCost, batches: Sequence[int], context_lens: Sequence[int]
) -> DecodeBindings:
    """Arrange a priced grid: step i of the operators is batch i // len(context_lens), context i % len(context_lens)."""
    shape = (len(batches), len(context_lens))

    def grid(value: Any) -> Array:
        return np.broadcast_to(np.asarray(value, dtype=float).ravel(), (shape[0] * shape[1],)).reshape(shape).copy()

    parts = {name: np.zeros(shape) for name in PARTS}
    terms: dict[str, Array] = {name: np.zeros(shape) for name in TERMS}
    for operator, priced, count in zip(operators, cost.operators, cost.counts, strict=True):
        parts[part_of(operator)] += count * grid(priced.terms.lower_s)
        for name in TERMS:
            terms[name] += count * grid(getattr(priced.terms, f"{name}_s"))
    bound = np.broadcast_to(np.asarray(cost.bound).ravel(), (shape[0] * shape[1],)).reshape(shape)
    return DecodeBindings(
        batches=tuple(batches),
        context_lens=tuple(context_lens),
        lower_bound_s=grid(cost.lower_bound_s),
        serial_bound_s=grid(cost.serial_bound_s),
        time_s=None if cost.time_s is None else grid(cost.time_s),
        terms=terms,
        parts=parts,
        bound=bound,
    )
