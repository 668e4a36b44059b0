"""False causes of idle time: clocks that are apart, ids used twice, launches and kernels dropped together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.budget.test_coverage import codes, hold_back, reason, withholding
from tests.traces import (
    ACQUIRE,
    EXECUTE,
    GEMM,
    MS,
    US,
    Event,
    call,
    decode,
    frame,
    kernel,
    launch,
    launched,
    prefill,
    scope,
    to_report,
)


def waiting(shift_ns: int, *, syncs: bool = False) -> list[Event]:
    """Ten steps of four kernels behind a wait; the device's clock is `shift_ns` ahead of the host's."""
    events: list[Event] = []
    for i in range(10):
        start = i * 10 * MS
        events += [frame(ACQUIRE, start, 6 * MS), frame(EXECUTE, start + 6 * MS, 4 * MS)]
        events.append(scope(decode(4), start + 6 * MS, 3 * MS))
        for j in range(4):
            at, of = start + 6 * MS + j * 500 * US, i * 10 + j + 1
            events += launched(GEMM, at, at + 20 * US + shift_ns, 100 * US, of=of)
        if syncs:
            events.append(call("cudaDeviceSynchronize", start + 8 * MS, 50 * US))
    return events


def test_on_one_clock_a_wait_is_supply() -> None:
    report = to_report(waiting(0, syncs=True))
    assert codes(report) == []
    assert report["budget"][5]["exclusive_ns"]["supply"] == 6 * MS


def test_work_before_its_launch_shows_clocks_apart_and_no_cause_of_idle_time_is_given() -> None:
    report = to_report(waiting(-3 * MS))
    hold_back(report)
    assert withholding(report) == ["clocks_disagree"]
    assert (
        "40 of 40 device events start before their launch, by up to 2.98 ms"
        in reason(report, "clocks_disagree")["text"]
    )


def test_work_after_the_sync_that_awaited_it_shows_clocks_apart() -> None:
    report = to_report(waiting(3 * MS, syncs=True))
    hold_back(report)
    assert withholding(report) == ["clocks_disagree"]
    assert "after the return of a sync" in reason(report, "clocks_disagree")["text"]


def test_a_few_microseconds_are_what_matched_clocks_leave_open() -> None:
    assert to_report(waiting(-25 * US))["coverage"]["idle_claimable"]


def test_two_processes_in_one_file_use_the_same_ids_and_no_step_can_own_their_work() -> None:
    events: list[Event] = []
    for i in range(5):
        start = i * 10 * MS
        events += [scope(decode(4), start, 5 * MS), *launched(GEMM, start + 10 * US, start + 20 * US, MS, of=i + 1)]
        other = launch(start + 3 * MS, i + 1) | {"pid": 2}
        events += [other, kernel(GEMM, start + 6 * MS, MS, of=i + 1, stream=9)]
    report = to_report(events)
    hold_back(report)
    assert withholding(report) == ["ids_used_twice"]
    assert "2 host processes" in reason(report, "ids_used_twice")["text"]


def test_a_driver_call_inside_its_runtime_call_may_share_its_id() -> None:
    events: list[Event] = []
    for i in range(5):
        start = i * MS
        events += [
            scope(decode(4), start, MS // 2),
            launch(start, i + 1, duration=9),
            kernel(GEMM, start + 90, 90, of=i + 1),
        ]
        events.append(launch(start + 2, i + 1, duration=5, name="cuLaunchKernel") | {"cat": "cuda_driver"})
    assert codes(to_report(events)) == ["no_stacks"]


def eager(num_steps: int, keep: dict[int, int], *, with_launch: bool) -> list[Event]:
    """Eager steps of 20 kernels each; of step i only the first keep[i] are recorded, and the other launches or not."""
    events: list[Event] = []
    for i in range(num_steps):
        start = i * 10 * MS
        events.append(scope(decode(4), start, 9 * MS))
        for j in range(20):
            at, of = start + j * 400 * US, i * 100 + j + 1
            called, work = launched(GEMM, at, at + 10 * US, 390 * US, of=of)
            kept = j < keep.get(i, 20)
            events += [called, work] if kept else [called] if with_launch else []
    return events


def test_a_step_short_of_launches_and_kernels_is_no_host_time() -> None:
    report = to_report(eager(10, {4: 4}, with_launch=False))
    hold_back(report)
    assert withholding(report) == ["steps_short_of_kernels"]
    assert "1 of 9 eager steps" in reason(report, "steps_short_of_kernels")["text"]


def test_kernels_dropped_in_the_middle_withhold_even_where_they_are_few() -> None:
    few = {4: 18, 5: 18, 6: 18, 7: 18}  # 8 of 800 launches pass, 9 do not
    assert codes(to_report(eager(40, few, with_launch=True))) == ["launches_pending", "no_stacks"]
    report = to_report(eager(40, few | {7: 17}, with_launch=True))
    hold_back(report)
    assert withholding(report) == ["launches_without_kernels"]


def test_the_last_launches_of_a_capture_are_said_to_be_pending() -> None:
    report = to_report(eager(10, {9: 11}, with_launch=True))
    assert report["coverage"]["idle_claimable"]
    assert (
        "9 of 200 kernel launches have no kernel, 9 of them the capture's last ones"
        in (reason(report, "launches_pending")["text"])
    )


def test_steps_of_other_shapes_are_not_held_against_each_other() -> None:
    events: list[Event] = []
    for i in range(12):
        name, count = (prefill(512), 30) if i % 2 else (decode(4), 10)
        events.append(scope(name, i * 10 * MS, 9 * MS))
        for j in range(count):
            at = i * 10 * MS + j * 200 * US
            events += launched(GEMM, at, at + 10 * US, 190 * US, of=i * 100 + j + 1)
    assert codes(to_report(events)) == ["no_stacks"]


@pytest.mark.parametrize("device", [None, "0", "1"])
def test_launches_on_another_device_are_not_missed_on_this_one(device: str | None) -> None:
    from stepscope.answers.account import explain  # noqa: PLC0415  # one test needs it
    from stepscope.report.document import to_document  # noqa: PLC0415
    from stepscope.store.trace import Trace  # noqa: PLC0415
    from tests.traces import to_store  # noqa: PLC0415

    events: list[Event] = []
    for i in range(5):
        start = i * 10 * MS
        events += [
            scope(decode(4), start, 5 * MS),
            *launched(GEMM, start + 10 * US, start + 20 * US, 2 * MS, of=2 * i + 1),
        ]
        called, work = launched(GEMM, start + 30 * US, start + 40 * US, MS, of=2 * i + 2)
        events += [called, work | {"pid": 1}]
    report: dict[str, Any] = to_document(explain(Trace(source="inline", stores=(to_store(events),)), device=device))
    assert codes(report) == ["no_stacks"]
    assert report["coverage"]["kernels"] == 5
