"""What an export holds is what the store holds, in every schema version, and what it lacks is said by name."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepscope.answers.account import explain
from stepscope.readers.nsys import reader
from stepscope.readers.registry import open_trace
from stepscope.store.schema import KINDS
from tests.readers.nsys.exports import (
    DOMAIN,
    MARK,
    START_END,
    VERSIONS,
    Version,
    Written,
    decode_steps,
    process,
    thread,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.events import EventStore


def read_one(written: Written, folder: Path, name: str = "report.sqlite") -> EventStore:
    (store,) = open_trace(written.write(folder / name)).stores
    store.check()
    return store


def kinds(store: EventStore) -> dict[str, int]:
    return dict(Counter(KINDS[kind] for kind in store.events.kind.tolist()))


def codes(store: EventStore) -> dict[str, int]:
    return {row.code: row.count for row in store.health}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.schema)
def test_every_schema_version_gives_the_same_steps_and_kernels(version: Version, tmp_path: Path) -> None:
    written = Written(version=version)
    decode_steps(written)
    store = read_one(written, tmp_path)
    assert kinds(store) == {"kernel": 12, "runtime": 3, "scope": 3}
    assert store.origin.metadata["export_schema"] == version.schema
    assert "untried_schema" not in codes(store)
    (rank,) = explain(open_trace(tmp_path / "report.sqlite")).ranks
    assert [(s.phase, s.num_kernels, s.graph_mode) for s in rank.table.counted] == [("decode", 4, "full")] * 3
    assert rank.budget.coverage.idle_claimable


def test_times_are_ns_as_recorded(tmp_path: Path) -> None:
    written = Written()
    big = 2**61 + 1  # a float would lose the last digit
    written.kernel("k", big, big + 3, 5)
    store = read_one(written, tmp_path)
    assert (store.events.start_ns.tolist(), store.events.duration_ns.tolist()) == ([big], [3])
    assert store.tracks[0].is_device
    assert (store.tracks[0].device, store.tracks[0].thread) == ("0", "7")


def test_names_are_those_that_other_recorders_write(tmp_path: Path) -> None:
    written = Written()
    written.call("cudaLaunchKernel_ptsz_v7000", 1, 2, 1)
    written.call("cuLaunchKernelEx", 3, 4, 2)
    written.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        start=5,
        end=6,
        streamId=7,
        deviceId=0,
        globalPid=process(1),
        copyKind=1,
        srcKind=1,
        dstKind=2,
    )
    written.add("CUPTI_ACTIVITY_KIND_MEMSET", start=7, end=8, streamId=7, deviceId=0, globalPid=process(1), memKind=2)
    written.nvtx("aten::mm, seq = 3, op_id = 9, sizes = [[2, 4], [4, 2]]", 1, 9)
    written.nvtx("execute_context_0(0)_generation_1(1), op_id = 10", 1, 9)
    written.nvtx("{'Module': 'model.layers.3.mlp', 'TrainableParams': {}, 'Inputs': [[16, 4096]]}", 2, 8)
    store = read_one(written, tmp_path)
    assert set(store.names) == {
        "cudaLaunchKernel_ptsz",
        "cuLaunchKernelEx",
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "aten::mm",
        "execute_context_0(0)_generation_1(1)",
        "model.layers.3.mlp [[16, 4096]]",
    }
    assert kinds(store) == {"runtime": 2, "memcpy": 1, "memset": 1, "op": 1, "scope": 2}


@pytest.mark.parametrize(
    ("text", "phase", "requests"),
    [
        ("execute_context_1(512)_generation_3(3)", "mixed", 4),
        ("step[DECODE bs=16]", "decode", 16),
        ("[Executor] _forward_step 7: 0 ctx reqs, 0 ctx tokens, 8 gen reqs", "decode", 8),
    ],
)
def test_step_ranges_of_the_engines_are_steps(text: str, phase: str, requests: int, tmp_path: Path) -> None:
    written = Written()
    for at in (0, 1000):
        written.nvtx(text, at, at + 500)
        written.call("cudaLaunchKernel_v7000", at + 10, at + 20, at + 1)
        written.kernel("k", at + 30, at + 400, at + 1)
    (rank,) = explain(open_trace(written.write(tmp_path / "a.sqlite"))).ranks
    assert [(s.phase, s.boundary.shape.num_requests) for s in rank.table.steps] == [(phase, requests)] * 2


def test_a_process_is_a_store_and_each_row_stands_in_one(tmp_path: Path) -> None:
    written = Written()
    decode_steps(written, pid=21, device=0)
    decode_steps(written, pid=22, device=1)
    written.nvtx("schedule", 5, 9, pid=20)
    written.add("PROCESSES", globalPid=process(21), pid=21, name="VLLM::Worker_TP0")
    written.add("PROCESSES", globalPid=process(22), pid=22, name="VLLM::Worker_TP1")
    written.add("PROCESSES", globalPid=process(20), pid=20, name="VLLM::EngineCore")
    stores = open_trace(written.write(tmp_path / "a.sqlite")).stores
    assert [(s.rank, s.origin.rank_source, s.origin.metadata["pid"]) for s in stores] == [
        (0, "process name (TP index)", 21),
        (1, "process name (TP index)", 22),
        (None, "unknown", 20),
    ]
    assert [kinds(s).get("kernel", 0) for s in stores] == [12, 12, 0]
    assert sum(s.counts.present for s in stores) == sum(
        len(written.tables[t]) for t in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
    )


def test_several_devices_of_one_process_are_one_store_to_choose_from(tmp_path: Path) -> None:
    written = Written()
    decode_steps(written, device=0)
    written.kernel("k", 1_010_000, 1_020_000, 10, deviceId=3)
    store = read_one(written, tmp_path)
    assert codes(store)["several_devices"] == 2
    (rank,) = explain(open_trace(tmp_path / "report.sqlite"), device="3").ranks
    assert kinds(rank.store)["kernel"] == 1


def rank_of(written: Written, folder: Path, name: str = "report.sqlite") -> tuple[int | None, str]:
    written.kernel("k", 10, 20)
    origin = read_one(written, folder, name).origin
    return origin.rank, origin.rank_source


def test_a_rank_is_read_from_what_names_the_worker(tmp_path: Path) -> None:
    written = Written()
    written.add("ThreadNames", nameId=written.string("sglang::scheduler_TP3_EP3"), globalTid=thread(1))
    assert rank_of(written, tmp_path, "a.sqlite") == (3, "process name (TP index)")
    written = Written()
    written.nvtx("rank 5", 0, None, DOMAIN)
    assert rank_of(written, tmp_path, "b.sqlite") == (5, "NVTX")
    written = Written()
    written.setting("PROCESS_0:ENVIRONMENT_VARIABLE", 'RANK="6"')
    assert rank_of(written, tmp_path, "c.sqlite") == (6, "environment")
    assert rank_of(Written(), tmp_path, "report_rank7.sqlite") == (7, "file name")
    assert rank_of(Written(), tmp_path, "d.sqlite") == (None, "unknown")


def test_environment_and_file_name_are_no_rank_of_several_workers(tmp_path: Path) -> None:
    written = Written()
    written.setting("PROCESS_0:ENVIRONMENT_VARIABLE", 'RANK="0"')
    for pid in (21, 22):
        decode_steps(written, pid=pid)
    assert open_trace(written.write(tmp_path / "rank0.sqlite")).ranks == (None, None)


def test_start_end_ranges_do_not_break_the_nesting_of_their_thread(tmp_path: Path) -> None:
    written = Written()
    written.nvtx("outer", 0, 10_000)
    written.nvtx("crossing", 5_000, 90_000, START_END)
    written.nvtx("marked", 7, None, MARK)
    written.nvtx("step[DECODE bs=2]", 20_000, 30_000, START_END)
    store = read_one(written, tmp_path)
    assert "overrunning_child" not in codes(store)
    threads = {
        store.names[n]: store.tracks[t].thread for n, t in zip(store.events.name_id, store.events.track_id, strict=True)
    }
    assert threads == {"outer": "1", "marked": "1", "step[DECODE bs=2]": "1", "crossing": "1 (start/end ranges)"}


def test_missing_tables_and_columns_are_named(tmp_path: Path) -> None:
    written = Written()
    written.kernel("k", 10, 20, 1)
    written.columns["CUPTI_ACTIVITY_KIND_KERNEL"] = ["start", "end", "deviceId", "streamId", "shortName"]
    store = read_one(written, tmp_path)
    rows = {row.code: row for row in store.health}
    assert rows["schema_table_missing"].count == 2  # calls and ranges
    assert rows["schema_table_missing"].detail == "CUPTI_ACTIVITY_KIND_RUNTIME"
    assert rows["schema_column_missing"].detail == "CUPTI_ACTIVITY_KIND_KERNEL.correlationId"
    assert store.tracks[0].thread == "7"
    assert kinds(store) == {"kernel": 1}
    assert store.names == ("k",)  # the short name where there is no other


def test_a_table_without_rows_is_no_evidence(tmp_path: Path) -> None:
    written = Written()
    written.kernel("k", 10, 20, 1)
    written.tables["NVTX_EVENTS"] = []
    rows = {row.code: row.detail for row in read_one(written, tmp_path).health}
    assert rows["empty_table"] == "NVTX_EVENTS"


def test_null_cells_are_unknown_and_never_zero(tmp_path: Path) -> None:
    written = Written()
    written.kernel("k", 10, 20, None)
    written.kernel("no_end", 30, None, 2)
    written.kernel("backwards", 40, 35, 3)
    written.kernel("untimed", 0, 0, 4)
    written.nvtx("open", 12, None)
    written.add("NVTX_EVENTS", start=1, end=2, eventType=59, globalTid=thread(1))
    written.call("f", 50, 60, 9)
    written.tables["CUPTI_ACTIVITY_KIND_RUNTIME"][0]["nameId"] = 12345
    store = read_one(written, tmp_path)
    found = codes(store)
    assert (found["missing_correlation"], found["missing_duration"], found["negative_duration"]) == (1, 1, 1)
    assert (found["zero_time_kernel"], found["begin_without_end"], found["unnamed_event"]) == (1, 1, 2)
    assert store.counts.present == 7
    assert kinds(store) == {"kernel": 1, "scope": 2, "runtime": 1}
    ends = dict(zip([store.names[i] for i in store.events.name_id], store.events.end_ns.tolist(), strict=True))
    assert ends["open"] == 60  # the last time of the process


def test_what_is_not_read_and_what_the_recorder_warns_of_is_said(tmp_path: Path) -> None:
    written = Written(version=Version(schema="4.1.0", kernel=VERSIONS[-1].kernel, nvtx=VERSIONS[-1].nvtx))
    written.kernel("k", 10, 20, 1)
    written.add("OSRT_API", start=1, end=2)
    written.add("DIAGNOSTIC_EVENT", severity=1, text="Profiling has started.")
    written.add("DIAGNOSTIC_EVENT", severity=2, text="Not all CUDA events might have been collected.")
    rows = {row.code: row for row in read_one(written, tmp_path).health}
    assert rows["table_not_read"].detail == "OSRT_API"
    assert (rows["recorder_warning"].count, rows["recorder_warning"].detail[:11]) == (1, "Not all CUD")
    assert "4.1.0" in rows["untried_schema"].detail


@pytest.mark.parametrize(
    ("clock", "start", "expected"),
    [(None, 5, 1_700), (900, 5, 1_700), (900, 1_000, 800)],
    ids=["relative", "clock unused", "clock"],
)
def test_wall_clock_time(clock: int | None, start: int, expected: int, tmp_path: Path) -> None:
    written = Written()
    written.kernel("k", start, start + 10)
    written.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700, systemClockNs=clock)
    assert read_one(written, tmp_path).origin.base_time_ns == expected


def test_wall_clock_time_is_unknown_where_it_was_not_recorded(tmp_path: Path) -> None:
    written = Written()
    written.kernel("k", 1, 2)
    store = read_one(written, tmp_path)
    assert store.origin.base_time_ns is None
    assert "no_base_time" in codes(store)


def test_reading_leaves_the_export_as_it_was(tmp_path: Path) -> None:
    written = Written()
    decode_steps(written)
    path = written.write(tmp_path / "a.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    reader.read(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]


def test_row_order_does_not_matter(tmp_path: Path) -> None:
    written = Written()
    decode_steps(written)
    one = read_one(written, tmp_path, "a.sqlite")
    for rows in written.tables.values():
        rows.reverse()
    with closing(sqlite3.connect(written.write(tmp_path / "b.sqlite"))):
        other = read_one_of(tmp_path / "b.sqlite")
    for name in ("start_ns", "duration_ns", "name_id", "kind", "track_id", "correlation_id"):
        assert getattr(one.events, name).tolist() == getattr(other.events, name).tolist()


def read_one_of(path: Path) -> EventStore:
    (store,) = open_trace(path).stores
    return store
