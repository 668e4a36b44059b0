"""Run: the cells of a plan, each to a result file as it ends; what is there already is not run again.

Cells of the simulator and the cost model are tasks of worker processes or of Ray; a real engine is loaded once and runs
its cells one after the other, for two at a time would measure each other.
"""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from stepscope.errors import BadInput, StepscopeError
from stepscope.pool import map_tasks
from stepscope.sweep.conditions import find_changes
from stepscope.sweep.driver import open_driver
from stepscope.sweep.plan import Plan, read_plan, to_yaml
from stepscope.sweep.result import Result, failed_result, make_result, read_result, result_path, write_json
from stepscope.sweep.vllm_engine import EngineSetup

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from stepscope.sweep.driver import Driver
    from stepscope.sweep.plan import Cell

PLAN, CONDITIONS = "plan.yaml", "conditions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run. `on_result` is told of every cell as it ends."""

    workers: int | None = 1
    ray: bool = False
    retry_failed: bool = False
    setup: EngineSetup | None = None
    on_result: Callable[[Result], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One cell; `folder` None: the caller writes the result (another machine's disk is not ours)."""

    plan: Plan
    cell: Cell
    first: str  # the conditions of the sweep as JSON
    folder: Path | None


def run_sweep(plan: Plan, folder: Path, options: RunOptions | None = None) -> list[Result]:
    """Run what is missing; the results of all cells, in the plan's order.

    Raises:
        BadInput: the folder holds another plan's sweep, or the engine does not start.
    """
    options = options or RunOptions()
    _claim(plan, folder)
    found: dict[str, Result | None] = {cell.name: read_result(folder, plan, cell) for cell in plan.cells}
    wanted = [cell for cell in plan.cells if _is_wanted(found[cell.name], options.retry_failed)]
    if wanted:
        is_model = plan.engine in ("simulator", "cost")
        results = _run_tasks(plan, folder, wanted, options) if is_model else _run_engine(plan, folder, wanted, options)
        with closing(results):
            for result in results:
                found[result["cell"]["name"]] = result
                if options.on_result is not None:
                    options.on_result(result)
    return [each for cell in plan.cells if (each := found[cell.name]) is not None]


def read_sweep(folder: Path) -> tuple[Plan, list[Result]]:
    """A sweep's plan and the results that are there, in the plan's order.

    Raises:
        BadInput: no sweep is in the folder.
    """
    if not (folder / PLAN).is_file():
        raise BadInput(
            f"{folder}: no sweep is there (no {PLAN}). Make one with `stepscope sweep run PLAN -o {folder}`."
        )
    plan = read_plan(folder / PLAN)
    results = (read_result(folder, plan, cell) for cell in plan.cells)
    return plan, [result for result in results if result is not None]


def _is_wanted(result: Result | None, retry_failed: bool) -> bool:  # noqa: FBT001  # private, of two values
    return result is None or (retry_failed and result["status"] != "ok")


def _claim(plan: Plan, folder: Path) -> None:
    """The folder is this plan's from now on."""
    path = folder / PLAN
    if path.exists():
        if read_plan(path).hash != plan.hash:
            raise BadInput(f"{folder}: holds the sweep of another plan ({path}). Choose another folder.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{PLAN}"
    aside.write_text(to_yaml(plan), encoding="utf-8")
    aside.replace(path)


def _first_conditions(folder: Path, driver: Driver) -> dict[str, Any]:
    """Those of the sweep: as they were when its first cell ran."""
    path = folder / CONDITIONS
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    now = driver.conditions()
    write_json(path, now)
    return now


def _run_tasks(plan: Plan, folder: Path, cells: list[Cell], options: RunOptions) -> Generator[Result]:
    first = json.dumps(_first_conditions(folder, _driver_of(msgspec.json.encode(plan))))
    own = None if options.ray else folder
    tasks = [_Task(plan=plan, cell=cell, first=first, folder=own) for cell in cells]
    with closing(map_tasks(_run_task, tasks, workers=options.workers, ray=options.ray)) as results:  # type: ignore[type-var]
        for result, cell in zip(results, cells, strict=True):
            if own is None:
                write_json(result_path(folder, cell), result)
            yield result


def _run_task(task: _Task) -> Result:
    """In a worker; a cell that cannot be run is a result too."""
    driver = _driver_of(msgspec.json.encode(task.plan))
    result = run_cell(task.plan, task.cell, driver, json.loads(task.first))
    if task.folder is not None:
        write_json(result_path(task.folder, task.cell), result)
    return result


@lru_cache(maxsize=2)
def _driver_of(plan: bytes) -> Driver:
    """One a process: its tables are made once."""
    return open_driver(msgspec.json.decode(plan, type=Plan))


def _run_engine(plan: Plan, folder: Path, cells: list[Cell], options: RunOptions) -> Generator[Result]:
    """One engine for all cells; where it dies, a new one for the next."""
    setup = replace(options.setup or EngineSetup(), folder=folder)
    with _Opened(plan, setup) as opened:
        for cell in cells:
            driver = opened.get()
            result = run_cell(plan, cell, driver, _first_conditions(folder, driver))
            write_json(result_path(folder, cell), result)
            if result["status"] == "failed":
                opened.drop()
            yield result


class _Opened:
    """A driver that is opened when it is needed."""

    def __init__(self, plan: Plan, setup: EngineSetup) -> None:
        self._plan, self._setup = plan, setup
        self._driver: Driver | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def get(self) -> Driver:
        if self._driver is None:
            self._driver = open_driver(self._plan, self._setup)
        return self._driver

    def drop(self) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver = None


def run_cell(plan: Plan, cell: Cell, driver: Driver, first: dict[str, Any]) -> Result:
    """Measure a cell between two looks at what is held fixed."""
    try:
        before = driver.conditions()
        measured = driver.measure(cell)
        after = driver.conditions()
    except StepscopeError as error:
        return failed_result(plan, cell, str(error))
    problems = [*measured.problems, *find_changes(first, before, "since the sweep began")]
    problems += find_changes(before, after, "while the cell ran")
    asked = plan.held.checkpoint_hash
    if asked is not None and before.get("checkpoint_hash") not in (None, asked):
        problems.append(f"checkpoint_hash is {before['checkpoint_hash']}, the plan asks for {asked}")
    return make_result(plan, cell, measured, before, problems)
