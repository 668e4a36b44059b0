"""Small Ascend profiles written by hand: rows of kernel_details, events of trace_view, tables of a database."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

# columns of the newest kernel_details, without the shapes
COLUMNS_910B = (
    "Device_id,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num,"
    "aicore_time(us),aic_total_cycles,aic_mac_ratio,aic_scalar_ratio,aic_mte2_ratio,aiv_time(us),aiv_total_cycles,aiv_vec_ratio,"
    "aiv_scalar_ratio,aiv_mte2_ratio"
)
COLUMNS_910A = (
    "Device_id,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),aicore_time(us),total_cycles,vec_ratio,"
    "mac_ratio,scalar_ratio,mte2_ratio,memory_bound"
)
CUBE = "50.0,9000,0.138,0.2,0.902,0.0,0,0.0,0.0,0.0"
VECTOR = "0.0,0,0.0,0.0,0.0,5.0,9000,0.25,0.1,0.5"
MIXED = "50.0,9000,0.4,0.2,0.6,50.0,9000,0.8,0.1,0.4"
NOTHING = ",".join(["N/A"] * 10)


def row(
    name: str, core: str, start: str, us: str, counters: str = NOTHING, *, device: int = 0, stream: str = "2"
) -> str:
    """One row under COLUMNS_910B, as the exporter writes it: a TAB after the start."""
    return f"{device},{stream},{name},{name},{core},{start}\t,{us},0,24,{counters}"


def table(*rows: str, columns: str = COLUMNS_910B, end: str = "\r\n") -> str:
    return "".join(line + end for line in (columns, *rows))


def profile(folder: Path, name: str = "rank0_ascend_pt", **files: str | bytes) -> Path:
    """A profile directory; `kernel_details_csv="..."` names a file of its output."""
    output = folder / name / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    for key, text in files.items():
        stem, _, ending = key.rpartition("_")
        path = output / f"{stem}.{ending}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def process(pid: int, name: str, label: str = "NPU 0") -> list[dict[str, Any]]:
    common = {"pid": pid, "tid": 0, "ph": "M"}
    return [
        {"name": "process_name", **common, "args": {"name": name}},
        {"name": "process_labels", **common, "args": {"labels": label}},
    ]


HOST, CANN, HARDWARE = 7, (7 << 10) + 224, (7 << 10) + 416
LANES = [*process(HOST, "Python", "CPU"), *process(CANN, "CANN", "CPU"), *process(HARDWARE, "Ascend Hardware")]


def event(name: str, pid: int, tid: int, ts: str, dur: float, **fields: Any) -> dict[str, Any]:
    return {"name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "ph": "X", **fields}


def timeline(*events: dict[str, Any]) -> str:
    return json.dumps([*LANES, *events])


TABLES = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "TASK": (
        "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER, "
        "taskType INTEGER, streamId INTEGER"
    ),
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, taskType INTEGER, opType INTEGER",
    "COMMUNICATION_OP": (
        "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, opId INTEGER PRIMARY KEY, opType INTEGER"
    ),
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER, name INTEGER",
    "ENUM_API_TYPE": "id INTEGER PRIMARY KEY, name TEXT",
    "PYTORCH_API": "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, type INTEGER",
    "TASK_PMU_INFO": "globalTaskId INTEGER, name INTEGER, value NUMERIC",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
}


def database(path: Path, rows: dict[str, list[tuple[Any, ...]]], *, without: tuple[str, ...] = ()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    for name, columns in TABLES.items():
        if name not in without:
            connection.execute(f"CREATE TABLE {name} ({columns})")
    for name, values in rows.items():
        for value in values:
            connection.execute(f"INSERT INTO {name} VALUES ({','.join('?' * len(value))})", value)
    connection.commit()
    connection.close()
    return path
