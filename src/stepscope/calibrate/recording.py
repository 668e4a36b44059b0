"""Recording: a step log's folder -> its measured steps, and what a calibration must say of where they are from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepscope.calibrate.measured import MeasuredStep, steps_of_stream
from stepscope.cost.calibration import Source
from stepscope.errors import BadInput
from stepscope.readers.step_log import read_step_log
from stepscope.record.step_log import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps:
    """Steps of all engine cores of a log, each core's in order; engine and version as its headers say."""

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
    versions = {(str(s.header.get("engine")), str(s.header.get("engine_version"))) for s in schedulers}
    if len(versions) > 1:
        named = ", ".join(" ".join(pair) for pair in sorted(versions))
        raise BadInput(f"{path}: steps of several engines ({named}). Calibrate each on a log of its own.")
    engine, version = versions.pop()
    files = [path] if path.is_file() else sorted(path.rglob(f"*{SUFFIX}"))
    began_ns = min((s.number("time_ns") or 0 for s in schedulers), default=0)
    return RecordedSteps(
        steps=tuple(step for stream in schedulers for step in steps_of_stream(stream)),
        engine=engine,
        engine_version=version,
        source=source_of(files, datetime.fromtimestamp(began_ns / 1e9, tz=UTC).date().isoformat()),
    )


def source_of(files: Iterable[Path], date: str) -> Source:
    """File names, and one hash over their content in that order."""
    paths, content = list(files), hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_CHUNK_BYTES):
                content.update(block)
    return Source(files=tuple(path.name for path in paths), content_hash=f"sha256:{content.hexdigest()}", date=date)
