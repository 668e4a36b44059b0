"""CSV tables of device tasks -> Tasks: kernel_details, op_summary (renamed headers), task_time; slices of each.

A real CSV reader is needed: shapes are quoted three times, call stacks run over lines, line ends are CRLF or LF.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from stepscope.errors import UnreadableTrace
from stepscope.readers.ascend.number import clean, ns_of_us
from stepscope.readers.ascend.pmu import counter_headers, read_counters
from stepscope.readers.ascend.task import NO_DEVICE, NOT_SAID, Task, role_of
from stepscope.store.events import NO_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stepscope.store.health import HealthLog

# our field: the headers that it has had
HEADERS: dict[str, tuple[str, ...]] = {
    "name": ("Name", "Op Name", "kernel_name"),
    "type": ("Type", "OP Type"),
    "core": ("Accelerator Core", "Task Type", "kernel_type"),
    "start": ("Start Time(us)", "Task Start Time(us)", "task_start(us)"),
    "duration": ("Duration(us)", "Task Duration(us)", "task_time(us)"),
    "device": ("Device_id", "Device ID", "device_id"),
    "stream": ("Stream ID", "stream_id"),
    "step": ("Step Id",),
}
_NEEDED = ("name", "start", "duration")
_MAX_CELL = 1 << 24


def is_task_table(head: str) -> bool:
    """Whether a text begins with the header of such a table."""
    line = head.lstrip("\ufeff").partition("\n")[0]
    return set(_NEEDED) <= set(_columns([clean(cell) for cell in line.split(",")]))


def _columns(header: list[str]) -> dict[str, int]:
    place = {name: i for i, name in reversed(list(enumerate(header)))}
    found = {ours: [place[name] for name in names if name in place] for ours, names in HEADERS.items()}
    return {ours: places[0] for ours, places in found.items() if places}


class TaskTable:
    """One CSV file: its tasks, counted, and the counters that its header has."""

    def __init__(self, path: Path, health: HealthLog) -> None:
        """Read the header.

        Raises:
            UnreadableTrace: the file is empty or has another header.
        """
        self.path, self.health = path, health
        self.lost = 0
        self.raw = path.read_bytes()
        self.text = self.raw.decode("utf-8-sig", errors="replace")
        health.add("byte_order_mark", count=int(self.raw.startswith(b"\xef\xbb\xbf")))
        health.add("invalid_utf8", path.name, count=self.text.count("\ufffd"))
        self.header = [clean(cell) for cell in self.text.partition("\n")[0].split(",")]
        self.columns = _columns(self.header)
        missing = [HEADERS[name][0] for name in _NEEDED if name not in self.columns]
        if missing:
            problem = "it is empty" if not self.text.strip() else f"its header has no {', '.join(missing)}"
            raise UnreadableTrace(
                str(path), f"this is no table of kernels: {problem}", "Pass kernel_details.csv or op_summary_*.csv"
            )
        self.counters = counter_headers(self.header)

    def tasks(self) -> Iterator[Task]:
        """Every row with usable times."""
        for cells in self._rows():
            task = self._task(cells)
            if task is None:
                self.lost += 1
            else:
                yield task

    def _rows(self) -> Iterator[list[str]]:
        csv.field_size_limit(_MAX_CELL)
        rows = csv.reader(self.text.replace("\0", "").splitlines(keepends=True)[1:], strict=False)
        self.health.add("table_row_broken", f"{self.path.name}: NUL bytes", self.text.count("\0"))
        width = len(self.header) - (self.header[-1] == "")
        for cells in rows:
            if not cells or cells == [""]:
                continue
            if len(cells) < width or any(cells[len(self.header) :]):
                swallowed = 1 + ",".join(cells).rstrip("\r\n").count("\n")
                self.lost += swallowed
                self.health.add("table_row_broken", f"{self.path.name}, line {rows.line_num + 1}", swallowed)
                continue
            yield cells

    def _cell(self, cells: list[str], name: str, default: str) -> str:
        place = self.columns.get(name)
        return clean(cells[place]) if place is not None else default

    def _task(self, cells: list[str]) -> Task | None:
        start, duration = ns_of_us(cells[self.columns["start"]]), ns_of_us(cells[self.columns["duration"]])
        where = f"{self.path.name}: {self._cell(cells, 'name', '')}"
        if start is None or duration is None or duration < 0:
            problem = "missing_start" if start is None else "missing_duration" if duration is None else ""
            self.health.add(problem or "negative_duration", where)
            return None
        name, core = self._cell(cells, "name", ""), self._cell(cells, "core", NOT_SAID)
        return Task(
            start_ns=start,
            duration_ns=duration,
            name=name,
            type=self._cell(cells, "type", NOT_SAID),
            core=core,
            device=self._cell(cells, "device", NO_DEVICE),
            stream=self._cell(cells, "stream", NOT_SAID),
            connection=NO_ID,
            role=role_of(core, name),
            readings=read_counters(self.counters, cells, core),
        )


def read_tables(paths: tuple[Path, ...], health: HealthLog) -> tuple[list[Task], int, list[str]]:
    """The tasks of a table's slices, rows lost, and the header of the first.

    A collective can be exported twice, once with the stream that it ran on: it is kept once.
    """
    tasks: list[Task] = []
    collectives: dict[tuple[str, int, int, str], int] = {}
    lost = 0
    header: list[str] = []
    for path in paths:
        table = TaskTable(path, health)
        header = header or table.header
        for task in table.tasks():
            key = (task.name, task.start_ns, task.duration_ns, task.device)
            if task.role != "communication" or key not in collectives:
                collectives[key] = len(tasks)
                tasks.append(task)
                continue
            health.add("duplicate_event", task.name)
            if tasks[collectives[key]].stream == NOT_SAID:
                tasks[collectives[key]] = task
        lost += table.lost
    return tasks, lost, header
