"""Prometheus text exposition, or a range query's JSON -> samples: (name, labels) -> value, with types and times."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from stepscope.readers.losses import LossLog

Labels: TypeAlias = tuple[tuple[str, str], ...]
Key: TypeAlias = tuple[str, Labels]

_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+(?P<time>-?\d+(?:\.\d+)?))?"
    r"(?:\s+#.*)?$"
)
_LABEL = re.compile(r'\s*(?P<name>[a-zA-Z_]\w*)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_TYPE = re.compile(r"^#\s*TYPE\s+(?P<name>\S+)\s+(?P<type>\w+)\s*$")
_MS_FROM = 1e11  # exposition times are ms, OpenMetrics' are s


@dataclass(slots=True)
class Samples:
    """One scrape. `time_s` only where the text carries it."""

    values: dict[Key, float] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    time_s: float | None = None


def parse_text(text: str, losses: LossLog) -> Samples:
    """One scrape of /metrics; a line that cannot be read is counted."""
    samples = Samples()
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        if stripped.startswith("#"):
            declared = _TYPE.match(stripped)
            if declared:
                samples.types[declared["name"]] = declared["type"]
            continue
        match = _SAMPLE.match(stripped)
        labels = None if match is None else _labels(match["labels"] or "")
        value = None if match is None else _number(match["value"])
        if match is None or labels is None or value is None:
            losses.add("metric_line_unparsed", stripped)
            continue
        key = (match["name"], labels)
        losses.add("metric_duplicate", str(key), count=int(key in samples.values))
        samples.values[key] = value
        if match["time"]:
            seconds = float(match["time"])
            seconds = seconds / 1000 if seconds > _MS_FROM else seconds
            samples.time_s = seconds if samples.time_s is None else max(samples.time_s, seconds)
    return samples


def _labels(text: str) -> Labels | None:
    found, place = [], 0
    while place < len(text.rstrip()):
        match = _LABEL.match(text, place)
        if match is None:
            return None
        value = re.sub(r"\\[\\\"n]", lambda escape: _ESCAPES[escape[0]], match["value"])
        found.append((match["name"], value))
        place = match.end()
    return tuple(sorted(found))


def _number(text: str) -> float | None:
    try:
        return float(text.replace("Inf", "inf").replace("NaN", "nan"))
    except ValueError:
        return None


def parse_range_query(text: str, losses: LossLog) -> tuple[Samples, ...] | None:
    """The answer of `query_range` as one scrape per time; None if the text is no such answer."""
    try:
        answer: Any = json.loads(text)
        rows = answer["data"]["result"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    by_time: dict[float, Samples] = {}
    for row in rows if isinstance(rows, list) else []:
        try:
            metric = {str(name): str(value) for name, value in row["metric"].items()}
            points = [(float(time), _number(str(value))) for time, value in row.get("values") or [row["value"]]]
        except (KeyError, TypeError, ValueError, AttributeError):
            losses.add("metric_line_unparsed", str(row))
            continue
        key = (metric.pop("__name__", ""), tuple(sorted(metric.items())))
        for time, value in points:
            if not isfinite(time):
                losses.add("metric_line_unparsed", str(row))
                continue
            by_time.setdefault(time, Samples(time_s=time)).values[key] = nan if value is None else value
    return tuple(by_time[time] for time in sorted(by_time))
