"""Files that cannot be read are refused with what is wrong; nothing is read by halves."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UnreadableTrace
from stepscope.readers.nsys import reader
from stepscope.readers.nsys.database import HEADER_BYTES
from stepscope.readers.registry import find_files, open_trace
from tests.readers.nsys.exports import Written, decode_steps


def whole(folder: Path) -> bytes:
    written = Written()
    decode_steps(written, num_steps=200)
    return written.write(folder / "whole.sqlite").read_bytes()


@pytest.mark.parametrize("part", [0.3, 0.7, 0.999])
def test_a_truncated_export_says_how_much_is_there(part: float, tmp_path: Path) -> None:
    data = whole(tmp_path)
    kept = int(len(data) * part)
    (tmp_path / "cut.sqlite").write_bytes(data[:kept])
    with pytest.raises(UnreadableTrace, match=rf"truncated: {kept} of {len(data)} bytes\. Export it again"):
        open_trace(tmp_path / "cut.sqlite")


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    data = bytearray(whole(tmp_path))
    page = int.from_bytes(data[16:18], "big")
    for at in range(page, len(data), page):
        data[at : at + 64] = b"\xff" * 64
    (tmp_path / "bad.sqlite").write_bytes(bytes(data))
    with pytest.raises(UnreadableTrace, match="the SQLite file is damaged"):
        open_trace(tmp_path / "bad.sqlite")


def test_another_programs_database_is_named_by_its_tables(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "places.sqlite")) as connection:
        connection.execute("CREATE TABLE moz_places (id, url)")
        connection.commit()
    with pytest.raises(UnreadableTrace, match=r"no Nsight Systems export \(its tables: moz_places\)"):
        open_trace(tmp_path / "places.sqlite")


def test_an_export_that_is_being_written_is_refused(tmp_path: Path) -> None:
    whole(tmp_path)
    (tmp_path / "whole.sqlite-journal").write_bytes(b"x")
    with pytest.raises(UnreadableTrace, match="still being written"):
        open_trace(tmp_path / "whole.sqlite")


def test_text_in_a_column_of_numbers_is_refused(tmp_path: Path) -> None:
    written = Written()
    written.kernel("k", 1, 2)
    written.tables["CUPTI_ACTIVITY_KIND_KERNEL"][0]["start"] = "soon"
    with pytest.raises(UnreadableTrace, match="CUPTI_ACTIVITY_KIND_KERNEL holds text where a number belongs"):
        reader.read(written.write(tmp_path / "a.sqlite"))


def test_an_export_without_names_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        connection.execute("CREATE TABLE NVTX_EVENTS (start, end)")
        connection.commit()
    with pytest.raises(UnreadableTrace, match="no table StringIds"):
        open_trace(tmp_path / "a.sqlite")


def test_an_export_without_events_is_an_empty_store(tmp_path: Path) -> None:
    (store,) = open_trace(Written().write(tmp_path / "a.sqlite")).stores
    assert len(store.events) == 0
    assert "no_events" in [row.code for row in store.health]


def test_a_report_that_was_not_exported_says_how_to(tmp_path: Path) -> None:
    (tmp_path / "report.nsys-rep").write_bytes(b"own format")
    with pytest.raises(UnreadableTrace, match=r"Export it: nsys export --type sqlite report\.nsys-rep"):
        open_trace(tmp_path / "report.nsys-rep")


def test_exports_of_a_directory_are_found(tmp_path: Path) -> None:
    for name in ("rank0.sqlite", "rank1.sqlite"):
        written = Written()
        decode_steps(written)
        written.write(tmp_path / name)
    (tmp_path / "other.sqlite").write_bytes(b"no database")
    assert [path.name for path in find_files(tmp_path)] == ["rank0.sqlite", "rank1.sqlite"]
    assert open_trace(tmp_path).ranks == (0, 1)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    written = Written()
    decode_steps(written)
    written.setting("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
    return written.write(tmp_path_factory.mktemp("small") / "a.sqlite").read_bytes()


@given(changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_bytes_are_refused_or_read_within_the_laws(changes: list[tuple[int, int]], small: bytes) -> None:
    damaged = bytearray(small)
    for at, byte in changes:
        damaged[HEADER_BYTES + at % (len(small) - HEADER_BYTES)] = byte
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        path.write_bytes(bytes(damaged))
        try:
            stores = reader.read(path)
        except UnreadableTrace:
            return
        for store in stores:
            store.check()
            assert store.counts.present == store.counts.read
