"""Seconds of what works on the history: attention cores and indexers, whole attention modules, collectives.

Core (one kernel):  t = launch_s + (compute^p + memory^p)^(1/p) + block_s a,  memory = bytes / (B bandwidth_efficiency),
  compute = w flop / (F compute_efficiency),  w = ceil(s / C) C / s, C: cores: blocks that walk a history each on a core
  of its own (s of them: query blocks in prefill, queries of a sparse core) come in whole waves; s = 0, and w = 1, where
  the history itself is split over cores, as decode kernels do. a: blocks that are set up one by one.
Module (projections, indexer, selection, core of one layer in decode), B: rows, S: context_len of each row,
  cap: rows that selection or a window leaves (topk, topk x ratio, window; S where nothing is left out):
  t = c_0 + c_1 B + c_2 log2 B + c_3 min(S, cap) + c_4 B min(S, cap) + c_5 B S
Transfer: t = c_0 + c_1 wire_bytes, per collective and group size.
All coefficients are >= 0. Source of the affine form: measured modules bend at the cap and nowhere else (docs/cost.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.cost.gemm_model import Device, smooth_max
from stepscope.cost.least_squares import Guess, fit_linear, fit_positive

Array = np.ndarray[Any, np.dtype[Any]]

CORE_NAMES = ("launch_s", "compute_efficiency", "bandwidth_efficiency", "sharpness", "block_s")
MODULE_NAMES = ("base_s", "row_s", "row_doubling_s", "kept_s", "row_kept_s", "row_context_s")
TRANSFER_NAMES = ("base_s", "byte_s")
_CORE_START = (5e-6, 0.4, 0.7, 2.0, 1e-8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreWork:
    """Flop, bytes, blocks to set up (a) and walkers (s) of each execution."""

    flop: Array
    moved_bytes: Array
    blocks: Array
    walkers: Array

    def part(self, rows: Array) -> CoreWork:
        """Some of the executions."""
        return CoreWork(
            flop=self.flop[rows],
            moved_bytes=self.moved_bytes[rows],
            blocks=self.blocks[rows],
            walkers=self.walkers[rows],
        )


def core_seconds(c: Array, work: CoreWork, device: Device) -> Array:
    """The core's formula; 0 where there is no work."""
    walkers = np.where(np.asarray(work.walkers) > 0, work.walkers, device.num_cores)
    waves = np.ceil(walkers / device.num_cores) * device.num_cores / walkers
    compute = waves * work.flop / (device.flop_per_s * c[1])
    memory = work.moved_bytes / (device.bytes_per_s * c[2])
    busy = smooth_max(np.asarray(compute, dtype=float), np.asarray(memory, dtype=float), c[3])
    seconds = c[0] + busy + c[4] * work.blocks
    return np.asarray(np.where(np.asarray(work.moved_bytes) > 0, seconds, 0.0))


def fit_core(work: CoreWork, seconds: Array, device: Device) -> Array:
    """Coefficients of one kernel."""
    guess = Guess(start=_CORE_START, reach=5.0, least=((3, 1.0),))
    return fit_positive(lambda c: core_seconds(c, work, device), seconds, guess)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleWork:
    """Decode rows of each execution, and over them Σ min(context_len, cap) and Σ context_len."""

    rows: Array
    kept_tokens: Array
    context_tokens: Array


def equal_rows(rows: Any, context_len: Any, cap: float) -> ModuleWork:
    """Rows of one length, as the tables measure them."""
    b, s = np.asarray(rows, dtype=float), np.asarray(context_len, dtype=float)
    return ModuleWork(rows=b, kept_tokens=b * np.minimum(s, cap), context_tokens=b * s)


def module_terms(work: ModuleWork) -> Array:
    """The six terms of a module, one execution a line; rows of several lengths count with their mean and sums.

    >>> module_terms(equal_rows([4], [100], 64)).tolist()
    [[1.0, 4.0, 2.0, 64.0, 256.0, 400.0]]
    """
    b = np.asarray(work.rows, dtype=float)
    one = np.maximum(b, 1)
    parts = (np.ones_like(b), b, np.log2(one), work.kept_tokens / one, work.kept_tokens, work.context_tokens)
    return np.stack(np.broadcast_arrays(*parts), axis=-1)


def module_seconds(c: Array, work: ModuleWork) -> Array:
    """The module's formula; 0 where there is no row."""
    return np.asarray(np.where(np.asarray(work.rows) > 0, module_terms(work) @ c, 0.0))


def fit_module(rows: Any, context_len: Any, seconds: Array, cap: float) -> Array:
    """Coefficients of one module (model, heads per rank, dtypes); 15 points are enough."""
    return fit_linear(module_terms(equal_rows(rows, context_len, cap)), seconds)


def transfer_seconds(c: Array, wire_bytes: Any) -> Array:
    """The transfer's formula; 0 where nothing is sent."""
    sent = np.asarray(wire_bytes, dtype=float)
    return np.asarray(np.where(sent > 0, c[0] + c[1] * sent, 0.0))


def fit_transfer(wire_bytes: Any, seconds: Array) -> Array:
    """Coefficients of one collective over one group size."""
    sent = np.asarray(wire_bytes, dtype=float)
    return fit_linear(np.stack([np.ones_like(sent), sent], axis=1), seconds)
