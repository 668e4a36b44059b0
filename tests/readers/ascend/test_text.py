"""Text exports: exact times, every quirk of the files, tables and timelines of one run joined."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.readers.ascend.number import ns_of_us
from stepscope.store.schema import DEVICE_SCOPE, FRAME, KERNEL, MEMCPY, OP, RUNTIME, SCOPE
from tests.readers.ascend.profiles import (
    CANN,
    COLUMNS_910A,
    COLUMNS_910B,
    CUBE,
    HARDWARE,
    HOST,
    MIXED,
    NOTHING,
    VECTOR,
    event,
    process,
    profile,
    row,
    table,
    timeline,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.events import EventStore

T = "1736408883704643"


def read(path: Path) -> EventStore:
    (store,) = stepscope.open_trace(path).stores
    store.check()
    return store


def rows_of(store: EventStore) -> list[tuple[str, int, int]]:
    e = store.events
    names = [store.names[i] for i in e.name_id.tolist()]
    return list(zip(names, e.start_ns.tolist(), e.duration_ns.tolist(), strict=True))


def codes(store: EventStore) -> dict[str, int]:
    return {row.code: row.count for row in store.health}


# --- Times


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1736408883704643.212\t", 1_736_408_883_704_643_212),
        ('"1736408883704643.212"', 1_736_408_883_704_643_212),
        ("1736408883704643", 1_736_408_883_704_643_000),
        ("6958.620000", 6_958_620),
        ("53.7410625", 53_741),
        ("-0.5", -500),
        ("1.5e3", 1_500_000),
        ("N/A", None),
        ("", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_times_are_exact_to_the_ns(text: str, ns: int | None) -> None:
    assert ns_of_us(text) == ns


@given(st.integers(0, 10**19 // 1000).map(lambda ns: (ns, Decimal(ns) / 1000)))
def test_no_digit_is_lost_whatever_the_time(case: tuple[int, Decimal]) -> None:
    ns, us = case
    assert ns_of_us(f"{us:.3f}\t") == ns


# --- One table


def test_start_with_tab_shapes_in_three_quotes_and_crlf(tmp_path: Path) -> None:
    columns = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes"
    text = f'{columns}\r\nMatMulV2,MatMulV2,AI_CORE,{T}.212\t,53.741,"""1,4096;5120,4096"""\r\n'
    store = read(profile(tmp_path, kernel_details_csv=text))
    assert rows_of(store) == [("MatMulV2", 1_736_408_883_704_643_212, 53_741)]
    assert store.counts.lost == 0


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_either_line_end(tmp_path: Path, end: str) -> None:
    text = table(row("A", "AI_CORE", f"{T}.000", "1.0"), row("B", "AI_CORE", f"{T}.002", "1.0"), end=end)
    assert len(read(profile(tmp_path, kernel_details_csv=text)).events) == 2


def test_a_quoted_cell_over_several_lines_is_one_row(tmp_path: Path) -> None:
    columns = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Call Stack"
    text = f'{columns}\nA,A,AI_CORE,{T}.000\t,1.0,"first;\nsecond;\nthird"\nB,B,AI_CORE,{T}.002\t,1.0,\n'
    assert len(read(profile(tmp_path, kernel_details_csv=text)).events) == 2


def test_the_columns_of_level_0(tmp_path: Path) -> None:
    columns = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim"
    text = f"{columns}\r\n50,MatMulV2,N/A,N/A,{T}.320\t,50.621,0,0\r\n"
    store = read(profile(tmp_path, kernel_details_csv=text))
    assert rows_of(store) == [("MatMulV2", 1_736_408_883_704_643_320, 50_621)]
    assert store.counters is None


def test_headers_of_op_summary_are_the_same_table(tmp_path: Path) -> None:
    renamed = {
        "Name": "Op Name",
        "Type": "OP Type",
        "Accelerator Core": "Task Type",
        "Start Time(us)": "Task Start Time(us)",
        "Duration(us)": "Task Duration(us)",
        "Wait Time(us)": "Task Wait Time(us)",
        "Block Num": "Block Dim",
    }
    columns = ",".join(renamed.get(name, name) for name in COLUMNS_910B.split(","))
    one = row("MatMulV2", "AI_CORE", f"{T}.000", "50.0", CUBE)
    old = tmp_path / "PROF_000001_20260101_ABC" / "mindstudio_profiler_output"
    old.mkdir(parents=True)
    (old / "op_summary_20260101.csv").write_text(table(one, columns=columns))
    ours, theirs = read(profile(tmp_path, kernel_details_csv=table(one))), read(old.parent)
    assert rows_of(ours) == rows_of(theirs)
    assert theirs.origin.metadata["recorder"] == "msprof"
    assert ours.counters is not None
    assert theirs.counters is not None
    assert ours.counters.column("AIC", "mac_ratio").value == theirs.counters.column("AIC", "mac_ratio").value


@pytest.mark.parametrize("core", ["HCCL", "COMMUNICATION"])
def test_a_collective_under_its_old_and_its_new_core(tmp_path: Path, core: str) -> None:
    text = table(
        row("hcom_allReduce__868_0_1", core, f"{T}.000", "5.0", stream="N/A"), row("A", "AI_CORE", f"{T}.900", "1")
    )
    store = read(profile(tmp_path, kernel_details_csv=text))
    assert [track.thread for track in store.tracks] == ["2", "communication 868"]


def test_a_collective_that_is_exported_twice_is_kept_once(tmp_path: Path) -> None:
    twice = [
        row("hcom_allReduce__868_0_1", "COMMUNICATION", f"{T}.000", "5.0", stream=stream) for stream in ("N/A", "4")
    ]
    store = read(profile(tmp_path, kernel_details_csv=table(*twice)))
    assert len(store.events) == 1
    assert codes(store)["duplicate_event"] == 1


def test_slices_are_one_table_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    place = tmp_path / "PROF_000001_20260101_ABC" / "mindstudio_profiler_output"
    place.mkdir(parents=True)
    for i in (0, 1, 2, 10):
        text = table(row(f"K{i}", "AI_CORE", f"{T}.{i:03}", "0.001"))
        (place / f"op_summary_slice_{i}_20260101.csv").write_text(text)
    assert [name for name, _, _ in rows_of(read(place.parent))] == ["K0", "K1", "K2", "K10"]


def test_several_devices_of_one_file_are_told_apart(tmp_path: Path) -> None:
    text = table(*(row("A", "AI_CORE", f"{T}.000", "1", device=device) for device in (0, 1)))
    store = read(profile(tmp_path, kernel_details_csv=text))
    assert sorted(str(track.device) for track in store.tracks) == ["0", "1"]
    assert codes(store)["several_devices"] == 2


def test_a_type_that_the_name_does_not_hold_stands_behind_it(tmp_path: Path) -> None:
    text = table(f"0,2,layer3_op7,AddRmsNorm,AI_VECTOR_CORE,{T}.000\t,1.0,0,24,{NOTHING}")
    assert rows_of(read(profile(tmp_path, kernel_details_csv=text)))[0][0] == "layer3_op7/AddRmsNorm"


def test_a_file_alone_is_a_profile_without_a_host(tmp_path: Path) -> None:
    path = tmp_path / "anything.csv"
    path.write_text(table(row("MatMulV2", "AI_CORE", f"{T}.000", "5"), row("MatMulV2", "AI_CORE", f"{T}.900", "5")))
    account = stepscope.explain(path)
    (rank,) = account.ranks
    exclusive = rank.budget.total.exclusive_ns
    assert (exclusive["supply"], exclusive["host"], exclusive["idle"]) == (None, None, None)
    assert exclusive["unknown"] == rank.budget.total.window_ns - exclusive["compute"]  # type: ignore[operator]


def test_ranks_of_a_directory(tmp_path: Path) -> None:
    for rank in (1, 0):
        profile(tmp_path, f"host_rank{rank}_ascend_pt", kernel_details_csv=table(row("A", "AI_CORE", f"{T}.000", "1")))
    assert stepscope.open_trace(tmp_path).ranks == (0, 1)
    assert stepscope.open_trace(str(tmp_path / "*_ascend_pt")).ranks == (0, 1)
    assert stepscope.open_trace(tmp_path / "host_rank1_ascend_pt" / "ASCEND_PROFILER_OUTPUT").ranks == (None,)


# --- Table and timeline


def hardware(name: str, ts: str, dur: float, kind: str, connection: int, tid: int = 2) -> dict[str, object]:
    args = {"Task Type": kind, "Physic Stream Id": tid, "connection_id": connection}
    return event(name, HARDWARE, tid, ts, dur, args=args)


def test_kernels_of_the_table_get_stream_and_launch_from_the_timeline(tmp_path: Path) -> None:
    kernels = table(
        row("MatMulV2", "AI_CORE", f"{T}.100", "50.741", CUBE, stream="N/A"),
        row("RmsNorm", "AI_VECTOR_CORE", f"{T}.200", "5.0", VECTOR, stream="N/A"),
        row("hcom_allReduce__868_0_1", "COMMUNICATION", f"{T}.563", "9.52", stream="N/A"),
    )
    launch = {"level": "node", "connection_id": 11}
    text = timeline(
        *process((7 << 10) + 448, "Communication"),
        event("aten::mm", HOST, 7, f"{T}.010", 0.03, cat="cpu_op", args={}),
        event("step[DECODE bs=2]", HOST, 7, f"{T}.000", 0.05, cat="cpu_op", args={}),
        event("a.py(1): f", HOST, 7, f"{T}.000", 0.05, cat="python_function", args={}),
        event("Node@launch", CANN, 7, f"{T}.020", 0.01, args=launch),
        event("AscendCL@aclrtSynchronizeStream", CANN, 7, f"{T}.040", 1, args={"level": "acl", "connection_id": 12}),
        hardware("MatMulV2", f"{T}.100", 50.7410625, "AI_CORE", 11, 5),
        hardware("RmsNorm", f"{T}.200", 5.0003, "AI_CORE", 13, 5),
        hardware("MEMCPY_ASYNC", f"{T}.300", 1.5, "PCIE_DMA_SQE", 14),
        hardware("EVENT_WAIT", f"{T}.310", 1.5, "EVENT_WAIT_SQE", 15),
        hardware("EVENT_RECORD", f"{T}.320", 0.02, "EVENT_RECORD_SQE", 16),
        hardware("Notify Wait", f"{T}.570", 7.0, "Notify Wait", 17, 6),
        event("hcom_allReduce__868_0_1", (7 << 10) + 448, 0, f"{T}.564", 9.52, args={"connection_id": 17}),
        event("Computing", (7 << 10) + 512, 0, f"{T}.100", 1),
    )
    text = text.replace(
        "[", "[" + ",".join(str(e).replace("'", '"') for e in process((7 << 10) + 512, "Overlap Analysis")) + ",", 1
    )
    store = read(profile(tmp_path, kernel_details_csv=kernels, trace_view_json=text))
    e = store.events
    kind = {store.names[n]: k for n, k in zip(e.name_id.tolist(), e.kind.tolist(), strict=True)}
    assert kind == {
        "aten::mm": OP,
        "step[DECODE bs=2]": SCOPE,
        "a.py(1): f": FRAME,
        "Node@launch": RUNTIME,
        "aclrtSynchronizeStream": RUNTIME,
        "MatMulV2": KERNEL,
        "RmsNorm": KERNEL,
        "MEMCPY_ASYNC": MEMCPY,
        "EVENT_WAIT": KERNEL,
        "EVENT_RECORD": DEVICE_SCOPE,
        "Notify Wait": DEVICE_SCOPE,  # a part of the collective: its time is the collective's
        "hcom_allReduce__868_0_1": KERNEL,
    }
    found = {name: (start, ns) for name, start, ns in rows_of(store)}
    assert found["MatMulV2"] == (int(T) * 1000 + 100, 50_741)
    assert found["hcom_allReduce__868_0_1"] == (int(T) * 1000 + 563, 9_520)  # the two tables round differently
    matmul = int(np.flatnonzero(e.name_id == store.names.index("MatMulV2"))[0])
    assert store.tracks[int(e.track_id[matmul])].thread == "5"
    assert int(e.correlation_id[matmul]) == 11
    assert codes(store) == {"repeated_lane": 1}
    assert store.counters is not None
    labels = [store.counters.label(i) for i in range(len(store.counters))]
    assert labels == ["AI_CORE", "AI_VECTOR_CORE", "COMMUNICATION"]  # the timeline says AI_CORE of both


def test_host_threads_of_both_lanes_are_one_process(tmp_path: Path) -> None:
    text = timeline(
        event("aten::mm", HOST, 7, f"{T}.010", 0.03, cat="cpu_op", args={}),
        event("Node@launch", CANN, 7, f"{T}.020", 0.01, args={"level": "node", "connection_id": 11}),
        hardware("MatMulV2", f"{T}.100", 5, "AI_CORE", 11),
    )
    store = read(profile(tmp_path, trace_view_json=text))
    assert [(track.process, track.thread) for track in store.tracks if not track.is_device] == [("7", "7")]
    assert codes(store)["table_missing"] == 1


def test_a_kernel_that_the_timeline_lacks_is_told(tmp_path: Path) -> None:
    kernels = table(row("A", "AI_CORE", f"{T}.100", "1"), row("B", "AI_CORE", f"{T}.200", "1"))
    text = timeline(hardware("A", f"{T}.100", 1, "AI_CORE", 1))
    store = read(profile(tmp_path, kernel_details_csv=kernels, trace_view_json=text))
    assert len(store.events) == 2
    assert codes(store)["not_in_timeline"] == 1


def test_ratios_of_910a_have_no_prefix(tmp_path: Path) -> None:
    text = f"{COLUMNS_910A}\n0,2,MatMul,MatMul,AI_CORE,{T}.000\t,10.0,9.0,9000,0.1,0.5,0.2,0.75,1.5\n"
    counters = read(profile(tmp_path, kernel_details_csv=text)).counters
    assert counters is not None
    assert counters.cores == ("AICORE",)
    assert [c.name for c in counters.columns if c.name == "memory_bound"] == []


def test_mixed_kernels_keep_both_cores(tmp_path: Path) -> None:
    text = table(row("A", "MIX_AIC", f"{T}.000", "50.0", MIXED))
    counters = read(profile(tmp_path, kernel_details_csv=text)).counters
    assert counters is not None
    assert counters.column("AIC", "mac_ratio").reading(0).value == 0.4
    assert counters.column("AIV", "vec_ratio").reading(0).value == 0.8
    assert counters.column("AIC", "total_time").reading(0).value == 50_000
