"""Our scheduler against the engine's own, step for step, on 300 seeded random workloads each, synchronous and async.

Pipelines of 2 and 4 stages on 60 each, the schedules alone: as many steps in flight as stages, async one more.
A hundred of each more have drafts, fifty of each no chunked prefill, and a hundred load KV from beyond the device.
Only the engine's scheduler classes are driven, no model runs. Skipped unless STEPSCOPE_ENGINE_PYTHON names the
interpreter of an environment made by examples/install_engine.sh; `make check-engine` does both.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.real_scheduler import (
    DRAFTING_GOLDEN,
    GOLDEN,
    LOADING_GOLDEN,
    ROOT,
    drafting_loads,
    golden_loads,
    loading_loads,
    real_schedules,
)
from tests.simulate.random_load import (
    Load,
    Step,
    drafting_load,
    loading_load,
    random_load,
    run_schedule,
    whole_prompt_load,
)

if TYPE_CHECKING:
    from stepscope.simulate.scheduler import Scheduler

PYTHON = os.environ.get("STEPSCOPE_ENGINE_PYTHON")
NUM_LOADS, NUM_DEEP, NUM_STAGED = 300, 60, 60
STAGED = [(num_stages, is_async) for num_stages in (2, 4) for is_async in (False, True)]
NUM_DRAFTING, NUM_WHOLE, NUM_LOADING = 100, 50, 100

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]


Schedules = list[dict[str, Any]]


def python() -> Path:
    return (ROOT / str(PYTHON)).absolute()  # not resolved: a link in a venv says which venv it is


def loads_of(*, is_async: bool) -> list[Load]:
    return [random_load(seed, is_async=is_async) for seed in range(NUM_LOADS)]


def staged_loads(num_stages: int, *, is_async: bool) -> list[Load]:
    return [random_load(seed, is_async=is_async, num_stages=num_stages) for seed in range(NUM_STAGED)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Schedules]:
    """The engine's own schedules, of one process: it takes longer to start than to schedule."""
    deep = [each[:NUM_DEEP] for each in (loads_of(is_async=False), loads_of(is_async=True))]
    rest = [each[NUM_DEEP:] for each in (loads_of(is_async=False), loads_of(is_async=True))]
    golden = [load for _, load in golden_loads()]
    staged = [load for count, is_async in STAGED for load in staged_loads(count, is_async=is_async)]
    folder = tmp_path_factory.mktemp("schedules")
    loads = [*deep[0], *deep[1], *rest[0], *rest[1], *golden, *staged]
    found = real_schedules(loads, python=python(), folder=folder, num_deep=2 * NUM_DEEP)
    deep_async, first, second = NUM_DEEP * 2, NUM_LOADS + NUM_DEEP, NUM_LOADS * 2
    return {
        "synchronous": found[:NUM_DEEP] + found[deep_async:first],
        "async": found[NUM_DEEP:deep_async] + found[first:second],
        "golden": found[second : second + len(golden)],
        "staged": found[second + len(golden) :],
    }


def differing_seeds(loads: list[Load], theirs: Schedules) -> list[int]:
    """Workloads in which a row, a count of free blocks or, where it was recorded, their order is another."""
    differing = []
    for seed, (load, their) in enumerate(zip(loads, theirs, strict=True)):
        free: list[int] = []

        def keep(scheduler: Scheduler, _: Step, free: list[int] = free) -> None:
            free.append(zlib.crc32(repr(list(scheduler.cache.free)).encode()))

        ours = run_schedule(load, keep if their["free"] else None)
        if ours != their["steps"] or free != their["free"]:
            differing.append(seed)
    return differing


@pytest.mark.parametrize("mode", ["synchronous", "async"])
def test_same_schedule_as_the_engines_scheduler(mode: str, real: dict[str, Schedules]) -> None:
    assert differing_seeds(loads_of(is_async=mode == "async"), real[mode]) == []
    steps = [step for each in real[mode] for step in each["steps"]]
    assert sum(len(step[1]) for step in steps) > 500  # preemptions: the workloads are hard enough
    assert len(steps) > 50_000


def test_same_pipelined_schedule_as_the_engines_scheduler(real: dict[str, Schedules]) -> None:
    loads = [load for count, is_async in STAGED for load in staged_loads(count, is_async=is_async)]
    pairs = list(zip(loads, real["staged"], strict=True))
    assert [place for place, (load, theirs) in enumerate(pairs) if run_schedule(load) != theirs["steps"]] == []
    assert sum(len(step[1]) for _, theirs in pairs for step in theirs["steps"]) > 500


@pytest.mark.parametrize("is_async", [False, True])
def test_same_schedule_with_drafts(is_async: bool, tmp_path: Path) -> None:
    loads = [drafting_load(seed, is_async=is_async) for seed in range(NUM_DRAFTING)]
    theirs = real_schedules(loads, python=python(), folder=tmp_path, num_deep=NUM_DRAFTING)
    assert differing_seeds(loads, theirs) == []
    steps = [step for each in theirs for step in each["steps"]]
    assert sum(len(step[1]) for step in steps) > 200
    assert len({(load.rules.drafts.method, load.rules.drafts.parallel_drafting) for load in loads}) > 8


@pytest.mark.parametrize("is_async", [False, True])
def test_same_schedule_without_chunked_prefill(is_async: bool, tmp_path: Path) -> None:
    loads = [whole_prompt_load(seed, is_async=is_async) for seed in range(NUM_WHOLE)]
    theirs = real_schedules(loads, python=python(), folder=tmp_path, num_deep=NUM_WHOLE)
    assert differing_seeds(loads, theirs) == []


def test_same_schedule_while_kv_is_loaded(tmp_path: Path) -> None:
    loads = [loading_load(seed) for seed in range(NUM_LOADING)]
    theirs = real_schedules(loads, python=python(), folder=tmp_path, num_deep=NUM_LOADING)
    assert differing_seeds(loads, theirs) == []
    assert sum(len(step[1]) for each in theirs for step in each["steps"]) > 100


def test_golden_schedules_are_the_engines(real: dict[str, Schedules]) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert [each["steps"] for each in golden] == [each["steps"] for each in real["golden"]]


def test_golden_schedules_with_drafts_and_loads_are_the_engines(tmp_path: Path) -> None:
    golden = [json.loads(path.read_text(encoding="utf-8")) for path in (DRAFTING_GOLDEN, LOADING_GOLDEN)]
    loads = [load for _, load in (*drafting_loads(), *loading_loads())]
    theirs = real_schedules(loads, python=python(), folder=tmp_path)
    assert [each["steps"] for each in (*golden[0], *golden[1])] == [each["steps"] for each in theirs]
