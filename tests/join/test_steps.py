"""One join: by step id, else forward id, else by clock with its residual; disagreement is shown, never averaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.join.evidence import join_sources
from stepscope.join.observation import observe_trace
from stepscope.readers.kineto import reader
from stepscope.steps.step import find_steps
from tests.join.evidence import MS, START_NS, iteration, row, sources, step

if TYPE_CHECKING:
    from stepscope.join.steps import StepJoin
    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore

Shape = tuple[int, int]  # prefill tokens (one request), decode rows
SHAPES: tuple[Shape, ...] = ((512, 0), (100, 3), (0, 4), (0, 4), (0, 3))


def annotation(shape: Shape) -> str:
    tokens, decodes = shape
    return f"execute_context_{int(tokens > 0)}({tokens})_generation_{decodes}({decodes})"


def marker(number: int, shape: Shape) -> str:
    tokens, decodes = shape
    rows = [f"p:{tokens}:{tokens}:0:c"] * (tokens > 0) + [f"d{i}:1:9:0:g" for i in range(decodes)]
    return f"vllm_step v=1 s={number} n={tokens + decodes} r={','.join(rows)}"


def trace(
    folder: Path,
    shapes: tuple[Shape, ...] = SHAPES,
    *,
    numbers: list[int] | None = None,
    names: list[str] | None = None,
) -> list[tuple[EventStore, StepTable]]:
    """Steps of 8 ms every 10 ms, with markers where numbers are given; `names` replaces the engine's own ranges."""
    events: list[dict[str, Any]] = []
    for i, shape in enumerate(shapes):
        base = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 2_000 + i * 10_000, "dur": 8_000}
        events.append(base | {"name": names[i] if names else annotation(shape)})
        events.append(base | {"name": "aten::mm", "cat": "cpu_op", "dur": 100, "ts": base["ts"] + 10})  # type: ignore[operator]
        if numbers:
            events.append(base | {"name": marker(numbers[i], shape), "dur": 7_000, "ts": base["ts"] + 5})  # type: ignore[operator]
    path = folder / "rank0.1.pt.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": START_NS, "traceEvents": events}), encoding="utf-8")
    store = reader.read(path)
    return [(store, find_steps(store))]


def logged(number: int, shape: Shape) -> dict[str, Any]:
    tokens, decodes = shape
    rows = [row("p", tokens, tokens)] * (tokens > 0) + [row(f"d{i}", 1, 9, "decode") for i in range(decodes)]
    return step(number, rows)


def joined(folder: Path, ranks: list[tuple[EventStore, StepTable]], **files: Any) -> StepJoin:
    return join_sources(sources(folder, ranks=ranks, **files)).steps


def test_steps_with_numbers_are_joined_by_step_id(tmp_path: Path) -> None:
    ranks = trace(tmp_path, numbers=[7, 8, 9, 10, 11])
    join = joined(tmp_path, ranks, steps=[logged(7 + i, shape) for i, shape in enumerate(SHAPES)])
    assert [link.number for link in join.links] == [7, 8, 9, 10, 11]
    assert {link.method for link in join.links} == {"step id"}
    assert join.disagreements == ()
    # the log's time is that of schedule(): 70 ms after the trace's first, whose range starts at 2 ms
    assert join.links[0].residual_ns == 2 * MS - 70 * MS


def test_sources_that_disagree_stand_side_by_side(tmp_path: Path) -> None:
    ranks = trace(tmp_path, numbers=[7, 8, 9, 10, 11])
    wrong = [logged(7 + i, shape) for i, shape in enumerate(SHAPES)]
    wrong[1] = logged(8, (90, 3))
    found = joined(tmp_path, ranks, steps=wrong).disagreements
    values = {d.fact: dict(d.values) for d in found}
    assert values["num_scheduled_tokens"] == {"trace": 103, "step log": 93}
    assert {d.step_id for d in found} == {1}


def test_numbers_of_another_counter_are_not_believed(tmp_path: Path) -> None:
    ranks = trace(tmp_path, numbers=[7, 8, 9, 10, 11])
    shifted = [logged(3 + i, shape) for i, shape in enumerate([*SHAPES, (9, 0), (8, 0), (7, 0), (6, 0)])]
    join = joined(tmp_path, ranks, steps=shifted)
    assert {link.method for link in join.links} == {"clock"}
    assert join.disagreements == ()


def test_a_marker_that_contradicts_its_range_makes_all_numbers_doubtful(tmp_path: Path) -> None:
    ranks = trace(
        tmp_path, shapes=SHAPES, names=[annotation(shape) for shape in (*SHAPES[1:], (7, 0))], numbers=[0, 1, 2, 3, 4]
    )
    assert observe_trace(*ranks[0]).numbers_doubted


def test_forward_ids_join_expert_lines_of_sglang(tmp_path: Path) -> None:
    names = [f"step[EXTEND bs=1 toks={512 + i} forward_id={18420 + i}]" for i in range(4)]
    ranks = trace(tmp_path, shapes=SHAPES[:4], names=names)
    lines = [
        f"[2026-01-01 08:00:00 TP0] Prefill batch [{18420 + i}], #new-seq: 1, #new-token: {512 + i}, #cached-token: 0, "
        "token usage: 0.10, #running-req: 0, #queue-req: 0"
        for i in range(4)
    ]
    join = joined(tmp_path, ranks, log=lines)
    assert [(link.method, link.number) for link in join.links] == [("forward id", 18420 + i) for i in range(4)]
    assert join.disagreements == ()


def test_without_numbers_shapes_place_the_log_and_the_clock_confirms_it(tmp_path: Path) -> None:
    # the log is in another time zone (8 h ahead), prints no year, whole seconds only, and has more steps
    ranks = trace(tmp_path)
    shapes = [(64, 0), (0, 1), *SHAPES, (0, 2), (32, 2)]
    lines = [
        iteration(90 + i, (int(t > 0), t), (d, d)).replace("01-01 00:", "01-01 08:") for i, (t, d) in enumerate(shapes)
    ]
    join = joined(tmp_path, ranks, log=lines)
    assert [link.number for link in join.links] == [92, 93, 94, 95, 96]
    how = join.sources[0]
    assert how.method == "clock"
    assert how.offset_ns is not None
    assert how.offset_ns % (900 * 10**9) == 0
    assert max(abs(r) for r in how.residuals_ns) < 10**9
    assert "residual" in str(how.text)


def test_a_clock_that_contradicts_the_shapes_refuses_the_join(tmp_path: Path) -> None:
    ranks = trace(tmp_path)
    lines = [iteration(i, (int(t > 0), t), (d, d), seconds=37) for i, (t, d) in enumerate(SHAPES)]
    how = joined(tmp_path, ranks, log=lines).sources[0]
    assert (how.method, how.num_joined) == (None, 0)
    assert "clock" in str(how.text)


def test_steps_that_all_look_alike_cannot_be_placed(tmp_path: Path) -> None:
    ranks = trace(tmp_path, shapes=((0, 4),) * 4)
    how = joined(tmp_path, ranks, log=[iteration(i, (0, 0), (4, 4)) for i in range(9)]).sources[0]
    assert how.method is None
    assert "fit equally well" in str(how.text)


def test_dummy_and_empty_steps_take_no_place(tmp_path: Path) -> None:
    ranks = trace(tmp_path, shapes=(SHAPES[0], (0, 0), *SHAPES[1:]))
    lines = [iteration(i, (int(t > 0), t), (d, d)) for i, (t, d) in enumerate(SHAPES)]
    lines.insert(2, iteration(99, (0, 0), (0, 0)).replace("10.00 ms", "10.00 ms (dummy)"))
    join = joined(tmp_path, ranks, log=lines)
    assert [link.step_id for link in join.links] == [0, 2, 3, 4, 5]


def test_a_trace_without_wall_clock_is_joined_by_shape_alone(tmp_path: Path) -> None:
    ranks = trace(tmp_path)
    text = (tmp_path / "rank0.1.pt.trace.json").read_text(encoding="utf-8").replace("baseTimeNanoseconds", "other")
    (tmp_path / "rank0.1.pt.trace.json").write_text(text, encoding="utf-8")
    store = reader.read(tmp_path / "rank0.1.pt.trace.json")
    ranks = [(store, find_steps(store))]
    join = joined(tmp_path, ranks, steps=[logged(i, shape) for i, shape in enumerate(SHAPES)])
    assert len(join.links) == 5
    assert "no clock" in str(join.sources[0].text)


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_sources_changes_nothing(order: int, tmp_path: Path) -> None:
    ranks = trace(tmp_path, numbers=[7, 8, 9, 10, 11])
    lines = [iteration(i, (int(t > 0), t), (d, d)) for i, (t, d) in enumerate(SHAPES)]
    join = joined(tmp_path, ranks[::order], log=lines, steps=[logged(7 + i, s) for i, s in enumerate(SHAPES)])
    assert {link.source for link in join.links} == {"step log", "log iterations"}
    assert len(join.of_source("step log")) == len(join.of_source("log iterations")) == 5
