"""Signals: counted at the outermost range, totalled as a union; and the supply wait split by another process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces import (
    ACQUIRE,
    ALL_REDUCE,
    BASE_NS,
    ELSEWHERE,
    EXECUTE,
    GEMM,
    OUTPUTS,
    SCHEDULE,
    ZERO_KV,
    Event,
    decode,
    frame,
    kernel,
    launch,
    launched,
    op,
    scope,
    to_report,
    to_store,
)

DEQUEUE = "vllm/distributed/device_communicators/shm_broadcast.py(900): dequeue"


def signals(*given: list[Event]) -> dict[str, dict[str, Any]]:
    return {row["signal"]: row for row in to_report(*given)["signals"]}


def test_nested_envelopes_are_counted_once() -> None:
    events = [
        scope(decode(1), 0, 100),
        op("aten::mm", 10, 50),
        frame(DEQUEUE, 200, 100),
        frame(ACQUIRE, 210, 80),
        frame(ACQUIRE, 400, 30),
        scope(decode(1), 500, 100),
        op("aten::mm", 510, 50),
    ]
    row = signals(events)["dequeue / acquire_read"]
    assert (row["count"], row["total_ns"], row["median_ns"], row["p90_ns"]) == (2, 130, 30, 100)
    assert row["share"] == 130 / 600


def test_an_envelope_holds_other_signals_and_has_no_share() -> None:
    events = [frame(EXECUTE, 0, 100), scope(decode(1), 10, 80), op("vllm::unified_attention_with_output", 20, 30)]
    found = signals(events)
    assert (found["execute_model"]["total_ns"], found["execute_model"]["share"]) == (100, None)
    assert found["attention"]["total_ns"] == 30


def test_with_a_device_lane_an_operation_is_not_counted_beside_its_kernel() -> None:
    events = [
        scope(decode(1), 0, 100),
        op("vllm::unified_attention_with_output", 10, 80),
        launch(20, 1),
        kernel("void flash::flash_fwd_kernel<int>(int)", 50, 7, of=1),
    ]
    row = signals(events)["attention"]
    assert (row["count"], row["total_ns"]) == (1, 7)


def test_a_signal_that_is_not_there_is_absent() -> None:
    assert "experts" not in signals([scope(decode(1), 0, 10), op("aten::mm", 1, 5)])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([ALL_REDUCE, ZERO_KV]), st.integers(1, 90), st.integers(0, 40), st.integers(7, 9)),
        min_size=1,
        max_size=12,
    )
)
def test_a_signals_total_is_the_union_of_its_ranges(rows: list[tuple[str, int, int, int]]) -> None:
    events = [kernel(name, start, duration, stream=stream) for name, start, duration, stream in rows]
    found = signals(events)
    for name, signal in ((ALL_REDUCE, "collectives"), (ZERO_KV, "gather / upconvert / copy")):
        own = [(start, start + duration) for kind, start, duration, _ in rows if kind == name]
        covered = {t for start, end in own for t in range(start, end)}
        assert found[signal]["total_ns"] == len(covered) if own else signal not in found
        if own:
            assert found[signal]["count"] == len(own)
            assert found[signal]["p90_ns"] >= found[signal]["median_ns"]


def test_shares_are_withheld_with_the_gate_and_totals_stay() -> None:
    events = [scope(decode(1), 0, 50), *launched(ALL_REDUCE, 5, 10, 30, of=1), launch(20, 2), launch(30, 3)]
    row = signals(events)["collectives"]
    assert (row["total_ns"], row["share"]) == (30, None)


# --- supply, split by the engine's own activity

WORKER = [
    scope(decode(1), 0, 100),
    *launched(GEMM, 5, 10, 100, of=1),
    frame(ACQUIRE, 150, 800),
    scope(decode(1), 1000, 100),
    *launched(GEMM, 1005, 1010, 100, of=2),
]
LATER = 7_000  # the engine's trace began this much later, so its own times are smaller


def engine(base_time_ns: int | None = BASE_NS + LATER) -> Any:
    events = [
        frame(ELSEWHERE, 100 - LATER, 800),
        frame(OUTPUTS, 200 - LATER, 100),
        frame(SCHEDULE, 350 - LATER, 250),
        frame("vllm/v1/core/sched/scheduler.py(500): _schedule_running", 360 - LATER, 50),
    ]
    return to_store(events, rank=None, base_time_ns=base_time_ns)


def test_the_wait_for_work_is_split_by_what_the_engine_did_meanwhile() -> None:
    report = to_report(to_store(WORKER), engine())
    assert [row["role"] for row in report["inputs"]] == ["worker", "other process"]
    assert report["budget"][-1]["exclusive_ns"]["supply"] == 800
    assert report["supply_causes"] == [
        {
            "rank": 0,
            "ns": {
                "process_outputs": 100,
                "schedule": 250,
                "in no recorded activity": 750 - 350,
                "not recorded": 50,
            },
        }
    ]
    supply = next(row for row in report["questions"] if row["id"] == "supply")
    assert "Meanwhile the engine: " in supply["answer"]
    assert "schedule 250 ns" in supply["answer"]


@pytest.mark.parametrize("activities", [1, 2])
def test_the_causes_add_up_to_the_wait_however_many_processes_were_recorded(activities: int) -> None:
    report = to_report(to_store(WORKER), *(engine() for _ in range(activities)))
    (row,) = report["supply_causes"]
    assert sum(row["ns"].values()) == report["budget"][-1]["exclusive_ns"]["supply"]
    assert row["ns"]["schedule"] == 250  # the same activity twice is not counted twice


def test_without_a_wall_clock_the_wait_is_not_split() -> None:
    assert to_report(to_store(WORKER), engine(base_time_ns=None))["supply_causes"] == []
    assert to_report(to_store(WORKER, base_time_ns=None), engine())["supply_causes"] == []


def test_a_withheld_wait_is_not_split() -> None:
    orphans = [launch(20 + i, 50 + i) for i in range(3)]
    report = to_report(to_store([*WORKER, *orphans]), engine())
    assert report["coverage"]["idle_claimable"] is False
    assert report["supply_causes"] == []
