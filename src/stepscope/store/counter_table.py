"""Counters <-> one Arrow table and a description: how a Run folder keeps them.

The table has the columns `row` and `label_id`, and for the k-th counter `value_k` and `missing_k`; the description
says what the k-th counter is. Codes of missing values are written by name, so that the table of codes may grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stepscope.store.counters import CODES, MISSING, CounterColumn, Counters

if TYPE_CHECKING:
    from collections.abc import Mapping


def counters_to_table(counters: Counters) -> pa.Table:
    """The columns."""
    columns = {"row": counters.row, "label_id": counters.label_id}
    for k, column in enumerate(counters.columns):
        columns |= {f"value_{k}": column.value, f"missing_{k}": column.missing}
    return pa.table(columns)


def describe_counters(counters: Counters) -> dict[str, Any]:
    """What the columns are."""
    return {
        "source": counters.source,
        "setting": counters.setting,
        "record_with": counters.record_with,
        "labels": list(counters.labels),
        "columns": [[column.core, column.name, column.unit] for column in counters.columns],
        "codes": list(MISSING),
    }


def counters_from_table(table: pa.Table, described: Mapping[str, Any]) -> Counters:
    """The counters again.

    Raises:
        KeyError: the table lacks a column, or a reason is not known.
    """
    codes = np.array([CODES[code] for code in described["codes"]], np.int8)
    return Counters(
        source=described["source"],
        setting=described["setting"],
        record_with=described["record_with"],
        row=table.column("row").to_numpy(),
        label_id=table.column("label_id").to_numpy(),
        labels=tuple(described["labels"]),
        columns=tuple(
            CounterColumn(
                core=core,
                name=name,
                unit=unit,
                value=table.column(f"value_{k}").to_numpy(),
                missing=codes[table.column(f"missing_{k}").to_numpy()],
            )
            for k, (core, name, unit) in enumerate(described["columns"])
        ),
    )
