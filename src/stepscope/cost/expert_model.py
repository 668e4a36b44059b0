"""Seconds of a layer's routed experts (permute, W13, activation, W2, combine): by active experts, not by tokens.

H, I: hidden and per-rank intermediate size; E: experts of this rank; A: those with at least one row; T: tokens,
K: top_k; R: rows of this rank's experts (Σ_e M_e); b: bytes per weight element; F, B: the device's rates.
  compute = 6 (R + padding_rows A) H I / (F compute_efficiency);  memory = 3 A H I b / (B bandwidth_efficiency)
  t = launch_s + (compute^p + memory^p)^(1/p) + expert_s A
      + (row_traffic 2 R (2 H + 3 I) + copy_traffic 2 T K H + local_traffic 2 T min(K, E) H) / B
`copy_traffic`: permute and combine kernels that handle every copy, `local_traffic`: those that size their buffers by
the rank's experts. All are linear or of degree one, so W13 takes 2/3 and W2 1/3 of the time.
A of a balanced router is min(E, R): measured tables of evenly routed tokens say so, not E (1 - (1 - K/E)^T).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stepscope.cost.gemm_model import Device, smooth_max
from stepscope.cost.least_squares import Guess, fit_positive

Array = np.ndarray[Any, np.dtype[Any]]

NAMES = (
    "launch_s",
    "compute_efficiency",
    "bandwidth_efficiency",
    "sharpness",
    "padding_rows",
    "expert_s",
    "row_traffic",
    "copy_traffic",
    "local_traffic",
)
_START = (3e-5, 0.6, 0.8, 2.0, 16.0, 1e-7, 1.0, 0.3, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWork:
    """Numbers or arrays of one length, named as in the legend; `w_bytes` is one number."""

    hidden_size: Array
    intermediate_size: Array
    num_experts: Array
    active_experts: Array
    rows: Array
    copies: Array  # T K
    local_copies: Array  # T min(K, E)
    w_bytes: float = 2.0

    def part(self, rows: Array) -> ExpertWork:
        """Some of the shapes."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "w_bytes"}
        return ExpertWork(**arrays, w_bytes=self.w_bytes)


def expert_seconds(c: Array, work: ExpertWork, device: Device) -> Array:
    """The formula above; nothing runs, and nothing is paid, where no row arrived."""
    elements = work.hidden_size * work.intermediate_size
    compute = 6 * (work.rows + c[4] * work.active_experts) * elements / (device.flop_per_s * c[1])
    memory = 3 * work.active_experts * elements * work.w_bytes / (device.bytes_per_s * c[2])
    inside = 2 * work.rows * (2 * work.hidden_size + 3 * work.intermediate_size)
    moved = c[6] * inside + 2 * work.hidden_size * (c[7] * work.copies + c[8] * work.local_copies)
    seconds = c[0] + smooth_max(compute, memory, c[3]) + c[5] * work.active_experts + moved / device.bytes_per_s
    return np.asarray(np.where(work.rows > 0, seconds, 0.0))


def fit_experts(work: ExpertWork, seconds: Array, device: Device) -> Array:
    """Coefficients of one model's experts on one kernel; 60 points over tokens, tp and ep are enough."""
    guess = Guess(start=_START, reach=5.0, least=((3, 1.0),))
    return fit_positive(lambda c: expert_seconds(c, work, device), seconds, guess)
