"""Recorded engine runs against the scheduler's own log of what it scheduled, line by line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.batch import PhaseSums

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.answers.account import Account, RankAccount

from itertools import pairwise

pytestmark = pytest.mark.shared

# folder: steps that ran tokens
ONE_PER_RUN = {
    "dense-pp2-small": 15,
    "dense-tp1-small-default": 10,
    "dense-tp1-small-nostack": 10,
    "dense-tp2-mixed": 56,
    "dense-tp2-recompile-badjson": 10,
    "dense-tp2-small": 10,
    "dense-v2runner-tp2": 10,
    "dsv4-interp-tiny": 4,
    "mla-tp2-small": 9,
    "moe-tp1-experts": 10,
    "moe-tp1-small": 10,
    "moe-tp2-small": 10,
}
RUNS = {
    **{name: (f"vllm-cpu/{name}", count) for name, count in ONE_PER_RUN.items()},
    "serve-nostack iters": ("vllm-cpu/serve-nostack/iters_*.gz", 20),
    "serve-nostack manual": ("vllm-cpu/serve-nostack/manual_*.gz", 129),
}
# a batch queue of two: a step is scheduled one schedule() before the one that runs when it is annotated
EARLIER = {"dense-pp2-small": 1}
UNDETAILED = {"dense-tp1-small-default"}

Truth = list[dict[str, Any]]


def schedule(folder: Path) -> Truth:
    """The scheduler's lines in time order."""
    lines = [
        json.loads(line)
        for path in folder.glob("truth/sched*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return sorted(lines, key=lambda line: line["t_ns"])


def lines_of(rank: RankAccount, truth: Truth, earlier: int) -> Truth:
    """The lines of a rank's steps: from the last one before the first step on, by wall clock."""
    first_ns = (rank.store.origin.base_time_ns or 0) + rank.table.steps[0].boundary.start_ns
    start = max(i for i, line in enumerate(truth) if line["t_ns"] <= first_ns) - earlier
    return truth[start : start + len(rank.table.steps)]


def sums(line: dict[str, Any], *, prefill: bool) -> tuple[int, int, int]:
    """(rows, Σq, Σk) of one phase: a row is in prefill while its prompt is not computed."""
    rows = [row for row in line["reqs"] if (row["computed"] < row["prompt"]) == prefill]
    return len(rows), sum(row["q"] for row in rows), sum(row["k"] for row in rows)


@pytest.fixture(params=RUNS, name="run")
def _run(
    request: pytest.FixtureRequest, traces: Path, account: Callable[[str], Account]
) -> tuple[str, Account, Truth, int]:
    name: str = request.param
    path, count = RUNS[name]
    folder = traces / (path.rpartition("/")[0] if path.endswith(".gz") else path)
    return name, account(path), schedule(folder), count


Run = tuple[str, "Account", Truth, int]


def test_steps_are_those_that_the_scheduler_scheduled(run: Run) -> None:
    name, account, truth, count = run
    assert account.ranks
    for rank in account.ranks:
        lines = lines_of(rank, truth, EARLIER.get(name, 0))
        assert [step.boundary.shape.num_scheduled_tokens for step in rank.table.steps] == [
            line["total"] for line in lines
        ]
        ran = [line for line in lines if line["total"]]
        assert len(rank.table.counted) == len(ran) == count


def test_sums_of_each_phase_are_the_schedulers_or_unknown(run: Run) -> None:
    name, account, truth, _ = run
    for rank in account.ranks:
        for step, line in zip(rank.table.steps, lines_of(rank, truth, EARLIER.get(name, 0)), strict=True):
            shape = step.boundary.shape
            shape.check()
            for side, is_prefill in ((shape.prefill, True), (shape.decode, False)):
                rows, query, kv = sums(line, prefill=is_prefill)
                expected = None if name in UNDETAILED and rows else kv
                assert (side.num_requests, side.query_sum, side.kv_sum) == (rows, query, expected)


def test_rows_are_the_schedulers_where_a_marker_recorded_them(run: Run) -> None:
    name, account, truth, _ = run
    for rank in account.ranks:
        for step, line in zip(rank.table.steps, lines_of(rank, truth, EARLIER.get(name, 0)), strict=True):
            rows = step.boundary.shape.rows
            if rows is not None and line["total"]:
                assert sorted((row.query_len, row.kv_len) for row in rows) == sorted(
                    (row["q"], row["k"]) for row in line["reqs"]
                )
                assert PhaseSums.from_rows(rows).query_sum == line["total"]


def test_the_budget_of_every_window_adds_up_and_little_is_unmatched(run: Run) -> None:
    _, account, _, _ = run
    for rank in account.ranks:
        rank.store.check()
        rank.budget.partition.check()
        assert rank.budget.coverage.idle_claimable
        for window in (*rank.budget.windows, rank.budget.total):
            window.check()
            assert all((window.exclusive_ns[name] or 0) <= (busy or 0) for name, busy in window.busy_ns.items())
            unseen = {name for name, ns in window.exclusive_ns.items() if ns is None}
            assert unseen == (set() if rank.store.has_frames else {"supply", "idle"})
        windows = [step.window for step in rank.table.counted if step.window]
        assert all(one[1] == other[0] for one, other in pairwise(windows))
        assert rank.budget.coverage.matched_fraction is not None
        assert rank.budget.coverage.matched_fraction > 0.98


def test_broken_json_of_a_real_engine_loses_nothing(account: Callable[[str], Account]) -> None:
    (rank,) = account("vllm-cpu/dense-tp2-recompile-badjson").ranks
    counts = rank.store.counts
    assert (counts.intact, counts.recovered, counts.lost) == (427_767, 11, 0)
    assert counts.present == 427_778


def test_the_servers_front_end_is_an_other_process_and_no_rank(account: Callable[[str], Account]) -> None:
    for name in ("iters", "manual"):
        found = account(RUNS[f"serve-nostack {name}"][0])
        assert [len(found.ranks), len(found.others)] == [1, 1]


def test_a_second_stage_receives_before_its_step_and_that_is_communication(
    account: Callable[[str], Account],
) -> None:
    found = account("vllm-cpu/dense-pp2-small")
    second = next(rank for rank in found.ranks if rank.rank == 1)
    received = second.budget.partition.parts["comm", "pp_recv"].total_ns
    assert received > 0
    assert all(step.window is not None for step in second.table.counted)


def test_a_cold_step_of_the_recompiling_run_is_found(account: Callable[[str], Account]) -> None:
    (rank,) = account("vllm-cpu/dense-tp2-recompile-badjson").ranks
    assert any(family == "compile" for _, family in rank.budget.step_families)
