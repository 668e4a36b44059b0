"""Every way in which an import can lose or doubt data: code, severity, meaning, remedy.

A reader counts; it never drops in silence and never aborts for one bad event. Severities: `info` (nothing is lost),
`doubt` (a figure may be off), `loss` (something that was in the file is not in the store).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["info", "doubt", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCode:
    """One kind of doubt."""

    severity: Severity
    meaning: str
    remedy: str


_AGAIN = "Record again and let the profiler finish writing."
_NOTHING = "Nothing to do."
_ENGINE = "Newer PyTorch escapes names; keep quotes, backslashes and control characters out of annotations."

HEALTH_CODES: dict[str, HealthCode] = {
    # container and text
    "gzip_several_members": HealthCode(severity="info", meaning="the gzip file has several members", remedy=_NOTHING),
    "gzip_member_lost": HealthCode(
        severity="loss", meaning="a gzip member is broken; reading went on at the next one", remedy=_AGAIN
    ),
    "gzip_truncated": HealthCode(severity="loss", meaning="the gzip stream ends before its end mark", remedy=_AGAIN),
    "name_mismatch": HealthCode(
        severity="info", meaning="the file name's ending does not say what is inside", remedy=_NOTHING
    ),
    "byte_order_mark": HealthCode(severity="info", meaning="the text starts with a byte order mark", remedy=_NOTHING),
    "array_form": HealthCode(
        severity="info", meaning="the file is a bare array of events, without metadata", remedy=_NOTHING
    ),
    "nested_trace_events": HealthCode(
        severity="info", meaning="the events stand one level deeper than usual", remedy=_NOTHING
    ),
    "truncated_file": HealthCode(
        severity="loss", meaning="the text ends before the list of events closes", remedy=_AGAIN
    ),
    "broken_header": HealthCode(
        severity="doubt", meaning="the metadata around the events is not valid JSON", remedy=_NOTHING
    ),
    "no_events": HealthCode(
        severity="doubt", meaning="the list of events is empty", remedy="Profile while the engine runs steps."
    ),
    "stray_comma": HealthCode(severity="info", meaning="a comma before the closing bracket", remedy=_NOTHING),
    # one event's text
    "invalid_json": HealthCode(
        severity="doubt",
        meaning="an event was not valid JSON; it was repaired or its fields were scanned",
        remedy=_ENGINE,
    ),
    "invalid_utf8": HealthCode(severity="doubt", meaning="an event held bytes that are not UTF-8", remedy=_ENGINE),
    "non_finite_number": HealthCode(severity="doubt", meaning="NaN or Infinity, read as missing", remedy=_NOTHING),
    "event_lost": HealthCode(severity="loss", meaning="an event without a readable time", remedy=_ENGINE),
    # time fields
    "string_times": HealthCode(severity="info", meaning="times are written as strings", remedy=_NOTHING),
    "missing_start": HealthCode(severity="loss", meaning="an event has no start time; it is in no sum", remedy=_AGAIN),
    "missing_duration": HealthCode(
        severity="loss", meaning="a complete event has no duration; it is in no sum", remedy=_AGAIN
    ),
    "unfinished_duration": HealthCode(
        severity="doubt", meaning="a duration of -1 (still running): cut at the end of the window", remedy=_NOTHING
    ),
    "negative_duration": HealthCode(severity="loss", meaning="a negative duration; left out", remedy=_AGAIN),
    "out_of_range_time": HealthCode(
        severity="loss",
        meaning="a time that cannot belong to this capture (wrapped or foreign); left out",
        remedy=_AGAIN,
    ),
    "zero_time_kernel": HealthCode(
        severity="loss",
        meaning="device work with start 0 and duration 0: the driver lost its times; left out",
        remedy="Update CUPTI (seen from 12.6 to 13.1).",
    ),
    "zero_duration": HealthCode(severity="info", meaning="device work that lasts 0 ns", remedy=_NOTHING),
    "no_base_time": HealthCode(
        severity="info",
        meaning="no baseTimeNanoseconds: times are relative to this file only",
        remedy="Record with PyTorch 2.3 or newer.",
    ),
    # structure
    "begin_without_end": HealthCode(
        severity="doubt", meaning="a range that began and never ended: closed at the last timestamp", remedy=_AGAIN
    ),
    "end_without_begin": HealthCode(
        severity="info", meaning="a range that ended and never began; ignored", remedy=_NOTHING
    ),
    "overrunning_child": HealthCode(
        severity="doubt", meaning="a host range ends after the one that it started in; cut there", remedy=_NOTHING
    ),
    "several_devices": HealthCode(
        severity="info", meaning="one file holds work of several devices", remedy="Read them apart with --device."
    ),
    "rank_unknown": HealthCode(
        severity="info",
        meaning="neither the metadata nor the file name says which rank this is",
        remedy="Keep the engine's own file names.",
    ),
    "unknown_category": HealthCode(
        severity="doubt",
        meaning="an event category that the reader does not know; kept as `other`",
        remedy="Report it.",
    ),
    # recorders' databases (Nsight Systems)
    "untried_schema": HealthCode(
        severity="info",
        meaning="the export has a schema version that was not tried",
        remedy="Report it if it misreads.",
    ),
    "schema_table_missing": HealthCode(
        severity="doubt",
        meaning="a table that the account needs is not in the export: it was not recorded, or not exported",
        remedy="Record with -t cuda,nvtx and export all tables.",
    ),
    "schema_column_missing": HealthCode(
        severity="doubt",
        meaning="a column is not in the export; its values are unknown",
        remedy="Export again with a newer version of the recorder.",
    ),
    "empty_table": HealthCode(
        severity="doubt", meaning="a table is there without rows: no evidence", remedy="Record with -t cuda,nvtx."
    ),
    "table_not_read": HealthCode(
        severity="info", meaning="tables with rows that no part of the account uses", remedy=_NOTHING
    ),
    "nvtx_declaration": HealthCode(
        severity="info", meaning="NVTX rows that name a thread or a domain and time nothing", remedy=_NOTHING
    ),
    "unnamed_event": HealthCode(
        severity="doubt", meaning="an event's name is not in the export", remedy="Export all tables."
    ),
    "graph_as_one_item": HealthCode(
        severity="doubt",
        meaning="a graph's replay was recorded as one item: the kernels in it are not in the export",
        remedy="Record with --cuda-graph-trace=node.",
    ),
    "recorder_warning": HealthCode(
        severity="doubt", meaning="a warning or an error that the recorder itself left", remedy="Read its text."
    ),
    # tables, and profiles of several files
    "table_row_broken": HealthCode(
        severity="loss", meaning="a row of a table has fewer or more cells than its header; left out", remedy=_AGAIN
    ),
    "table_missing": HealthCode(
        severity="doubt",
        meaning="a table or file of the export is missing or cannot be read; what it would hold is unknown",
        remedy="Export the profile again, whole.",
    ),
    "export_left_aside": HealthCode(
        severity="info", meaning="the profile is there in several forms; one of them was read", remedy=_NOTHING
    ),
    "duplicate_event": HealthCode(
        severity="info", meaning="an event is exported twice (same name, start and length); kept once", remedy=_NOTHING
    ),
    "repeated_lane": HealthCode(
        severity="info",
        meaning="events of lanes that repeat or sum up others (planes, overlap analysis); not read again",
        remedy=_NOTHING,
    ),
    "not_in_timeline": HealthCode(
        severity="doubt",
        meaning="a kernel of the table has no event in the timeline, so its launch is not known",
        remedy="Export the timeline too.",
    ),
    # counters of a run of their own (Nsight Compute)
    "counters_joined": HealthCode(
        severity="info", meaning="kernels with hardware counters from another run, by name and order", remedy=_NOTHING
    ),
    "counters_by_order": HealthCode(
        severity="doubt",
        meaning="the counters' launches and the trace's kernels do not follow each other in one place: the k-th launch "
        "of a name was taken for its k-th kernel",
        remedy="Profile the same steps in both runs.",
    ),
    "counters_without_kernel": HealthCode(
        severity="doubt",
        meaning="counters of launches that no kernel of the trace was found for",
        remedy="Profile the same steps in both runs.",
    ),
    # a part of a capture; several ranks
    "outside_selection": HealthCode(
        severity="info", meaning="events outside the steps or the time that were asked for; not kept", remedy=_NOTHING
    ),
    "ranks_missing": HealthCode(
        severity="doubt",
        meaning="the engine has more ranks than are here: who waits for whom is known of these alone",
        remedy="Pass the directory that holds every rank.",
    ),
    "rank_cut": HealthCode(
        severity="doubt",
        meaning="the rank's capture begins later or ends sooner than the others': collectives that only they hold",
        remedy="Start and stop the profiler of all ranks together.",
    ),
    "rank_not_placed": HealthCode(
        severity="doubt",
        meaning="the rank's collectives fit nowhere among the others': it is on no common clock",
        remedy="Start and stop the profiler of all ranks together.",
    ),
    # correlation
    "missing_correlation": HealthCode(
        severity="doubt",
        meaning="device work without a correlation id: it is joined to steps by time",
        remedy="Record CPU and device activities in one profile.",
    ),
    "constant_correlation": HealthCode(
        severity="doubt",
        meaning="every correlation id is the same: ids carry no information; joined by time",
        remedy="Update the profiler of this device.",
    ),
    "kernel_before_launch": HealthCode(
        severity="doubt",
        meaning="device work that starts before its launch: host and device clocks disagree",
        remedy="Update the driver.",
    ),
    "duration_outlier": HealthCode(
        severity="doubt",
        meaning="one device event runs over many later ones of its own stream",
        remedy="Record again; figures are given with and without it.",
    ),
    "previous_session": HealthCode(
        severity="info", meaning="device work from before the first recorded host event", remedy=_NOTHING
    ),
}


# events that were read and stand in no table, because their times cannot be used
UNTIMED_CODES: tuple[str, ...] = (
    "missing_start",
    "missing_duration",
    "negative_duration",
    "out_of_range_time",
    "zero_time_kernel",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRow:
    """One code, how often it was met, and an example."""

    code: str
    count: int
    detail: str

    @property
    def severity(self) -> Severity:
        """Of the code."""
        return HEALTH_CODES[self.code].severity


@dataclass(slots=True)
class HealthLog:
    """Counts while reading. Adding an undeclared code is a defect of ours and raises KeyError."""

    counts: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)

    def add(self, code: str, detail: str = "", count: int = 1) -> None:
        """Count a doubt; the first detail is kept as the example."""
        if not count:
            return
        _ = HEALTH_CODES[code]
        self.counts[code] += count
        if detail:
            self.details.setdefault(code, detail[:200])

    def rows(self) -> tuple[HealthRow, ...]:
        """In the order of the table of codes, so that equal inputs give equal reports."""
        return tuple(
            HealthRow(code=code, count=self.counts[code], detail=self.details.get(code, HEALTH_CODES[code].meaning))
            for code in HEALTH_CODES
            if self.counts[code]
        )
