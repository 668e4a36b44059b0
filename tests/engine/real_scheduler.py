"""The real scheduler's schedules of our workloads; run as a script, it writes the golden ones.

STEPSCOPE_ENGINE_PYTHON=.venv-engine/bin/python .venv/bin/python -m tests.engine.real_scheduler
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.simulate.random_load import Load, drafting_load, loading_load, random_load

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "simulate" / "schedules.json"
DRAFTING_GOLDEN = ROOT / "tests" / "simulate" / "drafting_schedules.json"
LOADING_GOLDEN = ROOT / "tests" / "simulate" / "loading_schedules.json"
DRAFTING_SEEDS = {False: (0, 19, 40, 44, 49, 156), True: (0, 1, 34, 49, 116, 242)}  # padded and cut rows among them
LOADING_SEEDS = (1, 48, 75, 159)
SEEDS = {
    (False, 1): (0, 40, 44, 53, 72),
    (True, 1): (9, 40, 44, 53, 56),
    (False, 2): (40, 53),
    (True, 2): (40, 53),
    (False, 4): (44,),
    (True, 4): (44,),
}  # by async and stages; small, with preemptions, hits, stops, limits
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}


def golden_loads() -> list[tuple[dict[str, Any], Load]]:
    """What each was drawn by, and the workload."""
    drawn: list[dict[str, Any]] = [
        {"seed": seed, "is_async": is_async, "num_stages": num_stages}
        for (is_async, num_stages), seeds in SEEDS.items()
        for seed in seeds
    ]
    return [(each, random_load(**each, is_small=True)) for each in drawn]


def real_schedules(loads: list[Load], *, python: Path, folder: Path, num_deep: int = 0) -> list[dict[str, Any]]:
    """A record per workload, see drive_scheduler.py; the first `num_deep` of them with the order of free blocks."""
    asked, told = folder / "workloads.jsonl", folder / "schedules.jsonl"
    with asked.open("w") as out:
        for place, load in enumerate(loads):
            requests = [asdict(request) for request in load.requests]
            line = {"rules": asdict(load.rules), "requests": requests, "is_deep": place < num_deep}
            line["accepted"] = accepted_drafts(load)
            line["external"] = load.external
            out.write(json.dumps(line) + "\n")
    script = Path(__file__).with_name("drive_scheduler.py")
    command = [str(python), str(script), str(asked), str(told)]
    done = subprocess.run(command, env={**os.environ, **QUIET}, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in told.read_text().splitlines()]


def accepted_drafts(load: Load) -> dict[str, list[int]]:
    """Of each request how many drafts it accepts after each number of outputs."""
    acceptance, count = load.rules.drafts.acceptance, load.rules.num_speculative_tokens
    if acceptance is None:
        return {}
    return {
        each.request_id: [acceptance.draw(each.request_id, place, count) for place in range(each.output_len)]
        for each in load.requests
    }


def drafting_loads() -> list[tuple[dict[str, Any], Load]]:
    """What each was drawn by, and the workload."""
    drawn: list[dict[str, Any]] = [
        {"seed": seed, "is_async": is_async} for is_async, seeds in DRAFTING_SEEDS.items() for seed in seeds
    ]
    return [(each, drafting_load(**each, is_small=True)) for each in drawn]


def loading_loads() -> list[tuple[dict[str, Any], Load]]:
    """What each was drawn by, and the workload."""
    return [({"seed": seed, "is_async": False}, loading_load(seed, is_small=True)) for seed in LOADING_SEEDS]


def write_golden(python: Path) -> None:
    for path, loads in (
        (GOLDEN, golden_loads()),
        (DRAFTING_GOLDEN, drafting_loads()),
        (LOADING_GOLDEN, loading_loads()),
    ):
        with TemporaryDirectory() as folder:
            found = real_schedules([load for _, load in loads], python=python, folder=Path(folder))
        lines = [
            json.dumps({**drawn, "steps": each["steps"]}, separators=(",", ":"))
            for (drawn, _), each in zip(loads, found, strict=True)
        ]
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden((ROOT / os.environ["STEPSCOPE_ENGINE_PYTHON"]).absolute())
