"""Which reader reads what: by the first bytes of the (inflated) content, never by the name.

A reader is three things: NAME, `sniff(head) -> bool`, `read(path, on_progress)` -> one EventStore, or several where one
file holds several processes. One whose input may be a directory, or that must open a file to know it, has
`knows(path) -> bool` too. Ours are listed here; others register under the entry point group `stepscope.readers` and are
asked first.
"""

from __future__ import annotations

import glob
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from isal import isal_zlib

from stepscope.errors import AmbiguousInput, BadInput, UnreadableTrace
from stepscope.pool import map_tasks
from stepscope.readers import inflate
from stepscope.readers.ascend import reader as ascend
from stepscope.readers.concurrency import ONE_AT_A_TIME, Concurrency
from stepscope.readers.kineto import reader as kineto
from stepscope.readers.ncu import join as counters
from stepscope.readers.ncu import page as ncu
from stepscope.readers.nsys import reader as nsys
from stepscope.store.events import EventStore
from stepscope.store.run import is_run, open_run
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.store.selection import Selection

_HEAD_BYTES = 4096
_ENDINGS = (".json", ".json.gz", ".sqlite")


class Reader(Protocol):
    """What a reader module offers."""

    NAME: str

    @staticmethod
    def sniff(head: bytes) -> bool:
        """Whether the start of the text is of this format."""

    @staticmethod
    def read(path: Path, on_progress: Callable[[int], None] | None = None) -> EventStore | Sequence[EventStore]:
        """Read one file: a store, or one for each process that it holds."""


class TwoPassReader(Protocol):
    """What a reader module offers besides, where its files are large: what steps are found by, then a part alone."""

    @staticmethod
    def read_landmarks(path: Path, on_progress: Callable[[int], None] | None = None) -> EventStore:
        """What steps and their windows are found by."""

    @staticmethod
    def read_part(path: Path, selection: Selection, on_progress: Callable[[int], None] | None = None) -> EventStore:
        """The chosen part."""


ReadOne: TypeAlias = "Callable[[Path], Sequence[EventStore]]"

# nsys takes any SQLite database: readers of other ones stand before it
READERS: tuple[Reader, ...] = (ascend, kineto, nsys)  # type: ignore[assignment]  # a module is the reader


def find_files(source: str | Path) -> tuple[Path, ...]:
    """The trace files that a path, a directory or a glob names; a profile that is a directory is one of them.

    Raises:
        BadInput: there is none.
    """
    path = Path(source).expanduser()
    if path.is_file() or ascend.knows(path):
        return (path,)
    if path.is_dir():
        files = tuple(sorted(p for p in path.iterdir() if _is_input(p)))
        if not files:
            raise BadInput(
                f"{source}: no trace files ({', '.join('*' + e for e in _ENDINGS)}) in this directory. "
                "Name the directory that the profiler wrote to (for vLLM: torch_profiler_dir)."
            )
        return files
    found = sorted(Path(name) for name in glob.glob(str(path)))  # noqa: PTH207  # the pattern is absolute or relative as given
    files = tuple(p for p in found if p.is_file() or ascend.knows(p))
    if not files:
        raise BadInput(f"{source}: no such file, directory or pattern. Check the path.")
    return files


def _is_input(path: Path) -> bool:
    if path.is_dir():
        return ascend.knows(path)
    return path.name.endswith(_ENDINGS) and _is_trace(path)


def _is_trace(path: Path) -> bool:
    """Other JSON may lie beside traces (meta.json); only what holds a list of events counts in a directory."""
    head = _head(path)
    if path.suffix == ".sqlite":
        return nsys.sniff(head)
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
    head = _head(path) if path.is_file() else b""
    others: tuple[Reader, ...] = tuple(point.load() for point in entry_points(group="stepscope.readers"))
    for reader in (*others, *READERS):
        knows = getattr(reader, "knows", None)
        if knows(path) if knows is not None else reader.sniff(head):
            return reader
    known = ", ".join(reader.NAME for reader in (*others, *READERS))
    raise UnreadableTrace(str(path), "this is no format that a reader knows", f"Known readers: {known}")


def open_trace(
    source: str | Path,
    *,
    on_progress: Callable[[int], None] | None = None,
    concurrency: Concurrency = ONE_AT_A_TIME,
    read_one: ReadOne | None = None,
) -> Trace:
    """Read a file, a directory (all ranks), a glob or a Run folder; `on_progress` gets the file bytes just read.

    Several files are read one a task by `concurrency`; `read_one` reads each, in place of `read_file`.

    Raises:
        BadInput: there is nothing to read.
        UnreadableTrace: a file is no trace.
        AmbiguousInput: one rank is there twice, or one file holds several documents.
    """
    if is_run(Path(source).expanduser()):
        return Trace(source=str(source), stores=open_run(Path(source).expanduser()))
    stores = _read_files(find_files(source), on_progress, concurrency, read_one)
    _refuse_duplicates(str(source), stores)
    _refuse_several_exports(str(source), stores)
    stores.sort(key=lambda store: (store.rank is None, store.rank or 0, store.origin.path))
    return Trace(source=str(source), stores=tuple(_with_counters(Path(source).expanduser(), stores)))


def _with_counters(source: Path, stores: list[EventStore]) -> list[EventStore]:
    """Counters of a run of their own lie beside the trace, in its directory."""
    for path in sorted(source.glob("*.csv")) if source.is_dir() else ():
        if ncu.sniff(_head(path)):
            stores = counters.join_page(stores, ncu.read_page(path))
    return stores


def _read_files(
    paths: Sequence[Path],
    on_progress: Callable[[int], None] | None,
    concurrency: Concurrency,
    read_one: ReadOne | None,
) -> list[EventStore]:
    workers = concurrency.count_workers(paths)
    if workers == 1 and read_one is None and not concurrency.ray:
        return [store for path in paths for store in read_file(path, on_progress)]
    stores: list[EventStore] = []
    found = map_tasks(read_one or read_file, paths, workers=workers, ray=concurrency.ray)
    for path, own in zip(paths, found, strict=True):
        stores += own
        if on_progress is not None and path.is_file():
            on_progress(path.stat().st_size)
    return stores


def read_file(path: Path, on_progress: Callable[[int], None] | None = None) -> Sequence[EventStore]:
    """The stores of one file, by the reader that knows it.

    Raises:
        UnreadableTrace: none does, or it cannot be read.
    """
    with _said_of(path):
        found = choose_reader(path).read(path, on_progress)
        return (found,) if isinstance(found, EventStore) else found


@contextmanager
def _said_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableTrace(str(path), f"it cannot be read ({error.strerror})", "Check its permissions") from error


def read_in_two(path: Path) -> TwoPassReader | None:
    """The reader of a file, if it can read a part without holding the rest."""
    with _said_of(path):
        reader = choose_reader(path)
    return cast("TwoPassReader", reader) if hasattr(reader, "read_part") else None


def _refuse_several_exports(source: str, stores: list[EventStore]) -> None:
    """An Nsight export holds all processes of its capture: two are two captures, unless each process has a rank."""
    own = [store for store in stores if store.origin.reader == nsys.NAME]
    exports = sorted({Path(store.origin.path).name for store in own})
    if len(exports) > 1 and any(store.rank is None for store in own):
        raise AmbiguousInput(
            f"{source}: holds {len(exports)} Nsight exports whose ranks are unknown: they may be different captures",
            tuple(exports),
            "Pass one of them; `stepscope compare A B` sets two against each other",
        )


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
