"""Recording: a step log -> its measured steps, and what a calibration must say of where measured steps are from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepscope.calibrate.measured import MeasuredStep, steps_of_stream
from stepscope.cost.calibration import Source
from stepscope.errors import BadInput
from stepscope.readers.step_log import log_files, read_step_log

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CHUNK_BYTES = 1 << 20
NOT_RECORDED = "not recorded"  # as an engine's name or version


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps:
    """Steps of all engine cores of a recording, each core's in order; engine and version as far as it says."""

    steps: tuple[MeasuredStep, ...]
    engine: str
    engine_version: str
    source: Source


def read_recorded_steps(path: Path) -> RecordedSteps:
    """From a step log: one file, or a folder of streams.

    Raises:
        BadInput: there is none, no scheduler wrote to it, or several versions of an engine did.
    """
    schedulers = read_step_log(path).schedulers
    if not schedulers:
        raise BadInput(f"{path}: no scheduler's stream is in this log, so no step is whole. Record with a step log.")
    versions = {
        (str(s.header.get("engine") or NOT_RECORDED), str(s.header.get("engine_version") or NOT_RECORDED))
        for s in schedulers
    }
    if len(versions) > 1:
        named = ", ".join(" ".join(pair) for pair in sorted(versions))
        raise BadInput(f"{path}: steps of several engines ({named}). Calibrate each on a log of its own.")
    engine, version = versions.pop()
    files = log_files(path)
    began_ns = min((ns for s in schedulers if (ns := s.number("time_ns")) is not None), default=None)
    day = day_of(files) if began_ns is None else datetime.fromtimestamp(began_ns / 1e9, tz=UTC).date().isoformat()
    return RecordedSteps(
        steps=tuple(step for stream in schedulers for step in steps_of_stream(stream)),
        engine=engine,
        engine_version=version,
        source=source_of(files, day),
    )


def day_of(files: Iterable[Path]) -> str:
    """The day on which the latest of them was written, for what does not say when it was recorded."""
    return datetime.fromtimestamp(max(file.stat().st_mtime for file in files), tz=UTC).date().isoformat()


def source_of(files: Iterable[Path], date: str) -> Source:
    """File names, and one hash over their content in that order."""
    paths, content = list(files), hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_CHUNK_BYTES):
                content.update(block)
    return Source(files=tuple(path.name for path in paths), content_hash=f"sha256:{content.hexdigest()}", date=date)
