"""InferSim's measurements (alibaba/InferSim, Apache-2.0, bench_data/) of H20 and H800 against borrowed coefficients.

GEMMs are DeepGEMM's fp8 with block scales, without the activation's quantisation; MLA is FlashMLA's bf16 decode core
with 128 heads. Nothing is fitted here for the borrowed line: the coefficients are those that the package ships for a
like device. The second number fits 60 of the points and tests on the rest, as a user with a card would.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kernel_cases import Group, core_group, device_of

from stepscope.cost import gemm_model
from stepscope.cost.core_model import CoreWork, core_seconds
from stepscope.cost.gemm_model import GemmWork
from stepscope.cost.hardware import Hardware, load_hardware
from stepscope.cost.kernel_model import load_coefficients
from stepscope.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]
LATENT_ROW, LATENT_DIM, HEADS = 576, 512, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrowed:
    """One table: the borrowed prediction in seconds, and the group that a user would fit."""

    name: str
    predicted: Array
    group: Group


def borrowed_lines(folder: Path) -> Iterator[Borrowed]:
    """Every table below `bench_data` that a shipped form speaks of.

    Raises:
        BadInput: the folder holds no such tables.
    """
    if not (folder / "gemm").is_dir():
        raise BadInput(f"{folder}: has no gemm/ folder; expected InferSim's bench_data.")
    for name in ("h800", "h20"):
        hardware = load_hardware(name)
        yield _gemms(folder / "gemm" / name / "data.csv", hardware)
        yield _mla(folder / "mla" / "decode" / name / "128-512-64.csv", hardware)


def _columns(path: Path, *names: str) -> list[Array]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [np.array([float(row[name]) for row in rows]) for name in names]


def _gemms(path: Path, hardware: Hardware) -> Borrowed:
    m, k, n, us = _columns(path, "m", "k", "n", "latency_us")
    device, fits = device_of(hardware, "fp8"), load_coefficients(hardware)
    assert fits is not None
    assert hardware.coefficients is not None
    model = fits.find("gemm.fp8_block")
    assert model is not None
    here = model.on_another_device(device_of(load_hardware(hardware.coefficients), "fp8"), device)
    work = GemmWork.from_shape(m, n, k, x_bytes=1.0, w_bytes=1.0)
    bound = np.maximum(2 * m * n * k / device.flop_per_s, (m * k + n * k + 2 * m * n) / device.bytes_per_s)

    def coefficients(rows: Array) -> Array:
        return gemm_model.fit_gemm(work.part(rows), us[rows] * 1e-6, device)

    group = Group(
        key="fp8_block",
        seconds=us * 1e-6,
        bound=bound,
        fit=lambda rows: lambda r: gemm_model.gemm_seconds(coefficients(rows), work.part(r), device),
        coefficients=coefficients,
        features={},
        source="InferSim",
    )
    return Borrowed(name=f"GEMM {hardware.name} fp8_block, InferSim", predicted=here.seconds(work, device), group=group)


def _mla(path: Path, hardware: Hardware) -> Borrowed:
    b, seen, us = _columns(path, "batch_size", "kv_len", "latency_us")
    device, fits = device_of(hardware, "bf16"), load_coefficients(hardware)
    assert fits is not None
    model = fits.find("core.mla_decode_bf16")
    assert model is not None
    work = CoreWork(
        flop=2.0 * HEADS * (2 * LATENT_DIM + LATENT_ROW - LATENT_DIM) * b * seen,
        moved_bytes=2 * b * seen * LATENT_ROW + 2 * b * HEADS * (LATENT_ROW + LATENT_DIM),
        blocks=b * HEADS / 64,
        walkers=0 * b,
    )
    group = core_group("mla_decode_bf16", work, us * 1e-6, device, "InferSim")
    predicted = core_seconds(np.array(model.coefficients), work, device)
    return Borrowed(name=f"MLA decode {hardware.name} bf16, InferSim", predicted=predicted, group=group)
