"""How far kernel predictions are off: median and p90 absolute error, beside the plain roofline's and the targets.

    python benchmarks/kernels.py            print the table (5 seeds), exit 1 where a target is missed
    python benchmarks/kernels.py --write    also write src/stepscope/cost/coefficients/*.toml
    python benchmarks/kernels.py --infersim BENCH_DATA    also InferSim's H20 and H800 measurements

Fitted on 60 random points of a group (15 for modules), tested on all others, every group of a line pooled; the median
over seeds is shown. Needs the optional package aiconfigurator-core (its tables); without it, it says so and stops.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from kernel_cases import Group, framework_of, gemm_groups, module_groups, moe_groups
from kernel_cores import CORES
from kernel_infersim import borrowed_lines

from stepscope.cost.hardware import load_hardware
from stepscope.cost.measured import find_tables, module_layout
from stepscope.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]


NOTE = {"fp8_block": ", sglang"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the report; `target` is (median, p90) in percent, None where none was set."""

    name: str
    groups: list[Group]
    num_points: int
    target: tuple[float, float] | None


def errors_of(groups: list[Group], num_points: int, seed: int) -> tuple[Array, Array]:
    """Absolute relative errors of the held-out points of all groups: of the fit, and of the roofline."""
    rng = np.random.default_rng(seed)
    fitted, roofline = [], []
    for group in groups:
        rows = np.arange(len(group.seconds))
        seen = rng.choice(len(rows), num_points, replace=False)
        rest = np.setdiff1d(rows, seen)
        fitted.append(np.abs(group.fit(seen)(rest) / group.seconds[rest] - 1))
        roofline.append(np.abs(group.bound[rest] / group.seconds[rest] - 1))
    return np.concatenate(fitted), np.concatenate(roofline)


def _percent(errors: Array) -> tuple[float, float]:
    return float(np.median(errors)) * 100, float(np.quantile(errors, 0.9)) * 100


GEMMS: tuple[tuple[str, str, tuple[int, int] | None], ...] = (
    ("h100", "bf16", (6, 15)),
    ("h200", "bf16", (6, 15)),
    ("b200", "bf16", (8, 20)),
    ("h100", "fp8", (12, 37)),
    ("h200", "fp8", (12, 37)),
    ("b200", "fp8", None),
    ("h100", "fp8_block", None),
    ("h200", "fp8_block", None),
    ("b200", "fp8_block", None),
    ("b200", "nvfp4", None),
    ("b300", "bf16", None),
    ("a100", "bf16", None),
)
MODULES = (("dsa", "DSA"), ("dsv4_csa", "V4 C4"), ("dsv4_hca", "V4 C128"))
EXPERTS = (
    ("h100", "bf16"),
    ("h100", "fp8_block"),
    ("h200", "bf16"),
    ("h200", "fp8_block"),
    ("b200", "fp8"),
    ("b200", "nvfp4"),
)
SYSTEMS = ("h100", "h200", "b200")


def lines(root: Path) -> Iterator[Line]:
    """Every line, the ones with a target first."""
    for system, dtype, target in GEMMS:
        groups = list(gemm_groups(root, system, dtype, framework_of(dtype)))
        yield Line(name=f"GEMM {system} {dtype}{NOTE.get(dtype, '')}", groups=groups, num_points=60, target=target)
    for system, (name, title) in product(SYSTEMS, MODULES):
        groups = list(module_groups(root, system, module_layout(name), name))
        yield Line(name=f"{title} module {system}", groups=groups, num_points=15, target=(6, 17))
    for system, dtype in EXPERTS:
        groups = list(moe_groups(root, system, dtype))
        yield Line(name=f"MoE {system} {dtype}, per model", groups=groups, num_points=60, target=(10, 33))
    yield from untargeted(root)


def untargeted(root: Path) -> Iterator[Line]:
    """What is reported as it is."""
    for system in SYSTEMS:
        groups = list(module_groups(root, system, module_layout("mla", "mla"), "mla"))
        yield Line(name=f"MLA module {system}", groups=groups, num_points=15, target=None)
    for name, title in MODULES:
        groups = list(module_groups(root, "h200", module_layout(name), name, "sglang"))
        yield Line(name=f"{title} module h200, sglang", groups=groups, num_points=15, target=None)
    for system, core in product(SYSTEMS, CORES):
        for group in core(root, system):
            yield Line(name=f"{group.key} {system}", groups=[group], num_points=60, target=None)
    for dtype in ("bf16", "fp8_block"):
        groups = list(moe_groups(root, "h200", dtype, per_model=False))
        yield Line(name=f"MoE h200 {dtype}, one fit for all models", groups=groups, num_points=60, target=None)


def report(root: Path, seeds: int) -> bool:
    """Print the table; whether every target is met."""
    print(f"{'':46} {'fitted':>13} {'target':>9}  {'roofline':>12}  groups  points")
    good = True
    for line in lines(root):
        if not line.groups:
            print(f"{line.name:46} no rows in the table")
            continue
        scores = [errors_of(line.groups, line.num_points, seed) for seed in range(seeds)]
        median, p90 = np.median([_percent(fitted) for fitted, _ in scores], axis=0)
        roof = _percent(scores[0][1])
        total = sum(len(group.seconds) for group in line.groups)
        met = line.target is None or (median <= line.target[0] and p90 <= line.target[1])
        good &= met
        target = "-" if line.target is None else f"{line.target[0]}/{line.target[1]}"
        bound = "-" if np.isnan(roof[0]) else f"{roof[0]:.1f}/{roof[1]:.1f}"
        verdict = "" if line.target is None else ("  met" if met else "  MISSED")
        print(
            f"{line.name:46} {f'{median:.1f}/{p90:.1f}':>13} {target:>9}  {bound:>12}  {len(line.groups):6}  "
            f"{total:6}{verdict}",
            flush=True,
        )
    return good


def report_infersim(folder: Path, seeds: int) -> None:
    """Print how far borrowed coefficients are off, and what a fit on the device's own points makes of it."""
    print(f"\n{'':46} {'borrowed':>13} {'fitted':>13}  {'roofline':>12}  points")
    for line in borrowed_lines(folder):
        group = line.group
        borrowed = _percent(np.abs(line.predicted / group.seconds - 1))
        number = min(60, len(group.seconds) // 2)
        scores = [errors_of([group], number, seed) for seed in range(seeds)]
        own = np.median([_percent(fitted) for fitted, _ in scores], axis=0)
        roof = _percent(scores[0][1])
        cells = [f"{a:.1f}/{b:.1f}" for a, b in (borrowed, own, roof)]
        print(f"{line.name:46} {cells[0]:>13} {cells[1]:>13}  {cells[2]:>12}  {len(group.seconds):6}")


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=None, help="folder <system>/<op>/...; default: the package's")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--infersim", type=Path, default=None, help="InferSim's bench_data folder")
    parser.add_argument("--write", action="store_true", help="write the package's coefficients")
    options = parser.parse_args()
    try:
        root = find_tables(options.tables)
    except BadInput as error:
        print(f"skipped: {error}")
        return 0
    start = time.perf_counter()
    print("absolute error, median / p90 in percent; n, k >= 256; fitted on 60 points (modules 15), tested on the rest")
    good = report(root, options.seeds)
    print(f"{'every target met' if good else 'a target is MISSED'}; {time.perf_counter() - start:.0f} s")
    if options.infersim is not None:
        report_infersim(options.infersim, options.seeds)
    if options.write:
        from kernel_coefficients import write_coefficients

        for name in ("a100", "h100", "h200", "b200", "b300"):
            print(write_coefficients(root, load_hardware(name)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
