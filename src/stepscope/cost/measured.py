"""Measured kernel tables -> seconds, by interpolation inside their grid; outside it they say nothing.

A table is one Parquet file in the layout of PyPI's aiconfigurator-core (an optional extra: 80 MB, Apache-2.0):
`systems/data/<system>/<op>/<framework>/<version>/<name>_perf.parquet`, one measured execution a row, `latency` in ms.
`keys` must match exactly, `axes` are interpolated: ln t is linear in the logarithm of each axis between grid points.
A point whose surrounding grid points were not all measured is outside (NaN); the caller then shows a bound instead.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]

EXTRA = "aiconfigurator-core"
SYSTEMS = {
    "a100": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
}
DTYPES = {"bfloat16": "bf16", "w4a16_mxfp4": "mxfp4", "int4_wo": "int4", "half": "fp16"}  # theirs -> ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which columns of an operation's table are matched, and which are interpolated."""

    op: str
    file: str
    keys: tuple[str, ...]
    axes: tuple[str, ...]


GEMM = Layout(op="gemm", file="gemm", keys=("gemm_dtype",), axes=("m", "n", "k"))
MOE = Layout(
    op="moe",
    file="moe",
    keys=(
        "moe_dtype",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "distribution",
    ),
    axes=("num_tokens",),
)
_ATTENTION_KEYS = ("kv_cache_dtype", "num_heads", "num_key_value_heads", "head_dim", "window_size")
DECODE_ATTENTION = Layout(
    op="attention", file="generation_attention", keys=_ATTENTION_KEYS, axes=("batch_size", "step")
)
PREFILL_ATTENTION = Layout(op="attention", file="context_attention", keys=_ATTENTION_KEYS, axes=("batch_size", "isl"))
NCCL = Layout(op="comm", file="nccl", keys=("op_name", "num_gpus", "nccl_dtype"), axes=("message_size",))
_MODULE_KEYS = ("model", "kv_cache_dtype", "gemm_type", "num_heads")


def module_layout(name: str, op: str = "sparse_attention") -> Layout:
    """A decode module: `dsa`, `dsv4_csa`, `dsv4_hca`, or `mla` (op "mla")."""
    return Layout(op=op, file=f"{name}_generation_module", keys=_MODULE_KEYS, axes=("batch_size", "step"))


def find_tables(root: Path | None = None) -> Path:
    """The folder that holds `<system>/<op>/...`: the one given, else the installed extra's.

    Raises:
        BadInput: there is none.
    """
    if root is not None:
        if not root.is_dir():
            raise BadInput(f"{root}: is not a folder of kernel tables (<system>/<op>/<framework>/<version>/).")
        return root
    spec = importlib.util.find_spec("aiconfigurator_core")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        found = Path(place) / "systems" / "data"
        if found.is_dir():
            return found
    raise BadInput(
        f"measured kernel tables need the optional package {EXTRA}, which is not installed. "
        f"Run `pip install --no-deps {EXTRA}`, or name a folder of tables in its format."
    )


def find_table(root: Path, system: str, layout: Layout, framework: str = "vllm") -> Path:
    """The newest version of a table.

    Raises:
        BadInput: there is none for this system and framework.
    """
    folder = root / SYSTEMS.get(system, system) / layout.op
    found = sorted(
        folder.glob(f"{framework}/*/{layout.file}_perf.parquet"), key=lambda path: _version(path.parent.name)
    )
    if not found:
        known = sorted({path.parts[-3] for path in folder.glob(f"*/*/{layout.file}_perf.parquet")})
        raise BadInput(
            f"{folder}: no {layout.file} table of framework '{framework}'. Known there: {', '.join(known) or 'none'}."
        )
    return found[-1]


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in name.split("."))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Times over a full grid of axis values; NaN where nothing was measured."""

    values: tuple[Array, ...]
    seconds: Array

    def at(self, points: Sequence[Any]) -> Array:
        """Seconds at points (one array per axis), NaN outside the measured grid."""
        positions = [np.asarray(point, dtype=float) for point in points]
        shape = np.broadcast(*positions).shape
        places = [_place(known, np.broadcast_to(x, shape)) for known, x in zip(self.values, positions, strict=True)]
        total, weight_sum = np.zeros(shape), np.zeros(shape)
        log_seconds = np.log(self.seconds)
        for corner in product((0, 1), repeat=len(places)):
            weight = np.ones(shape)
            index: list[Array] = []
            for (low, fraction), side in zip(places, corner, strict=True):
                weight = weight * (fraction if side else 1 - fraction)
                index.append(np.minimum(low + side, log_seconds.shape[len(index)] - 1))
            used = weight > 0  # a corner of no weight may be missing
            total = np.where(used, total + weight * log_seconds[tuple(index)], total)
            weight_sum = weight_sum + weight
        return np.where(np.abs(weight_sum - 1) < 1e-9, np.exp(total), np.nan)


def _place(known: Array, x: Array) -> tuple[Array, Array]:
    """Which interval each x lies in, and how far along it (in logarithms); NaN outside."""
    low = np.clip(np.searchsorted(known, x, side="right") - 1, 0, max(len(known) - 2, 0))
    if len(known) == 1:
        return low, np.where(x == known[0], 0.0, np.nan)
    left, right = known[low], known[low + 1]
    fraction = np.log(np.maximum(x, 1e-300) / left) / np.log(right / left)
    return low, np.where((x >= known[0]) & (x <= known[-1]), fraction, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredTable:
    """One operation's measurements: a grid for each combination of the keys."""

    layout: Layout
    source: str
    grids: Mapping[tuple[Any, ...], Grid]

    def seconds(self, key: tuple[Any, ...], *points: Any) -> Array:
        """Seconds at points of the axes; NaN where this table does not reach, and for a key it does not hold."""
        grid = self.grids.get(key)
        if grid is None:
            return np.full(np.broadcast(*(np.asarray(p, dtype=float) for p in points)).shape, np.nan)
        return grid.at(points)


@cache
def read_measured(path: Path, layout: Layout) -> MeasuredTable:
    """A table from its file; several rows of one point (other kernels, repeats) become their median.

    Raises:
        BadInput: a column is missing.
    """
    table = read_rows(path, (*layout.keys, *layout.axes))
    return MeasuredTable(layout=layout, source="/".join(path.parts[-5:]), grids=build_grids(table, layout))


def read_rows(path: Path, columns: Sequence[str]) -> dict[str, Array]:
    """Columns of a table and `latency` in ms, as arrays; our names for dtypes.

    Raises:
        BadInput: the file cannot be read, or lacks a column.
    """
    wanted = [*dict.fromkeys(columns), "latency"]
    try:
        held = pq.read_schema(path).names
        missing = [name for name in wanted if name not in held]
        if missing:
            raise BadInput(f"{path}: has no column '{missing[0]}'. It has: {', '.join(held)}.")
        table = pq.read_table(path, columns=wanted)
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path}: not a readable Parquet table ({error}).") from error
    return {name: _column(table[name]) for name in wanted}


def _column(column: Any) -> Array:
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "iuf":
        return np.asarray(values)
    return np.array([DTYPES.get(str(value), str(value)) for value in values], dtype=object)


def build_grids(rows: Mapping[str, Array], layout: Layout) -> dict[tuple[Any, ...], Grid]:
    """One grid per combination of keys."""
    by_key: dict[tuple[Any, ...], list[int]] = {}
    columns = [rows[name].tolist() for name in layout.keys]
    for position, key in enumerate(zip(*columns, strict=True)):
        by_key.setdefault(key, []).append(position)
    return {key: _grid(rows, np.array(chosen), layout) for key, chosen in by_key.items()}


def _grid(rows: Mapping[str, Array], chosen: Array, layout: Layout) -> Grid:
    latency = rows["latency"][chosen]
    chosen, latency = chosen[latency > 0], latency[latency > 0]
    values, places = zip(*(np.unique(rows[name][chosen], return_inverse=True) for name in layout.axes), strict=True)
    shape = tuple(len(v) for v in values)
    flat: Array = np.asarray(np.ravel_multi_index(places, shape))
    order = np.lexsort((latency, flat))
    flat, latency = flat[order], latency[order]
    first: Array = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
    last = np.concatenate((first[1:], [len(flat)])) - 1
    seconds = np.full(int(np.prod(shape)), np.nan)
    seconds[flat[first]] = (latency[(first + last) // 2] + latency[(first + last + 1) // 2]) / 2 * 1e-3
    return Grid(values=tuple(np.asarray(v, dtype=float) for v in values), seconds=seconds.reshape(shape))
