"""Raw pages of Nsight Compute for the tests, written inline."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "dram__bytes.sum.per_second"
TIME = "gpu__time_duration.sum"
UNITS = {COMPUTE: "%", MEMORY: "%", DRAM: "Gbyte/second", TIME: "usecond"}
_FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Device", "CC")


def page(
    launches: Sequence[tuple[str, dict[str, str]]],
    metrics: Sequence[str] = tuple(UNITS),
    *,
    before: str = "==PROF== Connected to process 5 (python3)\nhello\n",
    processes: Sequence[int] = (5,),
) -> str:
    """A page of (kernel, metric -> cell); a metric that a launch lacks is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*_FIXED, *metrics])
    writer.writerow([*[""] * len(_FIXED), *(UNITS.get(metric, "%") for metric in metrics)])
    for i, (kernel, cells) in enumerate(launches):
        fixed = [str(i), str(processes[i % len(processes)]), "python3", "127.0.0.1", kernel, "1", "7", "0", "9.0"]
        writer.writerow([*fixed, *(cells.get(metric, "") for metric in metrics)])
    return before + out.getvalue()
