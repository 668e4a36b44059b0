"""Broken, foreign and unfinished profiles: clear errors and health rows, nothing half-read in silence."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepscope
from stepscope.errors import BadInput, UnreadableTrace
from stepscope.readers.ascend.reader import read
from tests.readers.ascend.profiles import CUBE, HARDWARE, database, event, profile, row, table, timeline

if TYPE_CHECKING:
    from pathlib import Path

T = "1736408883704643"
STRINGS: list[tuple[Any, ...]] = [(0, "KERNEL_AICORE"), (1, "MatMulV2"), (2, "AI_CORE")]
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "STRING_IDS": STRINGS,
    "TASK": [(1_000, 6_000, 0, 11, 1, 0, 2)],
    "COMPUTE_TASK_INFO": [(1, 1, 2, 1)],
}
NAME = "ascend_pytorch_profiler_0.db"


def test_a_run_that_was_never_analysed_says_what_to_call(tmp_path: Path) -> None:
    (tmp_path / "host_1_ascend_pt" / "PROF_000001_1_A" / "device_0").mkdir(parents=True)
    with pytest.raises(
        UnreadableTrace, match=r"never analysed.*from torch_npu\.profiler\.profiler import analyse; ana"
    ):
        stepscope.open_trace(tmp_path / "host_1_ascend_pt")
    with pytest.raises(UnreadableTrace, match="never analysed"):
        stepscope.open_trace(tmp_path)


def test_an_msprof_run_that_was_never_exported_says_what_to_call(tmp_path: Path) -> None:
    (tmp_path / "PROF_000001_20260101_ABC" / "device_0").mkdir(parents=True)
    with pytest.raises(UnreadableTrace, match="msprof --export=on --output="):
        stepscope.open_trace(tmp_path / "PROF_000001_20260101_ABC")


@pytest.mark.parametrize("text", ["", "a,b,c\n1,2,3\n", "Name,Type\nA,A\n"])
def test_a_table_of_something_else_is_no_table_of_kernels(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableTrace, match="no table of kernels"):
        stepscope.open_trace(profile(tmp_path, kernel_details_csv=text))


def test_rows_cut_off_or_broken_are_counted(tmp_path: Path) -> None:
    good = row("A", "AI_CORE", f"{T}.000", "5.0", CUBE)
    text = table(good, good.replace(f"{T}.000", "soon"), good.replace("5.0,0,24", "-1,0,24"), good[: len(good) // 2])
    (store,) = stepscope.open_trace(profile(tmp_path, kernel_details_csv=text)).stores
    assert (store.counts.intact, store.counts.lost) == (1, 3)
    found = {health.code for health in store.health}
    assert found >= {"missing_start", "negative_duration", "table_row_broken"}


def test_a_quote_that_never_closes_loses_the_rest_and_says_so(tmp_path: Path) -> None:
    good = row("A", "AI_CORE", f"{T}.000", "5.0", CUBE)
    text = table(good, good.replace(",A,", ',"A,', 1), good, good)
    (store,) = stepscope.open_trace(profile(tmp_path, kernel_details_csv=text)).stores
    assert store.counts.intact == 1
    assert store.counts.lost == 3


def test_a_truncated_timeline_gives_what_stands_before_the_end(tmp_path: Path) -> None:
    whole = timeline(*(event("A", HARDWARE, 2, f"{T}.{i:03}", 0.001, args={"Task Type": "AI_CORE"}) for i in range(9)))
    (store,) = stepscope.open_trace(profile(tmp_path, trace_view_json=whole[: len(whole) - 60])).stores
    assert store.counts.intact == 8
    assert "truncated_file" in {health.code for health in store.health}


def test_a_truncated_database_is_an_error(tmp_path: Path) -> None:
    path = database(tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / NAME, ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    for source in (path, tmp_path / "x_ascend_pt", tmp_path):
        with pytest.raises(UnreadableTrace, match="cut off or damaged"):
            stepscope.open_trace(source)


def test_with_a_broken_database_the_text_beside_it_is_read_and_that_is_told(tmp_path: Path) -> None:
    folder = profile(tmp_path, kernel_details_csv=table(row("A", "AI_CORE", f"{T}.000", "5.0")))
    (folder / "ASCEND_PROFILER_OUTPUT" / NAME).write_bytes(b"SQLite format 3\0 and no more")
    (store,) = stepscope.open_trace(folder).stores
    assert len(store.events) == 1
    assert any(row.code == "table_missing" and "damaged" in row.detail for row in store.health)


def test_with_both_exports_the_other_is_left_aside_and_that_is_told(tmp_path: Path) -> None:
    folder = profile(tmp_path, kernel_details_csv=table(row("A", "AI_CORE", f"{T}.000", "5.0")))
    database(folder / "ASCEND_PROFILER_OUTPUT" / NAME, ROWS)
    (store,) = stepscope.open_trace(folder).stores
    assert store.names == ("MatMulV2",)
    assert "export_left_aside" in {health.code for health in store.health}


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (id INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(UnreadableTrace, match="of another program: it has no table STRING_IDS"):
        stepscope.open_trace(path)


def test_a_database_without_optional_tables_is_read_and_says_what_is_missing(tmp_path: Path) -> None:
    path = database(tmp_path / NAME, ROWS, without=("COMMUNICATION_OP", "CANN_API"))
    (store,) = stepscope.open_trace(path).stores
    assert store.names == ("MatMulV2",)
    assert {row.code: row.count for row in store.health}["table_missing"] == 2


def test_a_directory_of_nothing_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "ASCEND_PROFILER_OUTPUT").mkdir()
    with pytest.raises(BadInput):
        stepscope.open_trace(tmp_path)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 4_000), flips=st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), max_size=4))
def test_damaged_tables_are_read_within_the_laws_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    whole = bytearray(table(*(row(f"K{i}", "AI_CORE", f"{T}.{i:03}", "0.5", CUBE) for i in range(20))).encode())
    for place, value in flips:
        whole[place % len(whole)] = value
    path = tmp_path_factory.mktemp("damaged") / "kernel_details.csv"
    path.write_bytes(bytes(whole[: max(1, cut % len(whole))]))
    try:
        store = read(path)
    except UnreadableTrace:
        return
    store.check()
    assert store.counts.read == len(store.events)
