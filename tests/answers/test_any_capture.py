"""Whatever stands in a capture, the report keeps the laws and is plain JSON."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.report.document import to_document
from stepscope.steps.composition import NO_STEP
from tests.traces import (
    ACQUIRE,
    ALL_REDUCE,
    ATTENTION_OP,
    BMM_OP,
    ELSEWHERE,
    EMPTY,
    EXECUTE,
    GEMM,
    METADATA,
    MYSTERY,
    REDUCE_OP,
    SAMPLE,
    SWAP_OP,
    US,
    ZERO_KV,
    Event,
    call,
    copy,
    decode,
    device_scope,
    frame,
    kernel,
    launch,
    op,
    prefill,
    scope,
    to_account,
    to_store,
)

TIMES = st.integers(0, 40).map(lambda tick: tick * 25 * US + 1)
LENGTHS = st.integers(0, 12).map(lambda tick: tick * 25 * US)
IDS = st.none() | st.integers(0, 6)
THREADS = st.integers(1, 2)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        kernel,
        st.sampled_from([GEMM, ZERO_KV, ALL_REDUCE, MYSTERY, "kernel"]),
        TIMES,
        LENGTHS,
        of=IDS,
        stream=st.integers(7, 8),
    ),
    st.builds(copy, TIMES, LENGTHS, of=IDS),
    st.builds(
        launch, TIMES, st.integers(0, 6), name=st.sampled_from(["cudaLaunchKernel", "hipGraphLaunch"]), thread=THREADS
    ),
    st.builds(call, st.sampled_from(["cudaStreamSynchronize", "hipMemcpyWithStream"]), TIMES, LENGTHS, thread=THREADS),
    st.builds(op, st.sampled_from([ATTENTION_OP, SWAP_OP, REDUCE_OP, BMM_OP, "x::y"]), TIMES, LENGTHS, thread=THREADS),
    st.builds(frame, st.sampled_from([ACQUIRE, EXECUTE, SAMPLE, METADATA, ELSEWHERE]), TIMES, LENGTHS, thread=THREADS),
    st.builds(
        scope,
        st.sampled_from([decode(2), prefill(7), EMPTY, "step[MIXED bs=2]", "ProfilerStep#1", "capture_8_FULL"]),
        TIMES,
        LENGTHS,
        thread=THREADS,
    ),
    st.builds(device_scope, st.just(decode(2)), TIMES, LENGTHS),
)
CAPTURES = st.lists(EVENTS, max_size=25)


@settings(max_examples=300, deadline=None)
@given(captures=st.lists(CAPTURES, min_size=1, max_size=2))
def test_the_laws_hold_whatever_a_capture_holds(captures: list[list[Event]]) -> None:
    stores = [to_store(events, rank=i, world_size=len(captures)) for i, events in enumerate(captures)]
    account = to_account(*stores)
    report = to_document(account)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    for rank in account.ranks:
        rank.budget.partition.check()
        for window in (*rank.budget.windows, rank.budget.total):
            window.check()
        boundaries = [step.boundary for step in rank.table.steps]
        assert [b.start_ns for b in boundaries] == sorted(b.start_ns for b in boundaries)
        work = rank.table.work
        assert work.num_assigned + int((work.boundary == NO_STEP).sum()) == len(work.row)
        span, windows = rank.table.windows.span, [step.window for step in rank.table.counted if step.window]
        assert all(span[0] <= start <= end <= span[1] for start, end in windows)
        assert all(windows[i][1] == windows[i + 1][0] for i in range(len(windows) - 1))
        for signal in rank.signals:
            assert signal.total_ns >= 0
            assert signal.share is None or 0 <= signal.share <= 1
