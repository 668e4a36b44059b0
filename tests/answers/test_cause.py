"""Which cause two captures name: composed pairs with one known change, and pairs where nothing may be named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from stepscope.answers.compare import compare
from stepscope.answers.noise import MIN_VALUES
from tests.answers.test_any_capture import CAPTURES
from tests.answers.test_compare import BASE, Load, compose, layers
from tests.traces import (
    ALL_REDUCE,
    EXECUTE,
    GEMM,
    METADATA,
    MS,
    NORM,
    OUTPUTS,
    SCHEDULE,
    US,
    Event,
    frame,
    kernel,
    launch,
    op,
    scope,
    to_account,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.cause import Causes

JITTER = (0, 3 * US, 1 * US, 2 * US)
STEPS = 16


def named(a: Sequence[Event], b: Sequence[Event]) -> Causes:
    return compare(to_account(a), to_account(b)).causes


def engine(parts: dict[str, int], *, speed: float = 1.0, steps: int = STEPS) -> list[Event]:
    """A CPU engine in one process, a decode step after another; `parts`: each one's own ns a step."""
    events, now = [], 0
    for i in range(steps):
        for name in (SCHEDULE, "step", OUTPUTS):
            if name != "step":
                length = round(parts[name] * speed) + JITTER[i % 4]
                events.append(frame(name, now, length))
                now += length
                continue
            start = now
            for inner in (METADATA, "aten::mm", "_C::rms_norm", "vllm::unified_attention_with_output"):
                length = round(parts[inner] * speed) + JITTER[(i + 1) % 4]
                events.append((frame if inner == METADATA else op)(inner, now, length))
                now += length
            label = f"execute_context_0(0)_generation_4(sq4sk{400 + 4 * i}sqsq4sqsk{400 + 4 * i})"
            events += [frame(EXECUTE, start, now - start), scope(label, start, now - start)]
    return events


PARTS = {
    SCHEDULE: 200 * US,
    OUTPUTS: 150 * US,
    METADATA: 300 * US,
    "aten::mm": 800 * US,
    "_C::rms_norm": 250 * US,
    "vllm::unified_attention_with_output": 400 * US,
}


# the first of the 13 steps has another shape and one kernel: 12 of 13 steps run a norm four times, 3.69 a step


def test_a_slower_kernel_family_is_named_with_its_kernel() -> None:
    causes = named(compose(BASE), compose(Load(kernels=layers(260 * US))))
    (first,) = causes.named
    assert (first.category, first.family, first.delta_ns) == ("compute", "attention", 240 * US)
    assert str(causes.headline) == (
        "attention (compute) takes 240 us more a step: 800 us -> 1.04 ms, 100.0 % of the window's change, in 13 "
        "matched decode steps."
    )
    assert "runs 3.69 -> 3.69 times" in str(first.sentences[1])


def test_an_added_kernel_is_named_though_no_verdict_is_given() -> None:
    compared = compare(
        to_account(compose(BASE)), to_account(compose(Load(kernels=(*layers(200 * US), (NORM, 400 * US)))))
    )
    assert compared.verdict.status == "refused" or compared.differences
    (first,) = compared.causes.named
    assert (first.family, first.delta_ns) == ("norm", 400 * US)
    assert "runs 3.69 -> 4.62 times" in str(first.sentences[1])


def test_less_is_named_too() -> None:
    (first,) = named(compose(Load(kernels=layers(260 * US))), compose(BASE)).named
    assert (first.family, first.delta_ns) == ("attention", -240 * US)
    assert "takes 240 us less a step" in str(first.sentences[0])


@pytest.mark.parametrize(
    ("part", "category", "family", "function"),
    [
        (SCHEDULE, "engine", "schedule", "vllm/v1/core/sched/scheduler.py: schedule"),
        (OUTPUTS, "engine", "process_outputs", "vllm/v1/engine/output_processor.py: process_outputs"),
        (METADATA, "host", "metadata", "vllm/v1/worker/gpu_model_runner.py: _build_attention_metadata"),
        ("_C::rms_norm", "compute", "norm", None),
        ("aten::mm", "compute", "gemm", None),
    ],
)
def test_each_part_of_an_engine_is_named_by_its_code(
    part: str, category: str, family: str, function: str | None
) -> None:
    (first,) = named(engine(PARTS), engine(PARTS | {part: PARTS[part] + 500 * US})).named
    assert (first.category, first.family) == (category, family)
    assert first.delta_ns == pytest.approx(500 * US, rel=0.01)
    if function is not None:
        assert first.function == function


def test_a_cause_is_seen_through_a_machine_that_is_slower_as_a_whole() -> None:
    (first,) = named(engine(PARTS), engine(PARTS | {SCHEDULE: 700 * US}, speed=1.3)).named
    assert first.family == "schedule"
    assert first.delta_ns == pytest.approx(650 * US, rel=0.02)  # 1.3 x 500 us
    assert "All families together take 1.30 times as long in B" in str(first.sentences[-1])


@pytest.mark.parametrize("speed", [0.7, 1.3])
def test_nothing_is_named_where_everything_changed_alike(speed: float) -> None:
    causes = named(engine(PARTS), engine(PARTS, speed=speed))
    assert causes.named == ()
    assert str(causes.headline).startswith("No cause stands out beyond noise: in 16 matched decode steps")


def test_a_capture_with_itself_has_no_cause() -> None:
    causes = named(engine(PARTS), engine(PARTS))
    assert causes.named == ()
    assert str(causes.headline) == "No cause stands out: 16 matched decode steps differ by nothing."
    assert named(compose(BASE), compose(BASE)).named == ()


def test_few_steps_are_too_few() -> None:
    few = MIN_VALUES + 1
    causes = named(engine(PARTS, steps=few), engine(PARTS | {SCHEDULE: 9 * MS}, steps=few))
    assert causes.named == ()
    assert "matched steps of one phase are too few for a bound over all families" in str(causes.headline)


def ranks(slow: dict[int, int]) -> list[list[Event]]:
    """Two ranks of 16 steps: GEMMs of their own length, then a collective that both leave together."""
    lengths = {rank: 600 * US + slow.get(rank, 0) for rank in (0, 1)}
    step_ns = max(lengths.values()) + 200 * US
    found = []
    for rank in (0, 1):
        events = []
        for i in range(STEPS):
            start, own = i * step_ns, lengths[rank] + JITTER[(i + rank) % 4]
            label = f"execute_context_0(0)_generation_4(sq4sk{400 + 4 * i}sqsq4sqsk{400 + 4 * i})"
            events += [
                scope(label, start, step_ns),
                launch(start, of=3 * i),
                kernel(GEMM, start, own, of=3 * i),
                launch(start + 2, of=3 * i + 1),
                kernel(ALL_REDUCE, start + own, step_ns - own, of=3 * i + 1),
            ]
        found.append(events)
    return found


def test_one_slow_rank_is_late_and_the_others_wait_is_no_cause() -> None:
    causes = compare(to_account(*ranks({})), to_account(*ranks({1: 500 * US}))).causes
    (first,) = causes.named
    assert (first.kind, first.rank, first.family) == ("late rank", 1, "gemm")
    assert "Rank 1 is late: before its collectives gemm (compute) takes 500 us more a step" in str(first.sentences[0])


def marker(number: int, rows: str, tokens: int) -> str:
    return f"vllm_step v=1 s={number} n={tokens} r={rows}"


def prompts(hit: int) -> list[Event]:
    """Four prompts of 200 tokens, `hit` of each found in the cache."""
    events = []
    for i in range(4):
        start = i * MS
        events += [
            scope(marker(i, f"r{i}:{200 - hit}:200:{hit}:c", 200 - hit), start, MS),
            frame(EXECUTE, start, MS),
            op("aten::mm", start, 900 * US),
        ]
    return events


def test_prompts_that_lost_their_prefix_hits_come_first() -> None:
    causes = named(prompts(150), prompts(0))
    assert [cause.kind for cause in causes.named] == ["effective prefill"]
    assert str(causes.headline) == (
        "The same prompts (800 tokens) had 800 of their tokens computed instead of 200: prefix hits 600 -> 0 tokens."
    )


@settings(max_examples=60, deadline=None)
@given(a=CAPTURES, b=CAPTURES)
def test_any_two_captures_are_compared_and_none_with_itself_has_a_cause(a: list[Event], b: list[Event]) -> None:
    first = to_account(a)
    assert str(compare(first, to_account(b)).causes.headline).strip()
    assert compare(first, first).causes.named == ()
