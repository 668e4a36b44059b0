"""Public exports of Nsight Systems: counts equal the tables', and a graph-level capture is refused for idle."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.answers.compare import compare
from stepscope.budget.breakdown import WITHHELD
from stepscope.store.schema import KERNEL, MEMCPY, MEMSET, OP, RUNTIME, SCOPE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.answers.account import Account

pytestmark = pytest.mark.shared

BEFORE, AFTER = "public/nsys/mfu_2gpu_before.sqlite", "public/nsys/mfu_2gpu_after.sqlite"
GRAPHS = "public/nsys/graph-trace-2025.5.2.sqlite"
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL,),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (MEMCPY,),
    "CUPTI_ACTIVITY_KIND_MEMSET": (MEMSET,),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (RUNTIME,),
    "NVTX_EVENTS": (OP, SCOPE),
}


def tables(path: Path) -> dict[str, tuple[int, int]]:
    """(rows, ns) of each table that an export has."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return {
            name: connection.execute(f'SELECT COUNT(*), SUM("end" - start) FROM {name}').fetchone()
            for name in TABLES
            if name in there
        }


@pytest.mark.parametrize("name", [BEFORE, AFTER, GRAPHS])
def test_counts_and_times_equal_those_of_the_tables(name: str, traces: Path, account: Callable[[str], Account]) -> None:
    stores = [rank.store for rank in account(name).ranks]
    for table, (rows, ns) in tables(traces / name).items():
        events = [store.events.take(np.isin(store.events.kind, TABLES[table])) for store in stores]
        assert (sum(map(len, events)), sum(int(e.duration_ns.sum()) for e in events)) == (rows, ns), table


@pytest.mark.parametrize("name", [BEFORE, AFTER])
def test_two_processes_are_two_stores_of_one_device_each(name: str, account: Callable[[str], Account]) -> None:
    ranks = account(name).ranks
    # nothing recorded says which is which: they are told apart by order, and say so
    assert [rank.store.rank for rank in ranks] == [0, 1]
    assert all("not recorded" in rank.store.origin.rank_source for rank in ranks)
    assert [sorted({t.device for t in rank.store.tracks if t.device}) for rank in ranks] == [["0"], ["1"]]
    for rank in ranks:
        assert rank.budget.coverage.matched_fraction == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("name", [BEFORE, AFTER, GRAPHS])
def test_a_graph_level_capture_is_refused_for_idle(name: str, account: Callable[[str], Account]) -> None:
    for rank in account(name).ranks:
        assert "graph_level_capture" in [r.code for r in rank.budget.coverage.reasons if r.withholds]
        assert {rank.budget.total.exclusive_ns[category] for category in WITHHELD} == {None}
        rank.budget.total.check()


def test_before_and_after_still_rank_kernel_families(account: Callable[[str], Account]) -> None:
    found = compare(account(BEFORE), account(AFTER))
    assert found.verdict.status == "refused"
    assert [f.family for f in found.families][:4] == ["attention", "copy", "elementwise", "gemm"]
    attention = found.families[0]
    assert (attention.count_a, attention.count_b) == (68, 60)
    assert attention.one_a_ns == pytest.approx(4.00e6, rel=0.005)
    assert sum(f.a_ns for f in found.families) == sum(
        int(rank.store.events.duration_ns[rank.store.device_work].sum()) for rank in account(BEFORE).ranks
    )


def test_graph_replays_are_kept_as_items_on_their_stream(account: Callable[[str], Account]) -> None:
    (rank,) = account(GRAPHS).ranks
    health = {row.code: row.count for row in rank.store.health}
    assert (health["graph_as_one_item"], rank.store.origin.metadata["num_graph_replays"]) == (2, 2)
    assert rank.store.names.count("CUDA graph 1") == 1
