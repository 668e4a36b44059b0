"""What reading a log, a metrics file, a client result or a counts file can lose or doubt: codes, and a counter.

The same rule as for traces: a reader counts, it never drops in silence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stepscope.store.health import HealthCode, HealthRow

_NOTHING = "Nothing to do."

SIDE_CODES: dict[str, HealthCode] = {
    "log_line_unparsed": HealthCode(
        severity="loss",
        meaning="a line of a server log looks like a figure line and could not be read",
        remedy="Report the line and the engine's version.",
    ),
    "log_key_unknown": HealthCode(
        severity="info", meaning="a key of a log line that is not known: kept as printed", remedy=_NOTHING
    ),
    "log_time_missing": HealthCode(
        severity="doubt",
        meaning="a figure line of a log without a readable time",
        remedy="Keep the engine's own log format.",
    ),
    "text_not_utf8": HealthCode(
        severity="doubt", meaning="a line held bytes that are not UTF-8; they were replaced", remedy=_NOTHING
    ),
    "metric_line_unparsed": HealthCode(
        severity="loss", meaning="a line of a metrics snapshot could not be read", remedy="Save /metrics unchanged."
    ),
    "metric_duplicate": HealthCode(
        severity="doubt", meaning="one series stands twice in a snapshot; the last value is used", remedy=_NOTHING
    ),
    "snapshot_unreadable": HealthCode(
        severity="loss", meaning="a file of a metrics folder holds no metric", remedy="Save /metrics unchanged."
    ),
    "snapshot_without_time": HealthCode(
        severity="doubt",
        meaning="the time of a metrics snapshot is unknown: no rate over it",
        remedy="Put the epoch second into the file's name (metrics.1767225600.prom).",
    ),
    "counter_reset": HealthCode(
        severity="doubt",
        meaning="a counter went down between two snapshots: the server restarted; what it then shows is counted",
        remedy="Save snapshots of one server run.",
    ),
    "client_record_unparsed": HealthCode(
        severity="loss", meaning="a request of a client result could not be read", remedy="Keep the tool's own file."
    ),
    "client_lengths_differ": HealthCode(
        severity="loss",
        meaning="the lists of a client result have different lengths: what stands beyond the shortest is left out",
        remedy="Run the benchmark again.",
    ),
    "non_finite_value": HealthCode(
        severity="doubt", meaning="NaN or infinity where a number was expected, read as missing", remedy=_NOTHING
    ),
    "step_record_lost": HealthCode(
        severity="loss", meaning="a record of a step log is broken; reading went on at the next", remedy=_NOTHING
    ),
    "step_record_dropped": HealthCode(
        severity="loss",
        meaning="the engine ran ahead of the recorder, which dropped records and counted them",
        remedy="Write the log to a faster disk.",
    ),
    "step_record_unknown": HealthCode(
        severity="info", meaning="a record of a step log of a kind that is not known", remedy="Update Stepscope."
    ),
    "step_log_unfinished": HealthCode(
        severity="info", meaning="a step log ends inside a record: the writer was stopped", remedy=_NOTHING
    ),
    "forward_message_unparsed": HealthCode(
        severity="loss",
        meaning="a forward-pass metrics message could not be read, or is of another schema version",
        remedy="Save the payloads unchanged.",
    ),
    "forward_message_lost": HealthCode(
        severity="loss",
        meaning="the counter of forward-pass metrics jumps: messages were not received",
        remedy="Subscribe before the load starts.",
    ),
    "expert_record_unparsed": HealthCode(
        severity="loss", meaning="a record of an expert counts file has no usable counts", remedy="Report the file."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The file that something was read from, and what was doubtful in it."""

    path: str
    health: tuple[HealthRow, ...] = ()


@dataclass(slots=True)
class LossLog:
    """Counts while reading. Adding an undeclared code is a defect of ours and raises KeyError."""

    counts: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)

    def add(self, code: str, detail: str = "", count: int = 1) -> None:
        """Count a doubt; the first detail is kept as the example."""
        _ = SIDE_CODES[code]
        if count:
            self.counts[code] += count
            self.details.setdefault(code, detail[:200])

    def rows(self) -> tuple[HealthRow, ...]:
        """In the order of the table of codes."""
        return tuple(
            HealthRow(code=code, count=self.counts[code], detail=self.details[code] or SIDE_CODES[code].meaning)
            for code in SIDE_CODES
            if self.counts[code]
        )
