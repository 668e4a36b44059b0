"""Documents for the tests of views: those of the examples, and one of them stretched to any number of steps."""

from __future__ import annotations

import copy
import random
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.answers.account import explain
from stepscope.report.document import to_document
from stepscope.store.schema import CATEGORIES

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror='x'>\"&amp;{{ 7*7 }}"

Document = dict[str, Any]


@cache
def _example(name: str) -> Document:
    return to_document(explain(EXAMPLES / name))


def example(name: str) -> Document:
    """The document of a bundled capture; the caller may change it."""
    return copy.deepcopy(_example(name))


def withheld() -> Document:
    """The GLM example as if rank 0 had lost kernels: what is withheld is None, and its ns stand under unknown."""
    document = example("glm52-prefill")
    document["coverage"]["idle_claimable"] = False
    document["coverage"]["ranks"][0]["idle_claimable"] = False
    document["coverage"]["reasons"] = [
        {
            "rank": 0,
            "code": "partial_replays",
            "withholds": True,
            "text": "replays differ",
            "record_with": "record less",
        }
    ]
    for row in document["budget"]:
        if row["rank"] == 0:
            row["exclusive_ns"] = _hidden(row["exclusive_ns"])
    for row in document["steps"]["rows"]:
        if row["rank"] == 0:
            known = _hidden({name: row[f"exclusive_{name}_ns"] for name in CATEGORIES})
            row.update({f"exclusive_{name}_ns": ns for name, ns in known.items()})
    for row in document["signals"]:
        if row["rank"] == 0:
            row["share"] = None
    return document


def _hidden(exclusive: dict[str, int]) -> dict[str, int | None]:
    gone = ("supply", "host", "idle")
    moved = sum(exclusive[name] for name in gone)
    return {name: None if name in gone else ns for name, ns in exclusive.items()} | {
        "unknown": exclusive["unknown"] + moved
    }


def stretched(name: str, steps: int) -> Document:
    """An example whose steps are repeated, with times that differ a little each time; windows still add up."""
    document, chance = example(name), random.Random(7)
    rows: list[Document] = []
    windows: list[Document] = []
    sources = {rank: [r for r in document["steps"]["rows"] if r["rank"] == rank] for rank in _ranks(document)}
    for rank, of in sources.items():
        start, total = of[0]["start_ns"], dict.fromkeys(CATEGORIES, 0)
        for step_id in range(steps):
            row = dict(of[step_id % len(of)])
            exclusive = {c: int(row[f"exclusive_{c}_ns"] * chance.uniform(0.9, 1.1)) for c in CATEGORIES}
            window = sum(exclusive.values())
            row |= {"step_id": step_id, "start_ns": start, "window_ns": window, "host_start_ns": start}
            row |= {f"exclusive_{c}_ns": ns for c, ns in exclusive.items()}
            rows.append(row)
            at = {"rank": rank, "step_id": step_id, "start_ns": start, "window_ns": window}
            windows.append(at | {"exclusive_ns": exclusive, "busy_ns": exclusive})
            total = {c: total[c] + exclusive[c] for c in CATEGORIES}
            start += window
        whole = {"rank": rank, "step_id": None, "start_ns": of[0]["start_ns"], "window_ns": sum(total.values())}
        windows.append(whole | {"exclusive_ns": total, "busy_ns": total})
    document["steps"] |= {"rows": rows, "count": steps, "count_by_rank": {str(rank): steps for rank in sources}}
    document["budget"] = windows
    for packed in ("step_families", "step_kernels"):
        document[packed]["rows"] = _repeated(document[packed]["rows"], steps, chance)
    return document


def _ranks(document: Document) -> list[int]:
    return [row["rank"] for row in document["coverage"]["ranks"]]


def _repeated(rows: list[list[Any]], steps: int, chance: random.Random) -> list[list[Any]]:
    by_step: dict[tuple[int, int], list[list[Any]]] = {}
    for row in rows:
        by_step.setdefault((row[0], row[1]), []).append(row)
    period = max(step for _, step in by_step) + 1
    return [
        [rank, step_id, *row[2:-1], int(row[-1] * chance.uniform(0.9, 1.1))]
        for rank in sorted({rank for rank, _ in by_step})
        for step_id in range(steps)
        for row in by_step.get((rank, step_id % period), [])
    ]
