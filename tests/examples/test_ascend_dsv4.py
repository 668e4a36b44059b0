"""The composed DeepSeek-V4-Flash decode case on Ascend: the report against sums made by hand, and the script itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import stepscope
from stepscope.answers.branches import split_attention
from stepscope.answers.counters import find_bounds
from stepscope.answers.overlap import find_overlap
from stepscope.report.document import to_document

if TYPE_CHECKING:
    from stepscope.answers.account import Account

ROOT = Path(__file__).parents[2]
CASE = ROOT / "examples" / "ascend-dsv4-decode"
SCRIPT = ROOT / "examples" / "compose_ascend_dsv4_decode.py"
EXPECTED: dict[str, Any] = json.loads((CASE / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def account() -> Account:
    return stepscope.explain(stepscope.open_trace(CASE))


@pytest.fixture(scope="module")
def report(account: Account) -> dict[str, Any]:
    return to_document(account)


def test_it_is_read_without_loss_or_doubt(report: dict[str, Any]) -> None:
    (given,) = report["inputs"]
    assert (given["reader"], given["rank"], given["rank_source"]) == ("ascend", 0, "profiler_info")
    assert given["events_lost"] == 0
    assert given["health"] == []


def test_every_kernel_is_placed_and_in_a_step(report: dict[str, Any]) -> None:
    assert report["coverage"]["idle_claimable"]
    assert report["coverage"]["kernels_unassigned"] == 0
    assert report["coverage"]["matched_fraction"] == 1


def test_steps_are_the_engines(report: dict[str, Any]) -> None:
    assert (report["steps"]["count"], report["steps"]["source"]) == (3, "sglang")
    rows = report["steps"]["rows"]
    assert [{key: row[key] for key in want} for row, want in zip(rows, EXPECTED["steps"], strict=True)] == EXPECTED[
        "steps"
    ]


@pytest.mark.parametrize("want", EXPECTED["budget"], ids=lambda want: f"step{want['step_id']}")
def test_budget_is_the_one_added_up_by_hand(report: dict[str, Any], want: dict[str, Any]) -> None:
    (found,) = [row for row in report["budget"] if row["step_id"] == want["step_id"]]
    assert found["window_ns"] == want["window_ns"]
    assert found["exclusive_ns"] == want["exclusive_ns"]
    assert found["busy_ns"]["comm"] == want["busy_comm_ns"]


def test_the_hand_made_numbers_obey_the_laws() -> None:
    *steps, whole = EXPECTED["budget"]
    assert whole["window_ns"] == sum(row["window_ns"] for row in steps)
    for row in (*steps, whole):
        assert sum(row["exclusive_ns"].values()) == row["window_ns"]
    assert whole["exclusive_ns"] == {
        name: sum(row["exclusive_ns"][name] for row in steps) for name in whole["exclusive_ns"]
    }


def test_decode_attention_is_split_by_branch(account: Account, report: dict[str, Any]) -> None:
    found = [[part.branch, part.count, part.sum_ns] for part in split_attention(account.ranks[0])]
    assert found == EXPECTED["branches"]
    (answer,) = [question["answer"] for question in report["questions"] if question["id"] == "kv_path"]
    assert "SWA 84.0 us (6), C4 180 us (6), C128 180 us (6), indexer 540 us (6), compressor 180 us (24)" in answer


@pytest.mark.parametrize("want", EXPECTED["bounds"], ids=lambda want: f"{want['family']}-{want['core']}")
def test_ratios_are_weighted_by_time_and_missing_ones_are_not_zero(account: Account, want: dict[str, Any]) -> None:
    (family,) = [f for f in find_bounds(account.ranks[0]) if f.family == want["family"]]
    (core,) = [c for c in family.cores if c.core == want["core"]]
    assert core.missing_share == want["missing"]
    if want["memory_bound"] is None:
        assert core.memory_bound is None
    else:
        assert core.memory_bound == pytest.approx(want["memory_bound"], abs=1e-4)


def test_the_exporters_own_figures_stand_beside_ours(account: Account, report: dict[str, Any]) -> None:
    found = find_overlap(account.ranks[0])
    assert found is not None
    assert {name: getattr(found, name) for name in EXPECTED["recorder"]} == EXPECTED["recorder"]
    assert found.residual_ns == 0
    assert found.our_computing_ns == found.computing_ns
    assert found.our_communication_not_overlapped_ns == found.communication_not_overlapped_ns
    (answer,) = [question["answer"] for question in report["questions"] if question["id"] == "communication"]
    assert "Computing 4.90 ms" in answer
    assert "1.22 ms of dispatch, combine and fused communication is computing there and comm here" in answer


def test_counters_answer_beside_the_time_on_the_path(report: dict[str, Any]) -> None:
    (answer,) = [question for question in report["questions"] if question["id"] == "counters"]
    assert answer["status"] == "answered"
    assert "gemm has 1.08 ms of 6.33 ms on the path; AIC memory_bound 6.39" in answer["answer"]
    assert "N/A for 100.0 % of its time (the recorder wrote N/A)" in answer["answer"]


def test_the_script_writes_the_committed_files_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path)], check=True, capture_output=True)
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(written) == 4
    for name in written:
        assert (tmp_path / name).read_bytes() == (CASE / name).read_bytes()
        assert (CASE / name).stat().st_size < 150_000


def test_the_database_of_the_same_run_gives_the_same_kernels_times_and_bounds(tmp_path: Path, account: Account) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--form", "database"]
    subprocess.run(command, check=True, capture_output=True)
    text, database = account.ranks[0].store, stepscope.open_trace(tmp_path).stores[0]
    assert (text.names, text.tracks) == (database.names, database.tracks)
    for column in ("start_ns", "duration_ns", "name_id", "kind", "track_id", "correlation_id"):
        assert np.array_equal(getattr(text.events, column), getattr(database.events, column)), column
    bounds = find_bounds(stepscope.explain(tmp_path).ranks[0])
    for ours, theirs in zip(find_bounds(account.ranks[0]), bounds, strict=True):
        assert (ours.family, ours.exclusive_ns) == (theirs.family, theirs.exclusive_ns)
        assert [core.memory_bound for core in ours.cores] == [core.memory_bound for core in theirs.cores]
