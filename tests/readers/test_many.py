"""Many files: read by several processes as by one, and no more at a time than memory allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.cli.options import parse_bytes
from stepscope.errors import BadInput, UnreadableTrace
from stepscope.readers.concurrency import Concurrency
from stepscope.readers.registry import open_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm-cpu-tp2"
GB = 10**9


def test_several_processes_read_what_one_reads() -> None:
    one, two = stepscope.open_trace(EXAMPLE), open_trace(EXAMPLE, concurrency=Concurrency(workers=2))
    assert (one.source, one.ranks) == (two.source, two.ranks)
    for ours, theirs in zip(one.stores, two.stores, strict=True):
        theirs.check()
        assert (ours.origin, ours.names, ours.tracks) == (theirs.origin, theirs.names, theirs.tracks)
        assert (ours.counts, ours.health) == (theirs.counts, theirs.health)
        for column in ours.events.__slots__:
            assert np.array_equal(getattr(ours.events, column), getattr(theirs.events, column)), column
            assert getattr(ours.events, column).dtype == getattr(theirs.events, column).dtype


def test_progress_is_said_file_by_file() -> None:
    seen: list[int] = []
    open_trace(EXAMPLE, on_progress=seen.append, concurrency=Concurrency(workers=2))
    assert seen == [path.stat().st_size for path in sorted(EXAMPLE.glob("*.json.gz"))]


def test_a_broken_file_is_named_whoever_read_it(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"rank{i}.json").write_text("", encoding="utf-8")
    with pytest.raises(UnreadableTrace, match=r"rank0\.json: the file is empty"):
        open_trace(tmp_path, concurrency=Concurrency(workers=2))


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as out:
        out.truncate(size)
    return path


def test_small_files_are_read_here_and_large_ones_by_as_many_as_memory_allows(tmp_path: Path) -> None:
    small = [sparse(tmp_path / f"s{i}.json", 1000) for i in range(4)]
    large = [sparse(tmp_path / f"l{i}.json", GB) for i in range(4)]
    assert Concurrency(workers=None).count_workers(small) == 1
    assert Concurrency(workers=3).count_workers(small) == 3
    assert Concurrency().count_workers(large) == 1
    # a file of 1 GB of text takes about 430 MB
    assert Concurrency(workers=4, memory_limit_bytes=2 * GB).count_workers(large) == 4
    assert Concurrency(workers=4, memory_limit_bytes=GB).count_workers(large) == 2
    assert Concurrency(workers=4, memory_limit_bytes=1).count_workers(large) == 1
    assert Concurrency(workers=None, ray=True).count_workers(large) is None


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("800MB", 800_000_000), ("512m", 512_000_000), ("1.5 gib", 3 << 29), ("7", 7)]
)
def test_an_amount_of_memory_has_a_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "4 GiB extra"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is no amount of memory"):
        parse_bytes(text)


@pytest.mark.extra
def test_ray_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    there = open_trace(EXAMPLE, concurrency=Concurrency(workers=None, ray=True))
    assert [store.names for store in there.stores] == [store.names for store in stepscope.open_trace(EXAMPLE).stores]
