"""Where steps begin and end: each source, best first, and what is no step."""

from __future__ import annotations

import pytest

from stepscope.steps.boundaries import find_boundaries
from stepscope.steps.step import find_steps
from tests.traces import (
    EMPTY,
    EXECUTE,
    GEMM,
    MYSTERY,
    NORM,
    decode,
    device_scope,
    frame,
    kernel,
    launch,
    launched,
    op,
    prefill,
    scope,
    to_store,
)

DETAILED = "execute_8192_context_2(sq16sk32sqsq200sqsk300)_generation_3(sq3sk90sqsq3sqsk90)"


@pytest.mark.parametrize(
    ("name", "dialect", "phase", "tokens", "kv"),
    [
        ("execute_context_1(512)_generation_3(3)", "vllm", "mixed", 515, (None, None)),
        ("execute_context_1(888_788544)_generation_0(0)", "vllm", "prefill", 888, (None, 0)),
        (DETAILED, "vllm", "mixed", 19, (32, 90)),
        ("execute_new_2_cached_3", "vllm-early", None, None, (None, None)),
        ("step[EXTEND bs=15 toks=15360]", "sglang", "prefill", 15360, (None, 0)),
        ("step[DECODE bs=16 g_sq=16 g_sk=8193]", "sglang", "decode", 16, (0, 8193)),
        ("step[MIXED bs=2]", "sglang", "mixed", None, (None, None)),
        ("prefill[bs=2 tok=14721 ctx=[0, 128]]", "atom", "prefill", 14721, (None, 0)),
        ("decode[bs=117/128 ]", "atom", "decode", 117, (0, None)),
        ("[Executor] _forward_step 7: 1 ctx reqs, 64 ctx tokens, 0 gen reqs", "tensorrt-llm", "prefill", 64, (None, 0)),
        ("execute_diffusion_1_1024x1024", "diffusion", None, None, (None, None)),
        ("vllm_step v=1 s=4 n=2 r=a:16:32:8:c,b:1:65:0:g", "marker", "mixed", 17, (32, 65)),
    ],
)
def test_every_dialect_marks_a_step_and_tells_only_what_it_knows(
    name: str, dialect: str, phase: str | None, tokens: int | None, kv: tuple[int | None, int | None]
) -> None:
    (found,) = find_boundaries(to_store([scope(name, 100, 50), op("aten::mm", 110, 5)]))
    assert (found.source, found.grade, found.start_ns, found.end_ns) == (dialect, "recorded", 100, 150)
    assert (found.shape.phase, found.shape.num_scheduled_tokens) == (phase, tokens)
    assert (found.shape.prefill.kv_sum, found.shape.decode.kv_sum) == kv


def test_padding_is_known_only_where_the_name_says_it() -> None:
    found = find_boundaries(to_store([scope("decode[bs=117/128 ]", 0, 10), scope("decode[bs=5 ]", 20, 10)]))
    assert [b.num_padded_tokens for b in found] == [11, None]


def test_nested_dialects_are_one_step_that_knows_what_both_know() -> None:
    (found,) = find_boundaries(
        to_store([scope("step[DECODE bs=16]", 0, 100), scope("execute_context_0(0)_generation_16(16_16)", 10, 80)])
    )
    assert (found.source, found.start_ns, found.end_ns) == ("sglang", 0, 100)
    assert (found.shape.num_scheduled_tokens, found.shape.decode.query_sq_sum) == (16, 16)


def test_a_phase_that_the_name_gives_survives_nesting() -> None:
    (found,) = find_boundaries(to_store([scope("step[MIXED bs=2]", 0, 100), scope("execute_new_1_cached_1", 10, 80)]))
    assert (found.shape.phase, found.shape.num_requests) == ("mixed", 2)


@pytest.mark.parametrize("marker_outside", [True, False], ids=["marker outside", "marker inside"])
def test_a_markers_rows_join_the_annotation_around_or_inside_it(marker_outside: bool) -> None:
    marker, annotation = "vllm_step v=1 s=4 n=2 r=a:16:32:8:c,b:1:65:0:g", "execute_context_1(16)_generation_1(1)"
    outer, inner = (marker, annotation) if marker_outside else (annotation, marker)
    (found,) = find_boundaries(to_store([scope(outer, 0, 100), scope(inner, 10, 80)]))
    assert found.shape.rows is not None
    assert [(r.query_len, r.kv_len, r.prefix_hit_tokens) for r in found.shape.rows] == [(16, 32, 8), (1, 65, 0)]
    assert (found.shape.prefill.kv_sum, found.shape.decode.kv_sum) == (32, 65)
    found.shape.check()


@pytest.mark.parametrize("marker_outside", [True, False], ids=["marker outside", "marker inside"])
def test_a_marker_a_step_ahead_loses_to_the_annotation(marker_outside: bool) -> None:
    marker, annotation = "vllm_step v=1 s=5 n=1 r=b:1:66:0:g", "execute_context_1(16)_generation_1(1)"
    outer, inner = (marker, annotation) if marker_outside else (annotation, marker)
    (found,) = find_boundaries(to_store([scope(outer, 0, 100), scope(inner, 10, 80)]))
    assert (found.source, found.shape.num_scheduled_tokens, found.shape.rows) == ("vllm", 17, None)


def test_empty_steps_are_listed_and_not_counted() -> None:
    table = find_steps(
        to_store(
            [
                scope(prefill(8), 0, 10),
                scope(EMPTY, 20, 10),
                scope("step[IDLE bs=0]", 40, 10),
                scope(decode(2), 60, 10),
                *launched(GEMM, 5, 6, 4, of=1),
                *launched(GEMM, 65, 66, 4, of=2),
            ]
        )
    )
    assert [step.phase for step in table.steps] == ["prefill", "empty", "empty", "decode"]
    assert [step.step_id for step in table.counted] == [0, 3]
    assert [step.window is None for step in table.steps] == [False, True, True, False]
    assert [step.num_kernels for step in table.steps] == [1, 0, 0, 1]


def test_steps_come_in_time_order_whatever_the_files_order() -> None:
    events = [scope(decode(3), 200, 10), scope(prefill(7), 0, 10), scope(decode(2), 100, 10)]
    found = find_boundaries(to_store(events))
    assert [b.shape.num_scheduled_tokens for b in found] == [7, 2, 3]


@pytest.mark.parametrize("make", ["scope", "frame"])
def test_steps_of_several_threads_are_all_there_in_time_order(make: str) -> None:
    starts = {0: 1, 100: 2, 200: 1, 300: 2}
    events = [
        scope(decode(1), start, 50, thread=thread) if make == "scope" else frame(EXECUTE, start, 50, thread=thread)
        for start, thread in starts.items()
    ]
    table = find_steps(to_store([*events, *launched(GEMM, 120, 400, 9, of=1)]))
    assert [step.boundary.start_ns for step in table.steps] == list(starts)
    assert [step.num_kernels for step in table.steps] == [0, 1, 0, 0]


def test_a_mirror_of_the_annotation_on_the_device_is_no_second_step() -> None:
    store = to_store([scope(decode(4), 0, 100), device_scope(decode(4), 50, 400), *launched(GEMM, 10, 60, 300, of=1)])
    assert len(find_boundaries(store)) == 1


def test_graph_captures_are_no_steps() -> None:
    events = [scope("capture_32_FULL", 0, 50), scope("capture_256_PIECEWISE", 60, 50), scope(decode(1), 200, 10)]
    assert [b.source for b in find_boundaries(to_store(events))] == ["vllm"]
    assert find_boundaries(to_store(events[:2])) == ()


def test_without_annotations_the_workers_step_function_is_the_step() -> None:
    runner = "vllm/v1/worker/gpu_model_runner.py(4000): execute_model"
    events = [
        frame(EXECUTE, 0, 100),
        frame(runner, 10, 80),
        frame("vllm/v1/worker/gpu_worker.py(1301): execute_model", 200, 100),
        frame("vllm/v1/worker/worker_base.py(300): execute_model", 190, 120),
    ]
    found = find_boundaries(to_store(events))
    assert [(b.source, b.grade, b.start_ns, b.end_ns) for b in found] == [
        ("step function", "derived", 0, 100),
        ("step function", "derived", 200, 300),
    ]
    assert found[0].shape.phase is None


def test_annotations_win_over_step_functions_and_those_over_profiler_steps() -> None:
    profiler_step = scope("ProfilerStep#3", 0, 500)
    function = frame(EXECUTE, 10, 100)
    assert find_boundaries(to_store([profiler_step, function, scope(decode(1), 20, 50)]))[0].source == "vllm"
    assert find_boundaries(to_store([profiler_step, function]))[0].source == "step function"
    (found,) = find_boundaries(to_store([profiler_step]))
    assert (found.source, found.grade) == ("ProfilerStep", "recorded")


def test_graph_launches_mark_steps_where_every_replay_is_alike() -> None:
    events = [
        event
        for i in range(4)
        for event in (
            launch(100 * i, i + 1, name="cudaGraphLaunch"),
            kernel(GEMM, 100 * i + 10, 30, of=i + 1),
            kernel(NORM, 100 * i + 40, 30, of=i + 1),
        )
    ]
    table = find_steps(to_store(events))
    assert [(s.boundary.source, s.boundary.grade, s.num_kernels) for s in table.steps] == [
        ("graph launch", "inferred", 2)
    ] * 4
    assert [step.window for step in table.steps][1] == (70, 170)


def test_unequal_replays_are_taken_for_no_step() -> None:
    events = [launch(100 * i, i + 1, name="cudaGraphLaunch") for i in range(4)]
    events += [kernel(f"k{i}{j}", 100 * i + j, 1, of=i + 1) for i in range(4) for j in range(2 * i + 1)]
    assert find_boundaries(to_store(events)) == ()


def test_a_kernel_that_comes_back_regularly_marks_inferred_steps() -> None:
    events = [
        kernel(name, 1000 * step + 100 * place, 50)
        for step in range(5)
        for place, name in enumerate(("embed_it", GEMM, NORM, GEMM))
    ]
    table = find_steps(to_store(events))
    assert [step.boundary.grade for step in table.steps] == ["inferred"] * 5
    assert "confidence 1.00" in table.steps[0].boundary.source
    assert [step.num_kernels for step in table.steps] == [4] * 5
    assert table.work.num_assigned == 20


def test_kernels_without_any_pattern_make_no_steps() -> None:
    store = to_store([kernel(f"{MYSTERY}{i}", 10 * i, 5) for i in range(9)])
    table = find_steps(store)
    assert table.steps == ()
    assert table.windows.span == (0, 85)
