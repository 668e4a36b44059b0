"""Memory: a device's memory, less a model's weights and activations -> the KV blocks that an engine can hold.

num_blocks = (capacity x utilisation - weights - activations - reserve) / bytes of a block, of the fullest rank.
weights: matrices at their formats with block scales, sharded as the plan says, embedding and vocabulary projection in
bf16; a tied one once. activations: what one layer's widest GEMM reads and writes at the step's largest token count,
the residual stream twice, and fp32 logits of max_num_seqs rows: a stand-in for the engine's profiling run, which an
engine's log replaces (--num-blocks). reserve: windows and fixed states of max_num_seqs requests.
A rank keeps 1 / tp of the KV heads (at least one) and, of a latent cache, all of it; cp and pp divide it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

from stepscope.cost.hardware import CAPACITY
from stepscope.errors import BadInput
from stepscope.models.architecture import GroupedQueryAttention
from stepscope.models.dtype import matrix_bytes
from stepscope.models.kv_layout import kv_bytes_per_token, state_bytes_per_request, window_bytes_per_request
from stepscope.models.weight import head_weights, layer_weights
from stepscope.operators.gemm import shard

if TYPE_CHECKING:
    from stepscope.cost.hardware import Hardware
    from stepscope.models.architecture import Architecture, Layer
    from stepscope.operators.deployment import Deployment

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One device's memory in bytes; `kv_bytes` is what is left for blocks. `source`: of the capacity."""

    capacity_bytes: int
    utilisation: float
    weight_bytes: int
    activation_bytes: int
    reserved_bytes: int
    token_bytes: float
    block_bytes: int
    source: str

    @property
    def kv_bytes(self) -> int:
        """Left for blocks; negative where the model does not fit."""
        held = self.weight_bytes + self.activation_bytes + self.reserved_bytes
        return floor(self.capacity_bytes * self.utilisation) - held

    @property
    def num_blocks(self) -> int:
        """Whole blocks that fit."""
        return max(self.kv_bytes // self.block_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What the engine's options make of it."""

    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    utilisation: float = 0.9


def plan_memory(architecture: Architecture, deployment: Deployment, hardware: Hardware, use: MemoryUse) -> Memory:
    """How a device's memory is divided.

    Raises:
        BadInput: the hardware has no capacity, or the model leaves no room for two blocks: the numbers are given.
    """
    figure = hardware.rates.get(("advertised", CAPACITY)) or hardware.rates.get(("achieved", CAPACITY))
    if figure is None:
        raise BadInput(f"{hardware.name} has no memory capacity in its file: give --num-blocks, as the engine logs it.")
    if not 0 < use.utilisation <= 1:
        raise BadInput(f"the memory utilisation is {use.utilisation}: give a fraction above 0, at most 1.")
    token_bytes = _token_bytes(architecture, deployment)
    memory = Memory(
        capacity_bytes=int(figure.value),
        utilisation=use.utilisation,
        weight_bytes=weight_bytes(architecture, deployment),
        activation_bytes=_activation_bytes(architecture, deployment, use),
        reserved_bytes=_reserved_bytes(architecture, deployment) * use.max_num_seqs,
        token_bytes=token_bytes,
        block_bytes=max(ceil(token_bytes * use.block_size), 1),
        source=figure.source,
    )
    if memory.num_blocks < 2:
        raise BadInput(_does_not_fit(architecture, deployment, hardware, memory))
    return memory


def weight_bytes(architecture: Architecture, deployment: Deployment) -> int:
    """Bytes of the weights on the fullest rank; stages of a pipeline hold equal shares of the layers.

    >>> from stepscope.models.hf_config import read_model
    >>> from stepscope.operators.deployment import Deployment
    >>> round(weight_bytes(read_model("llama-3.1-8b"), Deployment()) / 1e9, 2)
    16.06
    """
    plan = deployment.plan
    layers = 0
    for layer in architecture.layers:
        own = sum(
            matrix_bytes(deployment.dtypes(weight, architecture).weight or "bf16", shard(weight, plan, heads).params)
            for heads in (_kv_heads(layer),)
            for weight in layer_weights(layer, architecture)
        )
        layers += architecture.counts[layer.layer_type] * own
    head = sum(
        matrix_bytes(deployment.dtypes(weight, architecture).weight or "bf16", shard(weight, plan).params)
        for weight in head_weights(architecture)
    )
    if not architecture.checkpoint.tie_word_embeddings:
        head += matrix_bytes("bf16", ceil(architecture.vocab_size / plan.tp) * architecture.hidden_size)
    return ceil(layers / plan.pp) + head


def _kv_heads(layer: Layer) -> int:
    attention = layer.attention
    return attention.num_kv_heads if isinstance(attention, GroupedQueryAttention) else 0


def _token_bytes(architecture: Architecture, deployment: Deployment) -> float:
    """Cache bytes of one token on one rank: only grouped-query heads are split by tp, at least one stays."""
    whole = float(kv_bytes_per_token(architecture, deployment.kv))
    plan = deployment.plan
    return whole * _head_share(architecture, plan.tp) / (plan.cp * plan.pp)


def _head_share(architecture: Architecture, tp: int) -> float:
    """What a rank keeps of the KV heads; all layers of a model have one kind of cache."""
    heads = [a.num_kv_heads for layer in architecture.layers if isinstance(a := layer.attention, GroupedQueryAttention)]
    return max(max(1, count // tp) / count for count in heads) if heads else 1.0


def _activation_bytes(architecture: Architecture, deployment: Deployment, use: MemoryUse) -> int:
    plan, tokens = deployment.plan, use.max_num_batched_tokens
    widest = 0
    for layer in architecture.layers:
        for weight in layer_weights(layer, architecture):
            own = shard(weight, plan, _kv_heads(layer))
            copies = 1 if not weight.experts else _top_k(layer)
            widest = max(widest, copies * (own.k * own.groups + own.n * own.groups))
    streams = 2 * architecture.hidden_size * architecture.hc_mult
    logits = 4 * use.max_num_seqs * architecture.vocab_size  # gathered from all ranks, fp32
    return 2 * tokens * (widest + streams) + logits


def _top_k(layer: Layer) -> int:
    return int(getattr(layer.feed_forward, "top_k", 1))


def _reserved_bytes(architecture: Architecture, deployment: Deployment) -> int:
    """Windows and states of one request on one rank."""
    share = _head_share(architecture, deployment.plan.tp)
    windows = window_bytes_per_request(architecture, deployment.kv) * share
    return ceil((windows + state_bytes_per_request(architecture) / deployment.plan.tp) / deployment.plan.pp)


def _does_not_fit(architecture: Architecture, deployment: Deployment, hardware: Hardware, memory: Memory) -> str:
    plan = deployment.plan
    return (
        f"{architecture.name} does not fit on {hardware.name} with tp {plan.tp}, ep {plan.ep}, pp {plan.pp}: of "
        f"{memory.capacity_bytes / _GIB:.1f} GiB a device, {memory.utilisation:g} of it used, weights take "
        f"{memory.weight_bytes / _GIB:.1f} GiB, activations {memory.activation_bytes / _GIB:.1f} GiB, windows and "
        f"states {memory.reserved_bytes / _GIB:.1f} GiB: {memory.kv_bytes / _GIB:.1f} GiB are left for KV blocks of "
        f"{memory.block_bytes / _GIB:.4f} GiB. Raise --tp, --ep or --pp, choose smaller weights, or lower "
        "--max-num-batched-tokens or --max-num-seqs."
    )
