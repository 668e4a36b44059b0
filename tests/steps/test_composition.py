"""Which device work belongs to which step."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from stepscope.steps.composition import NO_STEP
from stepscope.steps.step import StepTable, find_steps
from tests.traces import (
    EMPTY,
    GEMM,
    MS,
    NORM,
    SAMPLE,
    Event,
    decode,
    frame,
    kernel,
    launch,
    launched,
    prefill,
    scope,
    to_store,
)


def steps_of(table: StepTable) -> list[int]:
    """The step of each device event, in time order."""
    return list(table.work.boundary.tolist())


def law(table: StepTable) -> None:
    """Assigned + unassigned = device events read."""
    unassigned = int((table.work.boundary == NO_STEP).sum())
    assert table.work.num_assigned + unassigned == len(table.work.row)
    assert sum(len(table.work.of_step(step.step_id)) for step in table.steps) == table.work.num_assigned


def test_correlation_beats_time() -> None:
    table = find_steps(
        to_store(
            [
                scope(prefill(8), 0, 20),
                scope(decode(1), 100, 20),
                *launched(GEMM, 10, 105, 10, of=1),
                *launched(NORM, 110, 130, 10, of=2),
            ]
        )
    )
    assert steps_of(table) == [0, 1]  # the first kernel runs while the second step is on the host
    law(table)


def test_all_kernels_of_a_graph_go_to_their_launchs_step() -> None:
    events: list[Event] = [scope(decode(2), 0, 20), scope(decode(2), 100, 20)]
    events += [launch(10, 1, name="cudaGraphLaunch"), launch(110, 2, name="cudaGraphLaunch")]
    events += [kernel(GEMM, 50 + 30 * i, 25, of=1) for i in range(4)]
    events += [kernel(GEMM, 200 + 30 * i, 25, of=2) for i in range(4)]
    table = find_steps(to_store(events))
    assert [step.num_kernels for step in table.steps] == [4, 4]
    assert [step.graph_mode for step in table.steps] == ["full", "full"]
    law(table)


def test_graph_mode_tells_eager_from_piecewise() -> None:
    events: list[Event] = [scope(decode(2), 0, 50), scope(decode(2), 100, 50)]
    events += launched(GEMM, 10, 20, 5, of=1)
    events += [launch(110 + i, 2 + i, name="cudaGraphLaunch") for i in range(3)]
    events += [kernel(GEMM, 120 + 10 * i, 5, of=2 + i) for i in range(3)]
    table = find_steps(to_store(events))
    assert [step.graph_mode for step in table.steps] == ["eager", "piecewise"]


def test_a_graph_launched_after_the_annotation_is_still_the_steps_graph() -> None:
    events: list[Event] = [scope(decode(2), 0, 20), scope(EMPTY, 60, 5), scope(decode(2), 100, 20)]
    events += [launch(30, 1, name="cudaGraphLaunch"), launch(70, 2, name="cudaGraphLaunch")]
    events += [kernel(GEMM, 40 + 10 * i, 5, of=1) for i in range(4)]
    events += [*(kernel(GEMM, 80 + 2 * i, 2, of=2) for i in range(4)), *launched(GEMM, 110, 120, 5, of=3)]
    table = find_steps(to_store(events))
    assert [step.graph_mode for step in table.steps] == ["piecewise", None, "eager"]


def test_sampling_after_the_annotation_belongs_to_the_earlier_step() -> None:
    table = find_steps(
        to_store(
            [
                scope(decode(1), 0, 50),
                frame(SAMPLE, 60, 20),
                scope(decode(1), 100, 50),
                *launched(GEMM, 10, 20, 10, of=1),
                *launched("argmax_kernel", 65, 90, 20, of=2),
                *launched(GEMM, 120, 130, 10, of=3),
            ]
        )
    )
    assert steps_of(table) == [0, 0, 1]


def test_work_launched_before_any_step_is_in_none() -> None:
    table = find_steps(
        to_store([*launched(GEMM, 1, 2, 10, of=1), scope(decode(1), 20, 10), *launched(GEMM, 25, 30, 5, of=2)])
    )
    assert steps_of(table) == [NO_STEP, 0]
    law(table)


def test_an_empty_step_takes_what_it_launches_in_its_own_range_and_no_more() -> None:
    table = find_steps(
        to_store(
            [
                scope(decode(1), 0, 10),
                scope(EMPTY, 20, 10),
                *launched(GEMM, 5, 6, 3, of=1),
                *launched(NORM, 25, 26, 3, of=2),  # a dummy batch: SGLang's idle ranks run one
                *launched(NORM, 35, 36, 3, of=3),
            ]
        )
    )
    assert steps_of(table) == [0, 1, 0]
    assert [step.num_kernels for step in table.steps] == [2, 1]
    assert [step.device_busy_ns for step in table.steps] == [6, 3]
    law(table)


def test_without_ids_only_work_inside_a_steps_own_host_range_is_its_own() -> None:
    table = find_steps(
        to_store(
            [scope(decode(1), 0, 20), scope(decode(1), 100, 20), *(kernel(GEMM, t, 5) for t in (10, 50, 110, 130))]
        )
    )
    assert steps_of(table) == [0, NO_STEP, 1, NO_STEP]
    law(table)


def test_constant_ids_join_nothing() -> None:
    events: list[Event] = [scope(decode(1), 0, 20), scope(decode(1), 100, 20)]
    events += [launch(t, 0, name="hipLaunchKernel") for t in (5, 105)]
    events += [kernel(GEMM, t, 5, of=0) for t in (10, 110, 150)]
    table = find_steps(to_store(events))
    assert steps_of(table) == [0, 1, NO_STEP]
    law(table)


def test_busy_time_of_a_step_counts_overlapping_kernels_once() -> None:
    table = find_steps(
        to_store(
            [
                scope(decode(1), 0, 20),
                *launched(GEMM, 5, 10, 100, of=1),
                *launched(NORM, 6, 60, 100, of=2, stream=8),
            ]
        )
    )
    assert table.steps[0].device_busy_ns == 150


@given(seed=st.integers(0, 2**32), size=st.integers(1, 25))
def test_assigned_and_unassigned_work_add_up_to_all_that_was_read(seed: int, size: int) -> None:
    rng = random.Random(seed)
    events: list[Event] = [
        scope(rng.choice((decode(2), prefill(9), EMPTY)), 1000 * i, 500) for i in range(rng.randrange(4))
    ]
    for i in range(size):
        at, of = rng.randrange(5000), rng.choice((None, i, 0))
        events.append(kernel(GEMM, at, rng.randrange(1, 200), of=of, stream=rng.randrange(3)))
        if of is not None and rng.random() < 0.7:
            events.append(launch(max(at - rng.randrange(200), 0), of))
    rng.shuffle(events)
    table = find_steps(to_store(events))
    assert len(table.work.row) == size
    law(table)


def test_a_shuffled_file_gives_the_same_steps() -> None:
    events = [scope(decode(1), MS * i, 500_000) for i in range(4)]
    for i in range(20):
        events += launched(GEMM, MS * (i // 5) + 1000 * i, MS * (i // 5) + 2000 * i, 900, of=i)
    shuffled = random.Random(1).sample(events, len(events))
    one, other = find_steps(to_store(events)), find_steps(to_store(shuffled))
    assert one.steps == other.steps
    assert steps_of(one) == steps_of(other)
