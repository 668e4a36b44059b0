"""`ascend_pytorch_profiler_*.db` and `msprof_*.db` -> Tasks and HostEvents: times in ns, names through STRING_IDS.

Opened read-only and immutable, since other tools add tables on opening; what is not the profiler's is not read.
A missing optional table is a health row, a missing one that device work needs is an error.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stepscope.errors import UnreadableTrace
from stepscope.readers.ascend.number import of_number
from stepscope.readers.ascend.pmu import key, parse_header, settle
from stepscope.readers.ascend.task import NOT_SAID, HostEvent, Role, Task, cann_name, role_of, torch_kind
from stepscope.store.counters import Reading
from stepscope.store.events import NO_ID
from stepscope.store.schema import RUNTIME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stepscope.store.health import HealthLog

MARK_TABLES = frozenset({"TASK", "STRING_IDS"})
_QUEUE, _FRAMES, _RANGES = 50002, 50003, 50004
_TORCH_CATEGORY = {_QUEUE: "enqueue", _FRAMES: "python_function", _RANGES: "mstx"}


def is_database(path: Path) -> bool:
    """Whether an SQLite file has the tables of these profilers."""
    try:
        with closing(_open(path)) as connection:
            return MARK_TABLES.issubset(_tables(connection))
    except sqlite3.Error:
        return False


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


class Database:
    """One profile database."""

    def __init__(self, path: Path, health: HealthLog) -> None:
        """Open it, and read its names.

        Raises:
            UnreadableTrace: it is broken, or of another program.
        """
        self.path, self.health = path, health
        self.lost = 0
        self.tasks: list[Task] = []
        self.host: list[HostEvent] = []
        self.steps: list[tuple[int, int, int]] = []
        self.rank: int | None = None
        self.has_pmu = False
        try:
            with closing(_open(path)) as connection:
                self._check(connection)
                self.strings: dict[Any, str] = {
                    i: str(value) for i, value in connection.execute("SELECT id, value FROM STRING_IDS")
                }
                self._read(connection)
        except sqlite3.Error as error:
            raise UnreadableTrace(
                str(path),
                f"the database cannot be read ({error}): cut off or damaged",
                "Export the profile again",
            ) from error

    def _check(self, connection: sqlite3.Connection) -> None:
        self.tables = _tables(connection)
        if missing := sorted(MARK_TABLES - self.tables):
            raise UnreadableTrace(
                str(self.path),
                f"this database is of another program: it has no table {missing[0]}",
                "Pass ascend_pytorch_profiler_*.db or msprof_*.db",
            )
        broken = connection.execute("PRAGMA quick_check(1)").fetchone()
        if broken is None or broken[0] != "ok":
            raise sqlite3.DatabaseError(str(broken[0] if broken else "no answer"))

    def _read(self, connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        pmu = self._counters(connection)
        collectives = list(self._rows(connection, "COMMUNICATION_OP"))
        device = self._device_of(connection)
        kernels = {row["globalTaskId"]: row for row in self._rows(connection, "COMPUTE_TASK_INFO")}
        copies = self._copies(connection)
        for row in self._rows(connection, "TASK"):
            self._add_task(row, kernels.get(row["globalTaskId"]), pmu, copies)
        for row in collectives:
            self._add_collective(row, device)
        self._mark_parts()
        levels = {row["id"]: str(row["name"]) for row in self._rows(connection, "ENUM_API_TYPE", needed=False)}
        for row in self._rows(connection, "CANN_API"):
            name = cann_name(levels.get(row["type"], str(row["type"])), self._string(row["name"]))
            self._add_host(row, name, RUNTIME, NO_ID if row["connectionId"] is None else int(row["connectionId"]))
        for row in self._rows(connection, "PYTORCH_API", needed=False):
            category = _TORCH_CATEGORY.get(row["type"], "cpu_op")
            name = self._string(row["name"])
            self._add_host(row, name, torch_kind(category, name), NO_ID)
        for row in self._rows(connection, "MSTX_EVENTS", needed=False):
            self._add_host(row, self._string(row["message"]), torch_kind("mstx", ""), NO_ID)
        self.steps = [
            (int(row["id"]), int(row["startNs"]), int(row["endNs"]))
            for row in self._rows(connection, "STEP_TIME", needed=False)
        ]
        ranks = {row["rankId"] for row in self._rows(connection, "RANK_DEVICE_MAP", needed=False)} - {-1}
        self.rank = ranks.pop() if len(ranks) == 1 else None

    def _rows(self, connection: sqlite3.Connection, table: str, *, needed: bool = True) -> Iterator[sqlite3.Row]:
        if table not in self.tables:
            if needed:
                self.health.add("table_missing", f"{self.path.name}: {table}")
            return
        yield from connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608  # a name of ours

    def _string(self, number: object) -> str:
        return self.strings.get(number, "" if number is None else str(number))

    def _device_of(self, connection: sqlite3.Connection) -> str:
        """The device of collectives, which old exports do not say: the one that there is."""
        found = [str(d) for (d,) in connection.execute("SELECT DISTINCT deviceId FROM TASK ORDER BY deviceId")]
        return found[0] if found else "0"

    def _copies(self, connection: sqlite3.Connection) -> dict[int, str]:
        operations = {
            row["id"]: str(row["name"]) for row in self._rows(connection, "ENUM_MEMCPY_OPERATION", needed=False)
        }
        rows = self._rows(connection, "MEMCPY_INFO", needed=False)
        return {row["globalTaskId"]: operations.get(row["memcpyOperation"], "") for row in rows}

    def _counters(self, connection: sqlite3.Connection) -> dict[int, dict[str, Reading]]:
        """Readings by task; a name that is no counter that is kept is passed over, as in the text export."""
        found: dict[int, dict[str, Reading]] = {}
        parsed = {}
        for row in self._rows(connection, "TASK_PMU_INFO", needed=False):
            if row["name"] not in parsed:
                name = self._string(row["name"])
                parsed[row["name"]] = parse_header(name, 0)
            counter = parsed[row["name"]]
            if counter is None:
                continue
            value = row["value"]
            is_number = isinstance(value, int | float)
            reading = of_number(float(value) * counter.scale) if is_number else Reading(value=None, missing="empty")
            found.setdefault(row["globalTaskId"], {})[key(counter.core, counter.name)] = reading
        self.has_pmu = bool(found)
        return found

    def _add_task(
        self,
        row: sqlite3.Row,
        kernel: sqlite3.Row | None,
        pmu: dict[int, dict[str, Reading]],
        copies: dict[int, str],
    ) -> None:
        times = self._times(row)
        if times is None:
            return
        task_type = self._string(row["taskType"])
        core = self._string(kernel["taskType"]) if kernel is not None else task_type
        name = self._string(kernel["name"]) if kernel is not None else task_type
        role: Role = "compute" if kernel is not None else role_of(core, name)
        if role == "copy" and copies.get(row["globalTaskId"]):
            name = f"{name} {copies[row['globalTaskId']]}"
        readings = pmu.get(row["globalTaskId"])
        self.tasks.append(
            Task(
                *times,
                name=name,
                type=(self._string(kernel["opType"]) or NOT_SAID) if kernel is not None else "",
                core=core,
                device=str(row["deviceId"]),
                stream=str(row["streamId"]),
                connection=NO_ID if row["connectionId"] is None else int(row["connectionId"]),
                role=role,
                readings=settle(readings, core) if readings is not None else None,
            )
        )

    def _add_collective(self, row: sqlite3.Row, device: str) -> None:
        times = self._times(row)
        if times is None:
            return
        own = row["deviceId"] if "deviceId" in row.keys() else None  # noqa: SIM118  # a Row iterates over its values
        self.tasks.append(
            Task(
                *times,
                name=self._string(row["opName"]),
                type=self._string(row["opType"]),
                core="COMMUNICATION",
                device=device if own is None else str(own),
                stream=NOT_SAID,
                connection=NO_ID if row["connectionId"] is None else int(row["connectionId"]),
                role="communication",
            )
        )

    def _mark_parts(self) -> None:
        """Tasks of a collective, and those that start a mixed kernel's contexts, are parts of that event.

        Collectives and mixed kernels have a task without a row of their own; it has their launch.
        """
        collectives = {task.connection for task in self.tasks if task.role == "communication"} - {NO_ID}
        kernels = {task.connection for task in self.tasks if task.role == "compute" and task.type} - {NO_ID}
        for i, task in enumerate(self.tasks):
            is_nameless = task.role == "compute" and not task.type and task.connection in kernels | collectives
            if is_nameless or (task.connection in collectives and task.role in ("wait", "mark", "copy")):
                self.tasks[i] = task._replace(role="part")

    def _add_host(self, row: sqlite3.Row, name: str, kind: int, connection: int) -> None:
        times = self._times(row)
        if times is None:
            return
        thread = int(row["globalTid"])
        self.host.append(HostEvent(*times, name, kind, str(thread >> 32), str(thread & 0xFFFFFFFF), connection))

    def _times(self, row: sqlite3.Row) -> tuple[int, int] | None:
        """(start, length) in ns; old exports write some as text."""
        try:
            start, end = int(row["startNs"]), int(row["endNs"])
        except (TypeError, ValueError):
            self.health.add("missing_start", self.path.name)
            self.lost += 1
            return None
        if end < start:
            self.health.add("negative_duration", self.path.name)
            self.lost += 1
            return None
        return start, end - start
