"""What the driver makes of an engine's step log and of an engine that does not answer; no engine is needed."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.errors import BadInput, TaskFailed
from stepscope.readers.step_log import StepLog, read_step_log
from stepscope.record.step_log import FORMAT, encode
from stepscope.sweep.model import DEMO
from stepscope.sweep.plan import Cell, Plan, Window, make_plan
from stepscope.sweep.vllm_engine import EngineSetup, VllmDriver, measured_of_log

MS = 1_000_000
DECODE = Cell(kind="decode", tokens=2, batch=2, context_len=64)
PREFILL = Cell(kind="prefill", tokens=32, batch=1, context_len=0)


def plan(**window: Any) -> Plan:
    return make_plan("small", engine="vllm", model=DEMO, window=Window(decode_steps=4, prefill_repeats=2, **window))


def row(name: str, query: int, kv: int, hit: int = 0) -> list[Any]:
    is_decode = query == 1
    return [name, query, kv, hit, "decode" if is_decode else "prefill", None if is_decode else 0, kv, 1, 0, 0, None]


def write_log(folder: Path, steps: list[list[list[Any]]], *, step_ms: int = 5, lost: int | None = None) -> StepLog:
    """One step every few ms, each with its rows; and M_e of each as a worker counts them."""
    records = [
        {"seq": i, "kind": "step", "step_id": i, "time_ns": (i * step_ms + 1) * MS, "schedule_ns": MS}
        | {"num_scheduled_tokens": sum(r[1] for r in rows), "num_requests": len(rows), "rows": rows}
        for i, rows in enumerate(steps)
    ]
    kept = [record for record in records if record["seq"] != lost]
    counts = base64.b64encode(np.array([[3, 1, 0, 4]], "<i4").tobytes()).decode()
    experts = [
        {"seq": i, "kind": "experts", "step_id": i, "num_experts": 4, "layers": [0], "top_k": 4}
        | {"num_tokens": 2, "rows_per_expert": counts}
        for i in range(len(steps))
    ]
    for role, content in (("scheduler", kept), ("worker", experts)):
        header = {"kind": "header", "format": FORMAT, "version": 1, "role": role, "stream_id": role, "rank": 0}
        (folder / f"{role}-0.steplog").write_bytes(b"".join(encode(each) for each in (header, *content)))
    return read_step_log(folder)


def calls(first: int, last: int, step_ms: int = 5) -> list[tuple[int, int, float]]:
    """The engine's calls of steps first to last, each one busy half of the time."""
    return [(i * step_ms * MS, (i + 1) * step_ms * MS, step_ms / 2000) for i in range(first, last + 1)]


def decodes(count: int, hit: int = 0) -> list[list[list[Any]]]:
    return [[row("a", 1, 66 + i, hit), row("b", 1, 66 + i, hit)] for i in range(count)]


@pytest.mark.parametrize(("clock", "seconds"), [("wall", 0.005), ("busy", 0.0025)])
def test_a_decode_window_s_steps_are_timed_by_the_chosen_clock(clock: str, seconds: float, tmp_path: Path) -> None:
    log = write_log(tmp_path, [[row("a", 64, 64)], *decodes(7)])
    found = measured_of_log(plan(clock=clock), DECODE, log, calls(2, 5), [])
    assert found.problems == ()
    assert found.samples == pytest.approx([seconds] * 4)
    assert found.figures["step_s"].value == pytest.approx(seconds)
    assert found.figures["tokens_per_s"].value == pytest.approx(2 / seconds)
    assert (found.rows_per_expert, found.figures["active_experts"].value) == ((3, 1, 0, 4), 3)
    assert found.details["mean_kv_len"] == pytest.approx(68.5)
    assert found.figures["experts_s"].reason == "the engine's profiler left no trace"


def test_prompts_are_timed_up_to_the_decode_step_behind_them(tmp_path: Path) -> None:
    pair = [[row("a", 32, 32)], [row("a", 1, 33)]]
    found = measured_of_log(plan(), PREFILL, write_log(tmp_path, pair * 3), calls(0, 3), [])
    assert found.problems == ()
    assert found.samples == pytest.approx((0.005, 0.005))
    assert found.figures["tpot_s"].value is None
    assert found.figures["tokens_per_s"].value == pytest.approx(32 / 0.005)


@pytest.mark.parametrize(
    ("steps", "lost", "problem"),
    [
        ([*decodes(2), [row("c", 8, 8)], *decodes(4)], None, "3 steps of the window have the cell's shape, 4 were"),
        (decodes(7, hit=16), None, "128 prompt tokens came from the prefix cache"),
        (decodes(7), 2, "1 records of the step log are missing"),
    ],
)
def test_a_window_that_is_not_as_planned_is_no_cell(
    steps: list[list[list[Any]]], lost: int | None, problem: str, tmp_path: Path
) -> None:
    found = measured_of_log(plan(), DECODE, write_log(tmp_path, steps, lost=lost), calls(1, 4), [])
    assert any(problem in each for each in found.problems), found.problems


def test_without_a_step_of_the_cell_there_is_no_figure(tmp_path: Path) -> None:
    found = measured_of_log(plan(), DECODE, write_log(tmp_path, [[row("a", 8, 8)]] * 4), calls(0, 3), [])
    assert found.figures == {}
    assert "no step of the cell has a known time" in found.problems


def test_an_engine_that_ends_is_said_with_the_place_of_its_words(tmp_path: Path) -> None:
    setup = EngineSetup(python=Path(sys.executable), environment=dict(os.environ), folder=tmp_path)
    with pytest.raises(TaskFailed, match="the engine's process ended") as failed:  # no vLLM in this environment
        VllmDriver(plan(), setup)
    log = Path(str(failed.value).rsplit(" ", 1)[1].rstrip("."))
    assert "No module named 'vllm'" in log.read_text()


def test_an_engine_needs_its_interpreter(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--engine-python"):
        VllmDriver(plan(), EngineSetup())
    with pytest.raises(BadInput, match="cannot be started"):
        VllmDriver(plan(), EngineSetup(python=tmp_path / "none", folder=tmp_path))
