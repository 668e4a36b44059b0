"""Report: a sweep's results as one JSON-able document: a row a cell, three crossovers, what was held, what is missing.

Nothing in it depends on when or in how many attempts the cells ran.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.sweep.crossovers import find_crossovers, predict_crossovers
from stepscope.sweep.figure import FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.sweep.plan import Plan
    from stepscope.sweep.result import Result


def sweep_document(plan: Plan, results: Sequence[Result], hardware: str | None = None) -> dict[str, Any]:
    """Everything that a report shows; `hardware` predicts beside it (default: the plan's)."""
    there = {result["cell"]["name"] for result in results}
    predicted = predict_crossovers(plan, hardware)
    steps = (predicted or {}).get("step_s", {})
    return {
        "plan": msgspec.to_builtins(plan),
        "plan_hash": plan.hash,
        "conditions": next((result["conditions"] for result in results if result["status"] == "ok"), {}),
        "status": dict(sorted(Counter(result["status"] for result in results).items())),
        "missing": [cell.name for cell in plan.cells if cell.name not in there],
        "cells": [cell_row(result) | {"predicted_step_s": steps.get(result["cell"]["name"])} for result in results],
        "graded": [_graded(result) for result in results],
        "crossovers": find_crossovers(plan, results),
        "predicted": predicted,
    }


def cell_row(result: Result) -> dict[str, Any]:
    """A flat row: the cell, every figure's value, and why it is not valid."""
    cell = result["cell"]
    row = {"cell": cell["name"], "kind": cell["kind"], "tokens": cell["tokens"], "batch": cell["batch"]}
    row |= {"context_len": cell["context_len"], "status": result["status"]}
    row |= {name: result["figures"][name]["value"] for name in FIGURES}
    return row | {"reasons": "; ".join(result["reasons"])}


def _graded(result: Result) -> dict[str, Any]:
    """Grades of what is known, reasons of what is not, and the whole M_e."""
    figures = result["figures"]
    return {
        "cell": result["cell"]["name"],
        "grades": {name: figures[name]["grade"] for name in FIGURES if figures[name]["value"] is not None},
        "unknown": {name: figures[name]["reason"] for name in FIGURES if figures[name]["value"] is None},
        "rows_per_expert": result["rows_per_expert"],
        "notes": result["notes"],
    }
