"""The composed GLM-5.2 prefill case: the report against numbers that were added up by hand, and the script itself."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.report.document import to_document

ROOT = Path(__file__).parents[2]
CASE = ROOT / "examples" / "glm52-prefill"
SCRIPT = ROOT / "examples" / "compose_glm52_prefill.py"
TRACES = sorted(CASE.glob("*.pt.trace.json.gz"))
EXPECTED: dict[str, Any] = json.loads((CASE / "expected.json").read_text(encoding="utf-8"))
RANKS = (0, 1)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    document: dict[str, Any] = to_document(stepscope.explain(stepscope.open_trace(CASE)))
    return document


def test_both_ranks_are_read_without_loss(report: dict[str, Any]) -> None:
    assert [given["rank"] for given in report["inputs"]] == [0, 1]
    for given in report["inputs"]:
        assert given["events_lost"] == 0
        assert given["events_read"] == given["events_present"]
        assert [row for row in given["health"] if row["severity"] != "info"] == []


def test_the_gate_opens_and_every_kernel_is_placed_in_a_step(report: dict[str, Any]) -> None:
    coverage = report["coverage"]
    assert coverage["idle_claimable"]
    assert coverage["kernels_unassigned"] == 0
    assert coverage["matched_fraction"] == 1


def test_steps_are_the_annotations_of_both_ranks(report: dict[str, Any]) -> None:
    steps = report["steps"]
    assert (steps["count"], steps["source"], steps["grade"]) == (6, "vllm", "recorded")
    for rank in RANKS:
        rows = [row for row in steps["rows"] if row["rank"] == rank]
        assert [{key: row[key] for key in want} for row, want in zip(rows, EXPECTED["steps"], strict=True)] == EXPECTED[
            "steps"
        ]


@pytest.mark.parametrize("want", EXPECTED["budget"], ids=lambda want: f"rank{want['rank']}-step{want['step_id']}")
def test_budget_is_the_one_added_up_by_hand(report: dict[str, Any], want: dict[str, Any]) -> None:
    found = [row for row in report["budget"] if (row["rank"], row["step_id"]) == (want["rank"], want["step_id"])]
    assert len(found) == 1
    assert found[0]["window_ns"] == want["window_ns"]
    assert found[0]["exclusive_ns"] == want["exclusive_ns"]
    assert {name: found[0]["busy_ns"][name] for name in want["busy_ns"]} == want["busy_ns"]


@pytest.mark.parametrize("want", EXPECTED["signals"], ids=lambda want: f"rank{want['rank']}-{want['signal']}")
def test_signals_are_the_ones_added_up_by_hand(report: dict[str, Any], want: dict[str, Any]) -> None:
    found = [row for row in report["signals"] if (row["rank"], row["signal"]) == (want["rank"], want["signal"])]
    assert len(found) == 1
    assert {key: found[0][key] for key in want} == want
    assert (found[0]["share"] is None) == (want["layer"] == "envelope")


def test_the_hand_made_numbers_obey_the_laws() -> None:
    for rank in RANKS:
        rows = [row for row in EXPECTED["budget"] if row["rank"] == rank]
        *steps, whole = rows
        assert whole["step_id"] is None
        assert whole["window_ns"] == sum(row["window_ns"] for row in steps)
        for row in rows:
            assert sum(row["exclusive_ns"].values()) == row["window_ns"]
            assert all(row["exclusive_ns"][name] <= busy for name, busy in row["busy_ns"].items())
        for view in ("exclusive_ns", "busy_ns"):
            assert whole[view] == {name: sum(row[view][name] for row in steps) for name in whole[view]}


def test_the_late_rank_costs_the_early_one_what_it_lost_itself() -> None:
    early, late = (
        next(row for row in EXPECTED["budget"] if (row["rank"], row["step_id"]) == (rank, 4)) for rank in RANKS
    )
    assert early["window_ns"] == late["window_ns"]
    assert early["exclusive_ns"]["comm"] - late["exclusive_ns"]["comm"] == 37_000_000
    assert late["exclusive_ns"]["host"] - early["exclusive_ns"]["host"] == 37_000_000


def test_the_script_writes_the_committed_files_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path)], check=True, capture_output=True)
    written = sorted(tmp_path.iterdir())
    assert [path.name for path in written] == [path.name for path in TRACES]
    same_deflate = "zlib-ng" not in zlib.ZLIB_RUNTIME_VERSION  # zlib-ng packs the same text into other bytes
    for ours, committed in zip(written, TRACES, strict=True):
        assert gzip.decompress(ours.read_bytes()) == gzip.decompress(committed.read_bytes())
        assert ours.read_bytes() == committed.read_bytes() or not same_deflate
        assert committed.stat().st_size < 60_000
