"""The profiler's own account beside ours: step_trace_time, communication.json, profiler settings -> metadata.

Columns of step_trace_time, in us: Computing (union of compute tasks), Communication (union of collectives, waiting
inside them included), their overlap, Free (neither), Stage, Bubble (pipeline receives), Preparing.
Law: Computing + Communication(Not Overlapped) + Free = Stage + Bubble, within the 0.25 us step of its float times.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stepscope.readers.ascend.number import clean, ns_of_us

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.readers.ascend.layout import Layout
    from stepscope.store.health import HealthLog

_FIELDS = {
    "Computing": "computing_ns",
    "Communication(Not Overlapped)": "communication_not_overlapped_ns",
    "Overlapped": "overlapped_ns",
    "Communication": "communication_ns",
    "Free": "free_ns",
    "Stage": "stage_ns",
    "Bubble": "bubble_ns",
    "Preparing": "preparing_ns",
}
_DATABASE_FIELDS = {
    "computing": "computing_ns",
    "communication_not_overlapped": "communication_not_overlapped_ns",
    "overlapped": "overlapped_ns",
    "communication": "communication_ns",
    "free": "free_ns",
    "stage": "stage_ns",
    "bubble": "bubble_ns",
    "preparing": "preparing_ns",
}
_PARTS = {"Elapse Time(ms)": "elapse_ns", "Transit Time(ms)": "transit_ns", "Wait Time(ms)": "wait_ns"}


def read_step_times(layout: Layout, health: HealthLog) -> list[dict[str, Any]]:
    """The official figures, one row a step and device, in ns; an empty step name is None."""
    if layout.step_times is not None:
        return _from_text(layout.step_times, health)
    if layout.analysis is not None:
        return _from_database(layout.analysis, health)
    return []


def _from_text(path: Path, health: HealthLog) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    found = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        cells = {clean(name): clean(value or "") for name, value in row.items() if isinstance(name, str)}
        values = {ours: ns_of_us(cells[name]) for name, ours in _FIELDS.items() if cells.get(name, "") != ""}
        if "computing_ns" not in values or None in values.values():
            health.add("table_row_broken", path.name)
            continue
        found.append({"step": cells.get("Step") or None, "device": cells.get("Device_id") or None, **values})
    return found


def _from_database(path: Path, health: HealthLog) -> list[dict[str, Any]]:
    """StepTraceTime of analysis.db: its bytes are us, whatever the manual says of ms."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute("SELECT * FROM StepTraceTime")]
    except sqlite3.Error:
        health.add("table_missing", f"{path.name}: StepTraceTime")
        return []
    return [
        {
            "step": row.get("step") or None,
            "device": row.get("deviceId"),
            **{ours: ns_of_us(str(row[name])) for name, ours in _DATABASE_FIELDS.items() if row.get(name) is not None},
        }
        for row in rows
    ]


def read_json(path: Path | None, health: HealthLog) -> dict[str, Any]:
    """A JSON object beside the profile; what is broken is a health row."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
    except ValueError:
        health.add("table_missing", path.name)
        return {}
    return found if isinstance(found, dict) else {}


def read_communication(path: Path | None, health: HealthLog) -> list[dict[str, Any]]:
    """Per collective: elapse = transit + wait + idle, in ns, from communication.json."""
    found = []
    for groups in read_json(path, health).values():
        for operations in groups.values() if isinstance(groups, dict) else ():
            for name, parts in operations.items() if isinstance(operations, dict) else ():
                times = parts.get("Communication Time Info", {}) if isinstance(parts, dict) else {}
                given = {ours: times.get(theirs) for theirs, ours in _PARTS.items()}
                values = {k: round(v * 1e6) for k, v in given.items() if isinstance(v, int | float)}
                if not name.startswith("Total") and len(values) == len(_PARTS):
                    found.append({"name": name.partition("@")[0], **values})
    return found


def settings_of(info: dict[str, Any]) -> dict[str, Any]:
    """The profiler's level, counter set and export of profiler_info."""
    config = info.get("config")
    config = config if isinstance(config, dict) else {}
    experimental = config.get("experimental_config")
    return dict(experimental) if isinstance(experimental, dict) else {}
