"""Which files are traces, who reads them, and which rank each is."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from stepscope.errors import AmbiguousInput, BadInput, UnreadableTrace
from stepscope.readers.registry import READERS, choose_reader, find_files, open_trace
from tests.readers.traces import Written, document

if TYPE_CHECKING:
    from pathlib import Path


def trace(rank: int | None = None, world_size: int = 2) -> bytes:
    info = "" if rank is None else f'"distributedInfo":{{"rank":{rank},"world_size":{world_size}}},'
    return document([Written(name="a", start_ns=1_000, duration_ns=2_000).text("compact")], "compact", header=info)


def put(folder: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def test_a_file_is_one_trace(tmp_path: Path) -> None:
    put(tmp_path, a__json=trace())
    assert find_files(tmp_path / "a.json") == (tmp_path / "a.json",)
    assert open_trace(tmp_path / "a.json").ranks == (None,)


def test_a_directory_is_all_its_ranks_in_order(tmp_path: Path) -> None:
    put(tmp_path, x__json=trace(10), y__json=trace(2), z__json__gz=gzip.compress(trace(None)))
    opened = open_trace(tmp_path)
    assert opened.ranks == (2, 10, None)
    assert opened.source == str(tmp_path)
    assert [s.origin.rank_source for s in opened.stores] == ["distributedInfo", "distributedInfo", "unknown"]


def test_a_glob_is_what_it_matches(tmp_path: Path) -> None:
    put(tmp_path, x__json=trace(0), y__json=trace(1), other__json=trace(1))
    assert open_trace(str(tmp_path / "[xy].json")).ranks == (0, 1)


def test_other_json_beside_traces_is_no_trace(tmp_path: Path) -> None:
    meta = json.dumps({"model": "x", "arguments": {"a": [1, 2]}}).encode()
    put(tmp_path, rank0__json=trace(), meta__json=meta, notes__txt=b"[]", truth__jsonl=b"[]")
    assert [path.name for path in find_files(tmp_path)] == ["rank0.json"]


def test_a_trace_whose_first_member_is_broken_is_still_found_in_its_directory(tmp_path: Path) -> None:
    whole = gzip.compress(trace(0))
    put(tmp_path, rank0__json__gz=whole[:10] + b"\xff" * 8 + whole)
    (store,) = open_trace(tmp_path).stores
    assert (store.counts.intact, [row.code for row in store.health if row.severity == "loss"]) == (
        1,
        ["gzip_member_lost"],
    )


def test_content_decides_who_reads_not_the_name(tmp_path: Path) -> None:
    put(tmp_path, gz_inside__json=gzip.compress(trace()), plain__json__gz=trace(), bare__log=b"\xef\xbb\xbf  [" + b"]")
    for name in ("gz_inside.json", "plain.json.gz", "bare.log"):
        assert choose_reader(tmp_path / name) in READERS
    assert open_trace(tmp_path / "plain.json.gz").stores[0].counts.intact == 1


@pytest.mark.parametrize(
    "data", [b"hello", b"SQLite format 3\0", b"\x89PNG\r\n", b"<html>", gzip.compress(b"hello", mtime=0)]
)
def test_another_format_is_refused_with_the_readers_there_are(tmp_path: Path, data: bytes) -> None:
    put(tmp_path, odd__json=data)
    with pytest.raises(
        UnreadableTrace, match=r"odd\.json: this is no format that a reader knows\. Known readers: (\w+, )*kineto"
    ):
        open_trace(tmp_path / "odd.json")


def test_json_without_events_is_refused(tmp_path: Path) -> None:
    put(tmp_path, odd__json=b'{"model": "x"}')
    with pytest.raises(
        UnreadableTrace, match=r'no `"traceEvents": \[` and no array of events\. Expected a torch-profiler'
    ):
        open_trace(tmp_path / "odd.json")


def test_gzip_with_nothing_inside_it_is_refused(tmp_path: Path) -> None:
    put(tmp_path, cut__json__gz=gzip.compress(trace())[:12], nothing__json__gz=gzip.compress(b""))
    with pytest.raises(UnreadableTrace, match="nothing in it can be inflated"):
        open_trace(tmp_path / "cut.json.gz")
    with pytest.raises(UnreadableTrace, match="the file is empty"):
        open_trace(tmp_path / "nothing.json.gz")


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no such file, directory or pattern\. Check the path"):
        open_trace(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="no such file, directory or pattern"):
        open_trace(str(tmp_path / "*.json"))


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    put(tmp_path, meta__json=b'{"model": "x"}')
    with pytest.raises(
        BadInput, match=r"no trace files \(\*\.json, \*\.json\.gz, .*\) in this directory\. Name the directory"
    ):
        open_trace(tmp_path)


def test_one_rank_twice_names_both_files(tmp_path: Path) -> None:
    put(tmp_path, a__json=trace(3), b__json=trace(3), c__json=trace(1))
    with pytest.raises(AmbiguousInput, match="rank 3 is there 2 times") as caught:
        open_trace(tmp_path)
    assert caught.value.candidates == ("a.json", "b.json")


def test_unknown_ranks_may_be_there_twice(tmp_path: Path) -> None:
    put(tmp_path, a__json=trace(), b__json=trace())
    assert open_trace(tmp_path).ranks == (None, None)


@pytest.mark.parametrize(
    ("name", "rank", "source", "parallel"),
    [
        # vLLM, newer and older
        (
            "dp0_pp0_tp1_dcp0_ep1_rank1.1795971234.pt.trace.json",
            1,
            "file name",
            {"dp": 0, "pp": 0, "tp": 1, "dcp": 0, "ep": 1},
        ),
        ("rank0.123.pt.trace.json", 0, "file name", {}),
        ("graph_capture_rank_12.177370.pt.trace.json", 12, "file name", {}),
        ("host-rank-7.json", 7, "file name", {}),
        # SGLang
        ("1234-TP-3.trace.json", 3, "file name (TP index)", {"tp": 3}),
        ("1234-TP-3-DP-1.trace.json", None, "unknown", {"tp": 3, "dp": 1}),
        # nothing to go by: words that only end or begin alike
        ("node17_4242.pt.trace.json", None, "unknown", {}),
        ("frank2.json", None, "unknown", {}),
        ("http2.json", None, "unknown", {}),
        ("rank.json", None, "unknown", {}),
    ],
)
def test_rank_is_read_from_the_file_name_and_its_source_is_stated(
    tmp_path: Path, name: str, rank: int | None, source: str, parallel: dict[str, int]
) -> None:
    for ending, data in (("", trace()), (".gz", gzip.compress(trace()))):
        path = tmp_path / (name + ending)
        path.write_bytes(data)
        (store,) = open_trace(path).stores
        assert (store.rank, store.origin.rank_source, dict(store.origin.parallel)) == (rank, source, parallel)
        assert ("rank_unknown" in [row.code for row in store.health]) == (rank is None)


def test_the_recorded_rank_goes_before_the_name(tmp_path: Path) -> None:
    put(tmp_path, rank5__json=trace(2, world_size=8))
    (store,) = open_trace(tmp_path).stores
    assert (store.rank, store.origin.rank_source, store.origin.world_size) == (2, "distributedInfo", 8)


@pytest.mark.parametrize("info", ["[]", "null", '{"rank": -1}', '{"rank": true}', '{"rank": "2"}', "{}"])
def test_a_rank_that_is_no_whole_number_is_unknown(tmp_path: Path, info: str) -> None:
    put(tmp_path, a__json=document([], "compact", header=f'"distributedInfo":{info},"baseTimeNanoseconds":true,'))
    (store,) = open_trace(tmp_path / "a.json").stores
    assert (store.rank, store.origin.base_time_ns) == (None, None)


def test_progress_is_told_in_bytes_of_the_file(tmp_path: Path) -> None:
    put(tmp_path, a__json=trace(0), b__json__gz=gzip.compress(trace(1)))
    seen: list[int] = []
    open_trace(tmp_path, on_progress=seen.append)
    assert sum(seen) == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_an_ascend_timeline_is_known_by_its_times_and_is_no_kineto_trace(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Ascend Hardware"}}
    worked = {"ph": "X", "name": "aten::empty", "pid": 3, "tid": 3, "ts": "1736405443863674.400", "dur": 162.66}
    put(tmp_path, trace_view__json=json.dumps([worked] * 1000 + [named]).encode())
    assert choose_reader(tmp_path / "trace_view.json").NAME == "ascend"
    numbers = json.dumps([worked | {"ts": 1.5}] * 1000 + [named]).encode()
    put(tmp_path, other__json=numbers)
    with pytest.raises(UnreadableTrace, match="Pass the profile's directory"):
        open_trace(tmp_path / "other.json")
