"""A cost injected into a real engine is what the comparison names; nothing injected, and nothing is named.

All injections into one rank are captured in one engine process, those into two ranks in another. Skipped unless
STEPSCOPE_ENGINE_PYTHON names the interpreter of an environment made by examples/install_engine.sh.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepscope.answers.account import explain
from stepscope.answers.compare import compare
from tests.engine.plugin_environment import PYTHON, engine_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.answers.account import Account
    from stepscope.answers.cause import Causes

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]

# injection -> category and family of the first cause, and the function that the pause stands in
ONE_RANK = {
    "schedule": ("engine", "schedule", "core/sched/scheduler.py: schedule"),
    "outputs": ("engine", "process_outputs", "core/sched/scheduler.py: update_from_output"),
    "inputs": ("host", "host_prepare", "v1/worker/gpu_model_runner.py: _prepare_inputs"),
    "metadata": ("host", "metadata", "v1/worker/gpu_model_runner.py: _build_attention_metadata"),
    "kv_write": ("kv", "cache_write", None),
    "attention": ("compute", "attention", None),
    "experts": ("compute", "experts", None),
    "mlp": ("compute", "gemm", None),
    "norm": ("compute", "norm", None),
    "sampling": ("compute", "sampling", None),
}


def environment(folder: Path) -> dict[str, str]:
    """The recorder for its markers alone: its step log and the truth would cost time that is no part of the engine."""
    given = engine_environment(folder)
    for name in ("STEPSCOPE_STEP_LOG", "STEPSCOPE_EXPERTS", "STEPSCOPE_TRUTH"):
        given.pop(name)
    return given | {
        "VLLM_PLUGINS": "stepscope_record",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
    }


def drive(num_ranks: int, folder: Path) -> Path:
    done = subprocess.run(
        [str(PYTHON), str(HERE / "drive_injections.py"), str(num_ranks), str(folder)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return folder / "traces"


def compared(folder: Path) -> Callable[[str], Causes]:
    """What the comparison of the reference with another capture names."""

    @cache
    def account(name: str) -> Account:
        return explain(folder / name)

    def causes(name: str) -> Causes:
        return compare(account("reference"), explain(folder / name)).causes

    return causes


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Causes]]:
    folder = tmp_path_factory.mktemp("one")
    yield compared(drive(1, folder))
    shutil.rmtree(folder / "traces")  # some hundred MB


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Causes]]:
    folder = tmp_path_factory.mktemp("two")
    yield compared(drive(2, folder))
    shutil.rmtree(folder / "traces")


@pytest.mark.parametrize("name", ONE_RANK)
def test_the_injected_cost_is_the_first_cause(name: str, one_rank: Callable[[str], Causes]) -> None:
    category, family, function = ONE_RANK[name]
    causes = one_rank(name)
    assert causes.named, str(causes.headline)
    first = causes.named[0]
    assert (first.kind, first.category, first.family) == ("family", category, family), str(causes.headline)
    assert first.delta_ns is not None
    assert first.delta_ns > 0
    if function is not None:
        assert first.function is not None
        assert first.function.endswith(function)


def test_prompts_without_prefix_hits_are_the_first_cause(one_rank: Callable[[str], Causes]) -> None:
    first = one_rank("prefix").named[0]
    assert first.kind == "effective prefill"
    assert "prefix hits 768 -> 0 tokens" in str(first.sentences[0])


def test_nothing_is_named_where_nothing_was_injected(one_rank: Callable[[str], Causes]) -> None:
    causes = one_rank("unchanged")
    assert causes.named == (), str(causes.headline)
    assert str(causes.headline).startswith("No cause stands out beyond noise: in 46 matched decode steps")


def test_a_rank_that_pauses_before_its_collectives_is_late(two_ranks: Callable[[str], Causes]) -> None:
    first = two_ranks("late").named[0]
    assert (first.kind, first.rank) == ("late rank", 1)
    assert first.function is not None
    assert first.function.endswith("layers/linear.py: forward")


def test_a_slow_engine_keeps_its_workers_waiting(two_ranks: Callable[[str], Causes]) -> None:
    first = two_ranks("starved").named[0]
    assert (first.kind, first.category, first.family) == ("family", "supply", "dequeue")
    assert "what the engine did meanwhile" in str(first.not_shown)


def test_two_unchanged_runs_of_two_ranks_name_no_work_of_that_size(two_ranks: Callable[[str], Causes]) -> None:
    # three processes on fewer cores: a send that wakes another costs its sender the core, and ranks wait for each other
    injected = two_ranks("late").named[0].delta_ns or 0
    work = [cause for cause in two_ranks("unchanged").named if cause.category not in ("comm", "supply")]
    assert [cause for cause in work if abs(cause.delta_ns or 0) > injected / 3] == []
