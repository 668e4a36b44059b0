"""Our scheduler against the engine's own, step for step, on 300 seeded random workloads each, synchronous and async.

Only the engine's scheduler classes are driven, no model runs. Skipped unless STEPSCOPE_ENGINE_PYTHON names the
interpreter of an environment made by examples/install_engine.sh; `make check-engine` does both.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stepscope.simulate.scheduler import Scheduler
from tests.engine.real_scheduler import GOLDEN, ROOT, golden_loads, real_schedules
from tests.simulate.random_load import Step, random_load, run_schedule

PYTHON = os.environ.get("STEPSCOPE_ENGINE_PYTHON")
NUM_LOADS, NUM_DEEP = 300, 60

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]


def python() -> Path:
    return (ROOT / str(PYTHON)).absolute()  # not resolved: a link in a venv says which venv it is


@pytest.mark.parametrize("is_async", [False, True], ids=["synchronous", "async"])
def test_same_schedule_as_the_engines_scheduler(is_async: bool, tmp_path: Path) -> None:
    loads = [random_load(seed, is_async=is_async) for seed in range(NUM_LOADS)]
    real = real_schedules(loads, python=python(), folder=tmp_path, num_deep=NUM_DEEP)
    differing = []
    for seed, (load, theirs) in enumerate(zip(loads, real, strict=True)):
        free: list[list[int]] = []

        def keep(scheduler: Scheduler, step: Step, free: list[list[int]] = free) -> None:
            free.append(list(scheduler.cache.free))

        ours = run_schedule(load, keep if seed < NUM_DEEP else None)
        if ours != theirs["steps"] or free != theirs["free"]:
            differing.append(seed)
    assert differing == []
    steps = [step for each in real for step in each["steps"]]
    assert sum(len(step[1]) for step in steps) > 500  # preemptions: the workloads are hard enough
    assert len(steps) > 50_000


def test_golden_schedules_are_the_engines(tmp_path: Path) -> None:
    loads = [load for _, _, load in golden_loads()]
    real = real_schedules(loads, python=python(), folder=tmp_path)
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert [each["steps"] for each in golden] == [each["steps"] for each in real]
