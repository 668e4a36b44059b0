"""False idle: captures in which device work is missing are refused, healthy ones are not.

The cases are public ones, made again with invented times; each names the conclusion that a tool must not draw.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.traces import (
    EXECUTE,
    GEMM,
    MS,
    NORM,
    US,
    Event,
    decode,
    frame,
    kernel,
    launch,
    launched,
    prefill,
    scope,
    to_report,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WITHHELD = ("supply", "host", "idle")


def replays(
    sizes: Sequence[int],
    *,
    step_ns: int,
    busy_fraction: float = 1.0,
    full: int,
    name: str = "cudaGraphLaunch",
    annotated: bool = True,
    rows: Callable[[int], int] = lambda _replay: 128,
    keep: Callable[[int, int], bool] = lambda _replay, _place: True,
) -> list[Event]:
    """Graph replays back to back: replay i holds the first sizes[i] of `full` kernels, less those not kept."""
    events: list[Event] = []
    each = int(step_ns * busy_fraction / full)
    for i, size in enumerate(sizes):
        start = i * step_ns
        if annotated:
            events.append(scope(decode(rows(i)), start, step_ns // 10))
        events.append(launch(start + US, i + 1, duration=10 * US, name=name))
        events += [
            kernel(GEMM if place % 2 else NORM, start + 20 * US + place * each, each, of=i + 1)
            for place in range(size)
            if keep(i, place)
        ]
    return events


def withholding(report: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in report["coverage"]["reasons"] if reason["withholds"]]


def codes(report: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in report["coverage"]["reasons"]]


def reason(report: dict[str, Any], code: str) -> dict[str, Any]:
    return next(row for row in report["coverage"]["reasons"] if row["code"] == code)


def hold_back(report: dict[str, Any]) -> None:
    """Nowhere in the document stands a figure of idle, host or supply time, nor a share of wall time."""
    assert report["coverage"]["idle_claimable"] is False
    assert all(row["text"] and row["record_with"] for row in report["coverage"]["reasons"])
    no_withheld_number(report)
    no_withheld_sentence(report)
    assert {row["category"] for row in report["families"]}.isdisjoint(WITHHELD)
    assert {category for category, _ in report["step_families"]["accounts"]}.isdisjoint(WITHHELD)
    assert report["supply_causes"] == []
    assert {finding["layer"] for finding in report["findings"]}.isdisjoint(WITHHELD)
    for row in report["budget"]:
        assert sum(ns for ns in row["exclusive_ns"].values() if ns is not None) == row["window_ns"]
    supply = next(question for question in report["questions"] if question["id"] == "supply")
    assert supply["status"] == "refused"
    assert any(row["text"] in missing for row in report["coverage"]["reasons"] for missing in supply["missing"])


def no_withheld_number(report: dict[str, Any]) -> None:
    """Messages repeat the gate's own figures (its coverage is a share too): they are looked at as sentences."""
    names = {"share", "busy_supply_ns", *WITHHELD, *(f"exclusive_{category}_ns" for category in WITHHELD)}
    for path, value in walk(report):
        if path[0] not in ("coverage", "inputs", "messages") and (path[-1] in names or path[-1].endswith("_share")):
            assert value is None, path


def no_withheld_sentence(report: dict[str, Any]) -> None:
    """Beside the gate's own reasons no sentence speaks of idle time or gives a share."""
    for said in [*report["messages"], *(question["answer"] for question in report["questions"])]:
        rest = said
        for row in report["coverage"]["reasons"]:
            rest = rest.replace(row["text"], "").replace(row["record_with"], "")
        assert "%" not in rest, said
        assert "idle" not in rest, said


# --- A01: replays that lost some of their kernels


@pytest.mark.parametrize(
    ("annotated", "rows"),
    [(True, lambda _: 128), (True, lambda i: 128 - i), (False, lambda _: 0)],
    ids=["annotated", "another batch each step", "without annotations"],
)
def test_dropped_kernels_of_some_replays_are_no_idle_time(annotated: bool, rows: Callable[[int], int]) -> None:
    rng = random.Random(1)
    broken = {2, 5, 6}
    events = replays(
        [1000] * 10,
        step_ns=20 * MS,
        full=1000,
        annotated=annotated,
        rows=rows,
        keep=lambda i, _: i not in broken or rng.random() > 0.26,
    )
    report = to_report(events)
    hold_back(report)
    assert "partial_replays" in withholding(report)
    found = reason(report, "partial_replays")
    recorded = sum(event["cat"] == "kernel" for event in events) / 10_000
    assert f"{100 * recorded:.1f} %" in found["text"]
    assert "utilisation" in found["record_with"]


def test_pieces_of_a_graph_differ_in_size_and_are_no_loss() -> None:
    pieces = [["embed_tokens", NORM, GEMM], [GEMM, NORM, "silu_and_mul", GEMM, "rope"] * 2, [GEMM, NORM]]
    events: list[Event] = []
    for step in range(3):
        events.append(scope(decode(step + 1), step * MS, MS // 2))
        for place in range(9):
            of, at = 10 * step + place, step * MS + 100 * US * place
            names = pieces[0] if place == 0 else pieces[2] if place == 8 else pieces[1]
            events.append(launch(step * MS + US * place, of, name="cudaGraphLaunch"))
            events += [kernel(name, at + 10 * US * j, 9 * US, of=of) for j, name in enumerate(names)]
    report = to_report(events)
    assert report["coverage"]["idle_claimable"], report["coverage"]["reasons"]


def test_full_and_piecewise_graphs_in_steps_of_unknown_shape_are_no_loss() -> None:
    whole = [GEMM, NORM, "silu_and_mul", "flash_fwd_kernel", "rope", "argmax_kernel"] * 5
    events: list[Event] = []
    for step in range(6):
        events.append(frame(EXECUTE, step * MS, MS // 2))
        for place, names in enumerate([whole] if step % 2 else [[GEMM, NORM, "rope"]] * 5):
            of, at = 10 * step + place, step * MS + 50 * US * place
            events.append(launch(step * MS + US * place, of, name="cudaGraphLaunch"))
            events += [kernel(name, at + 10 * US * j, 9 * US, of=of) for j, name in enumerate(names)]
    report = to_report(events)
    assert [row["graph_mode"] for row in report["steps"]["rows"]] == ["piecewise", "full"] * 3
    assert report["coverage"]["idle_claimable"], report["coverage"]["reasons"]


@pytest.mark.parametrize("rows", [lambda _: 128, lambda i: 128 - i], ids=["one batch", "another batch each step"])
def test_whole_replays_are_claimable_and_nearly_always_busy(rows: Callable[[int], int]) -> None:
    report = to_report(replays([1000] * 10, step_ns=20 * MS, full=1000, busy_fraction=0.99, rows=rows))
    assert report["coverage"]["idle_claimable"]
    total = report["budget"][-1]
    assert total["exclusive_ns"]["compute"] > 0.98 * total["window_ns"]


# --- A02, fixture 57: one replay of N was kept


def test_one_recorded_replay_of_ten_is_no_idle_device() -> None:
    report = to_report(replays([0] * 4 + [1000] + [0] * 5, step_ns=2 * MS, full=1000, name="hipGraphLaunch"))
    hold_back(report)
    assert "graph_launches_without_kernels" in withholding(report)
    assert (
        "9 of 10 graph launches have no kernels (replay coverage 10.0 %)"
        in (reason(report, "graph_launches_without_kernels")["text"])
    )
    assert report["coverage"]["kernels_in_steps"] == 1000
    compute = {row["family"]: row["count"] for row in report["families"] if row["category"] == "compute"}
    assert compute == {"gemm": 500, "norm": 500}  # the recorded replay is still ranked


def test_kernels_of_one_launch_id_among_ten_are_no_idle_device() -> None:
    # as fixture 57
    events = [launch(1000 * US * i, i, duration=8 * US, name="hipGraphLaunch") for i in range(10)]
    events += [kernel(f"k{j}", 20 * US + j * 90 * US, 85 * US, of=0) for j in range(10)]
    report = to_report(events)
    hold_back(report)
    assert "graph_launches_without_kernels" in withholding(report)


# --- A03, fixture 56: replays and no kernel at all


@pytest.mark.parametrize("annotated", [True, False], ids=["annotated", "fixture 56"])
def test_graph_launches_without_any_kernel_are_no_evidence_of_device_time(annotated: bool) -> None:
    report = to_report(replays([0] * 32, step_ns=10 * MS, full=575, name="hipGraphLaunch", annotated=annotated))
    hold_back(report)
    assert withholding(report) == ["device_not_recorded"]
    found = reason(report, "device_not_recorded")
    assert found["text"].startswith("32 graph launches and no device event")
    assert "enforce_eager" in found["record_with"]
    assert report["budget"][-1]["exclusive_ns"]["unknown"] == report["budget"][-1]["window_ns"]
    assert report["steps"]["count"] == 32


@pytest.mark.parametrize("annotated", [True, False], ids=["annotated", "by graph launch"])
def test_the_same_decode_with_its_kernels_is_claimable_with_its_small_idle_share(annotated: bool) -> None:
    report = to_report(
        replays([575] * 32, step_ns=10 * MS, full=575, busy_fraction=0.973, name="hipGraphLaunch", annotated=annotated)
    )
    assert report["coverage"]["idle_claimable"]
    assert report["steps"]["count"] == 32
    assert {row["num_kernels"] for row in report["steps"]["rows"]} == {575}
    total = report["budget"][-1]
    rest = sum(total["exclusive_ns"][name] or 0 for name in ("supply", "host", "idle", "unknown"))
    assert rest / total["window_ns"] == pytest.approx(0.027, abs=0.002)


# --- A04: everything under one launch row


def test_kernels_that_share_their_launchs_id_are_told_by_family_with_a_note() -> None:
    names = (GEMM, NORM, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "_zero_kv_blocks_kernel")
    events: list[Event] = []
    for i in range(40):
        events += [scope(decode(8), 12 * MS * i, MS), launch(12 * MS * i + US, i, name="cudaGraphLaunch")]
        events += [kernel(names[j % 4], 12 * MS * i + 20 * US + 11 * US * j, 11 * US, of=i) for j in range(1049)]
    report = to_report(events)
    assert report["coverage"]["idle_claimable"]
    assert report["coverage"]["kernels"] == report["coverage"]["kernels_in_steps"] == 41_960
    assert report["coverage"]["matched_fraction"] == 1
    found = reason(report, "shared_graph_id")
    assert not found["withholds"]
    assert "41,960 kernels were replayed by 40 graph launches" in found["text"]
    families = {row["family"]: row["count"] for row in report["families"] if row["count"]}
    assert families["gemm"] == 263 * 40
    assert families["collective"] == families["norm"] - 0 - 40 * 0 == 262 * 40
    assert report["budget"][-1]["exclusive_ns"]["unmatched"] == 0


# --- A05: graphs recorded as one row


def test_graph_level_captures_are_no_idle_decode() -> None:
    rng = random.Random(5)
    events = [scope(prefill(4096), 0, 5 * MS)]
    events += [event for j in range(200) for event in launched(GEMM, 10 * US * j, 20 * US * j, 19 * US, of=10_000 + j)]
    of = 0
    for i in range(128):
        start = 10 * MS + 10 * MS * i
        events += [
            scope(decode(1), start, 2 * MS),
            *launched("argmax_kernel", start + MS, start + 9 * MS, US, of=5000 + i),
        ]
        for _ in range(6 + (rng.random() < 0.3)):
            events.append(launch(start + of % 7 * 100 * US, of, name="cudaGraphLaunch"))
            of += 1
    report = to_report(events)
    hold_back(report)
    assert "graph_launches_without_kernels" in withholding(report)
    found = reason(report, "graph_launches_without_kernels")
    assert f"{of} of {of} graph launches have no kernels (replay coverage 0.0 %)" in found["text"]
    assert "--cuda-graph-trace=node" in found["record_with"]
    phases = [row["phase"] for row in report["steps"]["rows"]]
    assert (phases.count("prefill"), phases.count("decode")) == (1, 128)  # never lumped together


# --- A35: 91 % of the kernels are missing


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ([1000] * 9 + [0] * 91, "graph_launches_without_kernels"),
        ([1000, *[81] * 99], "partial_replays"),
        ([80 + i % 21 for i in range(100)], "partial_replays"),
    ],
    ids=["whole replays", "most of each", "all of them, unevenly"],
)
def test_a_capture_that_kept_a_tenth_of_its_kernels_claims_no_idle(sizes: list[int], code: str) -> None:
    report = to_report(replays(sizes, step_ns=72 * MS, full=1000))
    hold_back(report)
    assert code in withholding(report)
    assert "%" in reason(report, code)["text"]


# --- eager launches


def test_launches_whose_kernels_were_dropped_are_no_idle_time() -> None:
    events: list[Event] = []
    for i in range(10):
        events.append(scope(decode(4), 1000 * US * i, 500 * US))
        for j in range(20):
            at = 1000 * US * i + 20 * US * j
            events += launched(GEMM, at, at + 5 * US, 15 * US, of=100 * i + j)[: 1 if j % 4 == 0 else 2]
    report = to_report(events)
    hold_back(report)
    assert withholding(report) == ["launches_without_kernels"]
    assert "50 of 200 kernel launches (25.0 %)" in reason(report, "launches_without_kernels")["text"]


def test_a_few_last_launches_that_had_not_run_yet_are_no_loss() -> None:
    events: list[Event] = [scope(decode(4), 0, 5000 * US)]
    for j in range(100):
        events += launched(GEMM, 20 * US * j, 20 * US * j + 5 * US, 15 * US, of=j)[: 1 if j > 96 else 2]
    assert to_report(events)["coverage"]["idle_claimable"]


def test_steps_without_any_kernel_claim_no_idle() -> None:
    events: list[Event] = []
    for i in range(10):
        events.append(scope(decode(4), 1000 * US * i, 500 * US))
        if i != 4:
            events += launched(GEMM, 1000 * US * i + US, 1000 * US * i + 5 * US, 900 * US, of=i)
    report = to_report(events)
    hold_back(report)
    assert withholding(report) == ["steps_without_kernels"]
    assert "1 of 10 steps" in reason(report, "steps_without_kernels")["text"]


def test_kernels_that_no_step_launched_claim_no_idle() -> None:
    events: list[Event] = [scope(decode(4), 1000 * US * i, 100 * US) for i in range(4)]
    for i in range(4):
        events += launched(GEMM, 1000 * US * i + US, 1000 * US * i + 5 * US, 50 * US, of=i)
        events.append(kernel("somebody_elses", 1000 * US * i + 500 * US, 100 * US))
    report = to_report(events)
    hold_back(report)
    assert "kernels_outside_steps" in withholding(report)


def test_a_burst_after_all_steps_is_not_when_the_work_ran() -> None:
    # as fixture 58
    events: list[Event] = [scope(f"step[DECODE bs=31] #{i}", 1000 * US * i, 900 * US) for i in range(8)]
    events += [kernel(f"k{j}", 8500 * US + j * 10 * US, 9 * US) for j in range(400)]
    report = to_report(events)
    hold_back(report)
    assert "deferred_burst" in withholding(report)
    assert "400 device events" in reason(report, "deferred_burst")["text"]


def test_one_event_over_its_streams_later_ones_holds_no_claim() -> None:
    # as fixture 54
    events = [kernel("fmha", 0, 1600 * MS), kernel(GEMM, 30 * US, 20 * US), kernel(GEMM, 55 * US, 20 * US)]
    report = to_report(events)
    hold_back(report)
    assert "duration_outlier" in withholding(report)
    assert "without it the device is busy for 40.0 us" in reason(report, "duration_outlier")["text"]


def test_device_events_without_times_hold_no_claim() -> None:
    events = [scope(decode(1), 0, 100 * US)]
    for j in range(20):
        events += launched(GEMM, US * j, 10 * US * j + US, 9 * US, of=j)
    events += launched(GEMM, 30 * US, 0, 0, of=99)
    report = to_report(events)
    hold_back(report)
    assert withholding(report) == ["device_times_lost"]


# --- captures with a note that hold all the same


def test_a_kernel_without_an_id_is_noted_and_withholds_nothing() -> None:
    # as fixture 59
    report = to_report([launch(US, 1, duration=2 * US), kernel(GEMM, 5 * US, 10 * US)])
    assert report["coverage"]["idle_claimable"]
    assert codes(report) == ["ids_missing", "no_stacks"]
    assert report["coverage"]["kernels_unassigned"] == 1


def test_ids_that_are_zero_everywhere_are_noted_and_withhold_nothing() -> None:
    # as fixture 60
    events = [launch(i * 10 * US, 0, duration=2 * US, name="hipLaunchKernel") for i in range(3)]
    events += [kernel("k", 5 * US + i * 10 * US, 3 * US, of=0) for i in range(3)]
    report = to_report(events)
    assert report["coverage"]["idle_claimable"]
    assert codes(report) == ["ids_missing", "no_stacks"]
    assert "constant_correlation" in [row["code"] for row in report["inputs"][0]["health"]]


def test_a_kernel_of_an_earlier_profile_withholds_nothing_and_is_in_no_window() -> None:
    # as fixture 72
    events = [
        scope("ProfilerStep#0", 100 * US, 50 * US),
        kernel("stale", -4000 * US, 4090 * US),
        kernel("a", 110 * US, 5 * US),
    ]
    report = to_report(events)
    assert report["coverage"]["idle_claimable"]
    assert report["budget"][0]["window_ns"] == 5 * US
    (doubt,) = (row for row in report["inputs"][0]["health"] if "from before the first" in row["detail"])
    assert (doubt["severity"], doubt["count"]) == ("info", 1)


def test_inferred_steps_say_so() -> None:
    report = to_report(replays([10] * 5, step_ns=MS, full=10, annotated=False))
    assert report["coverage"]["idle_claimable"]
    assert "inferred_steps" in codes(report)
    assert report["steps"]["grade"] == "inferred"


def test_a_cpu_backend_needs_no_device_and_is_claimable() -> None:
    report = to_report([frame(EXECUTE, 0, 100), scope(decode(1), 0, 100)])
    assert report["coverage"] | {"ranks": []} == {
        "idle_claimable": True,
        "reasons": [],
        "kernels": 0,
        "kernels_in_steps": 0,
        "kernels_unassigned": 0,
        "matched_fraction": None,
        "ranks": [],
    }


def test_one_withheld_rank_closes_the_gate_of_the_report_and_not_of_the_other_rank() -> None:
    whole = replays([10] * 5, step_ns=MS, full=10)
    report = to_report(whole, replays([0] * 5, step_ns=MS, full=10))
    assert report["coverage"]["idle_claimable"] is False
    assert [row["idle_claimable"] for row in report["coverage"]["ranks"]] == [True, False]
    assert {row["rank"] for row in report["coverage"]["reasons"] if row["withholds"]} == {1}
    by_rank = {rank: [b for b in report["budget"] if b["rank"] == rank] for rank in (0, 1)}
    assert all(row["exclusive_ns"]["host"] is not None for row in by_rank[0])
    assert all(row["exclusive_ns"]["host"] is None for row in by_rank[1])
