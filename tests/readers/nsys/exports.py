"""Tiny SQLite exports for the tests, made inline: each schema version with the tables and columns that it has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, object]
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
_DEVICE = ["start", "end", "deviceId", "contextId", "streamId", "correlationId"]
_KERNEL = [*_DEVICE, "globalPid", "demangledName", "shortName"]
_NVTX = ["start", "end", "eventType", "text", "globalTid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What an export of one schema version looks like, as far as it matters here."""

    schema: str
    kernel: list[str]
    nvtx: list[str]


VERSIONS = (
    Version(schema="3.11.0", kernel=_KERNEL, nvtx=_NVTX),
    Version(schema="3.12.1", kernel=[*_KERNEL, "mangledName"], nvtx=[*_NVTX, "textId"]),
    Version(schema="3.15.0", kernel=[*_KERNEL, "mangledName", "graphNodeId"], nvtx=[*_NVTX, "textId", "domainId"]),
    Version(
        schema="3.20.0",
        kernel=[*_KERNEL, "mangledName", "graphNodeId"],
        nvtx=[*_NVTX, "textId", "domainId", "jsonText"],
    ),
    Version(
        schema="3.24.0",
        kernel=[*_KERNEL, "mangledName", "graphNodeId", "greenContextId", "graphId"],
        nvtx=[*_NVTX, "textId", "domainId", "jsonTextId"],
    ),
    Version(
        schema="3.25.0",
        kernel=[*_KERNEL, "mangledName", "graphNodeId", "greenContextId", "graphId"],
        nvtx=[*_NVTX, "textId", "domainId", "jsonTextId"],
    ),
)


def process(pid: int) -> int:
    """A packed process id."""
    return (1 << 48) | (pid << 24)


def thread(pid: int, tid: int | None = None) -> int:
    """A packed thread id."""
    return process(pid) | (pid if tid is None else tid)


@dataclass(slots=True, kw_only=True)
class Written:
    """An export to be: tables as rows; a column that a version lacks is not written."""

    version: Version = VERSIONS[-1]
    strings: list[str] = field(default_factory=list)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text) + 7

    def add(self, table: str, **row: object) -> None:
        self.tables.setdefault(table, []).append(row)

    def kernel(self, name: str, start: int, end: int | None, correlation: int | None = None, **more: object) -> None:
        where = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process(1)} | more
        names = {"demangledName": self.string(name), "shortName": self.string(name)}
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, correlationId=correlation, **names, **where)

    def call(self, name: str, start: int, end: int, correlation: int | None = None, *, pid: int = 1) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            globalTid=thread(pid),
            correlationId=correlation,
            nameId=self.string(name),
        )

    def nvtx(self, text: str, start: int, end: int | None, event_type: int = PUSH_POP, *, pid: int = 1) -> None:
        """Registered strings where the version has them, else text: both occur."""
        is_registered = "textId" in self.version.nvtx and len(text) % 2 == 0
        named: Row = {"textId": self.string(text)} if is_registered else {"text": text}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=event_type, globalTid=thread(pid), **named)

    def setting(self, name: str, value: str) -> None:
        self.add("META_DATA_CAPTURE", name=name, value=value)

    def write(self, path: Path) -> Path:
        self.columns["StringIds"] = ["id", "value"]
        self.tables["StringIds"] = [{"id": i + 7, "value": text} for i, text in enumerate(self.strings)]
        self.tables["META_DATA_EXPORT"] = [
            {"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": self.version.schema},
        ]
        fixed = {"CUPTI_ACTIVITY_KIND_KERNEL": self.version.kernel, "NVTX_EVENTS": self.version.nvtx}
        with closing(sqlite3.connect(path)) as connection:
            for table, rows in self.tables.items():
                columns = (
                    self.columns.get(table) or fixed.get(table) or [*dict.fromkeys(c for row in rows for c in row)]
                )
                declared = ", ".join(f"'{column}'" for column in columns)
                connection.execute(f"CREATE TABLE {table} ({declared})")
                marks = ", ".join("?" for _ in columns)
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({marks})", [[row.get(c) for c in columns] for row in rows]
                )
            connection.commit()
        return path


def decode_steps(written: Written, *, num_steps: int = 3, kernels: int = 4, pid: int = 1, device: int = 0) -> None:
    """Decode steps of 100 us: an annotated range that launches one graph, and the graph's kernels, node by node."""
    for step in range(num_steps):
        at = 1_000_000 + step * 100_000
        launch = 10 + step
        written.nvtx("execute_context_0(0)_generation_4(4)", at, at + 20_000, pid=pid)
        written.call("cudaGraphLaunch_v10000", at + 5_000, at + 9_000, launch, pid=pid)
        for i in range(kernels):
            start = at + 10_000 + i * 20_000
            written.kernel(
                "flash::flash_fwd_kernel<128>" if i % 2 else "nvjet_tst_64x8",
                start,
                start + 20_000,
                launch,
                globalPid=process(pid),
                deviceId=device,
                graphNodeId=100 + i,
            )
