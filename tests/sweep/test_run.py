from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.errors import BadInput
from stepscope.sweep import run as run_module
from stepscope.sweep.figure import FIGURES, Measured, known
from stepscope.sweep.model import DEMO
from stepscope.sweep.plan import Held, Plan, make_plan, to_yaml
from stepscope.sweep.report import sweep_document
from stepscope.sweep.result import read_result, result_path
from stepscope.sweep.run import RunOptions, read_sweep, run_cell, run_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.sweep.plan import Cell

KILLED_AFTER_TWO = """
import os, signal, sys
from pathlib import Path
from stepscope.sweep.plan import read_plan
from stepscope.sweep.run import RunOptions, run_sweep

seen = []

def on_result(result):
    seen.append(result)
    if len(seen) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    options = RunOptions(workers=int(sys.argv[3]), on_result=on_result)
    run_sweep(read_plan(Path(sys.argv[1])), Path(sys.argv[2]), options)
"""


def plan(engine: str = "simulator", **rest: Any) -> Plan:
    return make_plan("small", engine=engine, model=DEMO, hardware="h200", **rest)


def document(folder: Path) -> dict[str, Any]:
    return sweep_document(*read_sweep(folder))


class Scripted:
    """A driver that does what a test says."""

    def __init__(self, *, conditions: list[dict[str, Any]], error: str | None = None) -> None:
        self._conditions, self._error = conditions, error
        self.measured: list[str] = []

    def conditions(self) -> dict[str, Any]:
        return self._conditions.pop(0) if len(self._conditions) > 1 else self._conditions[0]

    def measure(self, cell: Cell) -> Measured:
        self.measured.append(cell.name)
        if self._error is not None:
            raise BadInput(self._error)
        return Measured(figures={"step_s": known(1e-3, "recorded")}, samples=(1e-3,))

    def close(self) -> None:
        self._error = None


@pytest.mark.parametrize("engine", ["cost", "simulator"])
def test_every_cell_has_a_whole_result(engine: str, tmp_path: Path) -> None:
    made = plan(engine)
    results = run_sweep(made, tmp_path)
    assert [result["cell"]["name"] for result in results] == [cell.name for cell in made.cells]
    for result, cell in zip(results, made.cells, strict=True):
        assert result["status"] == "ok"
        assert result == json.loads(result_path(tmp_path, cell).read_text())
        figures = result["figures"]
        assert set(figures) == set(FIGURES)
        for figure in figures.values():  # never a zero in place of what is not known
            assert (figure["value"] is None) == (figure["reason"] is not None)
            assert (figure["value"] is None) == (figure["grade"] is None)
            assert figure["value"] != 0
        assert sum(result["rows_per_expert"]) == 4 * cell.tokens  # each token goes to four experts
        assert figures["dense_m"]["value"] == cell.tokens
    assert {row["step_s"] for row in document(tmp_path)["cells"]} == {r["figures"]["step_s"]["value"] for r in results}


def test_the_simulator_pays_what_the_cost_model_asks(tmp_path: Path) -> None:
    simulated, priced = (run_sweep(plan(engine), tmp_path / engine) for engine in ("simulator", "cost"))
    for own, asked in zip(simulated, priced, strict=True):
        assert own["figures"]["step_s"]["grade"] == "simulated"
        assert own["figures"]["step_s"]["value"] == pytest.approx(asked["figures"]["step_s"]["value"], rel=0.05)


def test_every_request_of_a_large_cell_decodes_in_its_window(tmp_path: Path) -> None:
    """The first request must not end while the last one's prompt is still under way."""
    axes: dict[str, Any] = {"decode_batches": (16, 128), "decode_context_lens": (1024,)}
    for budget in (160, 4096):
        held = Held(max_num_batched_tokens=budget)
        made = Plan(grid="own", engine="simulator", model=DEMO, hardware="h200", held=held, **axes)
        results = run_sweep(made, tmp_path / str(budget))
        assert [result["status"] for result in results] == ["ok", "ok"]
        assert {len(result["samples_s"]) for result in results} == {made.window.decode_steps}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_sweep_goes_on_to_the_same_table(workers: int, tmp_path: Path) -> None:
    made = plan()
    (tmp_path / "plan.yaml").write_text(to_yaml(made))
    program = tmp_path / "killed.py"
    program.write_text(KILLED_AFTER_TWO)
    cut = tmp_path / "cut"
    ended = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "plan.yaml"), str(cut), str(workers)], check=False, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL
    kept = {cell.name: text for cell in made.cells if (text := _text(cut, cell)) is not None}
    assert 2 <= len(kept) < len(made.cells)
    again: list[str] = []
    run_sweep(made, cut, RunOptions(on_result=lambda result: again.append(result["cell"]["name"])))
    assert set(again) == {cell.name for cell in made.cells} - set(kept)
    assert {cell.name: _text(cut, cell) for cell in made.cells if cell.name in kept} == kept
    run_sweep(made, tmp_path / "whole")
    assert document(cut) == document(tmp_path / "whole")


def _text(folder: Path, cell: Cell) -> str | None:
    path = result_path(folder, cell)
    return path.read_text() if path.exists() else None


@pytest.mark.extra
def test_ray_gives_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    made = plan("cost")
    run_sweep(made, tmp_path / "ray", RunOptions(ray=True))
    run_sweep(made, tmp_path / "here", RunOptions(workers=2))
    assert document(tmp_path / "ray") == document(tmp_path / "here")


def test_a_broken_result_is_run_again(tmp_path: Path) -> None:
    made = plan("cost")
    run_sweep(made, tmp_path)
    path = result_path(tmp_path, made.cells[0])
    whole = path.read_text()
    path.write_text(whole[:100])
    assert read_result(tmp_path, made, made.cells[0]) is None
    assert document(tmp_path)["missing"] == [made.cells[0].name]
    run_sweep(made, tmp_path)
    assert path.read_text() == whole


def test_a_folder_is_one_plan_s(tmp_path: Path) -> None:
    run_sweep(plan("cost"), tmp_path)
    with pytest.raises(BadInput, match="the sweep of another plan"):
        run_sweep(plan("simulator"), tmp_path)
    with pytest.raises(BadInput, match="no sweep is there"):
        read_sweep(tmp_path / "cells")


def test_failed_cells_are_kept_and_run_again_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_plan("small", engine="vllm", model=DEMO)
    broken = Scripted(conditions=[{"engine": "1"}], error="out of memory")
    monkeypatch.setattr(run_module, "open_driver", lambda *_: broken)
    results = run_sweep(made, tmp_path)
    assert {(r["status"], *r["reasons"]) for r in results[:1]} == {("failed", "out of memory")}
    working = Scripted(conditions=[{"engine": "1"}])
    monkeypatch.setattr(run_module, "open_driver", lambda *_: working)
    run_sweep(made, tmp_path)
    assert working.measured == []
    results = run_sweep(made, tmp_path, RunOptions(retry_failed=True))
    assert {r["status"] for r in results} == {"ok"}
    assert made.cells[0].name in working.measured


def test_a_change_in_the_cell_or_since_the_start_makes_it_invalid() -> None:
    made = make_plan("small", engine="vllm", model=DEMO)
    first = {"engine": "vllm 0.31", "device": "x"}
    driver = Scripted(conditions=[first, {"engine": "vllm 0.31", "device": "y"}])
    result = run_cell(made, made.cells[0], driver, first)
    assert result["status"] == "invalid"
    assert result["reasons"] == ["device changed while the cell ran: 'x', then 'y'"]
    result = run_cell(made, made.cells[0], Scripted(conditions=[{"engine": "vllm 0.32", "device": "x"}]), first)
    assert result["reasons"] == ["engine changed since the sweep began: 'vllm 0.31', then 'vllm 0.32'"]


def test_another_checkpoint_than_the_plan_s_is_invalid(tmp_path: Path) -> None:
    made = make_plan("small", engine="cost", model=DEMO, hardware="h200", held=Held(checkpoint_hash="sha256:0"))
    results = run_sweep(made, tmp_path)
    assert {result["status"] for result in results} == {"invalid"}
    assert "the plan asks for sha256:0" in results[0]["reasons"][0]
    assert document(tmp_path)["crossovers"][0]["answer"] == "not_measured"
