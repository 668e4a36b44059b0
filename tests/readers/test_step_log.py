"""Our step logs: read back as written; what is missing is counted and named."""

from __future__ import annotations

import base64
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import BadInput, StepscopeError
from stepscope.readers.step_log import StepLog, read_step_log
from stepscope.record.step_log import DECODE_FIELDS, ROW_FIELDS, encode
from tests.readers.test_fuzz import mutate

Record = dict[str, Any]
COUNTS = base64.b64encode(struct.pack("<4i", 3, 1, 2, 2)).decode()


def header(**more: Any) -> Record:
    return {
        "kind": "header",
        "format": "stepscope-step-log",
        "version": 1,
        "role": "scheduler",
        "stream_id": "s1",
        "file_index": 0,
        "first_seq": 0,
        "num_removed_files": 0,
        "dp_rank": 0,
    } | more


def row(**more: Any) -> list[Any]:
    one = dict.fromkeys(ROW_FIELDS) | {"request_id": "a", "query_len": 8, "kv_len": 8, "phase": "prefill"} | more
    return list(one.values())


def step(seq: int, **more: Any) -> Record:
    return {
        "seq": seq,
        "kind": "step",
        "step_id": seq,
        "time_ns": 1_000 + seq,
        "num_scheduled_tokens": 8,
        "rows": [row()],
        "decodes": None,
        "preempted": [],
        "finished": [],
    } | more


def write(folder: Path, *records: Record, name: str = "scheduler-s1-0.steplog", tail: bytes = b"") -> StepLog:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(encode(record) for record in records) + tail)
    return read_step_log(folder)


def codes(log: StepLog) -> dict[str, int]:
    return {r.code: r.count for r in log.reading.health}


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    log = write(tmp_path, header(), step(0, num_waiting=3, kv_usage_fraction=0.5), step(1))
    assert codes(log) == {}
    assert [s.step_id for s in log.schedulers[0].steps] == [0, 1]
    first = log.schedulers[0].steps[0]
    assert (first.num_waiting, first.kv_usage_fraction, first.num_free_blocks) == (3, 0.5, None)
    assert first.shape.num_scheduled_tokens == 8
    assert log.schedulers[0].is_whole


def test_summed_decodes_are_a_shape_too(tmp_path: Path) -> None:
    sums = dict(zip(DECODE_FIELDS, (300, 300, 90_000, 300, 90_000, 999), strict=True))
    log = write(tmp_path, header(), step(0, num_scheduled_tokens=308, decodes=list(sums.values())))
    shape = log.schedulers[0].steps[0].shape
    assert (shape.num_scheduled_tokens, shape.decode.num_requests, shape.decode.kv_sum) == (308, 300, 90_000)
    assert shape.rows is None


def test_other_records_stand_in_their_lists(tmp_path: Path) -> None:
    log = write(
        tmp_path,
        header(role="worker", rank=1),
        {"seq": 0, "kind": "forward", "step_id": 4, "is_stamped": True, "time_ns": 5, "host_ns": 7},
        {
            "seq": 1,
            "kind": "experts",
            "step_id": 4,
            "num_tokens": 2,
            "layers": [0, 5],
            "num_experts": 2,
            "rows_per_expert": COUNTS,
        },
        {"seq": 2, "kind": "request", "event": "added", "request_id": "a", "time_ns": 5, "prompt_len": 9},
        {"seq": 3, "kind": "weather", "sky": "blue"},
    )
    worker = log.workers[0]
    assert worker.forwards[0].host_ns == 7
    assert worker.experts[0].counts.tolist() == [[3, 1], [2, 2]]
    assert worker.experts[0].layers == (0, 5)
    assert worker.requests[0].prompt_len == 9
    assert codes(log) == {"step_record_unknown": 1}
    assert worker.is_whole


def test_a_later_version_may_append_fields(tmp_path: Path) -> None:
    log = write(tmp_path, header(version=2), step(0, weather="fine", rows=[[*row(), "new"]]))
    assert log.schedulers[0].steps[0].rows[0].request_id == "a"


def test_drops_that_the_log_confesses_are_counted_as_such(tmp_path: Path) -> None:
    drops = {"kind": "drops", "reason": "queue_full", "first_seq": 1, "last_seq": 3, "num_dropped": 3, "time_ns": 1}
    log = write(tmp_path, header(), step(0), drops, step(4))
    assert codes(log) == {"step_record_dropped": 3}
    assert (log.schedulers[0].num_dropped, log.schedulers[0].num_unexplained) == (3, 0)


def test_a_gap_that_nothing_explains_is_a_loss(tmp_path: Path) -> None:
    close = {"kind": "close", "reason": "closed", "next_seq": 9, "num_written": 2, "num_dropped": 0, "time_ns": 1}
    log = write(tmp_path, header(), step(0), step(5), close)
    assert log.schedulers[0].num_unexplained == 7  # 1 to 4, and 6 to 8
    assert codes(log) == {"step_record_lost": 7}


def test_files_of_one_stream_are_one(tmp_path: Path) -> None:
    write(tmp_path, header(), step(0), step(1))
    log = write(tmp_path, header(file_index=1, first_seq=2), step(2), name="scheduler-s1-1.steplog")
    assert [s.seq for s in log.schedulers[0].steps] == [0, 1, 2]
    assert log.schedulers[0].is_whole


def test_what_rotation_removed_is_no_gap(tmp_path: Path) -> None:
    log = write(tmp_path, header(file_index=3, first_seq=7, num_removed_files=3), step(7), step(8))
    assert log.schedulers[0].is_whole


def test_a_writer_that_was_stopped_leaves_a_readable_log(tmp_path: Path) -> None:
    log = write(tmp_path, header(), step(0), tail=encode(step(1))[:40])
    assert codes(log) == {"step_log_unfinished": 1}
    assert len(log.schedulers[0].steps) == 1


def test_a_broken_frame_costs_itself_only(tmp_path: Path) -> None:
    write(tmp_path, header(), step(0))
    file = tmp_path / "scheduler-s1-0.steplog"
    broken = encode(step(1)).replace(b'"step_id":1', b'"step_id":9')
    file.write_bytes(file.read_bytes() + broken + encode(step(2)))
    log = read_step_log(tmp_path)
    assert [s.seq for s in log.schedulers[0].steps] == [0, 2]
    assert codes(log)["step_record_lost"] == 2  # the frame, and its number


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_id": "one"},
        {"rows": [["a"]]},
        {"rows": 7},
        {"time_ns": None},
        {"rows": [row(phase="other")]},
        {"decodes": [1.5]},
        {"seq": "x"},
    ],
)
def test_a_record_of_another_shape_is_lost_and_counted(wrong: Record, tmp_path: Path) -> None:
    log = write(tmp_path, header(), step(0), step(1) | wrong, step(2))
    assert [s.seq for s in log.schedulers[0].steps] == [0, 2]
    assert codes(log)["step_record_lost"] >= 1


@pytest.mark.parametrize("wrong", [{"num_experts": 3}, {"num_experts": 0}, {"rows_per_expert": "%%"}, {"layers": [0]}])
def test_counts_that_are_no_table_are_lost(wrong: Record, tmp_path: Path) -> None:
    good = {"seq": 0, "kind": "experts", "step_id": 4, "layers": [0, 5], "num_experts": 2, "rows_per_expert": COUNTS}
    log = write(tmp_path, header(role="worker"), good, good | {"seq": 1} | wrong)
    assert len(log.workers[0].experts) == 1
    assert codes(log) == {"step_record_lost": 1}


def test_a_forged_range_of_drops_does_not_fill_the_memory(tmp_path: Path) -> None:
    drops = {"kind": "drops", "reason": "x", "first_seq": 0, "last_seq": 10**15, "num_dropped": 1, "time_ns": 1}
    assert codes(write(tmp_path, header(), drops, step(0))) == {"step_record_lost": 1}


def test_what_is_no_step_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.steplog").write_bytes(b"hello\n")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput):
            read_step_log(path)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_logs_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    data = b"".join(encode(record) for record in (header(), *(step(i) for i in range(8))))
    for _ in range(60):
        (tmp_path / "s.steplog").write_bytes(mutate(data, random_))
        try:
            log = read_step_log(tmp_path)
        except StepscopeError:
            continue
        stream = log.streams[0]
        assert len(stream.steps) + stream.num_unexplained <= 9
