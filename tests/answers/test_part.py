"""A part that is read is the cut of the capture, read: of steps and of time, from traces and from runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import stepscope
from stepscope.answers.part import Part, open_part
from stepscope.cli.main import app
from stepscope.errors import BadInput
from stepscope.readers.concurrency import Concurrency
from stepscope.store.events import EventStore
from stepscope.store.run import import_run
from stepscope.store.selection import OUTSIDE

EXAMPLES = Path(__file__).parents[2] / "examples"
CAPTURES = ("vllm-cpu-tp2", "glm52-prefill")
PARTS = (
    *(Part(steps=steps) for steps in ("0", "1-2", "4:5", "0-5")),
    *(Part(time=time) for time in ("0ms-5ms", "2ms:9ms")),
)


def assert_same_events(ours: EventStore, theirs: EventStore) -> None:
    for column in ("start_ns", "duration_ns", "kind", "correlation_id"):
        assert np.array_equal(getattr(ours.events, column), getattr(theirs.events, column)), column
    assert ours.names == theirs.names
    assert np.array_equal(ours.events.name_id, theirs.events.name_id)
    assert ours.tracks == theirs.tracks
    assert np.array_equal(ours.events.track_id, theirs.events.track_id)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.steps or part.time)
@pytest.mark.parametrize("capture", CAPTURES)
def test_reading_a_part_is_reading_its_cut(capture: str, part: Part, tmp_path: Path) -> None:
    option = ["--steps", part.steps.replace(":", "-")] if part.steps else ["--time", part.time or ""]
    source = EXAMPLES / capture
    several = len(stepscope.open_trace(source).stores) > 1
    target = tmp_path if several else tmp_path / "cut.json"
    done = CliRunner().invoke(app, ["cut", str(source), "-o", str(target), *option], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    expected = stepscope.open_trace(target).stores
    found = open_part(source, part).stores
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        ours.check()
        assert_same_events(ours, theirs)


def test_what_stands_outside_is_counted() -> None:
    (whole, *_), (part, *_) = (
        trace.stores
        for trace in (
            stepscope.open_trace(EXAMPLES / "vllm-cpu-tp2"),
            open_part(EXAMPLES / "vllm-cpu-tp2", Part(steps="3-4")),
        )
    )
    outside = next(row.count for row in part.health if row.code == OUTSIDE)
    assert len(part.events) + outside == len(whole.events)
    assert part.counts == whole.counts


@pytest.mark.parametrize("part", [Part(steps="2-4"), Part(time="2ms-9ms")], ids=["steps", "time"])
def test_a_part_of_a_run_is_the_part_of_its_capture(part: Part, tmp_path: Path) -> None:
    source = EXAMPLES / "vllm-cpu-tp2"
    import_run(stepscope.open_trace(source).stores, tmp_path / "run")
    for ours, theirs in zip(open_part(tmp_path / "run", part).stores, open_part(source, part).stores, strict=True):
        assert_same_events(ours, theirs)


def test_parts_are_read_by_several_processes_too() -> None:
    source, part = EXAMPLES / "vllm-cpu-tp2", Part(steps="2-4")
    for ours, theirs in zip(
        open_part(source, part, concurrency=Concurrency(workers=2)).stores, open_part(source, part).stores, strict=True
    ):
        assert_same_events(ours, theirs)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "either of steps or of time"),
        ({"steps": "1", "time": "1s-2s"}, "either of steps or of time"),
        ({"steps": "3..4"}, "is no range"),
        ({"time": "3-4"}, "is no range"),
    ],
)
def test_a_part_is_named_in_one_way(given: dict[str, str], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        Part(**given)


def test_steps_that_are_not_there_are_refused_with_those_that_are() -> None:
    with pytest.raises(BadInput, match="Steps that are there: 0-11"):
        open_part(EXAMPLES / "vllm-cpu-tp2", Part(steps="400"))


def test_explain_takes_a_part() -> None:
    done = CliRunner().invoke(
        app, ["explain", str(EXAMPLES / "vllm-cpu-tp2"), "--steps", "3:5", "-f", "json"], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert '"outside_selection"' in done.output
