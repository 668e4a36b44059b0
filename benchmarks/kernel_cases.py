"""What `kernels.py` fits and tests: each measured table as shapes, flop, bytes and seconds, group by group.

A group is what one user would calibrate: one kernel of one dtype, for MoE one model's experts, for modules one model's
attention with its heads per rank and dtypes. Rows of one point are reduced to their median. The tables are not ours
and are not copied: they are read from the optional package where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.cost import core_model, expert_model, gemm_model
from stepscope.cost.core_model import CoreWork
from stepscope.cost.expert_model import ExpertWork
from stepscope.cost.gemm_model import Device, GemmWork
from stepscope.cost.hardware import Hardware, load_hardware
from stepscope.cost.measured import GEMM, MOE, Layout, find_table, read_rows

Array = np.ndarray[Any, np.dtype[Any]]
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125, "int4": 0.515625}
ACTIVATION_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 2.0, "int4": 2.0}
QUANTISED = ("fp8", "fp8_block", "nvfp4")  # the tables time the kernel that quantises the activation, too
TOPK = {"deepseek-ai/DeepSeek-V3.2": 2048, "zai-org/GLM-5": 2048}
HIDDEN_SIZE = {"V3": 7168, "V3.2": 7168, "GLM-5": 6144, "V4-Flash": 4096, "V4-Pro": 7168}


def framework_of(dtype: str) -> str:
    """Whose GEMM table: vLLM's block-scaled one times eager launches of 40 us and more, which no graph pays."""
    return "sglang" if dtype == "fp8_block" else "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points of one calibration. `fit(rows)` gives a predictor of rows; `bound` is the plain roofline."""

    key: str
    seconds: Array
    bound: Array
    fit: Callable[[Array], Callable[[Array], Array]]
    coefficients: Callable[[Array], Array]
    features: dict[str, Array]
    source: str


def device_of(hardware: Hardware, dtype: str) -> Device:
    cores = hardware.num_cores
    assert cores is not None
    return Device(flop_per_s=hardware.flop_per_s(dtype), bytes_per_s=hardware.bytes_per_s(), num_cores=cores)


def medians(rows: dict[str, Array], keys: tuple[str, ...]) -> dict[str, Array]:
    """One row per combination of keys, its latency the median, in seconds."""
    codes = [np.unique(rows[k].astype(str), return_inverse=True)[1] for k in keys]
    flat = np.ravel_multi_index(codes, tuple(int(c.max()) + 1 for c in codes))
    order = np.lexsort((rows["latency"], flat))
    first = np.flatnonzero(np.r_[True, flat[order][1:] != flat[order][:-1]])
    last = np.r_[first[1:], len(order)] - 1
    middle = (rows["latency"][order[(first + last) // 2]] + rows["latency"][order[(first + last + 1) // 2]]) / 2
    return {k: rows[k][order[first]] for k in keys} | {"seconds": middle * 1e-3}


def chosen(rows: dict[str, Array], mask: Array) -> dict[str, Array]:
    return {name: values[mask] for name, values in rows.items()}


def _table(root: Path, system: str, layout: Layout, framework: str, columns: tuple[str, ...]) -> tuple[Any, str]:
    path = find_table(root, system, layout, framework)
    rows = read_rows(path, columns)
    return chosen(rows, rows["latency"] > 0), "/".join(path.parts[-5:])


def gemm_groups(root: Path, system: str, dtype: str, framework: str = "vllm", least: int = 256) -> Iterator[Group]:
    """All shapes with n, k >= least of one dtype."""
    rows, source = _table(root, system, GEMM, framework, (*GEMM.keys, *GEMM.axes))
    rows = chosen(rows, (rows["gemm_dtype"] == dtype) & (rows["n"] >= least) & (rows["k"] >= least))
    if not len(rows["latency"]):
        return
    point = medians(rows, ("m", "n", "k"))
    device = device_of(load_hardware(system), dtype)
    work = GemmWork.from_shape(
        point["m"],
        point["n"],
        point["k"],
        x_bytes=ACTIVATION_BYTES[dtype],
        w_bytes=WEIGHT_BYTES[dtype],
        has_quantisation=dtype in QUANTISED,
    )
    moved = work.x_bytes * work.m * work.k + work.w_bytes * work.k * work.n + work.y_bytes * work.m * work.n
    bound = np.maximum(2 * work.m * work.n * work.k / device.flop_per_s, moved / device.bytes_per_s)
    seconds = point["seconds"]

    def coefficients(rows_: Array) -> Array:
        return gemm_model.fit_gemm(work.part(rows_), seconds[rows_], device)

    def fit(rows_: Array) -> Callable[[Array], Array]:
        c = coefficients(rows_)
        return lambda r: gemm_model.gemm_seconds(c, work.part(r), device)

    features = {"m": work.m, "n": work.n, "k": work.k}
    yield Group(
        key=dtype, seconds=seconds, bound=bound, fit=fit, coefficients=coefficients, features=features, source=source
    )


_MOE_POINT = (
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "kernel_source",
    "moe_tp_size",
    "moe_ep_size",
    "num_tokens",
)


def moe_groups(
    root: Path, system: str, dtype: str, framework: str = "vllm", *, per_model: bool = True, least: int = 80
) -> Iterator[Group]:
    """Evenly routed experts: one group per model and kernel, or one for all models of a kernel."""
    rows, source = _table(root, system, MOE, framework, (*MOE.keys, *MOE.axes, "kernel_source"))
    rows = chosen(rows, (rows["moe_dtype"] == dtype) & (rows["distribution"] == "balanced"))
    if not len(rows["latency"]):
        return
    point = medians(rows, _MOE_POINT)
    names = _MOE_POINT[:5] if per_model else ("kernel_source",)
    labels = np.array(["/".join(str(v) for v in values) for values in zip(*(point[n] for n in names), strict=True)])
    device = device_of(load_hardware(system), dtype)
    for label in np.unique(labels):
        part = chosen(point, labels == label)
        if len(part["seconds"]) >= least:
            yield _moe_group(str(label), part, device, dtype, source)


def _moe_group(key: str, p: dict[str, Array], device: Device, dtype: str, source: str) -> Group:
    tokens, top_k = p["num_tokens"].astype(float), p["topk"].astype(float)
    experts = p["num_experts"] / p["moe_ep_size"]
    rows = tokens * top_k / p["moe_ep_size"]
    work = ExpertWork(
        hidden_size=p["hidden_size"].astype(float),
        intermediate_size=p["inter_size"] / p["moe_tp_size"],
        num_experts=experts,
        active_experts=np.minimum(experts, np.maximum(rows, 1)),
        rows=np.maximum(rows, 1e-9),
        copies=tokens * top_k,
        local_copies=tokens * np.minimum(top_k, experts),
        w_bytes=WEIGHT_BYTES[dtype],
    )
    elements, seconds = work.hidden_size * work.intermediate_size, p["seconds"]
    bound = np.maximum(
        6 * work.rows * elements / device.flop_per_s,
        3 * work.active_experts * elements * work.w_bytes / device.bytes_per_s,
    )

    def coefficients(rows_: Array) -> Array:
        return expert_model.fit_experts(work.part(rows_), seconds[rows_], device)

    def fit(rows_: Array) -> Callable[[Array], Array]:
        c = coefficients(rows_)
        return lambda r: expert_model.expert_seconds(c, work.part(r), device)

    features = {
        "rows": work.rows,
        "active_experts": work.active_experts,
        "hidden_size": work.hidden_size,
        "intermediate_size": work.intermediate_size,
    }
    return Group(
        key=key, seconds=seconds, bound=bound, fit=fit, coefficients=coefficients, features=features, source=source
    )


_MODULE_POINT = ("model", "kv_cache_dtype", "gemm_type", "num_heads", "kernel_source", "batch_size", "step")


def module_cap(name: str, model: str) -> float:
    """History rows after which a module's core reads no more (docs/models.md: topk; topk x 4; the window)."""
    if name == "dsa":
        return TOPK.get(model, 2048)
    if name == "dsv4_csa":
        return 4 * (1024 if "Pro" in model else 512)
    return 128 if name == "dsv4_hca" else float("inf")


def module_groups(
    root: Path, system: str, layout: Layout, name: str, framework: str = "vllm", least: int = 25
) -> Iterator[Group]:
    """Decode modules: projections, indexer, selection and core of one layer."""
    rows, source = _table(root, system, layout, framework, _MODULE_POINT)
    point = medians(rows, _MODULE_POINT)
    labels = np.array(
        ["/".join(str(v) for v in values) for values in zip(*(point[n] for n in _MODULE_POINT[:5]), strict=True)]
    )
    for label in np.unique(labels):
        part = chosen(point, labels == label)
        if len(part["seconds"]) < least:
            continue
        yield _module_group(str(label), part, module_cap(name, str(part["model"][0])), source)


def _module_group(key: str, part: dict[str, Array], cap: float, source: str) -> Group:
    terms = core_model.module_terms(core_model.equal_rows(part["batch_size"], part["step"], cap))
    seconds = part["seconds"]

    def coefficients(rows_: Array) -> Array:
        return core_model.fit_linear(terms[rows_], seconds[rows_])

    def fit(rows_: Array) -> Callable[[Array], Array]:
        c = coefficients(rows_)
        return lambda r: terms[r] @ c

    features = {"rows": terms[:, 1], "context_len": part["step"].astype(float)}
    nothing = np.full(len(seconds), np.nan)  # a module is many operators: it has no single roofline here
    return Group(
        key=key, seconds=seconds, bound=nothing, fit=fit, coefficients=coefficients, features=features, source=source
    )


def core_group(key: str, work: CoreWork, seconds: Array, device: Device, source: str) -> Group:
    """One kernel by its flop, bytes and blocks."""
    bound = np.maximum(work.flop / device.flop_per_s, work.moved_bytes / device.bytes_per_s)

    def coefficients(rows_: Array) -> Array:
        return core_model.fit_core(work.part(rows_), seconds[rows_], device)

    def fit(rows_: Array) -> Callable[[Array], Array]:
        c = coefficients(rows_)
        return lambda r: core_model.core_seconds(c, work.part(r), device)

    features = {"flop": work.flop, "bytes": work.moved_bytes}
    return Group(
        key=key, seconds=seconds, bound=bound, fit=fit, coefficients=coefficients, features=features, source=source
    )
