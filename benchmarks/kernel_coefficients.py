"""Fits every kernel of one device on its measured tables and writes them as package data: `kernels.py --write`.

Only fitted coefficients, residual bands and ranges leave the tables; no row of them does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from kernel_cases import HIDDEN_SIZE, Group, chosen, framework_of, gemm_groups, medians, module_groups, moe_groups
from kernel_cores import CORES

from stepscope.cost.core_model import fit_transfer, transfer_seconds
from stepscope.cost.hardware import Hardware
from stepscope.cost.kernel_model import Form, KernelModel, to_toml
from stepscope.cost.least_squares import cross_validate
from stepscope.cost.measured import NCCL, Layout, find_table, module_layout, read_rows
from stepscope.errors import BadInput
from stepscope.operators.operator import Collective, Transfer

NUM_POINTS = 600  # of each fit; the band comes from five folds of them
FOLDER = Path(__file__).parents[1] / "src" / "stepscope" / "cost" / "coefficients"
PACKAGE = "aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0)"
DATE = "2026-11"


def fitted(form: Form, group: Group) -> KernelModel:
    """A group's model from up to NUM_POINTS random points."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(group.seconds))[:NUM_POINTS])
    band = cross_validate(lambda part: lambda out: group.fit(rows[part])(rows[out]), group.seconds[rows], rng)
    return KernelModel(
        form=form,
        coefficients=tuple(float(c) for c in group.coefficients(rows)),
        band=band,
        ranges={name: (float(values.min()), float(values.max())) for name, values in group.features.items()},
        source=f"fitted on {len(rows)} points of {group.source} of {PACKAGE}",
        date=DATE,
    )


def models_of(root: Path, hardware: Hardware) -> Iterator[tuple[str, KernelModel]]:
    """(name, model) of everything that was measured on this device."""
    name = hardware.name
    for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"):
        if hardware.compute.get(("advertised", "fp8" if dtype == "fp8_block" else dtype)) is None:
            continue
        for group in gemm_groups(root, name, dtype, framework_of(dtype)):
            yield f"gemm.{dtype}", fitted("gemm", group)
    for dtype in ("bf16", "fp8", "fp8_block", "mxfp4", "nvfp4"):
        try:
            groups = list(moe_groups(root, name, dtype, per_model=False))
        except BadInput:
            continue
        if groups and f"experts.{dtype}" not in left_out(hardware):
            yield f"experts.{dtype}", fitted("experts", max(groups, key=lambda g: len(g.seconds)))
    yield from cores(root, hardware)
    yield from modules(root, name)
    yield from transfers(root, name)


def left_out(hardware: Hardware) -> tuple[str, ...]:
    """Hopper's kernels that take three to eight times as long as their bf16 twins: decision 0119."""
    return () if ("advertised", "nvfp4") in hardware.compute else ("core.mla_decode_fp8", "experts.fp8")


def cores(root: Path, hardware: Hardware) -> Iterator[tuple[str, KernelModel]]:
    """Attention cores and indexers."""
    for core in CORES:
        try:
            for group in core(root, hardware.name):
                if f"core.{group.key}" not in left_out(hardware):
                    yield f"core.{group.key}", fitted("core", group)
        except BadInput:
            continue


MODULES = (
    ("dsa", "dsa", "sparse_attention"),
    ("dsv4_csa", "csa", "sparse_attention"),
    ("dsv4_hca", "hca", "sparse_attention"),
    ("mla", "mla", "mla"),
)


def modules(root: Path, name: str) -> Iterator[tuple[str, KernelModel]]:
    """Attention modules in decode, vLLM's: kind_hidden_heads_cache_weights, as `cost/module_cost.py` looks them up."""
    for table, kind, op in MODULES:
        try:
            groups = list(module_groups(root, name, module_layout(table, op), table))
        except BadInput:
            continue
        for group in groups:
            model, kv, weight, heads, _ = group.key.rsplit("/", 4)
            short = model.split("/")[-1].removeprefix("DeepSeek-").removesuffix("-FP8")
            yield f"module.{kind}_{HIDDEN_SIZE[short]}_{heads}_{kv}_{weight}", fitted("module", group)


_NAMES: dict[str, Collective] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def transfers(root: Path, name: str) -> Iterator[tuple[str, KernelModel]]:
    """Collectives in one node: the engine's own all-reduce inside a graph, NCCL for the others."""
    for layout, framework, key, size in (
        (NCCL, "nccl", "op_name", None),
        (Layout(op="comm", file="custom_allreduce", keys=("backend",), axes=()), "vllm", "backend", "vllm_graph"),
    ):
        try:
            path = _nccl_path(root, name) if framework == "nccl" else find_table(root, name, layout, framework)
            rows = read_rows(path, (key, "num_gpus", "message_size"))
        except BadInput:
            continue
        point = medians(rows, (key, "num_gpus", "message_size"))
        for op in np.unique(point[key].astype(str)):
            if (size is not None and op != size) or (size is None and op not in _NAMES):
                continue
            for ranks in np.unique(point["num_gpus"]):
                part = chosen(point, (point[key] == op) & (point["num_gpus"] == ranks))
                collective = "all_reduce" if size is not None else _NAMES[op]
                yield _transfer(collective, int(ranks), part, "/".join(path.parts[-5:]))


def _nccl_path(root: Path, name: str) -> Path:
    return find_table(root, name, replace(NCCL), "nccl")


def _transfer(collective: Collective, ranks: int, part: dict[str, np.ndarray], source: str) -> tuple[str, KernelModel]:
    sent = np.array(
        [
            Transfer(collective=collective, group="node", group_size=ranks, payload_bytes=int(size)).wire_bytes
            for size in part["message_size"]
        ],
        dtype=float,
    )
    seconds = part["seconds"]
    band = cross_validate(
        lambda r: lambda out: transfer_seconds(fit_transfer(sent[r], seconds[r]), sent[out]),
        seconds,
        np.random.default_rng(0),
    )
    model = KernelModel(
        form="transfer",
        coefficients=tuple(float(c) for c in fit_transfer(sent, seconds)),
        band=band,
        ranges={"wire_bytes": (float(sent.min()), float(sent.max()))},
        source=f"fitted on {len(sent)} points of {source} of {PACKAGE}",
        date=DATE,
    )
    return f"transfer.{collective}_{ranks}", model


def write_coefficients(root: Path, hardware: Hardware) -> Path:
    """One file of the package's data."""
    models = dict(models_of(root, hardware))
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{hardware.name}.toml"
    header = (
        f"{hardware.title}: coefficients of the forms in stepscope.cost (gemm_model, expert_model, core_model).\n"
        "Written by `python benchmarks/kernels.py --write`; every entry names what it was fitted on.\n"
        "Times in seconds; efficiencies relative to the advertised figures of hardware/; band: measured / predicted."
    )
    path.write_text(to_toml(models, header), encoding="utf-8")
    return path
