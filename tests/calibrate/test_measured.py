"""Measured steps: from one schedule to the next while the engine has work; from a trace, each step's own time."""

from __future__ import annotations

import hashlib
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepscope.calibrate.measured import steps_of_stream, steps_of_table
from stepscope.calibrate.recording import read_recorded_steps
from stepscope.errors import BadInput
from stepscope.readers.registry import open_trace
from stepscope.readers.step_log import read_step_log
from stepscope.record.step_log import encode
from stepscope.steps.step import find_steps

MS = 1_000_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm-cpu-tp2"


def record(seq: int, step_id: int, at_ms: float, rows: list[list[Any]]) -> dict[str, Any]:
    return {
        "seq": seq,
        "kind": "step",
        "step_id": step_id,
        "time_ns": int(at_ms * MS) + MS // 2,
        "schedule_ns": MS // 2,
        "num_scheduled_tokens": sum(row[1] for row in rows),
        "rows": rows,
    }


def prefill(name: str, query_len: int, kv_len: int) -> list[Any]:
    return [name, query_len, kv_len, 0, "prefill"]


def decode(name: str, kv_len: int) -> list[Any]:
    return [name, 1, kv_len, 0, "decode"]


RECORDS = [
    record(0, 0, 0, [prefill("a", 100, 100)]),
    record(1, 1, 20, [decode("a", 101)]),
    record(2, 2, 27, [decode("a", 102), prefill("b", 50, 50)]),
    record(3, 3, 40, [decode("b", 51)]),
    record(4, 4, 400, [prefill("c", 10, 10)]),  # the engine was idle before it, or not: nobody can tell
    record(5, 6, 420, [decode("c", 11)]),  # step 5 is missing
    record(6, 7, 426, []),
]


def write_log(folder: Path, **changes: Any) -> Path:
    header = {
        "kind": "header",
        "format": "stepscope-step-log",
        "version": 1,
        "role": "scheduler",
        "stream_id": "s",
        "file_index": 0,
        "first_seq": 0,
        "engine": "vllm",
        "engine_version": "0.32.0",
        "time_ns": 1_796_000_000_000_000_000,
    } | changes
    path = folder / f"{header['role']}-{header['stream_id']}-0.steplog"
    path.write_bytes(b"".join(map(encode, [header, *RECORDS])))
    return path


@pytest.fixture
def stream(tmp_path: Path) -> Any:
    write_log(tmp_path)
    return read_step_log(tmp_path).schedulers[0]


def test_a_logged_step_lasts_to_the_next_schedule_of_work_that_was_there(stream: Any) -> None:
    steps = steps_of_stream(stream)
    told = [None if step.seconds is None else round(step.seconds, 9) for step in steps]
    assert told == [0.020, 0.007, 0.013, None, None, None]
    assert [step.start_s for step in steps] == pytest.approx([0, 0.020, 0.027, 0.040, 0.400, 0.420])
    assert [step.shape.phase for step in steps] == ["prefill", "decode", "mixed", "decode", "prefill", "decode"]
    assert all(step.gap_s is None for step in steps)  # the host's part is inside


def test_the_recorded_example_gives_each_step_its_own_time() -> None:
    store = open_trace(EXAMPLE).stores[0]
    table = find_steps(store)
    steps = steps_of_table(table)
    assert len(steps) == len(table.counted)
    windows = [step.window for step in table.counted]
    for step, window in zip(steps, windows, strict=True):
        assert window is not None
        assert step.seconds is not None
        assert 0 < step.seconds <= (window[1] - window[0]) * 1e-9 + 1e-12
        assert step.start_s + step.seconds == pytest.approx(window[1] * 1e-9, abs=1e-6)
    known = [step for step, after in pairwise(steps) if after.shape.decode.num_requests]
    assert known
    assert all(step.gap_s is not None and step.gap_s >= 0 for step in known)


def test_a_log_says_where_its_steps_are_from(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    found = read_recorded_steps(tmp_path)
    assert (found.engine, found.engine_version, found.source.date) == ("vllm", "0.32.0", "2026-11-30")
    assert found.source.files == (path.name,)
    assert found.source.content_hash == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert len(found.steps) == 6


def test_what_a_log_does_not_say_is_not_recorded(tmp_path: Path) -> None:
    path = write_log(tmp_path, engine=None, engine_version=None, time_ns=None)
    os.utime(path, (86_400.0, 86_400.0))
    found = read_recorded_steps(path)
    assert (found.engine, found.engine_version) == ("not recorded", "not recorded")
    assert found.source.date == "1970-01-02"  # the file's own day


def test_logs_of_two_versions_or_of_workers_alone_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path, role="worker")
    with pytest.raises(BadInput, match="no scheduler's stream"):
        read_recorded_steps(tmp_path)
    for name, version in (("s", "0.32.0"), ("t", "0.31.0")):
        write_log(tmp_path, stream_id=name, engine_version=version)
    with pytest.raises(BadInput, match=r"several engines \(vllm 0.31.0, vllm 0.32.0\)"):
        read_recorded_steps(tmp_path)
