"""Hardware counters per kernel, as columns beside a store's events: a value, or the reason why there is none.

One column is one counter of one core (Ascend: AIC the cube core, AIV the vector core, AICORE where a chip has one kind;
NVIDIA: SM). A missing value is NaN in `value` and its reason in `missing`; it is never 0. Ratios are fractions, 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from stepscope.errors import InvariantBroken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.intervals import Int64

Float64: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"
Codes: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int8]]"
Rows: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]] | Int64"

# A value's state is stored as its position in this table; the first one is "there is a value".
MISSING: dict[str, str] = {
    "recorded": "there is a value",
    "no_column": "the capture has no such column: the counters were not recorded, or others were",
    "not_available": "the recorder wrote N/A",
    "not_available_na": "the recorder wrote NA",
    "empty": "the cell is empty",
    "no_record": "no counter record of this kernel",
    "not_a_number": "the cell holds no finite number",
    "out_of_range": "the value cannot be: a negative one",
    "core_not_run": "that core ran no cycle in this kernel, so its zeros are structural",
    "zero_denominator": "the denominator is zero: no cycle of the compute pipes was counted",
    "rounded_to_zero": "the numerator was recorded as 0: the pipe was not used, or its share was rounded away",
}
CODES: dict[str, int] = {code: i for i, code in enumerate(MISSING)}
RECORDED = CODES["recorded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value, or None and why: a key of MISSING."""

    value: float | None
    missing: str = "recorded"

    def __post_init__(self) -> None:
        if (self.value is None) == (self.missing == "recorded") or self.missing not in CODES:
            raise InvariantBroken(f"a reading of {self.value} cannot be {self.missing!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterColumn:
    """One counter of one core: `value` is NaN exactly where `missing` is not RECORDED."""

    core: str
    name: str
    unit: str
    value: Float64
    missing: Codes

    @classmethod
    def from_readings(cls, core: str, name: str, unit: str, readings: Sequence[Reading]) -> CounterColumn:
        """A column of readings, one a kernel."""
        return cls(
            core=core,
            name=name,
            unit=unit,
            value=np.array([np.nan if r.value is None else r.value for r in readings], np.float64),
            missing=np.array([CODES[r.missing] for r in readings], np.int8),
        )

    def take(self, rows: Rows) -> CounterColumn:
        """Some kernels, by mask or by position."""
        return CounterColumn(
            core=self.core, name=self.name, unit=self.unit, value=self.value[rows], missing=self.missing[rows]
        )

    def reading(self, index: int) -> Reading:
        """The value of one kernel."""
        code = int(self.missing[index])
        return Reading(value=None if code else float(self.value[index]), missing=tuple(MISSING)[code])


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The counters of a store's kernels.

    Attributes:
        source: what they were read from.
        setting: the counter set that the recorder was told to record, as it spells it; None: it does not say.
        record_with: the setting that records what bounds a kernel.
        row: positions in the store's events, ascending; kernels without a row have no counters at all.
        label_id: what each kernel ran on, as recorded (AI_CORE, MIX_AIC, ...), a position in `labels`.
        columns: one a counter and core, each as long as `row`; empty: none was recorded.
    """

    source: str
    setting: str | None
    record_with: str
    row: Int64
    label_id: Codes
    labels: tuple[str, ...]
    columns: tuple[CounterColumn, ...]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def cores(self) -> tuple[str, ...]:
        """Cores that have a column, in the order of the columns."""
        return tuple(dict.fromkeys(column.core for column in self.columns))

    def column(self, core: str, name: str) -> CounterColumn:
        """One column; a column of `no_column` where the capture has none."""
        for column in self.columns:
            if (column.core, column.name) == (core, name):
                return column
        absent = np.full(len(self.row), CODES["no_column"], np.int8)
        return CounterColumn(core=core, name=name, unit="", value=np.full(len(self.row), np.nan), missing=absent)

    def label(self, index: int) -> str:
        """What one kernel ran on."""
        return self.labels[int(self.label_id[index])]

    def of_events(self, kept: Rows, num_events: int) -> Counters:
        """The counters of some of the store's events, which then are all that there are.

        `kept` is a mask over the `num_events` events, or positions among them in their new order.
        """
        position = np.full(num_events, -1, np.int64)
        chosen = np.flatnonzero(kept) if kept.dtype == np.bool_ else kept
        position[chosen] = np.arange(len(chosen))
        return self.moved(position[self.row])

    def moved(self, row: Int64) -> Counters:
        """The same counters with their events at other positions; -1 leaves a kernel out."""
        order = np.argsort(row, kind="stable")
        order = order[row[order] >= 0]
        return Counters(
            source=self.source,
            setting=self.setting,
            record_with=self.record_with,
            row=row[order],
            label_id=self.label_id[order],
            labels=self.labels,
            columns=tuple(column.take(order) for column in self.columns),
        )

    def check(self, num_events: int) -> None:
        """Laws: rows ascend and are there, columns are as long as rows, a value is a number or has a reason."""
        if len(self.row) and (int(self.row.min()) < 0 or int(self.row.max()) >= num_events):
            raise InvariantBroken("counters belong to an event that is not there")
        if len(self.row) > 1 and bool((np.diff(self.row) <= 0).any()):
            raise InvariantBroken("counters are not in the order of their events, or one event has two")
        for column in self.columns:
            if not len(column.value) == len(column.missing) == len(self.row):
                raise InvariantBroken(f"{column.core} {column.name}: not one value a kernel")
            if bool((np.isfinite(column.value) != (column.missing == RECORDED)).any()):
                raise InvariantBroken(f"{column.core} {column.name}: a value without a number, or a reason with one")
