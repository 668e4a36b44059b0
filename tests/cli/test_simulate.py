"""simulate and search as their users meet them: what can run, what cannot, and what is kept."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.simulate.search import key_of
from tests.cli.program import Outcome, done, run, spawn

LOAD = ("--rate", "4", "--requests", "20", "--prompt-len", "500:0.5", "--output-len", "20:0.3")
BASE = ("simulate", "qwen3-8b", "--hardware", "h200", *LOAD)
GRID = ("search", "qwen3-8b", "--hardware", "h200", *LOAD, "--over", "chunk=256,2048", "--over", "max_num_seqs=2,64")


def simulated(*options: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done(*BASE, "-f", "json", *options))
    return document


def test_every_number_has_ends_and_is_simulated() -> None:
    document = simulated("--ttft", "1", "--tpot", "0.05")
    assert document["grade"] == "simulated"
    assert document["cost"]["grade"] in ("modelled", "extrapolated")
    for row in document["figures"]:
        assert row["low"] <= row["value"] <= row["high"], row
    assert sum(document["binding"].values()) == pytest.approx(1)
    assert document["memory"]["num_blocks"] == document["rules"]["num_blocks"]


def test_text_says_what_it_rests_on() -> None:
    text = done(*BASE)
    for said in (
        "chunk (max_num_batched_tokens) 8,192",
        "memory of a device",
        "step times: cost model of h200",
        "TTFT",
    ):
        assert said in text
    assert "| TPOT |" in done(*BASE, "-f", "md")


def test_csv_holds_the_figures() -> None:
    rows = list(csv.DictReader(io.StringIO(done(*BASE, "-f", "csv"))))
    document = simulated()
    assert [float(row["value"]) for row in rows if row["value"]] == [
        row["value"] for row in document["figures"] if row["value"] is not None
    ]


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert spawn(*BASE, "-f", "json", seed=1) == spawn(*BASE, "-f", "json", seed=2)
    assert done(*BASE, "--seed", "1") != done(*BASE, "--seed", "2")


def test_both_names_of_the_budget_are_one() -> None:
    assert simulated("--chunk", "1024") == simulated("--max-num-batched-tokens", "1024")
    assert simulated("--set", "chunk=1024") == simulated("--chunk", "1024")


def test_a_run_is_explained_as_simulated_and_compares_with_itself(tmp_path: Path) -> None:
    document = simulated("-o", tmp_path / "run")
    assert document["run"] == str(tmp_path / "run")
    report = json.loads(done("explain", tmp_path / "run", "-f", "json"))
    assert report["steps"]["grade"] == "simulated"
    steps = {row["name"]: row["value"] for row in document["figures"]}["steps"]
    assert report["steps"]["count"] == steps
    assert "simulated: nothing of it was recorded" in done("explain", tmp_path / "run")
    assert "模拟结果" in done("explain", tmp_path / "run", "--lang", "zh")
    sql = "SELECT count(*) AS n, sum(output_len) AS outputs FROM simulated_requests"
    assert json.loads(done("query", tmp_path / "run", sql, "-f", "json"))[0]["n"] == 20
    compared = simulated("--compare", tmp_path / "run")["compared"]
    assert all(abs(row["error"]) < 1e-9 for row in compared["rows"] if row["measured"])
    assert "Against" in done(*BASE, "--compare", tmp_path / "run")


@pytest.mark.parametrize(
    ("load", "lines"),
    [
        ("own.csv", "arrival_s,prompt_len,output_len\n0,100,5\n0.5,200,6\n"),
        ("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,4\n2023-11-16 18:15:50,39,3\n"),
        ("moon.jsonl", '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n' * 2),
    ],
)
def test_a_file_is_known_by_its_first_line(load: str, lines: str, tmp_path: Path) -> None:
    path = tmp_path / load
    path.write_text(lines, encoding="utf-8")
    document = json.loads(done("simulate", "qwen3-8b", "--hardware", "h200", "--workload", path, "-f", "json"))
    assert document["load"]["requests"] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--block-size", "0"), "block_size is 0"),
        (("--chunk", "100"), "below max_num_seqs"),
        (("--rate", "-1"), "arrival rate is -1"),
        (("--workload", "nothing.csv"), "no such file"),
        (("--workload", "gamma:x"), "no number"),
        (("--prompt-len", "200000"), "max_model_len"),
        (("--max-model-len", "100"), "max_model_len 100"),
        (("--num-blocks", "3"), "it can never run"),
        (("--utilisation", "0.1"), "does not fit on h200"),
        (("--hardware", "h9"), "h9"),
        (("--tp", "3"), "not divisible by tp 3"),
        (("--host-s", "-1"), "host_s is -1"),
        (("--set", "speed=2"), "Known: max_num_batched_tokens"),
        (("--ttft", "0"), "--ttft 0"),
        (("--compare", "nothing"), "nothing"),
        (("--calibration", "nothing.toml"), "nothing.toml"),
        (("-f", "parquet"), "parquet is not for this command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_run_is_refused_before_it_runs(options: tuple[str, ...], said: str) -> None:
    run(*BASE, *options).assert_refused(said)


def test_turns_in_a_circle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "circle.csv"
    path.write_text("request_id,arrival_s,prompt_len,output_len,after\na,0,9,2,b\nb,0,9,2,a\n", encoding="utf-8")
    run("simulate", "qwen3-8b", "--hardware", "h200", "--workload", path).assert_refused("circle: a after b after a")


def searched(*options: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done(*GRID, "-f", "json", *options))
    return document


def test_a_search_is_in_the_grids_order_whoever_is_first(tmp_path: Path) -> None:
    document = searched("--workers", "1", "--ttft", "5")
    order = [
        (point["settings"]["max_num_batched_tokens"], point["settings"]["max_num_seqs"]) for point in document["points"]
    ]
    assert order == [("256", "2"), ("256", "64"), ("2048", "2"), ("2048", "64")]
    assert document["points"] == searched("--workers", "2", "--ttft", "5")["points"]
    assert document["frontier"]
    text = done(*GRID, "--workers", "1", "--charts", tmp_path / "charts")
    assert "Frontier: cost against tpot p50" in text
    names = {path.name for path in (tmp_path / "charts").iterdir()}
    assert names == {f"search-{name}.{kind}" for name in ("frontier", "throughput") for kind in ("png", "svg")}


def test_kept_results_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = tmp_path / "points.jsonl"
    first = searched("--workers", "1", "--keep", keep)
    lines = keep.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 4
    keep.write_text("".join(lines[:2]) + lines[2][:40], encoding="utf-8")  # cut by an interruption
    ran: list[str] = []

    def count(trial: Any) -> dict[str, Any]:
        ran.append(key_of(trial))
        return next(point for point in first["points"] if point["key"] == ran[-1])

    monkeypatch.setattr("stepscope.cli.search.run_point", count)
    assert searched("--workers", "1", "--keep", keep) == first
    assert ran == [point["key"] for point in first["points"][2:]]
    assert keep.read_text(encoding="utf-8").splitlines(keepends=True) == lines


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--over", "chunk=1,,2"), "an empty value"),
        (("--over", "chunk=512"), "name each setting once"),
        (("--over", "speed=1"), "unknown setting"),
        (("--against", "speed"), "--against 'speed'"),
        (("--set", "utilisation=0.05"), "none of the 4 points can run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_search_that_cannot_be_is_refused(options: tuple[str, ...], said: str) -> None:
    refused: Outcome = run(*GRID, "--workers", "1", *options)
    refused.assert_refused(said)
