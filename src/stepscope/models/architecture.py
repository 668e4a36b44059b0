"""Architecture: the named dimensions of a decoder, and which kind of layer stands where.

A layer is one attention (GQA, MLA, V4's compressed history, GDN) and one feed-forward (dense or MoE). Layers that are
alike share one `Layer` record and its `layer_type`; `schedule` names the type of every layer in order.
Dimensions carry the names of Hugging Face's configurations; lengths are in tokens, sizes in elements.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stepscope.models.weight import Weight

MoeRouting = Literal["learned", "hash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The scorer that picks `topk` history rows per query (DSA, V4's C4 layers)."""

    num_heads: int
    head_dim: int
    topk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueryAttention:
    """MHA, GQA and MQA. `window`: rows seen including the query itself, None where all of the history is."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    has_sink: bool = False
    has_bias: bool = False
    has_output_gate: bool = False
    has_qk_norm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """MLA. `topk`: history rows a query attends to (DSA), None for all; `indexer`: None where indices are reused."""

    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    topk: int | None = None
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """DeepSeek-V4: a sliding window, and one compressed row per `ratio` tokens (0: window only)."""

    num_heads: int
    head_dim: int
    rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratio: int = 0
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Linear attention with a recurrent state per value head; prefill runs in chunks of `chunk_len` tokens."""

    num_k_heads: int
    num_v_heads: int
    k_head_dim: int
    v_head_dim: int
    conv_kernel: int
    chunk_len: int = 64

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: q, k and v."""
        return 2 * self.num_k_heads * self.k_head_dim + self.num_v_heads * self.v_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeedForward:
    """A gated MLP."""

    intermediate_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFeedForward:
    """Routed experts, `top_k` per token, beside an optional shared expert (`shared_intermediate_size` 0: none)."""

    num_experts: int
    top_k: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    has_shared_gate: bool = False
    has_bias: bool = False
    routing: MoeRouting = "learned"


Attention = GroupedQueryAttention | LatentAttention | CompressedAttention | GatedDeltaNet
FeedForward = DenseFeedForward | MoeFeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of decoder layer. `weights`: its matrices where they were traced; None: the family's rule has them."""

    layer_type: str
    attention: Attention
    feed_forward: FeedForward
    weights: tuple[Weight, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What proposes tokens: DeepSeek's MTP, or V4's DSpark stages. `layer` runs `num_stages` times per draft step.

    `target_layers`: hidden states that DSpark reads (0 for MTP); `markov_rank`: rank of its token-pair head.
    """

    kind: Literal["mtp", "dspark"]
    layer: Layer
    num_stages: int
    block_len: int = 1
    target_layers: int = 0
    markov_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How the published weights are stored; dtypes by the names of `models/dtype.py`."""

    weights: str
    experts: str
    tie_word_embeddings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder. `hc_mult`: residual streams of V4's mHC, 1 elsewhere.

    `max_context_len`: the longest kv_len that the model is published for; `native_context_len`: without rope scaling.
    `keys`: (dimension, the config key that gave it, or how it was derived). Of a traced model: `num_parameters` as
    torch counts them, and `unplaced`, the operators that no rule knows.
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    max_context_len: int
    native_context_len: int
    layers: tuple[Layer, ...]
    schedule: tuple[str, ...]
    checkpoint: Checkpoint
    hc_mult: int = 1
    draft: Draft | None = None
    keys: tuple[tuple[str, str], ...] = ()
    num_parameters: int | None = None
    unplaced: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Layers of each type, in the order of `layers`."""
        counter = Counter(self.schedule)
        return {layer.layer_type: counter[layer.layer_type] for layer in self.layers}
