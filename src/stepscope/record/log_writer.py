"""The writer of a step log: frames on a pipe -> rotated files. A process of its own, started by `channel`.

It outlives the engine's crash (what was in the pipe is still written), and the engine outlives its. It uses the
standard library only and starts without site packages. Files are appended to with plain write(2), no buffer of its own,
so what it has written stays when it is killed. A failed write is undone, counted and told in the log once there is room
again; a page behind the end of the file stays reserved for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from . import step_log
else:  # run by its path
    import step_log

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ_BYTES = 1 << 20
_TAIL_BYTES = 1 << 20
_RESERVE_BYTES = 4096
_RETRY_S = 1.0
_POLL_S = 1.0
_SEQ = re.compile(rb'\{"seq":(\d+),')


class StepLogWriter:
    """Writes one stream. `header` holds the fields of a header that do not change from file to file."""

    def __init__(self, folder: Path, header: dict[str, Any], *, max_bytes: int = 64 << 20, max_files: int = 16) -> None:
        self._folder = folder
        self._header = header
        self._max_bytes = max_bytes
        self._max_files = max(max_files, 2)
        self._name = f"{header['role']}-{header['stream_id']}"
        self._fd = -1
        self._size = 0
        self._retry_at = 0.0
        self._failure: str | None = None
        self._said = False
        self._has_records = False
        self.num_written = 0
        self.num_dropped = 0
        self._index, self._next_seq = self._resume()
        self._seen = self._next_seq
        self._gap_reason = "writer_restarted" if self._index else "queue_full"

    def write(self, bodies: Sequence[bytes]) -> None:
        """Append records (their JSON); what cannot be written is counted. Never raises OSError."""
        for body in bodies:
            match = _SEQ.match(body)
            if match:  # what has no number is no record of the stream
                self._write_one(int(match[1]), step_log.frame(body))

    def close(self, next_seq: int | None) -> None:
        """Write the totals. `next_seq` is what the engine has offered; None where it ended without a word."""
        self._retry_at = 0.0
        offered = max(next_seq or 0, self._seen)
        self._tell_gap(offered)
        record = {
            "kind": "close",
            "reason": "engine_gone" if next_seq is None else "closed",
            "next_seq": offered,
            "num_written": self.num_written,
            "num_dropped": self.num_dropped,
            "time_ns": time.time_ns(),
        }
        if not self._append(step_log.encode(record)):
            _say(f"{offered - self.num_written} records are not in {self._folder} ({self._failure})")
        _close(self._fd, self._size)
        self._fd = -1

    def _write_one(self, seq: int, data: bytes) -> None:
        self._seen = max(self._seen, seq + 1)
        if seq < self._next_seq:
            return  # sent twice around a restart: it is in the log
        if self._failure or seq > self._next_seq:
            if self._failure and time.monotonic() < self._retry_at:
                return  # the gap grows; it is told when a write succeeds
            if not self._tell_gap(seq):
                return
        if self._append(data, is_record=True):
            self.num_written += 1
            self._next_seq = seq + 1

    def _tell_gap(self, seq: int) -> bool:
        """Write down that all records from the expected one up to `seq` are missing."""
        missing = seq - self._next_seq
        if missing > 0:
            record = {
                "kind": "drops",
                "reason": "write_failed" if self._failure else self._gap_reason,
                "first_seq": self._next_seq,
                "last_seq": seq - 1,
                "num_dropped": missing,
                "detail": self._failure,
                "time_ns": time.time_ns(),
            }
            if not self._append(step_log.encode(record)):
                return False
            self.num_dropped += missing
            self._next_seq = seq
        self._failure = None
        self._gap_reason = "queue_full"
        return True

    def _append(self, data: bytes, *, is_record: bool = False) -> bool:
        """Write a frame; a record only where a page is left behind it for what must be told."""
        try:
            if self._fd < 0 or (is_record and self._has_records and self._size + len(data) > self._max_bytes):
                self._open_next()
            if is_record:
                _reserve(self._fd, self._size, len(data) + _RESERVE_BYTES)
            self._write_whole(data)
        except OSError as error:
            self._fail(error)
            return False
        self._has_records = self._has_records or is_record
        return True

    def _write_whole(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _fail(self, error: OSError) -> None:
        self._failure = error.strerror or str(error)
        self._retry_at = time.monotonic() + _RETRY_S
        if not self._said:
            self._said = True
            _say(f"cannot write the step log to {self._folder} ({self._failure}); counting what is lost")

    def _open_next(self) -> None:
        """Start a file; where that fails the one before stays open, with its reserve."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(self._index)
        header = {
            "kind": "header",
            "format": step_log.FORMAT,
            "version": step_log.VERSION,
            **self._header,
            "file_index": self._index,
            "first_seq": self._next_seq,
            "num_removed_files": max(self._index + 1 - self._max_files, 0),
            "time_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
        }
        before = (self._fd, self._size, self._has_records)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._fd, self._size, self._has_records = fd, 0, False
        try:
            data = step_log.encode(header)
            _reserve(fd, 0, len(data) + _RESERVE_BYTES)
            self._write_whole(data)
        except OSError:  # a file without a header is no log
            os.close(fd)
            self._fd, self._size, self._has_records = before
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._index += 1
        _close(before[0], before[1])
        self._remove_old()

    def _remove_old(self) -> None:
        """Keep the newest `max_files`."""
        for index in range(self._index - self._max_files - 1, -1, -1):
            try:
                self._path(index).unlink()
            except OSError:
                break  # older ones have gone before

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._name}-{index:06d}{step_log.SUFFIX}"

    def _resume(self) -> tuple[int, int]:
        """The next file's index and the next record's number: after a writer that was killed, not from 0."""
        try:
            found = sorted(self._folder.glob(f"{self._name}-*{step_log.SUFFIX}"))
            if not found:
                return 0, 0
            last = _last_seq(found[-1])
            return int(found[-1].stem.rpartition("-")[2]) + 1, last + 1
        except (OSError, ValueError):
            return 0, 0


_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE = 1


def _reserve(fd: int, offset: int, num_bytes: int) -> None:
    """Have the disk set bytes aside behind the end of a file, which stays as long as it is."""
    if not hasattr(_LIBC, "fallocate"):
        return
    if _LIBC.fallocate(fd, _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(num_bytes)):
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise OSError(code, os.strerror(code))  # elsewhere the file system cannot do it


def _close(fd: int, size: int) -> None:
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)  # gives back what is reserved
        with contextlib.suppress(OSError):
            os.close(fd)


def _last_seq(path: Path) -> int:
    """The number of the last record that a log file accounts for; -1 where it holds none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for tail in (_TAIL_BYTES, size):
            file.seek(max(size - tail, 0))
            last = -1
            for item in step_log.read_records(file.read()):
                if isinstance(item, step_log.Damage):
                    continue
                known = item.get("seq", item.get("last_seq", item.get("first_seq", 0) - 1))
                last = max(last, int(known))
            if last >= 0:
                return last
    return -1


def serve(fd: int, folder: Path, *, max_bytes: int, max_files: int, engine: int) -> None:
    """Write what comes in on `fd` until its end, or until the engine is gone and the pipe is empty."""
    writer: StepLogWriter | None = None
    buffer = bytearray()
    next_seq: int | None = None
    while data := _read(fd, engine):
        buffer += data
        whole = buffer.rfind(b"\n") + 1  # no frame holds a line break but at its end
        bodies = [item for item in step_log.split_frames(bytes(buffer[:whole])) if isinstance(item, bytes)]
        del buffer[:whole]
        if writer is None and bodies:
            header = json.loads(bodies.pop(0))
            writer = StepLogWriter(folder, header, max_bytes=max_bytes, max_files=max_files)
        if bodies and bodies[-1].startswith(b'{"kind":"close"'):
            next_seq = int(json.loads(bodies.pop())["next_seq"])
        if writer is not None:
            writer.write(bodies)
    if writer is not None:
        writer.close(next_seq)


def _read(fd: int, engine: int) -> bytes:
    while True:
        ready, _, _ = select.select([fd], [], [], _POLL_S)
        if ready:
            return os.read(fd, _READ_BYTES)
        if not _is_there(engine):
            return b""  # another process may still hold the pipe's other end: the engine's children inherit it


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"stepscope record: {text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    if os.fork():  # an engine that ends kills its children: the writer is none, so that it can write what is left
        os._exit(0)
    with contextlib.suppress(KeyboardInterrupt):
        serve(
            sys.stdin.fileno(),
            Path(sys.argv[1]),
            max_bytes=int(sys.argv[2]),
            max_files=int(sys.argv[3]),
            engine=int(sys.argv[4]),
        )
