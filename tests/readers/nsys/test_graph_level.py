"""A capture that holds graphs as one item each: its idle time is withheld, its kernels still count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.answers.account import explain
from stepscope.answers.compare import compare
from stepscope.readers.registry import open_trace
from tests.readers.nsys.exports import Written, decode_steps, process

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.answers.account import RankAccount

SET = "CUDA_GRAPH_TRACE_OPTIONS:MODE"


def account(written: Written, folder: Path) -> RankAccount:
    (rank,) = explain(open_trace(written.write(folder / "a.sqlite"))).ranks
    return rank


def codes(rank: RankAccount) -> list[str]:
    return [reason.code for reason in rank.budget.coverage.reasons]


def as_items(written: Written) -> None:
    """Each step's graph as one item, and two kernels around it."""
    for step in range(4):
        at = 1_000_000 + step * 100_000
        written.nvtx("execute_context_0(0)_generation_4(4)", at, at + 20_000)
        written.call("cudaGraphLaunch_v10000", at + 5_000, at + 9_000, 10 + step)
        written.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start=at + 10_000,
            end=at + 90_000,
            deviceId=0,
            contextId=1,
            streamId=7,
            correlationId=10 + step,
            globalPid=process(1),
            graphId=3,
            graphExecId=4,
        )
        for i in (0, 1):
            written.call("cudaLaunchKernel_v7000", at + 10_000 + i, at + 10_001 + i, 100 + 2 * step + i)
            written.kernel("sample_kernel", at + 91_000 + 2_000 * i, at + 92_000 + 2_000 * i, 100 + 2 * step + i)


def test_graphs_as_items_withhold_idle(tmp_path: Path) -> None:
    written = Written()
    as_items(written)
    rank = account(written, tmp_path)
    assert codes(rank)[0] == "graph_level_capture"
    assert "4 graph replays" in str(rank.budget.coverage.reasons[0].text)
    assert "--cuda-graph-trace=node" in str(rank.budget.coverage.reasons[0].record_with)
    assert rank.budget.total.exclusive_ns["idle"] is None
    assert rank.budget.total.exclusive_ns["host"] is None
    assert {row.code: row.count for row in rank.store.health}["graph_as_one_item"] == 4
    assert len(rank.table.work.row) == 8  # an item is no kernel


def test_node_level_of_the_same_run_is_claimable(tmp_path: Path) -> None:
    written = Written()
    decode_steps(written, num_steps=4)
    written.setting(SET, "Node")
    assert account(written, tmp_path).budget.coverage.idle_claimable


def test_a_setting_of_one_item_withholds_unless_the_calls_rule_graphs_out(tmp_path: Path) -> None:
    for skips, is_withheld in (("true", True), ("false", False)):
        written = Written()
        for step in range(4):
            at = step * 1_000
            written.nvtx("step[DECODE bs=1]", at, at + 500)
            written.call("cudaLaunchKernel_v7000", at + 10, at + 20, step + 1)
            written.kernel("k", at + 30, at + 400, step + 1)
        written.setting(SET, "Graph")
        written.setting("CUDA_SKIP_SOME_API_CALLS", skips)
        folder = tmp_path / skips
        folder.mkdir()
        assert ("graph_level_capture" in codes(account(written, folder))) is is_withheld


def test_fewer_kernels_than_layers_are_a_graph_level_capture(tmp_path: Path) -> None:
    """64 layers, six launches a step, no word of the recorder on it."""
    written = Written()
    for layer in range(64):
        written.nvtx(f"{{'Module': 'model.layers.{layer}', 'Inputs': [[1, 8]]}}", 10 * layer, 10 * layer + 5)
    for step in range(8):
        at = 10_000 + step * 10_000
        written.nvtx("step[DECODE bs=1]", at, at + 5_000)
        for i in range(6):
            written.call("cudaLaunchKernel_v7000", at + 10 * i, at + 10 * i + 5, 10 * step + i)
            written.kernel("k", at + 100 * i, at + 100 * i + 50, 10 * step + i)
    rank = account(written, tmp_path)
    assert codes(rank)[0] == "graph_level_capture"
    assert "6 kernels (median), and the model has 64 layers" in str(rank.budget.coverage.reasons[0].text)


def test_as_many_kernels_as_layers_are_none(tmp_path: Path) -> None:
    written = Written()
    for layer in range(4):
        written.nvtx(f"model.layers.{layer}", 10 * layer, 10 * layer + 5)
    decode_steps(written, kernels=4)
    assert account(written, tmp_path).budget.coverage.idle_claimable


def test_families_are_ranked_where_no_step_can_be_matched(tmp_path: Path) -> None:
    accounts = []
    for name, length in (("a", 30_000), ("b", 20_000)):
        written = Written()
        for i in range(5):
            for j, kernel in enumerate(("flash::flash_fwd_kernel<1>", "nvjet_tst_64x8")):
                start = 100_000 * i + 40_000 * j
                written.kernel(kernel, start, start + (length if j == 0 else 5_000), 2 * i + j)
        accounts.append(explain(open_trace(written.write(tmp_path / f"{name}.sqlite"))))
    found = compare(*accounts)
    assert found.workloads == ()
    assert found.verdict.status == "refused"
    assert [(f.family, f.one_a_ns, f.one_b_ns, f.count_a) for f in found.families] == [
        ("attention", 30_000, 20_000, 5),
        ("gemm", 5_000, 5_000, 5),
    ]
    assert sum(f.a_ns for f in found.families) == int(accounts[0].ranks[0].store.events.duration_ns.sum())
