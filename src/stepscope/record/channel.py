"""The engine's end of a step log: records -> a pipe to the writer's process. Never raises, never waits.

The pipe and a list of frames that it could not take yet are the bounded queue. Where both are full a record is dropped;
its number is used up, so that the writer sees the gap. A writer that was killed is started again from a thread, at most
once a second; frames that it had not taken whole are sent again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import log_writer, step_log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import Settings

_LOG = logging.getLogger("vllm.plugins.stepscope")
_PIPE_BYTES = 1 << 20
_RESTART_S = 1.0
_CLOSE_S = 2.5
_START_S = 10.0


class Channel:
    """One stream of one process. `header` holds what does not change: role, engine, ranks."""

    def __init__(
        self,
        folder: Path,
        header: Mapping[str, Any],
        *,
        max_bytes: int = 64 << 20,
        max_files: int = 16,
        queue_bytes: int = 4 << 20,
    ) -> None:
        self._folder = folder
        self._header = {**header, "stream_id": os.urandom(6).hex(), "pid": os.getpid()}
        self._limits = (str(max_bytes), str(max_files))
        self._queue_bytes = queue_bytes
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._sent = 0  # bytes of the first frame that are in the pipe
        self._fd = -1
        self._start_at = 0.0
        self._is_starting = self._is_closed = False
        self._said = False
        self.num_offered = 0
        self.num_refused = 0
        Finalize(self, self.close, exitpriority=10)
        with self._lock:
            self._restart()

    @classmethod
    def from_settings(cls, settings: Settings, header: Mapping[str, Any]) -> Channel | None:
        """The channel that the settings ask for, or None."""
        if settings.folder is None:
            return None
        return cls(
            settings.folder,
            header,
            max_bytes=settings.file_bytes,
            max_files=settings.num_files,
            queue_bytes=settings.queue_bytes,
        )

    def offer(self, record: dict[str, Any]) -> bool:
        """Give a record to the log; False where it was dropped."""
        if os.getpid() != self._pid:
            return False  # a fork of the engine's process: the stream is not its own
        if not self._lock.acquire(blocking=False):  # only a restart holds it, for as long as a write to a pipe takes
            self.num_offered += 1
            self.num_refused += 1
            return False
        try:
            data = step_log.encode({"seq": self.num_offered, **record})
            self.num_offered += 1
            if self._bytes + len(data) > self._queue_bytes:
                self.num_refused += 1
                self._flush()
                return False
            self._frames.append(data)
            self._bytes += len(data)
            self._flush()
            return True
        finally:
            self._lock.release()

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Send what is left and the number of records offered, waiting at most `timeout_s`."""
        end = time.monotonic() + timeout_s
        if os.getpid() != self._pid or not self._lock.acquire(timeout=timeout_s):
            return
        try:
            self._frames.append(step_log.encode({"kind": "close", "next_seq": self.num_offered}))
            self._flush()
            while self._frames and time.monotonic() < end:
                self._lock.release()  # a writer that is being started takes it
                time.sleep(0.01)
                self._lock.acquire()
                self._flush()
            self._is_closed = True
            self._drop_pipe()
        finally:
            self._lock.release()

    def _flush(self) -> None:
        if self._fd < 0:
            self._restart()
            return
        try:
            while self._frames:
                first = self._frames[0]
                self._sent += os.write(self._fd, first[self._sent :] if self._sent else first)
                if self._sent == len(first):
                    self._frames.popleft()
                    self._bytes -= len(first)
                    self._sent = 0
        except BlockingIOError:
            pass
        except OSError as error:
            self._say("the writer of the step log is gone (%s); it is started again", error)
            self._drop_pipe()
            self._restart()

    def _drop_pipe(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = -1
        self._sent = 0

    def _restart(self) -> None:
        if self._is_starting or self._is_closed:
            return
        self._is_starting = True
        try:
            threading.Thread(target=self._start, name="stepscope-writer-start", daemon=True).start()
        except RuntimeError as error:  # no thread can be started: try again later
            self._is_starting = False
            self._say("no writer of the step log could be started (%s)", error)

    def _start(self) -> None:
        fd = -1
        is_started = False
        time.sleep(max(self._start_at - time.monotonic(), 0))
        self._start_at = time.monotonic() + _RESTART_S
        try:
            read_end, fd = os.pipe()
            with contextlib.suppress(OSError):  # a smaller pipe does too
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            os.set_blocking(fd, False)
            try:
                command = [sys.executable or "python3", "-S", "-E", str(Path(log_writer.__file__)), str(self._folder)]
                subprocess.run(  # noqa: S603  # our own file; it forks the writer and ends at once
                    [*command, *self._limits, str(self._pid)],
                    stdin=read_end,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    check=True,
                    timeout=_START_S,
                )
                is_started = True
            finally:
                os.close(read_end)
        except Exception as error:  # noqa: BLE001  # the engine must not notice
            self._say("no writer of the step log could be started (%s)", error)
        with self._lock:
            self._is_starting = False
            if not is_started or self._is_closed:
                with contextlib.suppress(OSError):
                    os.close(fd)
                return
            self._fd, self._sent = fd, 0
            first = step_log.encode(self._header)
            self._frames.appendleft(first)
            self._bytes += len(first)
            self._flush()

    def _say(self, text: str, error: object) -> None:
        if not self._said:
            self._said = True
            with contextlib.suppress(Exception):
                _LOG.warning("stepscope: " + text, error)
