"""SGLang's own schedules of our workloads; run as a script, it writes the golden ones.

STEPSCOPE_SGLANG_PYTHON=PATH/bin/python .venv/bin/python -m tests.engine.real_sglang
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.simulate.sglang_load import SglangLoad, random_load

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "simulate" / "sglang_schedules.json"
SEEDS: dict[bool, tuple[int, ...]] = {False: (48, 55, 58, 81, 678, 803, 965), True: (28, 55, 79, 81, 677, 678, 803)}
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"}


def golden_loads() -> list[tuple[int, bool, SglangLoad]]:
    return [
        (seed, is_async, random_load(seed, is_async=is_async, is_small=True))
        for is_async, seeds in SEEDS.items()
        for seed in seeds
    ]


def real_schedules(
    loads: list[SglangLoad], *, python: Path, folder: Path, tree: str = "python"
) -> list[dict[str, Any]]:
    """A record per workload, see drive_sglang.py; `tree` is the radix cache's core, python or rust."""
    asked, told = folder / "workloads.jsonl", folder / "schedules.jsonl"
    with asked.open("w") as out:
        for load in loads:
            requests = [asdict(request) for request in load.requests]
            out.write(json.dumps({"rules": asdict(load.rules), "requests": requests}) + "\n")
    script = Path(__file__).with_name("drive_sglang.py")
    core = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": tree}
    command = [str(python), str(script), str(asked), str(told)]
    environment = {**os.environ, **QUIET, **core}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in told.read_text().splitlines()]


def write_golden(python: Path) -> None:
    loads = golden_loads()
    with TemporaryDirectory() as folder:
        found = real_schedules([load for _, _, load in loads], python=python, folder=Path(folder))
    lines = [
        json.dumps({"seed": seed, "is_async": is_async, "steps": each["steps"]}, separators=(",", ":"))
        for (seed, is_async, _), each in zip(loads, found, strict=True)
    ]
    GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden((ROOT / os.environ["STEPSCOPE_SGLANG_PYTHON"]).absolute())
