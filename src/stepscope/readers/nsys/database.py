"""A SQLite export, opened read-only: which tables and columns it has, and their rows as int64 columns.

What an export holds depends on its version and on what was recorded: nothing is assumed to be there. A NULL, and every
value of a column that is not there, is NO_ID.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stepscope.errors import UnreadableTrace
from stepscope.store.events import NO_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stepscope.intervals import Int64

MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
_BATCH = 65536
_EXPORT_AGAIN = "Export it again: nsys export --type sqlite REPORT.nsys-rep"
# one of these is in every export
_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_OWN_TABLES = (*_META, "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "TARGET_INFO_GPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An open export. `tables`: the columns of each table."""

    path: str
    connection: sqlite3.Connection
    tables: dict[str, tuple[str, ...]]
    strings: dict[int, str] = field(default_factory=dict)

    def has(self, table: str, column: str) -> bool:
        """Whether a column is there."""
        return column in self.tables.get(table, ())

    def count(self, table: str) -> int:
        """Rows of a table; none of one that is not there."""
        if table not in self.tables:
            return 0
        return int(self.connection.execute(f"SELECT COUNT(*) FROM {_quoted(table)}").fetchone()[0])  # noqa: S608

    def select(self, table: str, columns: Sequence[str]) -> list[tuple[object, ...]]:
        """Rows of some columns of a small table, None for what is not there."""
        if table not in self.tables:
            return []
        return list(self._cursor(table, columns, "NULL"))

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Columns of numbers in the order of the rows.

        Raises:
            UnreadableTrace: a cell holds no number.
        """
        pieces = [np.empty((0, len(columns)), np.int64)]
        if table in self.tables:
            cursor = self._cursor(table, columns, str(NO_ID))
            while batch := cursor.fetchmany(_BATCH):
                try:
                    pieces.append(np.array(batch, np.int64))
                except (ValueError, TypeError, OverflowError) as error:
                    problem = f"table {table} holds text where a number belongs ({error})"
                    raise UnreadableTrace(self.path, problem, _EXPORT_AGAIN) from error
        rows = np.concatenate(pieces)
        return {column: np.ascontiguousarray(rows[:, i]) for i, column in enumerate(columns)}

    def text(self, table: str, column: str) -> list[str | None]:
        """A column of text, in the same order as `integers`."""
        return [None if value is None else str(value) for (value,) in self.select(table, (column,))]

    def _cursor(self, table: str, columns: Sequence[str], null: str) -> sqlite3.Cursor:
        cells = [f"IFNULL({_quoted(c)}, {null})" if self.has(table, c) else null for c in columns]
        return self.connection.execute(f"SELECT {', '.join(cells)} FROM {_quoted(table)}")  # noqa: S608

    @property
    def metadata(self) -> dict[str, str]:
        """What the export says of itself (product, schema version, options)."""
        table = next((name for name in _META if name in self.tables), "")
        return {str(name): str(value or "") for name, value in self.select(table, ("name", "value"))}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Open an export without writing to it or locking it.

    Raises:
        UnreadableTrace: it is truncated, still being written, damaged, or another program's database.
    """
    _refuse_incomplete(path)
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            export = Export(path=str(path), connection=connection, tables=_read_schema(connection))
            _refuse_foreign(export)
            for key, value in export.select("StringIds", ("id", "value")):
                if isinstance(key, int) and isinstance(value, str):
                    export.strings[key] = value
            yield export
    except (sqlite3.Error, UnicodeDecodeError) as error:  # of a message that quotes damaged bytes
        raise UnreadableTrace(str(path), f"the SQLite file is damaged ({error})", _EXPORT_AGAIN) from error


def _read_schema(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    names = [
        str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    ]
    return {
        name: tuple(str(row[1]) for row in connection.execute(f"PRAGMA table_info({_quoted(name)})"))
        for name in sorted(names)
    }


def _refuse_incomplete(path: Path) -> None:
    """The header says how many pages there are; a file that is shorter was cut off."""
    with path.open("rb") as source:
        head = source.read(HEADER_BYTES)
    size = path.stat().st_size
    if len(head) < HEADER_BYTES:
        raise UnreadableTrace(str(path), f"the SQLite file is truncated: {size} bytes", _EXPORT_AGAIN)
    page_size = int.from_bytes(head[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    # the page count holds only where the last writer kept it
    expected = int.from_bytes(head[28:32], "big") * page_size if head[24:28] == head[92:96] else 0
    if size < expected:
        problem = f"the SQLite file is truncated: {size} of {expected} bytes"
        raise UnreadableTrace(str(path), problem, _EXPORT_AGAIN)
    for ending in ("-wal", "-journal"):
        aside = path.with_name(path.name + ending)
        if aside.is_file() and aside.stat().st_size:
            raise UnreadableTrace(str(path), f"it is still being written ({aside.name} is there)", _EXPORT_AGAIN)


def _refuse_foreign(export: Export) -> None:
    if any(table in export.tables for table in _OWN_TABLES):
        return
    shown = ", ".join([*export.tables][:5]) or "none"
    raise UnreadableTrace(
        export.path,
        f"a SQLite database, but no Nsight Systems export (its tables: {shown})",
        "Name the file that `nsys export --type sqlite` wrote",
    )
