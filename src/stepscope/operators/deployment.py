"""Deployment: how a model is run: parallel groups, number formats, cache layout, engine, router.

Every name left out (None) follows the published checkpoint: its weights, and activations as such weights take them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stepscope.errors import BadInput
from stepscope.models.architecture import Architecture
from stepscope.models.dtype import number_format
from stepscope.models.kv_layout import cache_row
from stepscope.models.parallel import ParallelPlan
from stepscope.models.weight import Weight
from stepscope.operators.fusion import FUSED
from stepscope.operators.operator import Dtypes
from stepscope.operators.router import Router

MlaForm = Literal["auto", "absorbed", "expanded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`mla`: auto expands the latent KV in prefill and absorbs it in decode (DSA: absorbed in both).

    `is_eager`: decode runs without captured graphs, so that V4's index scores are left out on short histories too.
    `short_prefill_dense`: leave out the indexer where no history is longer than its top-k, as vLLM does (None: as
    `fusion` says). `max_model_len`: accept contexts up to here instead of the model's own limit.
    `draft_passes`: passes of the model's own draft (MTP, DSpark) that the step runs beside the target.
    """

    plan: ParallelPlan = field(default_factory=ParallelPlan)
    weights: str | None = None
    experts: str | None = None
    activations: str | None = None
    kv: str = "bf16"
    fusion: str = "none"
    router: Router = field(default_factory=Router)
    mla: MlaForm = "auto"
    short_prefill_dense: bool | None = None
    is_eager: bool = False
    max_model_len: int | None = None
    draft_passes: int = 0

    def check(self, architecture: Architecture) -> None:
        """Refuse names and splits that do not exist.

        Raises:
            BadInput: an unknown dtype, layout or engine, or an impossible split.
        """
        for name in (self.weights, self.experts, self.activations):
            if name is not None:
                number_format(name)
        if self.fusion not in FUSED:
            raise BadInput(f"unknown fusion '{self.fusion}'. Known: {', '.join(FUSED)}.")
        if self.draft_passes and architecture.draft is None:
            raise BadInput(f"{architecture.name} has no draft layers (MTP or DSpark). Leave --draft-passes out.")
        for layer in architecture.layers:
            cache_row(layer.attention, self.kv)
        self.plan.check(architecture)

    @property
    def skips_short_index(self) -> bool:
        """Whether the engine leaves out the indexer on short histories."""
        return self.fusion == "vllm" if self.short_prefill_dense is None else self.short_prefill_dense

    def dtypes(self, weight: Weight, architecture: Architecture) -> Dtypes:
        """The number formats of one matrix and its input; an unquantised matrix takes bf16."""
        if weight.storage == "fp32":
            return Dtypes(weight="fp32", activation="fp32", output="fp32", compute="fp32")
        if weight.storage == "kept":
            return Dtypes(weight="bf16")
        stored = architecture.checkpoint
        if weight.storage == "expert":
            name = self.experts or self.weights or stored.experts
        else:
            name = self.weights or stored.weights
        activation = self.activations or number_format(name).activation
        return Dtypes(weight=name, activation=activation, compute=activation)
