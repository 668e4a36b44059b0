"""Families: which operators a calibration scales by one factor, because one kind of kernel runs them.

A measured run separates a handful of factors, not one for each operator. Operators of a family share what bends their
time: dense matrices with their tokens, experts with the copies that reach them, cores with the history that they walk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stepscope.operators.operator import Operator, OperatorKind

Family = Literal["dense_gemm", "experts", "attention", "indexer", "compressor", "recurrent", "collective", "stream"]

FAMILIES: tuple[Family, ...] = (
    "dense_gemm",  # projections, dense feed-forward, shared experts, router, head, absorbed latent matrices
    "experts",  # routed experts
    "attention",  # cores, over all of the history, a window, or selected rows
    "indexer",  # scores of the history, their top-k, and the projections that only they need
    "compressor",  # compressed history: its projections and its state
    "recurrent",  # gated delta net: its core and convolution
    "collective",  # between ranks
    "stream",  # norms, activations, copies, embeddings, cache writes
)


_BY_KIND: dict[OperatorKind, Family] = {
    "gemm": "dense_gemm",
    "batched_gemm": "dense_gemm",
    "grouped_gemm": "experts",
    "attention": "attention",
    "sparse_attention": "attention",
    "indexer": "indexer",
    "state": "compressor",
    "recurrent": "recurrent",
    "convolution": "recurrent",
    "collective": "collective",
    "norm": "stream",
    "elementwise": "stream",
    "embedding": "stream",
}
_BY_ROLE: dict[str, Family] = {"indexer": "indexer", "compressor": "compressor"}  # of projections


def family_of(operator: Operator) -> Family:
    """The family of an operator: by its role where that names one, else by its kind."""
    return _BY_ROLE.get(operator.role, _BY_KIND[operator.kind])
