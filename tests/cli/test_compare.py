"""`compare` and `export` as their users meet them: formats that agree, whole files, errors that say what."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.report.comparison import ROW_COLUMNS
from tests.cli.program import EXAMPLE, GLM, WITHHELD, done, run, spawn

if TYPE_CHECKING:
    from pathlib import Path


def compared(*arguments: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done("compare", *arguments, "--format", "json"))
    return document


def test_a_capture_with_itself_differs_by_nothing_beyond_noise() -> None:
    document = compared(EXAMPLE, EXAMPLE)
    assert document["schema"] == "stepscope.comparison/1"
    assert (document["verdict"]["status"], document["differences"], document["unmatched"]) == ("given", [], [])
    assert document["verdict"]["sentences"] == ["No difference beyond noise in the wall time of 20 workloads."]
    assert document["cause"] == {
        "headline": "No cause is named: 6 matched steps of one phase are too few for a bound over all families.",
        "named": [],
    }
    assert {w["rank"] for w in document["workloads"]} == {0, 1}
    assert all(w["wall"]["delta_ns"] == 0 for w in document["workloads"])


def test_two_engines_on_two_backends_get_no_verdict() -> None:
    document = compared(EXAMPLE, GLM)
    assert document["verdict"]["status"] == "refused"
    assert {d["id"] for d in document["differences"] if d["effect"] == "path"} >= {"lane"}
    assert document["workloads"] == []


def test_the_formats_hold_the_same_facts() -> None:
    document = compared(GLM, GLM)
    text, markdown = done("compare", GLM, GLM), done("compare", GLM, GLM, "--format", "md")
    for view in (text, markdown):
        assert "No difference beyond noise" in view
        assert "B - A" in view
    assert text.startswith("Cause\n  No cause ")
    assert text.index("What differs") < text.index("Verdict") < text.index("Matched steps")
    rows = list(csv.DictReader(io.StringIO(done("compare", GLM, GLM, "--format", "csv"))))
    assert tuple(rows[0]) == ROW_COLUMNS
    walls = [int(row["a_ns"]) for row in rows if row["level"] == "wall"]
    assert walls == [w["wall"]["a_ns"] for w in document["workloads"]]


def test_the_order_of_hashes_changes_no_byte() -> None:
    assert spawn("compare", EXAMPLE, EXAMPLE, seed=1) == spawn("compare", EXAMPLE, EXAMPLE, seed=2)


def test_a_run_compares_as_its_capture(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run("import", GLM, "-o", folder).code == 0
    document = compared(folder, GLM)
    assert document["verdict"]["status"] == "given" and document["differences"] == []


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    run("compare", EXAMPLE, tmp_path / "nothing").assert_refused("no such file")
    run("compare", EXAMPLE, EXAMPLE, "--kv-tolerance", "1.5").assert_refused("--kv-tolerance", "fraction")
    run("export", GLM, "-o", tmp_path / "x.json").assert_refused("--perfetto")


def test_tracks_only_writes_one_small_file(tmp_path: Path) -> None:
    output = tmp_path / "tracks.json.gz"
    assert "2 ranks" in done("export", GLM, "--perfetto", "--tracks-only", "-o", output)
    names = {e["args"].get("name") for e in json.loads(gzip.decompress(output.read_bytes()))["traceEvents"]}
    assert names >= {"stepscope rank 0", "stepscope rank 1", "step", "phase", "budget", "gaps"}


def test_whole_ranks_go_to_a_folder_a_file_each(tmp_path: Path) -> None:
    done("export", GLM, "--perfetto", "-o", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in GLM.glob("*.json.gz"))
    run("export", GLM, "--perfetto", "-o", GLM).assert_refused("is the capture itself")
    (tmp_path / "file").write_text("")
    run("export", GLM, "--perfetto", "-o", tmp_path / "file").assert_refused("need a folder", "--tracks-only")


def test_a_run_gives_its_tracks_and_not_its_events(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run("import", GLM, "-o", folder).code == 0
    run("export", folder, "--perfetto", "-o", tmp_path / "x.json").assert_refused("--tracks-only")
    for source, name in ((folder, "run.json"), (GLM, "capture.json")):
        done("export", source, "--perfetto", "--tracks-only", "-o", tmp_path / name)
    assert (tmp_path / "run.json").read_bytes() == (tmp_path / "capture.json").read_bytes()


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_withheld_capture_shows_its_gaps_as_withheld(suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"out{suffix}"
    done("export", WITHHELD, "--perfetto", "-o", output)
    data = output.read_bytes() if suffix == ".json" else gzip.decompress(output.read_bytes())
    ours = {e["name"] for e in json.loads(data)["traceEvents"] if e.get("cat") == "stepscope"}
    assert "withheld" in ours and not ours & {"supply", "host", "idle"}
