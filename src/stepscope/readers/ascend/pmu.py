"""Pipeline counters of Ascend kernels -> Counters of a store.

910A names have no prefix; 910B and 910C have `aic_` (cube core) and `aiv_` (vector core), whose ratios have different
denominators. A core whose cycles are 0 did not run: its zeros are structural. Sources: facts of the exports in
docs/ascend.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.readers.ascend.number import reading
from stepscope.store.counters import CounterColumn, Counters, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.intervals import Int64

SETTING = "aic_metrics=PipeUtilization"
RECORD_WITH = (
    "torch_npu.profiler with profiler_level=Level1 and aic_metrics=AiCMetrics.PipeUtilization; "
    "msprof --aic-metrics=PipeUtilization"
)
# what the profiler info calls its settings
SETTINGS = {"ACL_AICORE_NONE": "AiCoreNone", "ACL_AICORE_PIPE_UTILIZATION": "PipeUtilization"}
_PLAIN = re.compile(r"^(mac|vec|scalar|mte[123]|fixpipe)(_exe)?_ratio$|^total_cycles$|^icache_miss_rate$")
_PREFIXED = re.compile(r"^(aic|aiv)_(.+)$")
_UNITS = (("_ratio", "fraction"), ("_rate", "fraction"), ("_cycles", "cycles"))
_OTHER_UNIT = re.compile(r"^(.+?)\((us|ns|GB/s|KB|%)\)$")
_SCALE = {"us": ("ns", 1000.0), "ns": ("ns", 1.0), "%": ("fraction", 0.01), "GB/s": ("GB/s", 1.0), "KB": ("KB", 1.0)}
# pipes that a core does not have; the database writes zeros for them, the text export leaves them out
_NOT_THERE = frozenset({("AIC", "vec_ratio"), ("AIV", "mac_ratio"), ("AIV", "mte1_ratio"), ("AIC", "mte3_ratio")})
_NOT_ON = {
    "AIC": frozenset({"AI_VECTOR_CORE", "AIV", "AIV_SQE", "KERNEL_AIVEC"}),
    "AIV": frozenset({"AI_CORE", "AIC", "KERNEL_AICORE"}),
}


class CounterHeader(NamedTuple):
    """One column of a table that is a counter."""

    place: int
    core: str
    name: str
    unit: str
    scale: float


def counter_headers(header: Sequence[str]) -> tuple[CounterHeader, ...]:
    """The counters that a header has; the official `memory_bound` is a quotient of two of them and left to us."""
    has_prefix = any(_PREFIXED.match(name) and "ratio" in name for name in header)
    found = [parse_header(name, i, has_prefix=has_prefix) for i, name in enumerate(header)]
    return tuple(counter for counter in found if counter is not None)


def parse_header(header: str, place: int, *, has_prefix: bool = True) -> CounterHeader | None:
    """What one column counts; None: it is no counter that is kept (a pipe's time is its ratio of the core's time)."""
    if header in ("aicore_time(us)", "aiv_time(us)"):
        core = "AIV" if header.startswith("aiv") else "AIC" if has_prefix else "AICORE"
        return CounterHeader(place, core, "total_time", "ns", 1000.0)
    if header == "cube_utilization(%)":
        return CounterHeader(place, "AIC" if has_prefix else "AICORE", "cube_utilization", "fraction", 0.01)
    prefixed = _PREFIXED.match(header)
    if prefixed is None and not _PLAIN.match(header):
        return None
    core, name = (prefixed[1].upper(), prefixed[2]) if prefixed else ("AICORE", header.replace("_exe_", "_"))
    unit = next((unit for end, unit in _UNITS if name.endswith(end)), "")
    scale = 1.0
    if not unit:
        other = _OTHER_UNIT.match(name)
        unit, scale = _SCALE[other[2]] if other else ("", 1.0)
        name = other[1] if other else name
    is_pipe_time = name.endswith("_time") and name != "total_time"
    return None if is_pipe_time or (core, name) in _NOT_THERE else CounterHeader(place, core, name, unit, scale)


Readings = dict[str, Reading]


def key(core: str, name: str) -> str:
    """How a task's readings are named."""
    return f"{core} {name}"


def read_counters(headers: Sequence[CounterHeader], cells: Sequence[str], kernel_core: str) -> Readings | None:
    """A row's counters; None where the table has none."""
    if not headers:
        return None
    found = {
        key(counter.core, counter.name): reading(
            cells[counter.place] if counter.place < len(cells) else None, counter.scale
        )
        for counter in headers
    }
    return settle(found, kernel_core)


def settle(readings: Readings, kernel_core: str) -> Readings:
    """Zeros of a core that did not run are no values: its cycles are 0, or without cycles the kernel's core says so."""
    for core in {name.partition(" ")[0] for name in readings}:
        cycles = readings.get(key(core, "total_cycles"))
        idle = cycles is not None and cycles.value == 0
        if cycles is None or cycles.value is None:
            own = [r for name, r in readings.items() if name.startswith(f"{core} ")]
            idle = kernel_core in _NOT_ON.get(core, ()) and all(not r.value for r in own)
        if not idle:
            continue
        for name in [n for n in readings if n.startswith(f"{core} ") and not n.endswith(" total_cycles")]:
            if readings[name].value is not None:
                readings[name] = Reading(value=None, missing="core_not_run")
    return readings


def setting_of(recorded: str | None, columns: Iterable[str]) -> str | None:
    """The counter set, from the profiler's settings, else from the columns that only one set has."""
    if recorded:
        return SETTINGS.get(recorded, recorded.removeprefix("ACL_AICORE_"))
    names = {name.partition(" ")[2] for name in columns}
    if not names:
        return None
    if "mte2_ratio" in names:
        return "PipeUtilization"
    marks = {"mac_fp16_ratio": "ArithmeticUtilization", "main_mem_read_bw": "Memory", "l0a_read_bw": "MemoryL0"}
    return next((setting for mark, setting in marks.items() if mark in names), "another set than PipeUtilization")


def to_counters(
    rows: Int64,
    cores: Sequence[str],
    readings: Sequence[Mapping[str, Reading] | None],
    source: str,
    setting: str | None,
) -> Counters:
    """Counters of the kernels at `rows`, in any order; a kernel without a record has `no_record` everywhere."""
    names = sorted({name for row in readings if row for name in row}, key=_column_order)
    nothing = Reading(value=None, missing="no_record")
    units = {key(c.core, c.name): c.unit for name in names if (c := _describe(name)) is not None}
    labels = sorted(set(cores))
    columns = tuple(
        CounterColumn.from_readings(
            *_split(name), units.get(name, ""), [row.get(name, nothing) if row else nothing for row in readings]
        )
        for name in names
    )
    unordered = Counters(
        source=source,
        setting=setting,
        record_with=RECORD_WITH,
        row=np.arange(len(rows), dtype=np.int64),
        label_id=np.array([labels.index(core) for core in cores], np.int8),
        labels=tuple(labels),
        columns=columns,
    )
    return unordered.moved(rows)


def _split(name: str) -> tuple[str, str]:
    core, _, counter = name.partition(" ")
    return core, counter


def _column_order(name: str) -> tuple[int, str]:
    core, counter = _split(name)
    return (("AIC", "AIV", "AICORE").index(core), counter)


def _describe(name: str) -> CounterHeader | None:
    core, counter = _split(name)
    if counter == "total_time":
        return CounterHeader(0, core, counter, "ns", 1.0)
    unit = next((unit for end, unit in _UNITS if counter.endswith(end)), None)
    if counter == "cube_utilization":
        unit = "fraction"
    if unit is None and counter.endswith("_bw"):
        unit = "GB/s"
    return CounterHeader(0, core, counter, unit, 1.0) if unit else None
