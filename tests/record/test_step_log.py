from __future__ import annotations

import errno
import os
import signal
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.record import log_writer
from stepscope.record.channel import Channel
from stepscope.record.log_writer import StepLogWriter
from stepscope.record.step_log import Damage, encode, is_step_log, read_records

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = {"role": "scheduler", "stream_id": "abc"}
RECORDS = [{"seq": i, "kind": "step", "text": "é" * (i % 7)} for i in range(12)]
LOG = encode({"kind": "header", "format": "stepscope-step-log"}) + b"".join(map(encode, RECORDS))


def body(seq: int, size: int = 0) -> bytes:
    return encode({"seq": seq, "kind": "step", "pad": "x" * size})[18:-1]


def read_folder(folder: Path) -> list[list[dict[str, Any]]]:
    files = [list(read_records(path.read_bytes())) for path in sorted(folder.glob("*.steplog"))]
    assert not any(isinstance(item, Damage) for file in files for item in file)
    return [[item for item in file if not isinstance(item, Damage)] for file in files]


def account(folder: Path) -> tuple[list[int], list[int], dict[str, Any]]:
    """Numbers written, numbers told as dropped, the close record."""
    flat = [record for file in read_folder(folder) for record in file]
    written = [record["seq"] for record in flat if "seq" in record]
    told = [n for d in flat if d["kind"] == "drops" for n in range(d["first_seq"], d["last_seq"] + 1)]
    return written, told, flat[-1]


@pytest.mark.parametrize("cut", range(len(LOG)))
def test_a_log_cut_at_any_byte_gives_every_record_before_the_cut(cut: int) -> None:
    items = list(read_records(LOG[:cut]))
    whole = [item for item in items if not isinstance(item, Damage)]
    assert whole == list(read_records(LOG))[: len(whole)]
    lost = sum(item.num_bytes for item in items if isinstance(item, Damage))
    assert sum(len(encode(record)) for record in whole) + lost == cut
    assert lost < 200


@given(st.integers(0, len(LOG) - 1), st.binary(min_size=1, max_size=40))
def test_damage_costs_only_the_records_that_it_touches(at: int, noise: bytes) -> None:
    damaged = LOG[:at] + noise + LOG[at + len(noise) :]
    items = list(read_records(damaged))
    whole = [item for item in items if not isinstance(item, Damage)]
    assert len(whole) >= 13 - 2 - noise.count(b"\n") - len(noise) // 20 - 1
    covered = sum(item.num_bytes if isinstance(item, Damage) else len(encode(item)) for item in items)
    assert covered == len(damaged)


def test_a_log_is_known_by_its_first_bytes() -> None:
    assert is_step_log(LOG[:64])
    assert not is_step_log(b'{"traceEvents": []}')


def test_rotation_keeps_order_and_says_what_it_removed(tmp_path: Path) -> None:
    writer = StepLogWriter(tmp_path, dict(HEADER), max_bytes=2000, max_files=3)
    for seq in range(100):
        writer.write([body(seq, 100)])
    writer.close(100)
    files = read_folder(tmp_path)
    assert len(files) == 3
    numbers = [record["seq"] for file in files for record in file if "seq" in record]
    assert numbers == list(range(numbers[0], 100))
    for file in files:
        assert file[0]["kind"] == "header"
        assert file[0]["first_seq"] == file[1]["seq"]
        assert file[0]["num_removed_files"] == max(file[0]["file_index"] - 2, 0)
    assert files[-1][-1]["num_written"] == 100


@given(offered=st.lists(st.booleans(), min_size=1, max_size=60))
def test_written_and_dropped_are_what_was_offered(
    tmp_path_factory: pytest.TempPathFactory, offered: list[bool]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    writer = StepLogWriter(folder, dict(HEADER), max_bytes=500, max_files=1000)
    for seq, is_taken in enumerate(offered):
        if is_taken:  # else the queue was full: the writer only sees the gap
            writer.write([body(seq)])
    writer.close(len(offered))
    written, told, close = account(folder)
    assert sorted(written + told) == list(range(len(offered)))
    assert (close["num_written"], close["num_dropped"], close["next_seq"]) == (len(written), len(told), len(offered))


@pytest.mark.parametrize("partial", [0, 1, 30])
def test_a_full_disk_costs_records_that_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partial: int
) -> None:
    clock = [0.0]
    room = [10_000]
    plain = os.write

    def write(fd: int, data: memoryview) -> int:
        if len(data) <= room[0]:
            room[0] -= len(data)
            return plain(fd, data)
        taken = min(partial, room[0])
        if taken:
            room[0] -= taken
            return plain(fd, data[:taken])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log_writer.os, "write", write)  # type: ignore[attr-defined]
    monkeypatch.setattr(log_writer.time, "monotonic", lambda: clock[0])  # type: ignore[attr-defined]
    writer = StepLogWriter(tmp_path, dict(HEADER))
    for seq in range(60):
        if seq == 20:
            room[0] = 40
        if seq == 40:
            room[0] = 10_000
            clock[0] += 2
        writer.write([body(seq, 50)])
    writer.close(60)
    written, told, close = account(tmp_path)
    assert sorted(written + told) == list(range(60))
    assert told == list(range(20, 40))
    assert close["num_dropped"] == 20


def test_a_writer_that_was_killed_is_followed_by_one_that_tells_the_gap(tmp_path: Path) -> None:
    first = StepLogWriter(tmp_path, dict(HEADER))
    first.write([body(seq) for seq in range(5)])  # and is killed
    with next(tmp_path.glob("*.steplog")).open("ab") as file:
        file.write(encode({"seq": 5, "kind": "step"})[:20])
    second = StepLogWriter(tmp_path, dict(HEADER))
    second.write([body(seq) for seq in range(8, 10)])
    second.close(10)
    flat = [r for p in sorted(tmp_path.glob("*.steplog")) for r in read_records(p.read_bytes())]
    assert sum(isinstance(r, Damage) for r in flat) == 1
    drops = [r for r in flat if not isinstance(r, Damage) and r["kind"] == "drops"]
    assert [(d["reason"], d["first_seq"], d["last_seq"]) for d in drops] == [("writer_restarted", 5, 7)]


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_closed(folder: Path) -> bool:
    files = sorted(folder.glob("*.steplog"))
    return bool(files) and b'"kind":"close"' in files[-1].read_bytes()


def writers(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in command and any(part.endswith(b"log_writer.py") for part in command):
            found.append(int(entry.parent.name))
    return found


def test_a_channel_writes_what_it_is_given(tmp_path: Path) -> None:
    channel = Channel(tmp_path / "log", HEADER)
    for number in range(200):
        assert channel.offer({"kind": "step", "step_id": number})
    until(lambda: writers(tmp_path / "log"))
    channel.close()
    until(lambda: is_closed(tmp_path / "log"))
    written, told, close = account(tmp_path / "log")
    assert (written, told, close["reason"]) == (list(range(200)), [], "closed")


def test_a_writer_that_stands_still_costs_records_and_no_time(tmp_path: Path) -> None:
    channel = Channel(tmp_path / "log", HEADER, queue_bytes=50_000)
    channel.offer({"kind": "step"})
    until(lambda: list((tmp_path / "log").glob("*.steplog")))
    (writer,) = writers(tmp_path / "log")
    os.kill(writer, signal.SIGSTOP)
    slowest = 0.0
    for _ in range(3000):
        start = time.perf_counter()
        channel.offer({"kind": "step", "pad": "x" * 1000})
        slowest = max(slowest, time.perf_counter() - start)
    assert channel.num_refused > 0
    assert slowest < 0.5
    os.kill(writer, signal.SIGCONT)
    until(lambda: channel.offer({"kind": "step"}))
    channel.close(5)
    until(lambda: is_closed(tmp_path / "log"))
    written, told, close = account(tmp_path / "log")
    assert sorted(written + told) == list(range(channel.num_offered))
    assert len(told) == close["num_dropped"] == channel.num_refused


def test_twenty_killed_writers_cost_only_counted_records(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    channel = Channel(folder, HEADER)
    channel._start_at = 0.0
    killed = 0
    while killed < 20:
        channel._start_at = 0.0  # no second of waiting between two starts
        channel.offer({"kind": "step", "pad": "x" * 100})
        time.sleep(0.001)
        for pid in writers(folder) if channel.num_offered % 20 == 0 else ():
            os.kill(pid, signal.SIGKILL)
            killed += 1
    until(lambda: channel.offer({"kind": "step"}) and writers(folder))
    channel.close(5)
    until(lambda: is_closed(folder))
    flat = [r for p in sorted(folder.glob("*.steplog")) for r in read_records(p.read_bytes())]
    whole = [r for r in flat if not isinstance(r, Damage)]
    written = [r["seq"] for r in whole if "seq" in r]
    told = [n for d in whole if d["kind"] == "drops" for n in range(d["first_seq"], d["last_seq"] + 1)]
    assert sorted(written + told) == list(range(channel.num_offered))
    assert whole[-1]["next_seq"] == channel.num_offered


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    channel = Channel(tmp_path / "file" / "log", HEADER)
    for _ in range(100):
        channel.offer({"kind": "step"})
    channel.close()
    assert stat.S_ISREG((tmp_path / "file").stat().st_mode)


def test_a_fork_does_not_write_to_its_parent_s_stream(tmp_path: Path) -> None:
    channel = Channel(tmp_path / "log", HEADER)
    channel._pid += 1
    assert not channel.offer({"kind": "step"})
    assert channel.num_offered == 0
    channel._pid -= 1
    channel.close()
