"""Result: what became of one cell, as one JSON file, written aside and renamed so that it is whole or not there."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepscope.sweep.figure import FIGURES, Figure, unknown

if TYPE_CHECKING:
    from stepscope.sweep.figure import Measured
    from stepscope.sweep.plan import Cell, Plan

Status = Literal["ok", "invalid", "failed"]
Result = dict[str, Any]
FORMAT = "stepscope-sweep-cell/1"


def make_result(plan: Plan, cell: Cell, measured: Measured, conditions: dict[str, Any], problems: list[str]) -> Result:
    """Of a cell that ran; with problems it is invalid."""
    why = "this driver does not measure it" if measured.figures else "no step of the window is one of the cell"
    not_here = unknown(why)
    figures = {name: asdict(measured.figures.get(name, not_here)) for name in FIGURES}
    return _result(plan, cell, "invalid" if problems else "ok") | {
        "reasons": problems,
        "conditions": conditions,
        "figures": figures,
        "samples_s": list(measured.samples),
        "rows_per_expert": list(measured.rows_per_expert),
        "notes": list(measured.notes),
        "details": measured.details,
    }


def failed_result(plan: Plan, cell: Cell, reason: str) -> Result:
    """Of a cell that could not be run."""
    figures = {name: asdict(Figure(reason="the cell failed")) for name in FIGURES}
    empty: Result = {"conditions": {}, "samples_s": [], "rows_per_expert": [], "notes": [], "details": {}}
    return _result(plan, cell, "failed") | {"reasons": [reason], "figures": figures} | empty


def _result(plan: Plan, cell: Cell, status: Status) -> Result:
    return {"format": FORMAT, "plan_hash": plan.hash, "cell": {"name": cell.name, **asdict(cell)}, "status": status}


def result_path(folder: Path, cell: Cell) -> Path:
    """Where a cell's result is."""
    return folder / "cells" / f"{cell.name}.json"


def write_json(path: Path, content: Any) -> None:
    """Aside first, then renamed; on the disk before it has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    aside = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_result(folder: Path, plan: Plan, cell: Cell) -> Result | None:
    """A cell's result; None where there is none of this plan that is whole."""
    try:
        found = json.loads(result_path(folder, cell).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(found, dict) and found.get("format") == FORMAT and found.get("plan_hash") == plan.hash
    return found if is_ours else None
