"""The OpenAI server with the recorder: equal to its scheduler under load, and unharmed whatever happens to the log."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.record.step_log import Damage, read_records
from tests.engine.openai_server import serving
from tests.engine.plugin_environment import PYTHON
from tests.engine.test_plugin import check_markers, check_queue, check_steps, read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = 20

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(PYTHON is None, reason="STEPSCOPE_ENGINE_PYTHON is not set (make check-engine sets it)"),
]


def accounts(folder: Path) -> dict[str, tuple[int, int, int, int | None]]:
    """Per stream: records written, records told as dropped, damaged stretches, records offered (None: not told).

    No number may be both written and dropped, and together they have no hole.
    """
    streams: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("*.steplog")):
        stream = path.name.rpartition("-")[0]
        streams.setdefault(stream, []).extend(read_records(path.read_bytes()))
    out = {}
    for stream, records in streams.items():
        damage = sum(isinstance(record, Damage) for record in records)
        whole = [record for record in records if not isinstance(record, Damage)]
        written = [record["seq"] for record in whole if "seq" in record]
        told = [r for d in whole if d["kind"] == "drops" for r in range(d["first_seq"], d["last_seq"] + 1)]
        offered = next((record["next_seq"] for record in reversed(whole) if record["kind"] == "close"), None)
        assert len(set(written)) == len(written)
        assert sorted([*written, *told]) == list(range(len(written) + len(told)))
        out[stream] = (len(written), len(told), damage, offered)
    return out


def test_server_under_load_equals_its_scheduler(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(tmp_path, log) as server:
        server.load(16)
        server.post("/start_profile")
        answers = server.load(80)
        server.post("/stop_profile")
        server.load(16)
    assert answers == [30] * 80
    recorded = read(tmp_path)
    assert check_steps(recorded) > 100
    assert max(step["num_waiting"] for step in recorded.of("scheduler", None, "step")) > 0
    check_queue(recorded)
    (names,) = recorded.markers.values()
    assert len(names) > 50
    check_markers(recorded, names)
    assert all(offered == written for written, _, _, offered in accounts(log).values())


def test_no_request_fails_when_the_writer_is_killed(tmp_path: Path) -> None:
    log, chance, answers = tmp_path / "log", random.Random(7), []
    with serving(tmp_path, log) as server:
        going = threading.Event()
        going.set()

        def load() -> None:
            while going.is_set():
                answers.extend(server.load(32, max_tokens=20))

        thread = threading.Thread(target=load)
        thread.start()
        killed = 0
        while killed < KILLS:
            time.sleep(chance.uniform(0.05, 1.5))
            writers = server.writers()
            if writers:
                os.kill(chance.choice(writers), signal.SIGKILL)
                killed += 1
        going.clear()
        thread.join()
        time.sleep(1.5)  # a writer is started at most once a second; the engine itself ends without a word
        server.load(8)
        time.sleep(1.5)
        assert server.process.poll() is None
    assert answers
    assert set(answers) == {20}
    found = accounts(log)
    assert len(found) == 2  # the scheduler's stream and the worker's
    for written, told, damage, offered in found.values():
        assert written > 0
        assert offered == written + told
        assert damage <= KILLS
    print(found, len(answers))  # noqa: T201  # shown with -s


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a full disk needs the right to mount one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_no_request_fails_when_the_disk_is_full(tmp_path: Path, small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(80 << 10))
    with serving(tmp_path, small_disk, STEPSCOPE_LOG_FILE_BYTES="32768") as server:
        assert set(server.load(120)) == {30}  # fills what is left of the disk
        filler.unlink()
        time.sleep(1.5)
        assert set(server.load(8)) == {30}  # some room again
        assert set(server.load(60)) == {30}  # and full again
    found = accounts(small_disk)
    assert found
    for written, told, _, offered in found.values():
        assert offered == written + told
        assert written > 0
    assert sum(told for _, told, _, _ in found.values()) > 0
    assert "cannot write the step log" in (tmp_path / "server.txt").read_text()
    print(found)  # noqa: T201  # shown with -s


def test_no_request_fails_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with serving(tmp_path, tmp_path / "file" / "log") as server:
        assert set(server.load(24)) == {30}
    text = (tmp_path / "server.txt").read_text()
    assert "cannot write the step log" in text
    assert "records are not in" in text
