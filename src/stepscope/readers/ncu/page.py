"""The raw page of Nsight Compute as CSV -> one record a profiled launch, with numbers in our units.

`ncu --csv --page raw` writes a row of names, a row of units and a row a launch; messages of ncu and of the program may
stand before. Numbers carry thousands separators. A missing number keeps its reason (store/counters.py).
Legend: ratio = percent of peak / 100; B/s and ns from whatever prefix the unit row gives.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import UnreadableTrace
from stepscope.store.counters import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "ncu"
CORE = "SM"
RECORD_WITH = (
    "ncu --csv --page raw --section SpeedOfLight --section SpeedOfLight_RooflineChart --section Occupancy "
    "--section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis --target-processes all PROGRAM"
)
_START = b'"ID","Process ID"'
_KERNEL = "Kernel Name"
_LONG = "Metric Value"
_PCT = ".avg.pct_of_peak_sustained_elapsed"
_ACTIVE = ".avg.pct_of_peak_sustained_active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A counter of ours and the metrics that hold it, by version and chip, the first that is there."""

    name: str
    unit: str
    metrics: tuple[str, ...]


# Metric names: Nsight Compute's SpeedOfLight, Occupancy, ComputeWorkloadAnalysis and MemoryWorkloadAnalysis sections
WANTED: tuple[Wanted, ...] = (
    Wanted(name="compute_ratio", unit="fraction", metrics=(f"sm__throughput{_PCT}",)),
    Wanted(name="memory_ratio", unit="fraction", metrics=(f"gpu__compute_memory_throughput{_PCT}",)),
    Wanted(name="dram_ratio", unit="fraction", metrics=(f"gpu__dram_throughput{_PCT}", f"dram__throughput{_PCT}")),
    Wanted(name="l2_ratio", unit="fraction", metrics=(f"lts__t_sectors{_PCT}", f"lts__throughput{_PCT}")),
    Wanted(name="l1_ratio", unit="fraction", metrics=(f"l1tex__throughput{_ACTIVE}", f"l1tex__throughput{_PCT}")),
    Wanted(
        name="tensor_ratio",
        unit="fraction",
        metrics=(
            f"sm__pipe_tensor_cycles_active{_ACTIVE}",
            f"sm__inst_executed_pipe_tensor{_ACTIVE}",
            f"sm__pipe_tensor_op_hmma_cycles_active{_ACTIVE}",
        ),
    ),
    Wanted(name="occupancy_ratio", unit="fraction", metrics=(f"sm__warps_active{_ACTIVE}",)),
    Wanted(name="dram_bytes_per_s", unit="B/s", metrics=("dram__bytes.sum.per_second",)),
    Wanted(name="duration_ns", unit="ns", metrics=("gpu__time_duration.sum", "gpu__time_duration.avg")),
)
_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_SECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}  # in ns
_RATE = re.compile(r"^([kmgtp]?)b(?:yte)?s?/s(?:econd)?$", re.IGNORECASE)
_TIME = re.compile(r"^([num]?)s(?:ec(?:ond)?)?s?$")
_NOT_AVAILABLE = re.compile(r"^(?:\(!\)\s*)?n/a$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One profiled launch. `readings` by the name of the counter."""

    number: int
    process: str
    kernel: str
    chip: str
    readings: dict[str, Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All launches of a page, in launch order; `present`: the counters that have a column."""

    path: str
    present: tuple[str, ...]
    launches: tuple[Launch, ...]


def sniff(head: bytes) -> bool:
    """Whether the first bytes hold the names of a page's columns, after whatever was printed before."""
    return _START in head and _KERNEL.encode() in head


def read_page(path: Path) -> Page:
    """Read a raw page.

    Raises:
        UnreadableTrace: it is no raw page, or it is cut.
    """
    try:
        rows = list(csv.reader(_lines(path), strict=True))
    except csv.Error as error:
        raise _unreadable(path, f"the CSV is broken ({error})") from error
    if not rows:
        raise _unreadable(path, 'no row of column names ("ID","Process ID", ...)')
    names, *body = rows
    if _LONG in names:
        raise _unreadable(path, "one row a metric: this is another page than the raw one")
    if _KERNEL not in names:
        raise _unreadable(path, f"no column {_KERNEL!r}")
    for row in body:
        if len(row) != len(names):
            raise _unreadable(path, f"a row has {len(row)} cells, there are {len(names)} columns: the file is cut")
    units = dict(zip(names, body[0] if body and not body[0][0] else [""] * len(names), strict=True))
    launches = [_launch(dict(zip(names, row, strict=True)), units) for row in body if row[0].strip().isdigit()]
    present = tuple(w.name for w in WANTED if any(metric in units for metric in w.metrics))
    return Page(path=str(path), present=present, launches=tuple(sorted(launches, key=lambda x: x.number)))


def _unreadable(path: Path, problem: str) -> UnreadableTrace:
    return UnreadableTrace(str(path), problem, "Write it again: ncu --import REPORT.ncu-rep --csv --page raw")


def _lines(path: Path) -> Iterator[str]:
    """From the row of names on, without what ncu says between."""
    has_begun = False
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as source:
        for line in source:
            has_begun = has_begun or line.startswith(_START.decode())
            if has_begun and not line.startswith("==") and line.strip():
                yield line


def _launch(row: dict[str, str], units: dict[str, str]) -> Launch:
    return Launch(
        number=int(row["ID"]),
        process=row.get("Process ID", ""),
        kernel=row[_KERNEL],
        chip=f"CC {row['CC']}" if row.get("CC") else "not recorded",
        readings={wanted.name: _reading(wanted, row, units) for wanted in WANTED},
    )


def _reading(wanted: Wanted, row: dict[str, str], units: dict[str, str]) -> Reading:
    """The first of a counter's metrics that has a number; else why the first of them has none."""
    found = [read_cell(row[metric], units[metric], wanted.unit) for metric in wanted.metrics if metric in row]
    with_value = (reading for reading in found if reading.value is not None)
    return next(with_value, found[0] if found else Reading(value=None, missing="no_column"))


def read_cell(text: str, unit: str, wanted: str) -> Reading:
    """One cell in the wanted unit, or why it holds no number.

    >>> read_cell("1,250.50", "Gbyte/second", "B/s").value
    1250500000000.0
    """
    text = text.strip()
    if not text:
        return Reading(value=None, missing="empty")
    if _NOT_AVAILABLE.match(text):
        return Reading(value=None, missing="not_available")
    if text.upper() == "NA":
        return Reading(value=None, missing="not_available_na")
    scale = _scale(unit.strip(), wanted)
    try:
        value = float(text.replace(",", "").partition(" (")[0]) * (math.nan if scale is None else scale)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        return Reading(value=None, missing="not_a_number")
    return Reading(value=None, missing="out_of_range") if value < 0 else Reading(value=value)


def _scale(unit: str, wanted: str) -> float | None:
    """What to multiply by; None: a unit that is not known."""
    if wanted == "fraction":
        return 0.01 if unit in ("%", "") else None
    if wanted == "B/s":
        rate = _RATE.match(unit)
        return _PREFIX[rate[1].lower()] if rate else None
    time = _TIME.match(unit)
    return _SECONDS[time[1]] if time else None
