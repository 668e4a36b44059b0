"""The probe: what it writes is a hardware file that prices a step; what it cannot do it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cost.hardware import load_hardware
from stepscope.cost.probe import Measurement, NumpyBackend, ProbePlan, Task, choose_backend, run_probe, to_hardware_toml
from stepscope.errors import BadInput

PLAN = ProbePlan(k=64, n=64, m=(1, 8), dtype="fp32", num_experts=2, copy_bytes=1 << 16, seconds_each=0.01)


def test_a_probe_becomes_a_hardware_file(tmp_path: Path) -> None:
    backend = NumpyBackend()
    measured = run_probe(PLAN, backend)
    assert [m.task.kernel for m in measured] == ["gemm", "gemm", "copy", "attention", "grouped_gemm"]
    path = tmp_path / "mine.toml"
    path.write_text(to_hardware_toml(measured, PLAN, backend, "mine"), encoding="utf-8")
    mine = load_hardware(str(path))
    assert mine.basis == "achieved"
    figure = mine.compute["achieved", "fp32"]
    assert figure.low is not None
    assert figure.high is not None
    assert 0 < figure.low <= figure.value <= figure.high
    assert "GEMM" in figure.source


def test_a_rate_is_the_median_with_its_spread() -> None:
    task = Task(kernel="copy", label="x", flop=0, moved_bytes=100)
    median, low, high = Measurement(task=task, repeats=(1.0, 2.0, 4.0)).rate(100)
    assert median == 50.0
    assert low < median < high


def test_work_of_a_gemm_by_hand() -> None:
    gemm = run_probe(PLAN, NumpyBackend())[1].task
    assert gemm.flop == 2 * 8 * 64 * 64
    assert gemm.moved_bytes == 4 * (8 * 64 + 64 * 64 + 8 * 64)


def test_numpy_attention_is_attention() -> None:
    backend = NumpyBackend()
    q, k, v = backend.zeros(2, 1, 4), backend.zeros(2, 3, 4), backend.zeros(2, 3, 4)
    assert backend.attention(q, k, v)() == pytest.approx(0.01)  # a mean of equal values


def test_what_numpy_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(BadInput, match="--dtype fp32"):
        choose_backend("bf16")
    with pytest.raises(BadInput, match="needs torch"):
        choose_backend("fp32", device="cuda")
    with pytest.raises(BadInput, match="torch is not installed"):
        choose_backend("fp32", library="torch")
    assert choose_backend("fp32").name == "numpy"


def test_a_file_needs_a_gemm_and_a_copy() -> None:
    with pytest.raises(BadInput, match="at least one GEMM"):
        to_hardware_toml([], PLAN, NumpyBackend(), "mine")
