"""What compressed or sparse reading saved: each phase's attention as it runs, and over the whole uncompressed history.

The other way is the same model with another attention: MLA as keys and values of every head (2 h (qk + v) elements a
token, read and scored like MHA with head dim (qk + v) / 2), DSA without its selection, V4 with one row a token. Cost of
the way that runs: attention, and the kernels of the KV path that only it needs (OVERHEAD). Projections and the products
that absorb or expand latent rows stand under GEMM on both sides and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.alternative import Alternative, add_up, effective_bytes_per_s
from stepscope.answers.efficiency import measured_ns
from stepscope.answers.modelled_steps import price_families, sum_amount
from stepscope.errors import BadInput
from stepscope.models.architecture import CompressedAttention, GroupedQueryAttention, LatentAttention
from stepscope.models.kv_layout import LAYOUTS, cache_row

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount
    from stepscope.answers.alternative import Verdict
    from stepscope.answers.modelled_steps import Array, ModelChoice, ModelledSteps
    from stepscope.models.architecture import Architecture, Attention
    from stepscope.operators.operator import Operator

CORES = ("attention", "attention_mla", "attention_sparse")
OVERHEAD = ("gather_upconvert", "kv_copy", "indexer", "topk_selection", "compressor")
SHOWN = (*OVERHEAD, "cache_write")  # written whatever the layout, so no cost of compression alone
SAVING_PHASES = ("prefill", "decode")

FULL_HEADS = "keys and values of every head, whole history"
WHOLE_LATENT = "latent rows, whole history"
UNCOMPRESSED = "one row a token, whole history"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSaving:
    """One phase of a rank against one other way; bytes are payload read by the cores and the indexer, all layers."""

    rank: int | None
    phase: str
    steps: int
    against: str
    cost_ns: dict[str, int]  # measured, of SHOWN
    attention_ns: int  # measured, of CORES
    read_bytes: float
    other_read_bytes: float
    saved_bytes_ns: int  # the difference at the device's rate
    own_bound_ns: int  # of attention and indexer as they ran
    bytes_per_s: float
    other: Alternative

    @property
    def measured_ns(self) -> int:
        """Attention and what only this way of reading needs."""
        return self.attention_ns + sum(self.cost_ns[name] for name in OVERHEAD)

    @property
    def verdict(self) -> Verdict:
        """Whether reading this way pays at this shape."""
        return self.other.against(self.measured_ns, self.own_bound_ns)


def other_ways(architecture: Architecture) -> dict[str, Architecture]:
    """The same model with the attention that its own compresses or selects from; none for GQA and GDN."""
    ways = (
        (FULL_HEADS, _every_head, LatentAttention),
        (WHOLE_LATENT, _unselected, LatentAttention),
        (UNCOMPRESSED, _a_row_a_token, CompressedAttention),
    )
    found = {}
    for name, change, kind in ways:
        layers = tuple(
            replace(layer, attention=change(layer.attention, architecture.max_context_len))
            if isinstance(layer.attention, kind)
            else layer
            for layer in architecture.layers
        )
        if layers != architecture.layers:
            found[name] = replace(architecture, layers=layers)
    return found


def _every_head(attention: Attention, _: int) -> Attention:
    assert isinstance(attention, LatentAttention)
    width = attention.qk_nope_head_dim + attention.qk_rope_head_dim + attention.v_head_dim
    heads = attention.num_heads
    return GroupedQueryAttention(num_heads=heads, num_kv_heads=heads, head_dim=width // 2)


def _unselected(attention: Attention, _: int) -> Attention:
    assert isinstance(attention, LatentAttention)
    return replace(attention, topk=None, indexer=None)


def _a_row_a_token(attention: Attention, longest: int) -> Attention:
    assert isinstance(attention, CompressedAttention)
    return replace(attention, ratio=0, indexer=None, window=longest)


def find_kv_savings(rank: RankAccount, steps: ModelledSteps, choice: ModelChoice) -> tuple[KvSaving, ...]:
    """A row for each phase and other way; prefill and decode apart, mixed steps left out."""
    rate = effective_bytes_per_s(choice.hardware)
    own = [steps.families[name] for name in ("attention", "indexer") if name in steps.families]
    read, found = _read_bytes(steps.operators, steps.num_steps), []
    for name, architecture in other_ways(choice.architecture).items():
        for phase in SAVING_PHASES:
            mask = steps.of_phase(phase)
            if not mask.any():
                continue
            other = _priced(architecture, steps, choice, mask)
            ours, theirs = float(np.sum(read[mask])), float(np.sum(_read_bytes(other[0], int(mask.sum()))))
            places = steps.places[mask]
            found.append(
                KvSaving(
                    rank=rank.rank,
                    phase=phase,
                    steps=int(mask.sum()),
                    against=name,
                    cost_ns={family: measured_ns(rank, (family,), places) for family in SHOWN},
                    attention_ns=measured_ns(rank, CORES, places),
                    read_bytes=ours,
                    other_read_bytes=theirs,
                    own_bound_ns=add_up(own, mask).bound_ns,
                    saved_bytes_ns=round(1e9 * (theirs - ours) / rate),
                    bytes_per_s=rate,
                    other=other[1],
                )
            )
    return tuple(found)


def _priced(
    architecture: Architecture, steps: ModelledSteps, choice: ModelChoice, mask: Array
) -> tuple[tuple[Operator, ...], Alternative]:
    """The other way's operators, and its attention: a calibration of ours says nothing about kernels that never ran."""
    deployment = replace(choice.deployment, kv=_layout(architecture, choice.deployment.kv))
    other = replace(choice, architecture=architecture, deployment=deployment, calibration=None)
    shapes = [shape for shape, chosen in zip(steps.shapes, mask.tolist(), strict=True) if chosen]
    operators, families = price_families(shapes, other)
    return operators, add_up([families["attention"]], np.ones(len(shapes), dtype=bool))


def _layout(architecture: Architecture, layout: str) -> str:
    """The run's layout where the other attention has it, else the plain one of as many bits an element."""
    plain = "bf16" if layout in ("bf16", "ascend-910c") else "fp8"
    for name in (layout, plain, *LAYOUTS):
        try:
            for layer in architecture.layers:
                cache_row(layer.attention, name)
        except BadInput:
            continue
        return name
    return layout


def _read_bytes(operators: tuple[Operator, ...], num_steps: int) -> Array:
    """History that is read, per step: by cores, by the indexer, and by what gathers rows for a core."""
    return sum_amount(operators, lambda operator: operator.traffic.kv_read, num_steps)
