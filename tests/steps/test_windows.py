"""Windows tile a rank's span, from the end of one step's last work to the end of the next one's."""

from __future__ import annotations

from itertools import pairwise

from stepscope.steps.step import StepTable, find_steps
from tests.traces import (
    EMPTY,
    GEMM,
    MS,
    SAMPLE,
    US,
    Event,
    call,
    decode,
    frame,
    kernel,
    launch,
    launched,
    op,
    prefill,
    scope,
    to_store,
)


def windows(table: StepTable) -> list[tuple[int, int]]:
    return [step.window for step in table.counted if step.window is not None]


def tile(table: StepTable) -> None:
    found = windows(table)
    assert all(one[1] == other[0] for one, other in pairwise(found))
    assert all(start <= end for start, end in found)
    span = table.windows.span
    assert all(span[0] <= start and end <= span[1] for start, end in found)


def test_device_windows_tile_exactly_and_hold_the_wait_before_the_step() -> None:
    table = find_steps(
        to_store(
            [
                scope(prefill(8), 0, 50),
                scope(EMPTY, 150, 10),
                scope(decode(1), 400, 50),
                *launched(GEMM, 10, 20, 80, of=1),
                *launched(GEMM, 410, 420, 60, of=2),
                *launched(GEMM, 415, 480, 20, of=3),
            ]
        )
    )
    assert table.windows.lane == "device"
    assert windows(table) == [(20, 100), (100, 500)]
    tile(table)


def test_the_first_window_begins_where_earlier_work_ends() -> None:
    table = find_steps(
        to_store([*launched(GEMM, 0, 5, 15, of=1), scope(decode(1), 30, 20), *launched(GEMM, 35, 60, 10, of=2)])
    )
    assert windows(table) == [(20, 70)]
    assert table.windows.span == (5, 70)


def test_a_leading_wait_for_work_that_was_cut_off_is_in_no_window() -> None:
    events = [
        scope("step[DECODE bs=32]", 10 * US, 500 * MS),
        op("aten::mm", 0, 5 * US),
        kernel(GEMM, 0, 5 * US),  # one leftover of the step before
        call("hipMemcpyWithStream", 20 * US, 463 * MS),
        *launched(GEMM, 464 * MS, 465 * MS, 5 * MS, of=1),
        *launched(GEMM, 464 * MS + 10, 470 * MS, 5 * MS, of=2),
    ]
    table = find_steps(to_store(events))
    resumed = 463 * MS + 20 * US
    assert windows(table) == [(resumed, 475 * MS)]
    assert table.windows.span[0] == resumed
    assert table.windows.truncated.total_ns == 463 * MS


def test_a_wait_with_its_work_in_the_capture_is_not_truncated() -> None:
    events = [
        scope(decode(1), 0, 100 * MS),
        *launched(GEMM, 10, 20 * US, 99 * MS, of=1),
        call("cudaStreamSynchronize", 30 * US, 99 * MS),
    ]
    table = find_steps(to_store(events))
    assert len(table.windows.truncated) == 0
    assert windows(table) == [(20 * US, 99 * MS + 20 * US)]


def test_a_stale_kernel_of_an_earlier_profile_is_in_no_window() -> None:
    # as fixture 72: it began before the first recorded host event and has no launch here
    events = [scope("ProfilerStep#0", 100, 50), kernel("stale", -4000, 4090), *launched(GEMM, 105, 110, 5, of=1)]
    table = find_steps(to_store(events))
    assert windows(table) == [(110, 115)]
    assert table.windows.span == (110, 115)
    assert len(table.work.row) == 2


def test_on_a_cpu_backend_the_window_includes_sampling() -> None:
    events: list[Event] = []
    for start in (100, 1000):
        events += [
            scope(decode(1), start, 200),
            op("aten::mm", start + 10, 150),
            frame(SAMPLE, start + 220, 80),
            op("aten::argmax", start + 230, 40),
        ]
    table = find_steps(to_store(events))
    assert table.windows.lane == "host"
    assert windows(table) == [(100, 400), (400, 1300)]
    assert [step.num_kernels for step in table.steps] == [None, None]
    tile(table)


def test_receiving_before_a_step_does_not_end_the_previous_one() -> None:
    events = [
        scope(decode(1), 100, 100),
        op("aten::mm", 110, 80),
        op("_C::shm_recv_tensor_list", 500, 300),
        scope(decode(1), 800, 100),
        op("aten::mm", 810, 80),
    ]
    table = find_steps(to_store(events))
    assert windows(table) == [(100, 200), (200, 900)]


def test_launches_without_any_device_work_make_a_lane_of_none() -> None:
    events = [scope(decode(1), 0, 100), launch(10, 1), scope(decode(1), 200, 100), launch(210, 2)]
    table = find_steps(to_store(events))
    assert table.windows.lane == "none"
    tile(table)


def test_a_step_without_device_work_has_a_window_of_its_own_host_range() -> None:
    events = [
        scope(decode(1), 0, 50),
        scope(decode(1), 100, 50),
        *launched(GEMM, 10, 20, 10, of=1),
    ]
    table = find_steps(to_store(events))
    assert windows(table) == [(20, 30), (30, 150)]
    assert [step.num_kernels for step in table.steps] == [1, 0]


def test_overtaking_work_leaves_an_empty_window_and_no_overlap() -> None:
    events = [
        scope(decode(1), 0, 50),
        scope(decode(1), 60, 50),
        *launched(GEMM, 10, 20, 500, of=1),
        *launched(GEMM, 70, 80, 10, of=2, stream=8),
    ]
    table = find_steps(to_store(events))
    assert windows(table) == [(20, 520), (520, 520)]


def test_named_parts_go_to_the_last_step_that_had_begun() -> None:
    events = [
        scope(decode(1), 0, 100),
        scope("gpu_model_runner: forward", 10, 50),
        scope("gpu_model_runner: sample", 120, 30),
        scope(decode(1), 200, 100),
        scope("gpu_model_runner: forward", 210, 40),
        op("aten::mm", 20, 20),
    ]
    table = find_steps(to_store(events))
    assert [[(p.name, p.start_ns, p.duration_ns) for p in step.parts] for step in table.steps] == [
        [("forward", 10, 50), ("sample", 120, 30)],
        [("forward", 210, 40)],
    ]


def test_a_capture_without_events_has_no_steps_and_an_empty_span() -> None:
    table = find_steps(to_store([]))
    assert table.steps == ()
    assert table.windows.span == (0, 0)
