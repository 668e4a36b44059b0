"""The captures that the web page knows: uploads in one folder, and paths named when it was started.

A capture's id is drawn here and its files' names are checked, so that no request names a path. A file is received under
another name and gets its own when it is whole, so half a file is never read. Reading happens in one worker thread; its
progress and its error are kept beside the capture.
"""

from __future__ import annotations

import re
import secrets
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from stepscope.answers.account import Account, explain
from stepscope.errors import BadInput, StepscopeError
from stepscope.readers.registry import find_files, open_trace
from stepscope.report.document import to_document
from stepscope.store.run import is_run, is_run_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

State = Literal["receiving", "waiting", "reading", "done", "failed"]

_ID = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=-]{0,199}\.json(?:\.gz)?")
_PARTIAL = ".part"
MAX_CAPTURES = 200  # each keeps its document in memory; who needs more removes some
_KEPT_ACCOUNTS = 4  # accounts are large; documents are built from them again when asked for


@dataclass(slots=True)
class Capture:
    """One capture and how far it is. `path` is a file, a folder of ranks, or a run."""

    id: str
    name: str
    path: Path
    is_upload: bool
    state: State
    bytes_read: int = 0
    bytes_total: int = 0
    error: str | None = None
    document: dict[str, Any] | None = None

    def summary(self) -> dict[str, Any]:
        """What lists show."""
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "bytes_read": self.bytes_read,
            "bytes_total": self.bytes_total,
            "error": self.error,
        }


class UnknownCapture(BadInput):
    """No capture has this id."""


class TooLarge(BadInput):
    """An upload exceeds the bound."""


@dataclass(slots=True)
class Library:
    """All captures of one server. `max_bytes` bounds one capture's upload, all its files together."""

    folder: Path
    max_bytes: int
    captures: dict[str, Capture] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))

    def open_paths(self, sources: Sequence[str]) -> None:
        """Captures that are there already; they are read where they are, and never changed."""
        for source in sources:
            path = Path(source)
            if not is_run(path):
                find_files(path)  # a wrong path is an error before the server starts
            self._start(self._add(path.name, path, is_upload=False))

    def begin_upload(self, name: str) -> Capture:
        """An empty capture that files can be put into.

        Raises:
            BadInput: there are too many already.
        """
        if len(self.captures) >= MAX_CAPTURES:
            raise BadInput(f"there are {MAX_CAPTURES} captures already. Remove one that is no longer needed.")
        capture_id = secrets.token_hex(8)
        path = self.folder / capture_id
        path.mkdir(parents=True)
        return self._add(name[:200] or "upload", path, is_upload=True, capture_id=capture_id)

    def find(self, capture_id: str) -> Capture:
        """A capture by id.

        Raises:
            UnknownCapture: there is none.
        """
        capture = self.captures.get(capture_id) if _ID.fullmatch(capture_id) else None
        if capture is None:
            raise UnknownCapture(f"no capture {capture_id[:32]!r}. GET /api/captures lists those that are there.")
        return capture

    @contextmanager
    def open_file(self, capture: Capture, file_name: str) -> Iterator[BinaryIO]:
        """A file of an upload, for writing; what is received of it is gone if the sender or the disk fails.

        Raises:
            BadInput: the name is none of a trace file, is taken, or the upload is closed; the disk refuses it.
        """
        if not capture.is_upload or capture.state != "receiving":
            raise BadInput("this capture takes no more files. Start another one.")
        if not _FILE.fullmatch(file_name) or is_run_file(file_name):
            raise BadInput(
                f"{file_name[:80]!r} is no name of a trace file. Expected letters, digits, . _ -, and .json or "
                f".json.gz."
            )
        whole = capture.path / file_name
        partial = whole.with_name(file_name + _PARTIAL)
        if whole.exists() or partial.exists():
            raise BadInput(f"{file_name}: this capture has a file of that name already.")
        try:
            with partial.open("xb") as out:
                yield out
            partial.rename(whole)
        except OSError as error:
            raise BadInput(f"{file_name}: cannot be kept ({error.strerror}). Make room, or send it again.") from error
        finally:
            partial.unlink(missing_ok=True)

    def count(self, capture: Capture, size: int) -> None:
        """Count bytes of an upload.

        Raises:
            TooLarge: they exceed the bound; what was received is removed.
        """
        capture.bytes_total += size
        if capture.bytes_total > self.max_bytes:
            self.remove(capture)
            raise TooLarge(
                f"the upload is larger than {self.max_bytes // (1 << 20)} MiB. Start the server with a larger "
                f"--max-upload, or "
                "name the path when starting it."
            )

    def finish_upload(self, capture: Capture) -> None:
        """All files are there: read them."""
        if not capture.is_upload or capture.state != "receiving":
            raise BadInput(f"this capture is {capture.state} already. Ask for its document.")
        names = [path.name for path in capture.path.iterdir()]
        if partial := [name.removesuffix(_PARTIAL) for name in names if name.endswith(_PARTIAL)]:
            raise BadInput(f"{', '.join(sorted(partial))}: still being received. Ask again when it is there.")
        if not names:
            raise BadInput("the capture has no file yet. PUT at least one trace file.")
        self._start(capture)

    def remove(self, capture: Capture) -> None:
        """Forget a capture; an upload's files are deleted, others stay where they are."""
        with self._lock:
            self.captures.pop(capture.id, None)
            self.accounts.pop(capture.id, None)
        if capture.is_upload:
            shutil.rmtree(capture.path, ignore_errors=True)

    def close(self) -> None:
        """Stop reading."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _add(self, name: str, path: Path, *, is_upload: bool, capture_id: str | None = None) -> Capture:
        capture = Capture(
            id=capture_id or secrets.token_hex(8), name=name, path=path, is_upload=is_upload, state="receiving"
        )
        with self._lock:
            self.captures[capture.id] = capture
        return capture

    def _start(self, capture: Capture) -> None:
        capture.state = "waiting"
        self._worker.submit(self._read, capture)

    def _read(self, capture: Capture) -> None:
        capture.state = "reading"
        try:
            source = _source(capture)
            if not is_run(source):
                capture.bytes_total = sum(path.stat().st_size for path in find_files(source))

            def on_progress(size: int) -> None:
                capture.bytes_read += size

            account = explain(open_trace(source, on_progress=on_progress))
            capture.document = to_document(account)
            self._keep(capture, account)
            capture.state = "done"
        except StepscopeError as error:
            capture.error, capture.state = str(error), "failed"
        except Exception as error:  # noqa: BLE001  # the worker thread must live on, and the page must say why
            capture.error, capture.state = f"an error of Stepscope itself: {type(error).__name__}: {error}", "failed"

    def _keep(self, capture: Capture, account: Account) -> None:
        with self._lock:
            if capture.id not in self.captures:  # removed while it was read
                return
            self.accounts[capture.id] = account
            while len(self.accounts) > _KEPT_ACCOUNTS:
                del self.accounts[next(iter(self.accounts))]

    def account(self, capture: Capture) -> Account:
        """The account of a capture that is done; read again if it was let go."""
        with self._lock:
            known = self.accounts.get(capture.id)
        if known is not None:
            return known
        account = explain(open_trace(_source(capture)))
        self._keep(capture, account)
        return account


def _source(capture: Capture) -> Path:
    """An upload of one file is that file, so that its report is the one of `stepscope explain FILE`."""
    if capture.is_upload:
        files = sorted(capture.path.iterdir())
        if len(files) == 1:
            return files[0]
    return capture.path
