"""The small sweep on the real vLLM CPU engine: every cell is what was planned, and its figures are the engine's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.readers.step_log import read_step_log
from stepscope.sweep.conditions import CONDITIONS
from stepscope.sweep.model import DEMO
from stepscope.sweep.plan import Plan, make_plan
from stepscope.sweep.report import sweep_document
from stepscope.sweep.run import RunOptions, read_sweep, run_sweep
from stepscope.sweep.vllm_engine import EngineSetup
from tests.engine.openai_server import serving
from tests.engine.plugin_environment import PYTHON

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("sweep")
    made = make_plan("small", engine="vllm", model=DEMO)
    setup = EngineSetup(python=PYTHON, environment=os.environ | ENVIRONMENT, timeout_s=600)
    return made, folder, run_sweep(made, folder, RunOptions(setup=setup))


def test_every_cell_is_what_was_planned(swept: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    made, _, results = swept
    assert [(r["cell"]["name"], r["status"], r["reasons"]) for r in results] == [(c.name, "ok", []) for c in made.cells]
    for result in results:
        window = made.window.prefill_repeats if result["cell"]["kind"] == "prefill" else made.window.decode_steps
        assert len(result["samples_s"]) == window
        assert result["figures"]["step_s"]["grade"] == "recorded"


def test_the_held_conditions_are_known(swept: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    _, _, results = swept
    assert all(result["conditions"] == results[0]["conditions"] for result in results)
    assert {name for name in CONDITIONS if results[0]["conditions"].get(name) is None} == set()
    assert results[0]["conditions"]["prefix_caching"] is False


def test_experts_and_families_are_measured(swept: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    _, _, results = swept
    for result in results:
        assert sum(result["rows_per_expert"]) == 4 * result["cell"]["tokens"]  # top 4, no token lost or counted twice
        figures = result["figures"]
        for name in ("dense_gemm_s", "experts_s", "attention_s"):
            assert figures[name]["grade"] == "classified"
            assert figures[name]["value"] > 0
        assert figures["host_gap_s"]["value"] is None  # a CPU engine has no device to idle
        assert "Ascend" in figures["mac_ratio"]["reason"]


def test_the_step_log_holds_the_cells_rows(swept: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    made, folder, _ = swept
    (log,) = (read_step_log(path) for path in folder.glob("engine/*/steps"))
    shapes = [step.shape for step in log.schedulers[0].steps]
    for cell in made.cells:
        if cell.kind == "prefill":
            assert sum(s.prefill.query_sum == cell.tokens and not s.decode.num_requests for s in shapes) >= 5
        else:
            alone = [s for s in shapes if s.decode.num_requests == cell.batch and not s.prefill.num_requests]
            kv = [s.decode.kv_sum / cell.batch for s in alone if s.decode.kv_sum is not None]
            assert sum(cell.context_len < length <= cell.context_len + made.output_len(cell) for length in kv) >= 16


def test_a_second_run_finds_everything_done(swept: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    made, folder, results = swept
    assert run_sweep(made, folder) == results  # without an engine: none is needed
    document = sweep_document(*read_sweep(folder))
    assert {row["answer"] for row in document["crossovers"]} == {"not_measured"}  # 2 x 2 shows no bend


def test_a_server_of_the_real_engine_is_swept_by_http(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "log", **ENVIRONMENT) as server:
        made = make_plan("small", engine="server", model="tiny", url=server.url)
        results = run_sweep(made, tmp_path / "sweep")
    assert [(r["status"], r["reasons"]) for r in results] == [("ok", [])] * len(made.cells)
    for result in results:
        figures = result["figures"]
        assert figures["step_s"]["value"] is None
        assert figures["tokens_per_s"]["value"] > 0
        if result["cell"]["kind"] == "decode":
            steps = [s for s in read_step_log(tmp_path / "log").schedulers[0].steps if s.shape.decode.num_requests]
            assert 0 < figures["tpot_s"]["value"] < 5
            assert len(steps) >= made.window.decode_steps
