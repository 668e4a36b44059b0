"""Seconds of one dense GEMM [m, k] x [k, n] -> [m, n]: the roofline with tiles, waves, split-K and launch on top.

F, B: flop_per_s and bytes_per_s of the device (advertised); C: its cores; b_x, b_w, b_y: bytes per element.
For each tile (t_m, t_n) and split s of K:  blocks = ceil(m / t_m) ceil(n / t_n) s,  waves = ceil(blocks / C)
  compute = waves 2 t_m t_n (k / s + overhead_k) / (F / C compute_efficiency)
  memory  = (b_x m k + b_w k n + b_y m n + 4 m n s [s > 1]) / (B bandwidth_efficiency f),
            f = a (C + idle_cores) / (C (a + idle_cores)), a = min(C, blocks): few busy cores do not fill the memory
  t = launch_s + min over tiles and splits of (compute^p + memory^p)^(1/p) + split_s [s > 1],   p = sharpness >= 1
Where the activation is quantised by a kernel of its own (`has_quantisation`): + quantise_launch_s + quantise_traffic
3 m k / B, and compute x (1 + misaligned) where m > 16 is no multiple of 16. Not monotone in m there, and tables agree.
Sources: the terms' shapes, NVIDIA "Matrix Multiplication Background" (tiles, waves); their weight, fits (docs/cost.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.cost.least_squares import Guess, fit_positive

Array = np.ndarray[Any, np.dtype[Any]]

TILES = ((64, 64), (128, 128), (128, 256))
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
LEAST_K = 128  # of one split
VARIANTS = tuple((*tile, split) for tile in TILES for split in SPLITS)
FEW = 512  # shapes up to which all variants are computed at once

NAMES = (
    "launch_s",
    "compute_efficiency",
    "bandwidth_efficiency",
    "sharpness",
    "overhead_k",
    "split_s",
    "idle_cores",
    "quantise_launch_s",
    "quantise_traffic",
    "misaligned",
)
NUM_PLAIN = 7  # without the three of quantisation
_START = (2e-6, 0.8, 0.85, 3.0, 100.0, 2e-6, 20.0, 1e-6, 1.0, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the models need of a hardware: rates for the dtype at hand, and how many cores share them."""

    flop_per_s: float
    bytes_per_s: float
    num_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmWork:
    """Shapes (numbers, or arrays of one length) and bytes per element of input, weight and output."""

    m: Array
    n: Array
    k: Array
    x_bytes: float = 2.0
    w_bytes: float = 2.0
    y_bytes: float = 2.0
    has_quantisation: bool = False

    @classmethod
    def from_shape(cls, m: Any, n: Any, k: Any, **bytes_per_element: Any) -> GemmWork:
        """Anything that numpy makes floats of."""
        rows, columns, depth = (np.asarray(value, dtype=float) for value in (m, n, k))
        return cls(m=rows, n=columns, k=depth, **bytes_per_element)

    def part(self, rows: Array) -> GemmWork:
        """Some of the shapes."""
        return GemmWork(
            m=self.m[rows],
            n=self.n[rows],
            k=self.k[rows],
            x_bytes=self.x_bytes,
            w_bytes=self.w_bytes,
            y_bytes=self.y_bytes,
            has_quantisation=self.has_quantisation,
        )


def gemm_seconds(coefficients: Array, work: GemmWork, device: Device) -> Array:
    """The formula above."""
    m, k = np.maximum(work.m, 1), work.k
    shape = np.broadcast(m, work.n, k).shape
    if m.size <= FEW and len(shape) <= 1:
        column = [
            np.array(values, dtype=float).reshape(-1, *(1 for _ in shape)) for values in zip(*VARIANTS, strict=True)
        ]
        best = np.min(_variant(coefficients, work, device, column), axis=0)
    else:
        best = np.full(shape, np.inf)
        for variant in VARIANTS:
            if variant[2] == 1 or np.any(k / variant[2] >= LEAST_K):
                best = np.minimum(best, _variant(coefficients, work, device, [np.asarray(v) for v in variant]))
    seconds = coefficients[0] + best
    if work.has_quantisation:
        seconds = seconds + coefficients[7] + coefficients[8] * 3 * m * k / device.bytes_per_s
    return np.asarray(seconds)


def _variant(c: Array, work: GemmWork, device: Device, variant: list[Array]) -> Array:
    """Seconds with one tile and split, or with several along the first axis."""
    tile_m, tile_n, split = variant
    m, n, k = np.maximum(work.m, 1), work.n, work.k
    is_split = split > 1
    blocks = np.ceil(m / tile_m) * np.ceil(n / tile_n) * split
    core_flop_per_s = device.flop_per_s / device.num_cores * c[1]
    compute = np.ceil(blocks / device.num_cores) * (2 * tile_m * tile_n) * (k / split + c[4]) / core_flop_per_s
    if work.has_quantisation:
        compute = compute * np.where((m > 16) & (m % 16 > 0), 1 + c[9], 1.0)
    moved = work.x_bytes * m * k + work.w_bytes * k * n + work.y_bytes * m * n + 4 * m * n * (split * is_split)
    busy = np.minimum(blocks, device.num_cores)
    filled = busy / (busy + c[6]) * ((device.num_cores + c[6]) / device.num_cores)
    seconds = smooth_max(compute, moved / (device.bytes_per_s * c[2] * filled), c[3])
    return np.asarray(np.where(is_split & (k / split < LEAST_K), np.inf, seconds + c[5] * is_split))


def smooth_max(a: Array, b: Array, sharpness: float) -> Array:
    """(a^p + b^p)^(1/p): the sum of the two at p = 1, their maximum as p grows; a and b are not negative.

    >>> float(smooth_max(np.array(3.0), np.array(4.0), 2.0)), float(smooth_max(np.array(3.0), np.array(4.0), 1.0))
    (5.0, 7.0)
    """
    larger = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.maximum(larger, 1e-300)
    return np.asarray(larger * (1 + ratio**sharpness) ** (1 / sharpness))


def fit_gemm(work: GemmWork, seconds: Array, device: Device) -> Array:
    """Coefficients of measured GEMMs; 60 points of one dtype and kernel are enough."""
    used = len(NAMES) if work.has_quantisation else NUM_PLAIN
    guess = Guess(start=_START[:used], least=((3, 1.0),))
    return fit_positive(lambda c: gemm_seconds(c, work, device), seconds, guess)
