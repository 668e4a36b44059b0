"""An account -> the declared tables, as rows (dicts) and as Arrow; column names and order come from `store.schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stepscope.budget.breakdown import WITHHELD
from stepscope.budget.placement import NO_ACCOUNT
from stepscope.errors import InvariantBroken
from stepscope.steps.composition import NO_STEP
from stepscope.store.events import NO_ID
from stepscope.store.schema import CATEGORIES, KINDS, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.answers.account import Account, RankAccount
    from stepscope.budget.breakdown import WindowBudget
    from stepscope.steps.step import Step
    from stepscope.store.events import EventStore

Row = dict[str, Any]

_ARROW = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(), "string": pa.string(), "bool": pa.bool_()}


def step_rows(account: Account) -> list[Row]:
    """One row a step, empty ones too, rank by rank."""
    rows: list[Row] = []
    for rank in account.ranks:
        budgets = {budget.step_id: budget for budget in rank.budget.windows}
        rows += [_step_row(step, budgets.get(step.step_id)) for step in rank.table.steps]
    return rows


def _step_row(step: Step, budget: WindowBudget | None) -> Row:
    shape, boundary = step.boundary.shape, step.boundary
    has_host = boundary.first_work is None
    row: Row = {
        "step_id": step.step_id,
        "rank": step.rank,
        "source": boundary.source,
        "grade": boundary.grade,
        "phase": step.phase,
        "start_ns": step.window[0] if step.window else None,
        "window_ns": step.window[1] - step.window[0] if step.window else None,
        "host_start_ns": boundary.start_ns if has_host else None,
        "host_duration_ns": boundary.end_ns - boundary.start_ns if has_host else None,
        "num_prefill_requests": shape.prefill.num_requests,
        "num_decode_requests": shape.decode.num_requests,
        "num_scheduled_tokens": shape.num_scheduled_tokens,
        "graph_mode": step.graph_mode,
        "num_padded_tokens": boundary.num_padded_tokens,
        "num_kernels": step.num_kernels,
        "device_busy_ns": step.device_busy_ns,
    }
    for side, sums in (("prefill", shape.prefill), ("decode", shape.decode)):
        for name in ("query_sum", "kv_sum", "query_sq_sum", "query_kv_sum"):
            row[f"{side}_{name}"] = getattr(sums, name)
    for category in CATEGORIES:
        row[f"exclusive_{category}_ns"] = budget.exclusive_ns[category] if budget else None
    return ordered("steps", row)


def ordered(table: str, row: Row) -> Row:
    """A row with exactly the declared columns, in their order."""
    names = [column.name for column in TABLES[table]]
    if set(names) != set(row):
        raise InvariantBroken(f"a row of {table} has {sorted(set(row) ^ set(names))} too many or too few")
    return {name: row[name] for name in names}


def part_rows(account: Account) -> list[Row]:
    """Named sub-ranges of steps."""
    return [
        ordered(
            "parts",
            {
                "step_id": step.step_id,
                "rank": step.rank,
                "part": part.name,
                "start_ns": part.start_ns,
                "duration_ns": part.duration_ns,
            },
        )
        for rank in account.ranks
        for step in rank.table.steps
        for part in step.parts
    ]


def budget_rows(account: Account) -> list[Row]:
    """One row a window, and one a rank for its whole span (step_id null)."""
    rows = []
    for rank in account.ranks:
        for budget in (*rank.budget.windows, rank.budget.total):
            row: Row = {
                "rank": budget.rank,
                "step_id": budget.step_id,
                "start_ns": budget.start_ns,
                "window_ns": budget.window_ns,
            }
            row |= {f"exclusive_{name}_ns": ns for name, ns in budget.exclusive_ns.items()}
            row |= {f"busy_{name}_ns": ns for name, ns in budget.busy_ns.items()}
            rows.append(ordered("budget", row))
    return rows


def family_rows(account: Account) -> list[Row]:
    """Time per family over each rank's span; idle families too, unless they are withheld."""
    rows = []
    for rank in account.ranks:
        counts, sums = _per_account(rank)
        claimable = rank.budget.coverage.idle_claimable
        for (category, family), part in rank.budget.partition.parts.items():
            if not claimable and category in WITHHELD:
                continue
            rows.append(
                ordered(
                    "families",
                    {
                        "rank": rank.rank,
                        "category": category,
                        "family": family,
                        "count": counts.get((category, family), 0),
                        "exclusive_ns": part.total_ns,
                        "sum_ns": sums.get((category, family), 0),
                    },
                )
            )
    return sorted(rows, key=lambda row: (row["rank"] is None, row["rank"] or 0, -row["exclusive_ns"], row["family"]))


def _per_account(rank: RankAccount) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]]:
    e, placements = rank.store.events, rank.budget.placements
    placed = placements.account != NO_ACCOUNT
    count = np.bincount(placements.account[placed], minlength=len(placements.accounts))
    total = np.bincount(
        placements.account[placed], weights=e.duration_ns[placed].astype(np.float64), minlength=len(placements.accounts)
    )
    return (
        {a: int(n) for a, n in zip(placements.accounts, count.tolist(), strict=True)},
        {a: int(n) for a, n in zip(placements.accounts, total.tolist(), strict=True)},
    )


def signal_rows(account: Account) -> list[Row]:
    """The recorded signals of the four layers."""
    return [
        ordered(
            "signals",
            {
                "rank": s.rank,
                "signal": s.signal,
                "layer": s.layer,
                "count": s.count,
                "total_ns": s.total_ns,
                "median_ns": s.median_ns,
                "p90_ns": s.p90_ns,
                "share": s.share,
            },
        )
        for rank in account.ranks
        for s in rank.signals
    ]


def health_rows(account: Account) -> list[Row]:
    """Losses and doubts of the import, file by file."""
    stores = [*(rank.store for rank in account.ranks), *account.others]
    return [
        ordered(
            "health",
            {
                "rank": store.rank,
                "path": store.origin.path,
                "code": row.code,
                "severity": row.severity,
                "count": row.count,
                "detail": row.detail,
            },
        )
        for store in stores
        for row in store.health
    ]


def to_arrow(table: str, rows: Iterable[Row]) -> pa.Table:
    """Rows as an Arrow table with the declared types."""
    schema = pa.schema([(column.name, _ARROW[column.dtype]) for column in TABLES[table]])
    return pa.Table.from_pylist(list(rows), schema=schema)


def event_table(account: Account) -> pa.Table:
    """All events of all stores, names dictionary-coded."""
    stores = [*(rank.store for rank in account.ranks), *account.others]
    return pa.concat_tables([_events_of(store) for store in stores], promote_options="permissive").unify_dictionaries()


def _events_of(store: EventStore) -> pa.Table:
    e = store.events
    return pa.table(
        {
            "rank": pa.array(np.full(len(e), store.rank or 0), pa.int64(), mask=np.full(len(e), store.rank is None)),
            "start_ns": e.start_ns,
            "duration_ns": e.duration_ns,
            "kind": pa.DictionaryArray.from_arrays(pa.array(e.kind), pa.array(KINDS)),
            "name": pa.DictionaryArray.from_arrays(pa.array(e.name_id), pa.array(store.names, pa.string())),
            "track_id": e.track_id,
            "correlation_id": pa.array(e.correlation_id, mask=e.correlation_id == NO_ID),
        }
    )


def kernel_table(account: Account) -> pa.Table:
    """Device work with its step and family."""
    return pa.concat_tables([_kernels_of(rank) for rank in account.ranks] or [to_arrow("kernels", [])])


def _kernels_of(rank: RankAccount) -> pa.Table:
    e, rows, work = rank.store.events, rank.table.work.row, rank.table.work
    accounts = [rank.budget.placements.accounts[i] for i in rank.budget.placements.account[rows].tolist()]
    steps = [None if i == NO_STEP else rank.table.steps[i].step_id for i in work.boundary.tolist()]
    columns = {
        "rank": [rank.rank] * len(rows),
        "step_id": steps,
        "start_ns": e.start_ns[rows],
        "duration_ns": e.duration_ns[rows],
        "name": [rank.store.names[i] for i in e.name_id[rows].tolist()],
        "category": [category for category, _ in accounts],
        "family": [None if category == "unmatched" else family for category, family in accounts],
    }
    schema = pa.schema([(column.name, _ARROW[column.dtype]) for column in TABLES["kernels"]])
    return pa.table(columns, schema=schema)


def track_rows(account: Account) -> list[Row]:
    """Host threads and device streams."""
    stores = [*(rank.store for rank in account.ranks), *account.others]
    return [
        ordered(
            "tracks",
            {
                "rank": store.rank,
                "track_id": i,
                "process": track.process,
                "thread": track.thread,
                "is_device": track.is_device,
                "device": track.device,
                "label": track.label,
            },
        )
        for store in stores
        for i, track in enumerate(store.tracks)
    ]


ROW_TABLES: dict[str, Callable[[Account], list[Row]]] = {
    "steps": step_rows,
    "parts": part_rows,
    "budget": budget_rows,
    "families": family_rows,
    "signals": signal_rows,
    "health": health_rows,
    "tracks": track_rows,
}


def arrow_tables(account: Account) -> dict[str, pa.Table]:
    """Every declared table."""
    tables = {name: to_arrow(name, make(account)) for name, make in ROW_TABLES.items()}
    return tables | {"events": event_table(account), "kernels": kernel_table(account)}
