"""Kernels inside graphs take operation and shapes from the capture of the graph; how many did is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stepscope.cli.main import app
from stepscope.errors import UnreadableTrace
from stepscope.join.graph_shapes import find_shapes, match_replay, say_shapes
from stepscope.readers.kineto.graph_capture import CapturedKernel, read_graphs
from tests.traces import GEMM, NORM, decode, kernel, launch, scope, to_report, to_store

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.events import EventStore

MM = "[[8,64],[64,32]]"
NORMED = "[[8,64],[64]]"


def captured(kernel_name: str | None, op: str | None = "aten::mm", dims: str | None = MM) -> CapturedKernel:
    return CapturedKernel(kernel=kernel_name, op=op, dims=dims)


GRAPH = (captured(NORM, "vllm::rms_norm", NORMED), captured(GEMM), captured(NORM, "vllm::rms_norm", NORMED))


def replays(*names: tuple[str, ...]) -> EventStore:
    events = [scope(decode(1), 0, 1000 * len(names))]
    for i, replay in enumerate(names):
        events.append(launch(1000 * i, of=i + 1, name="cudaGraphLaunch"))
        events += [kernel(name, 1000 * i + 100 * k, 90, of=i + 1) for k, name in enumerate(replay)]
    return to_store(events)


def test_a_replay_of_the_captured_sequence_is_matched_whole() -> None:
    found = find_shapes([replays((NORM, GEMM, NORM), (NORM, GEMM, NORM))], [GRAPH])
    assert (found.num_replays, found.num_kernels, found.num_matched, found.share) == (2, 6, 6, 1.0)
    rows = [(row.op, row.dims, row.num_kernels, row.total_ns) for row in found.rows]
    assert rows == [("vllm::rms_norm", NORMED, 4, 360), ("aten::mm", MM, 2, 180)]
    assert str(say_shapes(found, has_capture=True)).startswith("6 of 6 kernels inside 2 graph launches (100.0 %)")


def test_kernels_that_the_capture_lacks_are_left_without_a_shape_and_counted() -> None:
    found = find_shapes([replays((NORM, "extra", GEMM, NORM))], [GRAPH])
    assert (found.num_kernels, found.num_matched) == (4, 3)


def test_a_replay_of_another_graph_is_not_matched() -> None:
    assert match_replay(("a", "b", "c", NORM), [GRAPH]) == {}


def test_of_several_graphs_the_one_of_the_same_sequence_is_taken() -> None:
    other = (captured(NORM, "other"), captured(GEMM, "other"))
    assert [k.op for k in match_replay((NORM, GEMM), [GRAPH, other]).values()] == ["other", "other"]


def test_launches_without_names_are_matched_by_their_number_where_one_graph_alone_has_it() -> None:
    nameless = tuple(captured(None, op) for op in ("a", "b"))
    assert [k.op for k in match_replay(("x", "y"), [nameless]).values()] == ["a", "b"]
    assert match_replay(("x", "y"), [nameless, tuple(captured(None, op) for op in ("c", "d"))]) == {}
    assert match_replay(("x", "y", "z"), [nameless]) == {}


def test_without_a_capture_the_step_annotation_is_all_there_is() -> None:
    store = replays((NORM, GEMM))
    shapes = to_report(store)["graph_shapes"]
    assert (shapes["kernels"], shapes["matched"], shapes["rows"]) == (2, None, [])
    assert "shapes from the step annotation only" in shapes["text"]
    eager = to_store([scope(decode(1), 0, 100), launch(0, of=1), kernel(GEMM, 0, 50, of=1)])
    assert to_report(eager)["graph_shapes"]["text"] is None


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30), st.data())
def test_what_is_matched_has_the_name_that_it_is_matched_with_and_keeps_the_order(
    names: list[str], data: st.DataObject
) -> None:
    graph = tuple(captured(name, f"op{i}") for i, name in enumerate(data.draw(st.permutations(names))))
    found = match_replay(names, [graph])
    places = sorted(found)
    assert all(found[place].kernel == names[place] for place in places)
    order = [graph.index(found[place]) for place in places]
    assert order == sorted(order)


def capture_file(path: Path, calls: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"traceEvents": calls}), encoding="utf-8")
    return path


def runtime(name: str, at: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": at, "dur": 1, "args": args}


def operation(name: str, at: int, external_id: int, dims: Any) -> dict[str, Any]:
    args = {"External id": external_id, "Input Dims": dims}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": at, "dur": 5, "args": args}


CALLS = [
    runtime("hipLaunchKernel", 0, kernel="before"),
    runtime("hipStreamBeginCapture", 1),
    operation("vllm::rms_norm", 2, 7, [[8, 64], [64]]),
    runtime("hipLaunchKernel", 3, kernel=NORM, **{"External id": 7}),
    operation("aten::mm", 4, 8, [[8, 64], [64, 32]]),
    runtime("hipExtModuleLaunchKernel", 5, kernel=GEMM, **{"External id": 8}),
    runtime("cuLaunchKernelEx", 6),
    runtime("hipPointerGetAttribute", 7),
    runtime("hipStreamEndCapture", 8),
    runtime("hipLaunchKernel", 9, kernel="after"),
]


def test_a_capture_trace_gives_each_graphs_launches_in_order(tmp_path: Path) -> None:
    (graph,) = read_graphs(capture_file(tmp_path / "capture.json", CALLS[::-1]))
    assert graph == (captured(NORM, "vllm::rms_norm", NORMED), captured(GEMM), captured(None, None, None))


@pytest.mark.parametrize("calls", [[], CALLS[:1], CALLS[:6]], ids=["empty", "no capture", "capture without an end"])
def test_a_trace_without_a_graph_capture_is_refused(calls: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="no launch between the begin and the end"):
        read_graphs(capture_file(tmp_path / "capture.json", calls))
    (tmp_path / "broken.json").write_text('{"traceEvents": [', encoding="utf-8")
    with pytest.raises(UnreadableTrace, match="cannot be read as a capture trace"):
        read_graphs(tmp_path / "broken.json")


def test_explain_takes_a_capture(tmp_path: Path) -> None:
    events = [
        scope(decode(1), 0, 1000),
        launch(0, of=1, name="hipGraphLaunch"),
        kernel(NORM, 10, 50, of=1),
        kernel(GEMM, 70, 100, of=1),
    ]
    run = capture_file(tmp_path / "run.json", events)
    capture = capture_file(tmp_path / "capture.json", [*CALLS[:6], CALLS[8]])
    done = CliRunner().invoke(app, ["explain", str(run), "--graph-capture", str(capture)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "2 of 2 kernels inside 1 graph launches (100.0 %)" in " ".join(done.output.split())
    assert MM in done.output
