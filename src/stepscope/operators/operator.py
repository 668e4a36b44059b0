"""Operator: one logical operation of one layer on one rank, with its exact work and its least data traffic.

m, n, k: [m, k] x [k, n] -> [m, n], `groups` times; flop = 2 m n k groups for a GEMM (elementwise work counts 0).
flop and bytes are of ONE execution; a step runs the operator `count` times (once per layer of its type).
bytes: each operand once, as if caches held everything that is reused; a lower bound of what memory moves.
An `Amount` is an int, exact, or an int64 array over many step shapes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Amount = int | Array

OperatorKind = Literal[
    "gemm",  # a projection
    "grouped_gemm",  # routed experts
    "batched_gemm",  # one small matrix per head or group, with weights (MLA absorption, V4 wo_a) or without (mHC)
    "attention",  # a core over all of the history, or a window of it
    "sparse_attention",  # a core over selected or compressed rows
    "indexer",  # scores of the history, and its top-k
    "recurrent",  # gated delta net core
    "convolution",
    "norm",
    "elementwise",
    "embedding",
    "state",  # compressor state read and written
    "collective",
]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape:
    """[m, k] x [k, n], `groups` independent times with m rows each."""

    m: Amount
    n: int
    k: int
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of one execution: weights, activations in and out, KV rows (index keys and state too) in and out."""

    weight: Amount = 0
    read: Amount = 0
    written: Amount = 0
    kv_read: Amount = 0
    kv_written: Amount = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes:
    """Names of `models/dtype.py`; `kv` is a layout name where the operator touches the cache."""

    weight: str | None = None
    activation: str = "bf16"
    output: str = "bf16"
    compute: str = "bf16"
    kv: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """What an attention core or indexer does, per rank.

    queries: query tokens; rows: requests; pairs: query-row pairs that are scored (causal, window, top-k applied);
    kv_rows: history rows that are read once; history: Σ kv_len, read or not. `phase`: the part of a mixed step that
    this operator runs.
    """

    phase: Literal["prefill", "decode"]
    num_heads: int
    num_kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    rows: Amount
    queries: Amount
    pairs: Amount
    kv_rows: Amount
    history: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """How a step's token copies fall on the experts of this rank.

    copies: Σ_e M_e of the rank's experts; active_experts: experts with at least one row (expected under a router
    model, exact under a histogram); rows_per_expert: M_e, None where only its expectation is known.
    """

    num_experts: int
    copies: Amount
    active_experts: float | Array
    rows_per_expert: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A collective over `group_size` ranks; `payload_bytes`: what one rank holds before (or after) it."""

    collective: Collective
    group: str
    group_size: int
    payload_bytes: Amount

    @property
    def wire_bytes(self) -> Amount:
        """Bytes that one rank sends in the usual ring or pairwise algorithm (NCCL's bus bytes)."""
        g = self.group_size
        if self.collective == "send_recv":
            return self.payload_bytes
        return (2 if self.collective == "all_reduce" else 1) * self.payload_bytes * (g - 1) // g


Work = AttentionWork | ExpertLoad | Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operation; `work` holds what only its kind has. What runs once a step has layer_type "model"."""

    layer_type: str
    count: int
    name: str
    role: str
    kind: OperatorKind
    flop: Amount
    traffic: Traffic
    dtypes: Dtypes
    shape: GemmShape | None = None
    work: Work | None = None

    @property
    def m(self) -> Amount | None:
        """Rows of the input."""
        return None if self.shape is None else self.shape.m

    @property
    def n(self) -> int | None:
        """Columns of the output."""
        return None if self.shape is None else self.shape.n

    @property
    def k(self) -> int | None:
        """The dimension that is summed over."""
        return None if self.shape is None else self.shape.k

    @property
    def bytes_read(self) -> Amount:
        """From device memory."""
        return self.traffic.weight + self.traffic.read + self.traffic.kv_read

    @property
    def bytes_written(self) -> Amount:
        """To device memory."""
        return self.traffic.written + self.traffic.kv_written

    @property
    def bytes_moved(self) -> Amount:
        """Read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def comm_bytes(self) -> Amount:
        """Sent over the network by this rank."""
        return self.work.wire_bytes if isinstance(self.work, Transfer) else 0

    @property
    def rows_per_expert(self) -> tuple[int, ...] | None:
        """M_e where it is known."""
        return self.work.rows_per_expert if isinstance(self.work, ExpertLoad) else None

    @property
    def intensity(self) -> float | None:
        """Flop per byte; None where nothing is moved, or over many shapes."""
        if isinstance(self.bytes_moved, int) and isinstance(self.flop, int) and self.bytes_moved:
            return self.flop / self.bytes_moved
        return None
