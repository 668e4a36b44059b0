"""Public captures of GPUs against figures measured on them by hand, and laws on those without."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

import stepscope
from stepscope.join.graph_shapes import find_shapes
from stepscope.readers.kineto.graph_capture import read_graphs
from stepscope.steps.composition import NO_STEP
from stepscope.store.schema import KERNEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.answers.account import Account, RankAccount

pytestmark = pytest.mark.shared

B200 = "public/tracelens/vllm-b200-tp8-eager-prefill.json.gz"
B300 = "public/tracelens/sglang-qwen3-30b-a3b-decode-B300.json.gz"
MI300_30B = "public/tracelens/sglang-qwen3-30b-a3b-decode-MI300.json.gz"
MI300_8B = "public/tracelens/sglang-mi300x-qwen3-8b-decode/sglang_Qwen3-8B_decode.json.gz"
MI300_MIXED = "public/tracelens/vllm-mi300x-mixed-piecewise/graph_execution.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Measured by hand; shares in percent of the window, as the captures' list gives them."""

    path: str
    window_ms: float
    busy_ms: float
    idle: float
    compute: float
    kv: float
    comm: float


ANCHORS = (
    Anchor(path=B200, window_ms=84.5, busy_ms=11.6, idle=86.3, compute=11.0, kv=0.2, comm=2.5),
    Anchor(path=B300, window_ms=7.51, busy_ms=5.39, idle=28.2, compute=71.8, kv=0.0, comm=0.0),
    Anchor(path=MI300_30B, window_ms=12.36, busy_ms=10.62, idle=14.1, compute=84.1, kv=1.8, comm=0.0),
    Anchor(path=MI300_8B, window_ms=10.45, busy_ms=9.77, idle=6.5, compute=91.8, kv=1.7, comm=0.0),
    Anchor(path=MI300_MIXED, window_ms=156.5, busy_ms=156.1, idle=0.2, compute=99.4, kv=0.4, comm=0.0),
)

WITHOUT_FIGURES = (
    "public/hta/a100-graphs-rank0.json.gz",
    "public/hta/cpu-only-rank34.json.gz",
    "public/hta/mi250-toy.json.gz",
    "public/hta/mtia-inference-rank0.json.gz",
    "public/hta/sampled-rank*.json.gz",
    "public/hta/v100-ns-resolution.json.gz",
    "public/kineto",
    "public/param/dlrm-8ranks",
    "public/tracelens/sglang-mi300x-qwen3-8b-decode/capture_traces/bs_32_rank0.json.gz",
    "public/tracelens/vllm-mi300x-mixed-piecewise/capture_traces",
)


def only_rank(account: Account) -> RankAccount:
    (rank,) = account.ranks
    return rank


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.path.rpartition("/")[2])
def test_the_budget_meets_the_figures_measured_by_hand(anchor: Anchor, account: Callable[[str], Account]) -> None:
    rank = only_rank(account(anchor.path))
    assert rank.budget.coverage.idle_claimable
    (window,) = rank.budget.windows
    assert window.window_ns / 1e6 == pytest.approx(anchor.window_ms, rel=0.003)
    (step,) = rank.table.counted
    assert step.device_busy_ns is not None
    exclusive = {name: 100 * (ns or 0) / window.window_ns for name, ns in window.exclusive_ns.items()}
    busy = window.window_ns - sum(window.exclusive_ns[name] or 0 for name in ("supply", "host", "idle", "unknown"))
    assert busy / 1e6 == pytest.approx(anchor.busy_ms, rel=0.003)
    idle = sum(exclusive[name] for name in ("supply", "host", "idle", "unknown"))
    assert idle == pytest.approx(anchor.idle, abs=0.3)
    assert exclusive["compute"] == pytest.approx(anchor.compute, abs=0.3)
    assert exclusive["kv"] == pytest.approx(anchor.kv, abs=0.3)
    assert exclusive["comm"] == pytest.approx(anchor.comm, abs=0.3)
    assert exclusive["unmatched"] < 0.3


def test_kernels_that_overlap_on_one_stream_are_all_kept(account: Callable[[str], Account]) -> None:
    rank = only_rank(account(B300))
    assert int((rank.store.events.kind == KERNEL).sum()) == 713
    assert rank.budget.coverage.num_unassigned == 0


def test_a_custom_multimem_all_reduce_is_communication(account: Callable[[str], Account]) -> None:
    rank = only_rank(account(B200))
    e = rank.store.events
    named = [i for i, name in enumerate(rank.store.names) if "multimem_all_reduce" in name]
    rows = (e.kind == KERNEL) & np.isin(e.name_id, named)
    assert int(e.duration_ns[rows].sum()) / 1e6 == pytest.approx(2.12, abs=0.005)
    assert rank.budget.placements.of_category("comm")[rows].all()


def test_a_cut_window_is_told_and_its_wait_is_in_no_window(account: Callable[[str], Account]) -> None:
    rank = only_rank(account(MI300_8B))
    assert "truncated_window" in [reason.code for reason in rank.budget.coverage.reasons]
    assert rank.table.windows.truncated.total_ns / 1e6 == pytest.approx(463, abs=1)
    assert sum(window.window_ns for window in (*rank.budget.windows, rank.budget.total)) < 25_000_000


@pytest.mark.parametrize("path", [*WITHOUT_FIGURES, *(anchor.path for anchor in ANCHORS)])
def test_the_laws_hold_on_every_capture(path: str, account: Callable[[str], Account]) -> None:
    found = account(path)
    assert found.ranks
    for rank in found.ranks:
        rank.store.check()
        rank.budget.partition.check()
        for window in (*rank.budget.windows, rank.budget.total):
            window.check()
            for name in ("compute", "kv", "comm", "unmatched"):
                busy = window.busy_ns[name]
                assert busy is None or rank.table.windows.lane != "device" or (window.exclusive_ns[name] or 0) <= busy
        work = rank.table.work
        assert work.num_assigned + int((work.boundary == NO_STEP).sum()) == len(work.row)
        windows = [step.window for step in rank.table.counted if step.window]
        assert all(one[1] == other[0] for one, other in pairwise(windows))
        counts = rank.store.counts
        assert counts.read + counts.lost == counts.present


@pytest.mark.parametrize(
    ("folder", "run", "replays", "kernels"),
    [
        ("sglang-mi300x-qwen3-8b-decode", "sglang_Qwen3-8B_decode.json.gz", 1, 544),
        ("vllm-mi300x-mixed-piecewise", "graph_execution.json.gz", 25, 361),
    ],
)
def test_every_kernel_inside_graphs_finds_its_launch_in_the_capture(
    traces: Path, folder: str, run: str, replays: int, kernels: int
) -> None:
    place = traces / "public" / "tracelens" / folder
    (capture,) = (place / "capture_traces").glob("*.json.gz")
    shapes = find_shapes(stepscope.open_trace(place / run).stores, read_graphs(capture))
    assert (shapes.num_replays, shapes.num_kernels) == (replays, kernels)
    assert shapes.share == 1.0
    assert any(row.op in ("aten::mm", "aten::addmm") and row.dims for row in shapes.rows)
