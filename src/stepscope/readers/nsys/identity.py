"""Who a process is and when it ran: pid, name, rank with its source, devices, and wall-clock time.

An export holds every process of the recorded tree. A rank is taken from what names one worker: its process title, its
NVTX ranges; the environment and the file's name only where one process alone used a device. Otherwise it is unknown: a
device's number is no rank.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.readers.nsys.rows import PROCESS_MASK
from stepscope.store.events import NO_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.readers.nsys.database import Export
    from stepscope.readers.nsys.rows import Declaration

_RANK = re.compile(r"(?:^|[^a-z])rank[-_=: ]?(\d+)(?!\d)", re.IGNORECASE)
# vLLM `VLLM::Worker_DP0_TP1_EP1`, SGLang `sglang::scheduler_DP0_TP3`
_AXIS = re.compile(r"(?:^|[^a-z])(dp|pp|tp|dcp|pcp|ep|moe_ep)[-_]?(\d+)(?!\d)", re.IGNORECASE)
_TITLE = re.compile(r"vllm::|sglang::", re.IGNORECASE)
_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_ASSIGNED = re.compile(r'(?:^|;)\s*([A-Z_]+)="?(\d+)"?(?=;|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process. Empty name: the export gives none."""

    pid: int | None
    name: str
    rank: int | None = None
    rank_source: str = "unknown"
    parallel: dict[str, int] = field(default_factory=dict)


def pid_of(process: int) -> int | None:
    """The process id inside a packed id."""
    return None if process == NO_ID else (process >> 24) & 0xFFFFFF


def find_identities(
    export: Export, processes: Sequence[int], workers: Sequence[int], declared: Iterable[Declaration]
) -> dict[int, Identity]:
    """Every process by its packed id; `workers` are those that used a device, and only they have a rank."""
    names = _process_names(export)
    texts: dict[int, list[str]] = {}
    for declaration in declared:
        texts.setdefault(declaration.process, []).append(declaration.text)
    found: dict[int, Identity] = {}
    for process in processes:
        name = names.get(process, "")
        identity = Identity(pid=pid_of(process), name=name)
        if process in workers:
            identity = _ranked(export, identity, texts.get(process, []), is_only=len(workers) == 1)
        found[process] = identity
    times = Counter(identity.rank for identity in found.values())
    return {
        process: Identity(pid=identity.pid, name=identity.name, parallel=identity.parallel)
        if identity.rank is not None and times[identity.rank] > 1  # it names something else than a worker
        else identity
        for process, identity in found.items()
    }


def _ranked(export: Export, identity: Identity, texts: list[str], *, is_only: bool) -> Identity:
    titled = _TITLE.search(identity.name)
    parallel = {axis.lower(): int(index) for axis, index in _AXIS.findall(identity.name)} if titled else {}
    rank, source = _agreed([identity.name]), "process name"
    if rank is None and "tp" in parallel and set(parallel) <= {"tp", "ep"}:
        rank, source = parallel["tp"], "process name (TP index)"
    if rank is None:
        rank, source = _agreed(texts), "NVTX"
    if rank is None and is_only:
        rank, source = _from_environment(export), "environment"
    if rank is None and is_only:
        rank, source = _agreed([Path(export.path).name]), "file name"
    return Identity(
        pid=identity.pid,
        name=identity.name,
        rank=rank,
        rank_source=source if rank is not None else "unknown",
        parallel=parallel,
    )


def _agreed(texts: Iterable[str]) -> int | None:
    """The rank that texts name, if they name one and the same."""
    named = {int(match[1]) for text in texts if (match := _RANK.search(text))}
    return named.pop() if len(named) == 1 else None


def _from_environment(export: Export) -> int | None:
    texts = [str(value) for name, value in export.select("META_DATA_CAPTURE", ("name", "value")) if _is_variable(name)]
    texts += [
        str(value)
        for name, value in export.select("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        if name == "DeviceEnvironment"
    ]
    assigned = {key: int(value) for text in texts for key, value in _ASSIGNED.findall(text)}
    return next((assigned[key] for key in _VARIABLES if key in assigned), None)


def _is_variable(name: object) -> bool:
    return isinstance(name, str) and name.endswith("ENVIRONMENT_VARIABLE")


def _process_names(export: Export) -> dict[int, str]:
    """Process titles; where there are none, the name of a process's first thread."""
    found: dict[int, str] = {}
    for name_id, thread in export.select("ThreadNames", ("nameId", "globalTid")):
        if isinstance(thread, int) and isinstance(name_id, int) and (thread >> 24) & 0xFFFFFF == thread & 0xFFFFFF:
            found[thread & PROCESS_MASK] = export.strings.get(name_id, "")
    titles = export.select("PROCESSES", ("globalPid", "name"))
    return found | {key: name for key, name in titles if isinstance(key, int) and isinstance(name, str)}


def base_time_ns(export: Export, first_ns: int) -> int | None:
    """What to add to the export's times to get wall-clock time since the epoch; None: it does not say.

    Times count from the start of recording, or from the target's boot where that clock was recorded.
    """
    metadata = export.metadata
    shift = metadata.get("EXPORT_PARAM_TIME_SHIFT", "0")
    shift_ns = int(shift) if shift.lstrip("-").isdigit() else 0
    if metadata.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        return -shift_ns  # the times are wall-clock times already
    rows = export.select("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    epoch, clock = rows[0] if len(rows) == 1 else (None, None)
    if not isinstance(epoch, int):
        return None
    starts = [start for (start,) in export.select("ANALYSIS_DETAILS", ("startTime",)) if isinstance(start, int)]
    began = min([*starts, first_ns])
    if isinstance(clock, int) and clock > 0 and began >= clock:
        return epoch - clock - shift_ns
    return epoch - shift_ns


def device_properties(export: Export) -> list[dict[str, object]]:
    """The machine's devices, as other recorders name the fields."""
    keys = {"id": "id", "name": "name", "totalMemory": "totalGlobalMem", "smCount": "numSms"}
    rows = export.select("TARGET_INFO_GPU", tuple(keys))
    return [{key: v for key, v in zip(keys.values(), row, strict=True) if v is not None} for row in rows]
