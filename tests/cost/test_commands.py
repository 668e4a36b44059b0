"""crossover, hardware and probe from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from stepscope.cli import cost
from stepscope.errors import BadInput

app = typer.Typer(pretty_exceptions_enable=False)
app.command("crossover")(cost.crossover)
app.command("hardware")(cost.hardware)
app.command("probe")(cost.probe)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


SMALL = ("--batches", "1,64", "--contexts", "1k,8k", "--tokens", "64,2048")


def test_crossover_shows_all_three_answers() -> None:
    text = run("crossover", "deepseek-v4-flash-0731", "--hardware", "h200", "--tp", "8", "--ep", "8", *SMALL)
    for part in (
        "ridge_peak",
        "ridge_effective",
        "1. dense GEMM",
        "R b_w / 2",
        "2. experts",
        "3. decode step",
        "never",
    ):
        assert part in text


def test_crossover_as_json_and_csv() -> None:
    arguments = ("crossover", "qwen3-30b-a3b", "--hardware", "b200", *SMALL)
    document = json.loads(run(*arguments, "-f", "json"))
    assert {"dense", "experts", "decode", "ridges"} <= set(document)
    assert [p["mean"] for p in document["experts"][0]["points"]] == [64 * 8 / 128, 2048 * 8 / 128]
    lines = run(*arguments, "-f", "csv").splitlines()
    assert lines[0].startswith("batch,context_len,bound,leading_part")
    assert len(lines) == 5


def test_the_peak_ridge_can_be_asked_for() -> None:
    arguments = ("crossover", "llama-3.1-8b", "--hardware", "h200", *SMALL, "-f", "json")
    peak = json.loads(run(*arguments, "--peak"))["dense"][0]["ridge"]
    assert peak == pytest.approx(989e12 / 4.8e12)
    assert json.loads(run(*arguments))["dense"][0]["ridge"] != pytest.approx(peak)


def test_hardware_lists_and_shows() -> None:
    assert "ascend-910c" in run("hardware")
    document = json.loads(run("hardware", "h200", "-f", "json"))
    assert all(figure["source"] and figure["date"] for figure in document["figures"])
    assert "peaks" not in run("hardware", "h20")
    with pytest.raises(BadInput, match="Known"):
        run("hardware", "nope")


def test_probe_writes_a_file_that_crossover_takes(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    sizes = ("--k", "64", "--n", "64", "--m", "1,8", "--copy-mib", "1", "--seconds", "0.01")
    text = run("probe", "--library", "numpy", "--dtype", "fp32", *sizes, "-o", str(path))
    assert "grouped_gemm" in text
    text = path.read_text(encoding="utf-8").replace("fp32 = ", "bf16 = ")  # as if bf16 had been measured
    path.write_text(text, encoding="utf-8")
    document = json.loads(run("crossover", "llama-3.1-8b", "--hardware", str(path), *SMALL, "-f", "json"))
    assert document["ridges"]["bf16"]["effective_from"] == "probe"
    assert document["ridges"]["bf16"]["peak"] is None


def test_bad_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--batches"):
        run("crossover", "llama-3.1-8b", "--hardware", "h200", "--batches", "0")
    with pytest.raises(BadInput, match="hardware file ends"):
        run("probe", "-o", str(tmp_path / "x.yaml"))
