"""Our SGLang policy against SGLang 0.5.23's own scheduler, step for step, on seeded random workloads.

The engine's classes run on the CPU without a model (drive_sglang.py). Skipped unless STEPSCOPE_SGLANG_PYTHON names an
interpreter that can import sglang.srt.managers.scheduler; torchvision and sgl_kernel may be absent. Such one is made by
installing a CPU build of torch, `pip install --no-deps sglang==0.5.23`, and what the import then asks for.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.engine.real_sglang import GOLDEN, ROOT, golden_loads, real_schedules
from tests.simulate.sglang_load import SglangLoad, random_load, run_schedule

PYTHON = os.environ.get("STEPSCOPE_SGLANG_PYTHON")
NUM_LOADS, NUM_RUST = 120, 20

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_SGLANG_PYTHON is not set"),
]

Schedules = list[dict[str, Any]]


def python() -> Path:
    return (ROOT / str(PYTHON)).absolute()  # not resolved: a link in a venv says which venv it is


def loads_of(*, is_async: bool, count: int = NUM_LOADS) -> list[SglangLoad]:
    return [random_load(seed, is_async=is_async, is_small=True) for seed in range(count)]


def differing(loads: list[SglangLoad], theirs: Schedules) -> list[int]:
    pairs = zip(loads, theirs, strict=True)
    return [place for place, (load, each) in enumerate(pairs) if run_schedule(load) != each["steps"]]


@pytest.mark.parametrize("is_async", [False, True], ids=["normal", "overlap"])
def test_same_schedule_as_the_engines_scheduler(is_async: bool, tmp_path: Path) -> None:
    loads = loads_of(is_async=is_async)
    theirs = real_schedules(loads, python=python(), folder=tmp_path)
    assert differing(loads, theirs) == []
    steps = [step for each in theirs for step in each["steps"]]
    assert sum(len(step[1]) for step in steps) > 5  # retractions: the workloads are hard enough
    assert len(steps) > 20_000


def test_the_engines_other_tree_gives_the_same(tmp_path: Path) -> None:
    loads = loads_of(is_async=True, count=NUM_RUST)
    assert differing(loads, real_schedules(loads, python=python(), folder=tmp_path, tree="rust")) == []


def test_golden_schedules_are_the_engines(tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = real_schedules([load for _, _, load in golden_loads()], python=python(), folder=tmp_path)
    assert [each["steps"] for each in golden] == [each["steps"] for each in found]
