"""A real engine's step log gives the same steps, and nearly the same seconds, as a clock around each engine.step().

Skipped unless STEPSCOPE_ENGINE_PYTHON names the interpreter of an environment made by examples/install_engine.sh.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from stepscope.calibrate.recording import RecordedSteps, read_recorded_steps
from tests.engine.drive_engine import DENSE
from tests.engine.plugin_environment import PYTHON, ROOT, engine_environment

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]
ENGINE = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 2048, "block_size": 32}
REQUESTS = [
    {
        "request_id": f"r{i}",
        "arrival_s": 0.05 * i,
        "seed": 100 + i,
        "shared_seed": 1,
        "shared_len": 64 if i % 3 == 0 else 0,
        "prompt_len": 80 + 37 * (i % 7),
        "output_len": 6 + i % 5,
    }
    for i in range(20)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordedSteps, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("calibration")
    lines = [{"model": DENSE, "engine": ENGINE}, {"clock": "wall", "chunk": 256, "requests": REQUESTS}]
    done = subprocess.run(
        [str(PYTHON), "-P", str(ROOT / "benchmarks" / "same_time_engine.py")],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env=engine_environment(folder),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return read_recorded_steps(folder / "log"), json.loads(done.stdout.splitlines()[1])["steps"]


def test_the_log_has_every_step_with_its_rows(run: tuple[RecordedSteps, list[dict[str, Any]]]) -> None:
    recorded, steps = run
    assert (recorded.engine, len(recorded.steps)) == ("vllm", len(steps))
    for logged, step in zip(recorded.steps, steps, strict=True):
        rows = [(row.query_len, row.context_len, row.phase == "prefill") for row in logged.shape.rows or ()]
        assert rows == [tuple(row[1:]) for row in step["rows"]]


def test_the_log_says_what_a_clock_around_each_step_says(run: tuple[RecordedSteps, list[dict[str, Any]]]) -> None:
    recorded, steps = run
    ratios = [
        logged.seconds / (after["begun_s"] - step["begun_s"])
        for logged, step, after in zip(recorded.steps, steps, steps[1:], strict=False)
        if logged.seconds is not None
    ]
    assert len(ratios) > len(steps) / 2
    assert median(ratios) == pytest.approx(1.0, abs=0.05)  # the same seconds, from the next line of code


def test_the_source_names_the_files(run: tuple[RecordedSteps, list[dict[str, Any]]]) -> None:
    recorded, _ = run
    assert {Path(name).suffix for name in recorded.source.files} == {".steplog"}
    assert any(name.startswith("scheduler-") for name in recorded.source.files)
