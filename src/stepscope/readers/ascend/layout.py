"""What lies where in an Ascend profile: which directories are one, and which of its files say what.

`*_ascend_pt/` of torch_npu, with `ASCEND_PROFILER_OUTPUT/` once it was analysed; `PROF_*/` of msprof, with a database
or `mindstudio_profiler_output/` once it was exported. Big files come in slices (`op_summary_slice_0_*.csv`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import UnreadableTrace

OUTPUT = "ASCEND_PROFILER_OUTPUT"
MSPROF_OUTPUT = "mindstudio_profiler_output"
SQLITE = b"SQLite format 3\0"
_DATABASE = re.compile(r"(ascend_pytorch_profiler(_\d+)?|msprof_\d+)\.db")
_KERNELS = re.compile(r"(kernel_details|op_summary)\w*\.csv")
_TASKS = re.compile(r"task_time\w*\.csv")
_TIMELINE = re.compile(r"(trace_view|msprof(_slice)?_\w+)\.json")
_RANK = re.compile(r"(?:profiler_info|ascend_pytorch_profiler)_(\d+)\.")
_RAW = re.compile(r"PROF_\w+")
_DEVICE = re.compile(r"device_\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files of one rank's profile; `path` is what was given."""

    path: Path
    kind: str
    database: Path | None
    kernels: tuple[Path, ...]
    tasks: tuple[Path, ...]
    timelines: tuple[Path, ...]
    step_times: Path | None
    analysis: Path | None
    communication: Path | None
    info: Path | None
    metadata: Path | None

    @property
    def has_text(self) -> bool:
        """Whether device work stands in text files."""
        return bool(self.kernels or self.tasks or self.timelines)

    @property
    def file_rank(self) -> int | None:
        """The rank in a file's name."""
        for path in (self.info, self.database):
            found = _RANK.match(path.name) if path is not None else None
            if found:
                return int(found[1])
        return None


def is_profile(path: Path) -> bool:
    """Whether a directory is one rank's profile, analysed or not."""
    if not path.is_dir():
        return False
    if path.name.endswith("_ascend_pt") or (path / OUTPUT).is_dir() or _is_raw(path):
        return True
    return any(p.is_file() and _is_ours(p.name) for p in path.iterdir())


def _is_raw(path: Path) -> bool:
    if not _RAW.fullmatch(path.name):
        return False
    return any(p.name in (MSPROF_OUTPUT, "host") or _DEVICE.fullmatch(p.name) for p in path.iterdir() if p.is_dir())


def _is_ours(name: str) -> bool:
    return bool(_KERNELS.fullmatch(name) or _DATABASE.fullmatch(name) or name.startswith("trace_view.json"))


def find_layout(path: Path) -> Layout:
    """Look at a profile directory, or at one file of a profile, which then is all that there is.

    Raises:
        UnreadableTrace: the directory was recorded and never analysed, or holds nothing of a profile.
    """
    if path.is_file():
        return _of_files(path, "file", [path])
    places = [path / OUTPUT, path, path / MSPROF_OUTPUT]
    files = [p for place in places if place.is_dir() for p in sorted(place.iterdir()) if p.is_file()]
    layout = _of_files(path, "msprof" if _is_raw(path) else "torch_npu", files)
    if layout.database is None and not layout.has_text:
        raise _unparsed(path)
    return layout


def _of_files(path: Path, kind: str, files: list[Path]) -> Layout:
    alone = kind == "file"
    head = _head(path) if alone else b""
    named = {file.name: file for file in reversed(files)}
    database = [p for p in files if _DATABASE.fullmatch(p.name) or head.startswith(SQLITE)]
    timelines = [p for p in files if _TIMELINE.fullmatch(p.name) or head.lstrip()[:1] in (b"[", b"{")]
    tables = [p for p in files if p not in database and p not in timelines]
    tasks = [p for p in tables if _TASKS.fullmatch(p.name)]
    kernels = [p for p in tables if p not in tasks and (alone or _KERNELS.fullmatch(p.name))]
    return Layout(
        path=path,
        kind=kind,
        database=max(database, key=lambda p: p.name) if database else None,
        kernels=_ordered(kernels),
        tasks=_ordered(tasks),
        timelines=_ordered(timelines),
        step_times=named.get("step_trace_time.csv"),
        analysis=named.get("analysis.db"),
        communication=named.get("communication.json"),
        info=next((p for p in files if re.fullmatch(r"profiler_info(_\d+)?\.json", p.name)), None),
        metadata=named.get("profiler_metadata.json"),
    )


def _ordered(paths: list[Path]) -> tuple[Path, ...]:
    """Slices in the order of their numbers."""
    return tuple(sorted(paths, key=lambda p: [n.zfill(20) if n.isdigit() else n for n in re.split(r"(\d+)", p.name)]))


def _head(path: Path) -> bytes:
    with path.open("rb") as source:
        return source.read(len(SQLITE))


def _unparsed(path: Path) -> UnreadableTrace:
    if any(_RAW.fullmatch(p.name) for p in path.iterdir()) or path.name.endswith("_ascend_pt"):
        return UnreadableTrace(
            str(path),
            f"this run was recorded and never analysed (no {OUTPUT} in it)",
            "On a machine with torch_npu and CANN run: python -c 'from torch_npu.profiler.profiler import analyse; "
            f'analyse("{path}")\'',
        )
    return UnreadableTrace(
        str(path),
        f"this run was recorded and never exported (no database, no {MSPROF_OUTPUT} in it)",
        f"On a machine with CANN run: msprof --export=on --output={path}",
    )
