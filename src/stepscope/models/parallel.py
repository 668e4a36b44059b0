"""ParallelPlan: how many ranks share a step, and what each of them holds.

tp: attention tensor parallel: heads, dense FFN and vocabulary are split; two all-reduces a layer.
dp: attention data parallel: each rank has rows of its own; experts see the copies of all tp x dp x cp ranks.
ep: expert parallel: each rank holds num_experts / ep experts; what is left of the group splits them by moe_tp.
cp: context parallel: a row's tokens (prefill) or its KV (decode) are split; KV or partial results are exchanged.
pp: pipeline: layers are split; one hand-over of the hidden states between stages.
world = tp x dp x cp x pp ranks; the group that shares the experts of a layer is tp x dp x cp.
A step's shape is what ONE attention-dp rank schedules; the other dp ranks are taken to be equally loaded.
Sources: vLLM's --tensor-parallel-size, --data-parallel-size, --enable-expert-parallel, --prefill-context-parallel-size,
--pipeline-parallel-size; SGLang's --tp is tp x dp here (its attention tp = tp / dp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.models.architecture import (
    Architecture,
    CompressedAttention,
    DenseFeedForward,
    GatedDeltaNet,
    GroupedQueryAttention,
    Layer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Sizes of the parallel groups; 1 is none."""

    tp: int = 1
    dp: int = 1
    ep: int = 1
    pp: int = 1
    cp: int = 1

    @property
    def world_size(self) -> int:
        """Devices of the deployment."""
        return self.tp * self.dp * self.cp * self.pp

    @property
    def expert_group_size(self) -> int:
        """Ranks that together hold the experts of a layer."""
        return self.tp * self.dp * self.cp

    @property
    def moe_tp(self) -> int:
        """Ranks that split each expert's matrices."""
        return self.expert_group_size // self.ep

    def check(self, architecture: Architecture) -> None:
        """Refuse what the engines cannot shard.

        Raises:
            BadInput: a size below 1, or a dimension that its group does not divide.
        """
        for name in ("tp", "dp", "ep", "pp", "cp"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name} is {getattr(self, name)}: a parallel group has at least one rank.")
        if self.expert_group_size % self.ep:
            raise BadInput(
                f"--ep {self.ep} does not divide the {self.expert_group_size} ranks (tp {self.tp} x dp {self.dp} x cp"
                f" {self.cp}) that share a layer's experts. Choose a divisor."
            )
        if self.pp > len(architecture.schedule):
            raise BadInput(f"--pp {self.pp}: {architecture.name} has only {len(architecture.schedule)} layers.")
        if self.cp > 1 and any(isinstance(layer.attention, GatedDeltaNet) for layer in architecture.layers):
            raise BadInput(f"--cp {self.cp}: {architecture.name} has recurrent layers, whose tokens cannot be split.")
        for what, size, group, ranks in _divisions(architecture, self):
            if size % ranks:
                raise BadInput(
                    f"{architecture.name}: {what} {size} is not divisible by {group} {ranks}. "
                    f"Choose one of {', '.join(str(d) for d in range(1, size + 1) if size % d == 0 and d <= 256)}."
                )


def _divisions(architecture: Architecture, plan: ParallelPlan) -> Iterator[tuple[str, int, str, int]]:
    """(what, its size, the group's name, the group's ranks) of every split of the plan."""
    for layer in architecture.layers:
        yield from _attention_divisions(layer, plan)
        feed_forward = layer.feed_forward
        if isinstance(feed_forward, DenseFeedForward):
            yield "intermediate_size", feed_forward.intermediate_size, "tp", plan.tp
            continue
        yield "num_experts", feed_forward.num_experts, "ep", plan.ep
        yield "moe intermediate_size", feed_forward.intermediate_size, "the experts' tp", plan.moe_tp
        if feed_forward.shared_intermediate_size:
            yield "shared expert's intermediate_size", feed_forward.shared_intermediate_size, "tp", plan.tp


def _attention_divisions(layer: Layer, plan: ParallelPlan) -> Iterator[tuple[str, int, str, int]]:
    attention = layer.attention
    if isinstance(attention, GatedDeltaNet):
        yield "linear attention's num_k_heads", attention.num_k_heads, "tp", plan.tp
        yield "linear attention's num_v_heads", attention.num_v_heads, "tp", plan.tp
        return
    yield "num_attention_heads", attention.num_heads, "tp", plan.tp
    if isinstance(attention, CompressedAttention):
        yield "o_groups", attention.o_groups, "tp", plan.tp
    if isinstance(attention, GroupedQueryAttention) and attention.num_kv_heads >= plan.tp:
        yield "num_key_value_heads", attention.num_kv_heads, "tp", plan.tp  # fewer heads than ranks: they are copied
