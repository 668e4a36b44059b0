"""A folder of /metrics snapshots (or one file, or a range query's JSON) -> MetricsLog: the samples in time order.

A snapshot's time comes from its samples, or from its file name (`1767225600`, `2026-01-01T00:00:00`, or `t012s` since
the first); file dates are not used, since a copy changes them. A sub-folder is a pod: its name becomes the label `pod`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.readers.losses import LossLog, Reading
from stepscope.readers.prometheus.text import Samples, parse_range_query, parse_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.readers.prometheus.text import Key

NAME = "prometheus"
_ENDINGS = {".prom", ".txt", ".metrics", ".json", ""}
_EPOCH = re.compile(r"(?<!\d)(1\d{18}|1\d{15}|1\d{12}|1\d{9})(?!\d)")
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[T_ -](\d\d)[:_-]?(\d\d)[:_-]?(\d\d)")
_SINCE = re.compile(r"(?<![a-z])t(\d+(?:\.\d+)?)s(?![a-z])")
_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One scrape. `time_ns` is epoch time, or time since the first scrape (`is_relative`); None: unknown."""

    path: str
    time_ns: int | None
    is_relative: bool
    values: Mapping[Key, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLog:
    """Snapshots in order, with the types that they declare."""

    reading: Reading
    snapshots: tuple[Snapshot, ...]
    types: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """Every series name that any snapshot has."""
        return frozenset(name for snapshot in self.snapshots for name, _ in snapshot.values)


def read_metrics(path: Path) -> MetricsLog:
    """Read a folder or a file.

    Raises:
        BadInput: it is not there, or holds no metric.
    """
    losses = LossLog()
    try:
        files = _find_files(path)
        found = [item for file, pod in files for item in _read_file(file, pod, losses)]
    except OSError as error:
        raise BadInput(f"{error.filename or path}: cannot be read ({error.strerror}). Check the path.") from error
    if not found:
        raise BadInput(
            f"{path}: no metric was found. Save the text of /metrics into files of a folder, "
            "for instance metrics.1767225600.prom."
        )
    snapshots = [snapshot for snapshot, _ in found]
    losses.add("snapshot_without_time", snapshots[0].path, count=sum(s.time_ns is None for s in snapshots))
    if all(s.time_ns is not None and not s.is_relative for s in snapshots):
        snapshots.sort(key=lambda s: (s.time_ns or 0, s.path))
    types = {name: kind for _, samples in found for name, kind in samples.types.items()}
    return MetricsLog(reading=Reading(path=str(path), health=losses.rows()), snapshots=tuple(snapshots), types=types)


def _find_files(path: Path) -> list[tuple[Path, str | None]]:
    if path.is_file():
        return [(path, None)]
    if not path.is_dir():
        raise BadInput(f"{path}: no such file or folder. Check the path.")
    own = [(file, None) for file in sorted(path.iterdir()) if _is_wanted(file)]
    pods = [(file, sub.name) for sub in sorted(path.iterdir()) if sub.is_dir() for file in sorted(sub.iterdir())]
    return own + [(file, pod) for file, pod in pods if _is_wanted(file)]


def _is_wanted(file: Path) -> bool:
    return file.is_file() and (file.suffix in _ENDINGS or _EPOCH.search(file.suffix) is not None)


def _read_file(file: Path, pod: str | None, losses: LossLog) -> list[tuple[Snapshot, Samples]]:
    if file.stat().st_size > _MAX_BYTES:
        losses.add("snapshot_unreadable", f"{file.name}: more than {_MAX_BYTES // 2**20} MiB")
        return []
    raw = file.read_bytes()
    text = raw.decode("utf-8", "replace")
    losses.add("text_not_utf8", file.name, count=int("�" in text and b"\xef\xbf\xbd" not in raw))
    query = parse_range_query(text, losses) if text.lstrip().startswith("{") else None
    scrapes = query if query is not None else _one_scrape(text, file, losses)
    found = []
    for samples in scrapes:
        values = samples.values
        if pod is not None:
            values = {(name, _with_pod(labels, pod)): value for (name, labels), value in values.items()}
        time_ns, is_relative = _time_of(file.name, samples.time_s)
        found.append((Snapshot(path=file.name, time_ns=time_ns, is_relative=is_relative, values=values), samples))
    return found


def _one_scrape(text: str, file: Path, losses: LossLog) -> tuple[Samples, ...]:
    """A file that holds not one sample is another kind of text: it is counted as such, not line by line."""
    own = LossLog()
    samples = parse_text(text, own)
    if not samples.values:
        losses.add("snapshot_unreadable", file.name)
        return ()
    for code, count in own.counts.items():
        losses.add(code, own.details[code], count=count)
    return (samples,)


def _with_pod(labels: tuple[tuple[str, str], ...], pod: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((*(pair for pair in labels if pair[0] != "pod"), ("pod", pod))))


def _time_of(name: str, time_s: float | None) -> tuple[int | None, bool]:
    if time_s is not None:
        return round(time_s * 1e9), False
    epoch = _EPOCH.search(name)
    if epoch:
        return int(epoch[1]) * 10 ** (19 - len(epoch[1])), False
    date = _DATE.search(name)
    if date:
        try:
            moment = datetime(*(int(part) for part in date.groups()), tzinfo=UTC)  # type: ignore[arg-type, misc]
            return int(moment.timestamp()) * 1_000_000_000, False
        except ValueError:
            pass
    since = _SINCE.search(name)
    return (round(float(since[1]) * 1e9), True) if since else (None, False)
