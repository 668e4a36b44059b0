"""Which reader reads what: by the first bytes of the (inflated) content, never by the name.

A reader is three things: NAME, `sniff(head) -> bool`, `read(path, on_progress) -> EventStore`. Ours are listed here;
others register under the entry point group `stepscope.readers` and are asked first.
"""

from __future__ import annotations

import glob
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from isal import isal_zlib

from stepscope.errors import AmbiguousInput, BadInput, UnreadableTrace
from stepscope.readers import inflate
from stepscope.readers.kineto import reader as kineto
from stepscope.store.run import is_run, open_run
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.store.events import EventStore

_HEAD_BYTES = 4096
_ENDINGS = (".json", ".json.gz")


class Reader(Protocol):
    """What a reader module offers."""

    NAME: str

    @staticmethod
    def sniff(head: bytes) -> bool:
        """Whether the start of the text is of this format."""

    @staticmethod
    def read(path: Path, on_progress: Callable[[int], None] | None = None) -> EventStore:
        """Read one file."""


READERS: tuple[Reader, ...] = (kineto,)  # type: ignore[assignment]  # a module is the reader


def find_files(source: str | Path) -> tuple[Path, ...]:
    """The trace files that a path, a directory or a glob names.

    Raises:
        BadInput: there is none.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return (path,)
    if path.is_dir():
        files = tuple(sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(_ENDINGS) and _is_trace(p)))
        if not files:
            raise BadInput(
                f"{source}: no trace files ({', '.join('*' + e for e in _ENDINGS)}) in this directory. "
                "Name the directory that the profiler wrote to (for vLLM: torch_profiler_dir)."
            )
        return files
    files = tuple(sorted(Path(found) for found in glob.glob(str(path)) if Path(found).is_file()))  # noqa: PTH207  # the pattern is absolute or relative as given
    if not files:
        raise BadInput(f"{source}: no such file, directory or pattern. Check the path.")
    return files


def _is_trace(path: Path) -> bool:
    """Other JSON may lie beside traces (meta.json); only what holds a list of events counts in a directory."""
    head = _head(path)
    return b"traceEvents" in head or b'"schemaVersion"' in head or head.lstrip().startswith(b"[") or not head.strip()


def _head(path: Path) -> bytes:
    with path.open("rb") as source:
        head = source.read(_HEAD_BYTES)
    if not head.startswith(inflate.GZIP_MAGIC):
        return head
    try:
        return isal_zlib.decompressobj(wbits=31).decompress(head)
    except isal_zlib.error:  # type: ignore[misc]  # the stub declares a value
        return b"["  # a broken first member: let the reader find the next one


def choose_reader(path: Path) -> Reader:
    """The first reader that knows the content.

    Raises:
        UnreadableTrace: none does.
    """
    head = _head(path)
    others: tuple[Reader, ...] = tuple(point.load() for point in entry_points(group="stepscope.readers"))
    for reader in (*others, *READERS):
        if reader.sniff(head):
            return reader
    known = ", ".join(reader.NAME for reader in (*others, *READERS))
    raise UnreadableTrace(str(path), "this is no format that a reader knows", f"Known readers: {known}")


def open_trace(source: str | Path, *, on_progress: Callable[[int], None] | None = None) -> Trace:
    """Read a file, a directory (all ranks), a glob or a Run folder; `on_progress` gets the file bytes just read.

    Raises:
        BadInput: there is nothing to read.
        UnreadableTrace: a file is no trace.
        AmbiguousInput: one rank is there twice, or one file holds several documents.
    """
    if is_run(Path(source).expanduser()):
        return Trace(source=str(source), stores=open_run(Path(source).expanduser()))
    stores = [_read(path, on_progress) for path in find_files(source)]
    _refuse_duplicates(str(source), stores)
    stores.sort(key=lambda store: (store.rank is None, store.rank or 0, store.origin.path))
    return Trace(source=str(source), stores=tuple(stores))


def _read(path: Path, on_progress: Callable[[int], None] | None) -> EventStore:
    try:
        return choose_reader(path).read(path, on_progress)
    except OSError as error:
        raise UnreadableTrace(str(path), f"it cannot be read ({error.strerror})", "Check its permissions") from error


def _refuse_duplicates(source: str, stores: list[EventStore]) -> None:
    by_rank: dict[int, list[str]] = {}
    for store in stores:
        if store.rank is not None:
            by_rank.setdefault(store.rank, []).append(Path(store.origin.path).name)
    for rank, paths in sorted(by_rank.items()):
        if len(paths) > 1:
            raise AmbiguousInput(
                f"{source}: rank {rank} is there {len(paths)} times",
                tuple(paths),
                "These are separate captures: pass one of them, or a pattern that matches one capture",
            )
