"""Does quantisation pay here: weight bytes that it saves, and what bf16 would take, against its kernels' time.

And how far it can reach at all: products that take the share f of a step's time, made s times faster, make the step
1 / ((1 - f) + f / s) times faster (Amdahl), whatever their number format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.alternative import Alternative, add_up, effective_bytes_per_s
from stepscope.answers.efficiency import COUNTERPART, WORK, measured_ns
from stepscope.answers.modelled_steps import PHASES, price_families, sum_amount
from stepscope.cost.roofline import amdahl_bound
from stepscope.store.schema import LAST_DEVICE_KIND, OP

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount
    from stepscope.answers.alternative import Verdict
    from stepscope.answers.modelled_steps import Array, ModelChoice, ModelledSteps

_UNQUANTISED = frozenset({"bf16", "fp16", "fp32"})
PRODUCTS = tuple(name for name, counterpart in COUNTERPART.items() if counterpart in ("dense_gemm", "experts"))
SPEEDUP = 2.0  # of a product at half the bytes and twice the rate


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisationGain:
    """One phase of a rank. `other` is bf16 and None where nothing is quantised.

    whole_ns: the steps' windows where idle time can be claimed (`is_wall`), else all device work. `largest`: the
    family with the most of it outside of the products, with its ns.
    """

    rank: int | None
    phase: str
    steps: int
    formats: tuple[str, ...]
    weight_bytes: float
    bf16_weight_bytes: float
    saved_bytes_ns: int
    quantisation_ns: int
    quantisation_kernels: int
    products_ns: int
    own_bound_ns: int  # of the products as they ran
    whole_ns: int
    is_wall: bool
    largest: tuple[str, int] | None
    other: Alternative | None

    @property
    def fraction(self) -> float | None:
        """Share of the whole that faster products can shorten."""
        return self.products_ns / self.whole_ns if self.whole_ns else None

    @property
    def best_case(self) -> float | None:
        """The most that the whole gains from products SPEEDUP times as fast."""
        return None if self.fraction is None else amdahl_bound(self.fraction, SPEEDUP)

    @property
    def verdict(self) -> Verdict | None:
        """Whether it pays here; None where nothing is quantised."""
        return (
            None
            if self.other is None
            else self.other.against(self.products_ns + self.quantisation_ns, self.own_bound_ns)
        )


def find_quantisation(rank: RankAccount, steps: ModelledSteps, choice: ModelChoice) -> tuple[QuantisationGain, ...]:
    """One row a phase that has priced steps."""
    plain = replace(choice, deployment=replace(choice.deployment, weights="bf16", experts="bf16", activations=None))
    operators, families = price_families(steps.shapes, replace(plain, calibration=None))
    formats = tuple(sorted({name for op in steps.operators if (name := op.dtypes.weight) and name not in _UNQUANTISED}))
    ours, theirs = (
        sum_amount(each, lambda operator: operator.traffic.weight, steps.num_steps)
        for each in (steps.operators, operators)
    )
    own_products, products = (
        [each[name] for name in ("dense_gemm", "experts") if name in each] for each in (steps.families, families)
    )
    rate = effective_bytes_per_s(choice.hardware)
    found = []
    for phase in PHASES:
        mask = steps.of_phase(phase)
        if not mask.any():
            continue
        places = steps.places[mask]
        whole, is_wall = _whole(rank, places)
        own, bf16 = float(np.sum(ours[mask])), float(np.sum(theirs[mask]))
        found.append(
            QuantisationGain(
                rank=rank.rank,
                phase=phase,
                steps=int(mask.sum()),
                formats=formats,
                weight_bytes=own,
                bf16_weight_bytes=bf16,
                saved_bytes_ns=round(1e9 * (bf16 - own) / rate),
                quantisation_ns=measured_ns(rank, ("quantisation",), places),
                quantisation_kernels=_num_kernels(rank, places),
                products_ns=measured_ns(rank, PRODUCTS, places),
                own_bound_ns=add_up(own_products, mask).bound_ns,
                whole_ns=whole,
                is_wall=is_wall,
                largest=_largest(rank, places, is_wall=is_wall),
                other=add_up(products, mask) if formats else None,
            )
        )
    return tuple(found)


def _whole(rank: RankAccount, places: Array) -> tuple[int, bool]:
    if rank.budget.coverage.idle_claimable:
        return sum(rank.budget.windows[i].window_ns for i in places.tolist()), True
    work = rank.budget.step_families.items()
    return sum(values[i] for (category, _), values in work if category in WORK for i in places.tolist()), False


def _largest(rank: RankAccount, places: Array, *, is_wall: bool) -> tuple[str, int] | None:
    times = {
        family: sum(values[i] for i in places.tolist())
        for (category, family), values in rank.budget.step_families.items()
        if family not in PRODUCTS and (is_wall or category in WORK)
    }
    return max(times.items(), key=lambda item: item[1]) if times else None


def _num_kernels(rank: RankAccount, places: Array) -> int:
    """Kernels of the quantisation family in the steps (operations, on a CPU backend)."""
    e, counted = rank.store.events, rank.table.counted
    is_own = rank.budget.placements.of_family("quantisation")
    if rank.table.windows.lane == "device":
        rows = np.concatenate([rank.table.work.of_step(counted[i].step_id) for i in places.tolist()])
        return int((is_own[rows] & (e.kind[rows] <= LAST_DEVICE_KIND)).sum())
    windows = [counted[i].window for i in places.tolist()]
    starts = e.start_ns[is_own & (e.kind == OP)]
    return sum(int(((starts >= w[0]) & (starts < w[1])).sum()) for w in windows if w is not None)
