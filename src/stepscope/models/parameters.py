"""Parameters: how many elements a model's weights have, in all and per token.

total: every parameter of the transformers model: matrices, biases, norms and other vectors, embedding and lm_head.
matrices: matrices and their biases only. active: matrices that one token uses, input embedding included.
Source of what is counted: torch's meta device on the transformers models, 2026-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from stepscope.models.architecture import (
    Architecture,
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    LatentAttention,
    MoeFeedForward,
)
from stepscope.models.weight import head_weights, layer_weights, overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Elements by role (matrices only), and their sums."""

    by_role: tuple[tuple[str, int], ...]
    total: int
    active: int

    @property
    def matrices(self) -> int:
        """Without norms and other vectors."""
        return sum(count for _, count in self.by_role)


def count_parameters(architecture: Architecture) -> Parameters:
    """Parameters of the decoder; draft layers (MTP, DSpark) are not counted.

    >>> from stepscope.models.hf_config import read_model
    >>> count_parameters(read_model("llama-3.1-8b")).total
    8030261248
    """
    by_role: dict[str, int] = {}
    inactive = vectors = 0
    for layer in architecture.layers:
        count = architecture.counts[layer.layer_type]
        for weight in layer_weights(layer, architecture):
            by_role[weight.role] = by_role.get(weight.role, 0) + count * weight.params
            if weight.experts and isinstance(layer.feed_forward, MoeFeedForward):
                inactive += count * weight.params // weight.experts * (weight.experts - layer.feed_forward.top_k)
        vectors += count * (_attention_vectors(layer.attention) + 2 * architecture.hidden_size)
        if architecture.hc_mult > 1:
            vectors += count * 2 * (architecture.hc_mult * (2 + architecture.hc_mult) + 3)  # base, three scales
    for weight in head_weights(architecture):
        by_role[weight.role] = by_role.get(weight.role, 0) + weight.params
    vectors += architecture.hidden_size + (architecture.hc_mult + 1 if architecture.hc_mult > 1 else 0)
    embed = architecture.vocab_size * architecture.hidden_size
    if architecture.checkpoint.tie_word_embeddings:
        by_role["lm_head"] = 0
    by_role["embed"] = embed
    matrices = sum(by_role.values())
    total = matrices + vectors if architecture.num_parameters is None else architecture.num_parameters
    return Parameters(by_role=tuple(by_role.items()), total=total, active=matrices - inactive)


def _attention_vectors(a: Attention) -> int:
    """Elements of an attention's norms, sinks and other vectors."""
    match a:
        case GroupedQueryAttention():
            return (2 * a.head_dim if a.has_qk_norm else 0) + (a.num_heads if a.has_sink else 0)
        case LatentAttention():
            key_norm = 2 * a.indexer.head_dim if a.indexer is not None else 0  # LayerNorm: weight and bias
            return a.q_lora_rank + a.kv_lora_rank + key_norm
        case CompressedAttention():
            return a.q_lora_rank + a.head_dim + a.num_heads + _compressor_vectors(a)
        case GatedDeltaNet():
            return 2 * a.num_v_heads + a.v_head_dim + a.conv_dim * a.conv_kernel  # A_log, dt_bias, norm, conv1d
        case _:
            assert_never(a)


def _compressor_vectors(a: CompressedAttention) -> int:
    """The position embedding of a window (APE) and the norm of its row; the indexer's compressor has both too."""
    if not a.ratio:
        return 0
    width = a.ratio * overlap(a) + 1
    index = a.indexer.head_dim if a.indexer is not None else 0
    return width * (a.head_dim + index)
