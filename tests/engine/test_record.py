"""A fresh recording of the real engine, explained and held against what its scheduler says it scheduled.

Skipped unless STEPSCOPE_ENGINE_PYTHON names the interpreter of an environment made by examples/install_engine.sh;
`make check-engine` does both.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stepscope
from stepscope.report.document import to_document
from stepscope.report.tables import step_rows
from stepscope.steps.ranks import ArrivalSkew
from stepscope.store.schema import CATEGORIES

if TYPE_CHECKING:
    from stepscope.answers.account import Account

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("STEPSCOPE_ENGINE_PYTHON")
RANKS = (0, 1)
SUMS = ("query_sum", "kv_sum", "query_sq_sum", "query_kv_sum")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What our side says, and what the scheduler says."""

    account: Account
    report: dict[str, Any]
    truth: list[dict[str, Any]]

    def rows(self, rank: int) -> list[dict[str, Any]]:
        """Steps of one rank that ran tokens."""
        return [row for row in step_rows(self.account) if row["rank"] == rank and row["phase"] != "empty"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recorded")
    python = (ROOT / str(PYTHON)).absolute()  # not resolved: a link in a venv says which venv it is
    script = ROOT / "examples" / "record_vllm_cpu.py"
    done = subprocess.run(
        [str(python), str(script), "--out", str(folder)],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    account = stepscope.explain(stepscope.open_trace(folder))
    lines = (folder / "truth.jsonl").read_text(encoding="utf-8").splitlines()
    truth = [step for line in lines if (step := json.loads(line))["total"]]
    return Recording(account=account, report=to_document(account), truth=truth)


def expected(step: dict[str, Any]) -> dict[str, int]:
    """A scheduler's line -> the columns of `steps` that it decides. A request without an output yet is in prefill."""
    row = {"num_scheduled_tokens": step["total"]}
    for side in ("prefill", "decode"):
        own = [(r["q"], r["k"]) for r in step["reqs"] if (r["n_out"] == 0) == (side == "prefill")]
        row[f"num_{side}_requests"] = len(own)
        sums = (sum(q for q, _ in own), sum(k for _, k in own), sum(q * q for q, _ in own), sum(q * k for q, k in own))
        row |= {f"{side}_{name}": value for name, value in zip(SUMS, sums, strict=True)}
    return row


def expected_phase(step: dict[str, Any]) -> str:
    kinds = {"prefill" if r["n_out"] == 0 else "decode" for r in step["reqs"]}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def test_nothing_is_lost_and_both_ranks_are_there(recording: Recording) -> None:
    given = recording.report["inputs"]
    assert [item["rank"] for item in given] == list(RANKS)
    for item in given:
        assert item["lane"] == "host"
        assert item["events_lost"] == 0
        assert item["events_read"] == item["events_present"] > 1000


@pytest.mark.parametrize("rank", RANKS)
def test_every_step_holds_what_the_scheduler_scheduled(recording: Recording, rank: int) -> None:
    rows = recording.rows(rank)
    assert len(rows) == len(recording.truth) >= 10
    for row, step in zip(rows, recording.truth, strict=True):
        want = expected(step)
        assert {name: row[name] for name in want} == want


@pytest.mark.parametrize("rank", RANKS)
def test_phases_are_the_scheduler_s(recording: Recording, rank: int) -> None:
    phases = [row["phase"] for row in recording.rows(rank)]
    assert phases == [expected_phase(step) for step in recording.truth]
    assert set(phases) == {"prefill", "mixed", "decode"}


@pytest.mark.parametrize("rank", RANKS)
def test_each_ns_of_the_span_is_in_one_category(recording: Recording, rank: int) -> None:
    *windows, total = [row for row in recording.report["budget"] if row["rank"] == rank]
    assert total["step_id"] is None
    for row in (*windows, total):
        assert set(row["exclusive_ns"]) == set(CATEGORIES)
        assert sum(row["exclusive_ns"].values()) == row["window_ns"]
    for before, after in pairwise(windows):
        assert before["start_ns"] + before["window_ns"] == after["start_ns"]
    assert sum(row["window_ns"] for row in windows) == total["window_ns"]


@pytest.mark.parametrize("rank", RANKS)
def test_the_catalog_places_nearly_all_work(recording: Recording, rank: int) -> None:
    total = next(row for row in recording.report["budget"] if row["rank"] == rank and row["step_id"] is None)
    assert total["exclusive_ns"]["unmatched"] < 0.02 * total["window_ns"]


@pytest.mark.parametrize("rank", RANKS)
def test_the_wait_for_work_is_recorded(recording: Recording, rank: int) -> None:
    assert recording.report["coverage"]["idle_claimable"]
    total = next(row for row in recording.report["budget"] if row["rank"] == rank and row["step_id"] is None)
    assert total["exclusive_ns"]["supply"] > 0
    signals = [row for row in recording.report["signals"] if row["rank"] == rank and row["layer"] == "supply"]
    assert sum(row["count"] for row in signals) >= len(recording.truth) - 1


def test_collectives_of_the_ranks_are_matched(recording: Recording) -> None:
    skew = recording.account.skew
    assert isinstance(skew, ArrivalSkew), skew
    assert skew.num_instances >= len(recording.truth)
    assert set(skew.awaited_ns) == set(RANKS)
