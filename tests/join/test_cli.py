"""`stepscope metrics` and `stepscope chunks`: every format, and bad input in one line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from stepscope.cli import join
from stepscope.errors import BadInput
from stepscope.join.evidence import join_rows, join_sources
from stepscope.join.tables import JOIN_TABLE_MEANING, JOIN_TABLES
from tests.join.evidence import iteration, sources, write_step_log
from tests.join.test_metrics import QUEUED, SERVED
from tests.join.test_requests import CHUNKED
from tests.readers.test_server_log import STAGES

app = typer.Typer()
app.command("metrics")(join.metrics)
app.command("chunks")(join.chunks)


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_plan_in_every_format() -> None:
    plan = ("chunks", "--prompt", "20000", "--hit", "8200", "--token-budget", "8192", "--block", "16")
    text = run(*plan)
    assert "prompt 20,000 = hit 8,192 + effective 11,808 tokens, in 2 chunks" in text
    assert "8 of 8,200 tokens found are computed all the same" in text
    assert json.loads(run(*plan, "-f", "json"))["chunks"][1]["query_len"] == 3616
    assert [row["kv_len"] for row in csv.DictReader(io.StringIO(run(*plan, "-f", "csv")))] == ["16384", "20000"]
    assert "| chunk |" in run(*plan, "-f", "md")


def test_recorded_chunks(tmp_path: Path) -> None:
    folder = write_step_log(tmp_path / "log", CHUNKED)
    assert "40/56+1 44/100+20" in run("chunks", "--steps-log", folder)
    rows = json.loads(run("chunks", "--steps-log", folder, "--request", "a", "-f", "json"))
    assert [row["query_len"] for row in rows] == [40, 44]
    assert set(rows[0]) == {column.name for column in JOIN_TABLES["chunks"]}


def test_metrics_in_every_format(tmp_path: Path) -> None:
    sources(tmp_path, steps=QUEUED, scrapes=SERVED, log=[iteration(0, (1, 512), (0, 0)), STAGES])
    files = (
        "metrics",
        "--steps-log",
        tmp_path / "steps",
        "--metrics",
        tmp_path / "metrics",
        "--log",
        tmp_path / "server.log",
    )
    text = " ".join(run(*files).split())
    for part in (
        "Queue Length",
        "22.94",
        "What they mean",
        "it is no batch size",
        "Reconciled",
        "not exported",
        "router",
    ):
        assert part in text
    document = json.loads(run(*files, "-f", "json"))
    assert document["missing_stages"] == ["decode", "decode_queue", "preallocation", "router", "transfer"]
    assert next(row for row in document["tables"]["metrics"] if row["figure"] == "queue_length")["value"] == 22.94
    rows = list(csv.DictReader(io.StringIO(run(*files, "-f", "csv"))))
    assert rows[0]["figure"] == "queue_length"
    run(*files, "-f", "parquet", "-o", tmp_path / "m.parquet")
    assert pq.read_table(tmp_path / "m.parquet").column_names == [c.name for c in JOIN_TABLES["metrics"]]
    assert "## Metrics" in run(*files, "-f", "md")


def test_rows_of_every_table_have_the_declared_columns(tmp_path: Path) -> None:
    joined = join_sources(sources(tmp_path, steps=CHUNKED, scrapes=SERVED, log=[STAGES]))
    assert set(join_rows(joined)) == set(JOIN_TABLES) == set(JOIN_TABLE_MEANING)
    for name, rows in join_rows(joined).items():
        for row in rows:
            assert list(row) == [column.name for column in JOIN_TABLES[name]], name


@pytest.mark.parametrize(
    "arguments",
    [
        ("metrics",),
        ("metrics", "--log", "nowhere.log"),
        ("metrics", "--metrics", "nowhere"),
        ("metrics", "--client", "nowhere.json"),
        ("metrics", "--steps-log", "nowhere"),
        ("metrics", "--experts", "nowhere.pt"),
        ("chunks",),
        ("chunks", "--prompt", "10", "--hit", "11"),
        ("chunks", "--prompt", "10", "--token-budget", "4", "--shared-tokens", "4"),
        ("chunks", "--prompt", "10", "-f", "parquet"),
        ("chunks", "--steps-log", "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_with_what_to_do(arguments: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=r"\. |: |\.$"):
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_a_request_that_is_not_there(tmp_path: Path) -> None:
    folder = write_step_log(tmp_path / "log", CHUNKED)
    with pytest.raises(BadInput, match="no request 'q'"):
        CliRunner().invoke(app, ["chunks", "--steps-log", str(folder), "--request", "q"], catch_exceptions=False)
