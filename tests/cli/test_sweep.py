from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import done, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    chosen = ("--grid", "demo", "--engine", "cost", "--model", "qwen3-30b-a3b", "--hardware", "h200")
    done("sweep", "plan", *chosen, "-o", folder / "plan.yaml")
    told = done("sweep", "run", folder / "plan.yaml", "-o", folder / "out", "--workers", "1")
    assert "23 cells: 23 ok, 0 invalid, 0 failed" in told
    return folder / "out"


def test_the_report_shows_cells_crossovers_and_what_was_held(swept: Path) -> None:
    text = done("sweep", "report", swept)
    for words in ("prefill-m2048", "three crossovers", "by formula, on h200", "held fixed", "checkpoint_hash"):
        assert words in text
    assert "not known: host_gap_s: the cost model has no host between steps" in text
    document = json.loads(done("sweep", "report", swept, "-f", "json"))
    dense = document["crossovers"][0]
    ends = document["predicted"]["dense_tokens"]
    assert dense["answer"] == "found"
    assert ends["low"] <= dense["at"] <= ends["high"]  # the step's bend lies among those of its matrices
    assert document["predicted"]["bends"][0]["at"] == dense["at"]


def test_the_table_is_written_as_csv_and_markdown(tmp_path: Path) -> None:
    done("sweep", "plan", "--grid", "small", "--engine", "cost", "--hardware", "h200", "-o", tmp_path / "plan.yaml")
    done("sweep", "run", tmp_path / "plan.yaml", "-o", tmp_path / "out", "--workers", "1")
    rows = list(csv.DictReader(io.StringIO(done("sweep", "report", tmp_path / "out", "-f", "csv"))))
    assert [row["cell"] for row in rows][:3] == ["prefill-m32", "prefill-m64", "decode-b1-c64"]
    assert rows[0]["host_gap_s"] == ""  # unknown is empty, not 0
    done("sweep", "report", tmp_path / "out", "-o", tmp_path / "table.md")
    assert "| prefill-m32 | ok |" in (tmp_path / "table.md").read_text()


def test_the_charts_are_written(swept: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    done("sweep", "report", swept, "--charts", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"sweep-{kind}.{ending}" for kind in ("prefill", "decode") for ending in ("png", "svg")
    }


def test_an_interrupted_and_an_empty_sweep_say_what_to_do(swept: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text((swept / "plan.yaml").read_text())
    run("sweep", "report", tmp_path).assert_refused("no cell has a result yet", "stepscope sweep run")
    run("sweep", "report", tmp_path / "none").assert_refused("no sweep is there")
    (tmp_path / "cells").mkdir()
    one = swept / "cells" / "prefill-m128.json"
    (tmp_path / "cells" / one.name).write_text(one.read_text())
    assert "not run yet: prefill-m256" in done("sweep", "report", tmp_path)


def test_a_cell_that_is_not_ok_ends_with_code_1(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    text = done("sweep", "plan", "--grid", "small", "--engine", "cost", "--hardware", "h200")
    plan.write_text(text.replace("checkpoint_hash: sha256:", "checkpoint_hash: sha256:0"))
    outcome = run("sweep", "run", plan, "-o", tmp_path / "out", "--workers", "1")
    assert outcome.code == 1
    assert "prefill-m32 is invalid" in outcome.err
    assert "0 ok, 6 invalid" in outcome.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--grid", "vast"), "there is no such grid"),
        (("--engine", "cost"), "needs hardware"),
        (("--engine", "server"), "needs its url"),
        (("--engine-arg", "block size"), "NAME=VALUE was expected"),
    ],
)
def test_plans_that_cannot_be_are_refused(options: tuple[str, ...], said: str) -> None:
    run("sweep", "plan", *options).assert_refused(said)


def test_engine_arguments_are_read_as_json_where_they_are() -> None:
    text = done("sweep", "plan", "--engine-arg", "block_size=32", "--engine-arg", "dtype=float32")
    assert "block_size: 32" in text
    assert "dtype: float32" in text
