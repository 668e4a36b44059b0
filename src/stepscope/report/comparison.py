"""A comparison -> the document: JSON-able, versioned, and its numbers as rows for CSV.

Deltas are B minus A, summed over a workload's pairs. A withheld number is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import stepscope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.answers.cause import Cause
    from stepscope.answers.compare import Compared, Comparison
    from stepscope.answers.kernels import KernelChange
    from stepscope.answers.noise import Delta, Estimate
    from stepscope.answers.whole import WholeFamily
    from stepscope.messages import Message

SCHEMA = "stepscope.comparison/1"
ROW_COLUMNS = (
    "rank", "workload", "pairs", "level", "category", "name", "a_ns", "b_ns", "delta_ns", "median_ns", "low_ns",
    "high_ns", "beyond_noise", "count_a", "count_b", "change", "grade",
)  # fmt: skip
Document = dict[str, Any]


def to_comparison_document(comparison: Comparison) -> Document:
    """Every fact of a comparison; with a simulated run no number is more than simulated."""
    document: Document = {
        "schema": SCHEMA,
        "version": stepscope.__version__,
        "a": comparison.source_a,
        "b": comparison.source_b,
        "kv_tolerance": comparison.kv_tolerance,
        "cause": {
            "headline": str(comparison.causes.headline),
            "named": [_cause(cause) for cause in comparison.causes.named],
        },
        "verdict": {
            "status": comparison.verdict.status,
            "sentences": [str(m) for m in comparison.verdict.sentences],
            "record_with": [str(m) for m in comparison.verdict.record_with],
        },
        "differences": [
            {"id": d.id, "effect": d.effect, "a": d.a, "b": d.b, "text": str(d.text), "grade": d.grade}
            for d in comparison.differences
        ],
        "workloads": [_workload(compared) for compared in comparison.workloads],
        "unmatched": [
            {
                "side": u.side,
                "rank": u.rank,
                "phase": u.phase,
                "num_scheduled_tokens": u.num_tokens,
                "step_ids": list(u.step_ids),
                "reason": str(u.reason),
            }
            for u in comparison.unmatched
        ],
        "families": [_whole(family) for family in comparison.families],
        "messages": _messages(comparison),
    }
    return _as_simulated(document) if comparison.is_simulated else document


def _as_simulated(part: Any) -> Any:
    if isinstance(part, list):
        return [_as_simulated(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: "simulated" if key == "grade" and value not in (None, "refused") else _as_simulated(value)
        for key, value in part.items()
    }


def _cause(cause: Cause) -> Document:
    return {
        "kind": cause.kind,
        "rank": cause.rank,
        "category": cause.category,
        "family": cause.family,
        "function": cause.function,
        "delta_ns": cause.delta_ns,
        "num_pairs": cause.num_pairs,
        "sentences": [str(m) for m in cause.sentences],
        "not_shown": str(cause.not_shown),
        "grade": cause.grade,
    }


def _workload(compared: Compared) -> Document:
    workload, uniform = compared.workload, compared.uniform
    return {
        "rank": workload.rank,
        "label": str(workload.label),
        "phase": workload.phase,
        "num_prefill_requests": workload.num_prefill,
        "num_decode_requests": workload.num_decode,
        "num_scheduled_tokens": workload.num_tokens,
        "kv_range": None if workload.kv_range is None else list(workload.kv_range),
        "num_pairs": len(workload.pairs),
        "outcome": compared.conclusion.outcome,
        "judged": compared.conclusion.judged,
        "shares": compared.conclusion.shares,
        "sentences": [str(m) for m in compared.conclusion.sentences],
        "wall": _delta(compared.wall),
        "parts": {name: _delta(delta) for name, delta in compared.parts.items()},
        "categories": {name: _delta(delta) for name, delta in compared.categories.items()},
        "families": [
            {"category": category, "family": family, **(_delta(delta) or {})}
            for (category, family), delta in compared.families.items()
        ],
        "kernels": [_kernel(change) for change in compared.kernels],
        "uniform": None
        if uniform is None
        else {
            "ratio": uniform.ratio,
            "smallest_ratio": uniform.smallest_ratio,
            "largest_ratio": uniform.largest_ratio,
            "num_names": uniform.num_names,
            "grade": "inferred",
        },
    }


def _whole(family: WholeFamily) -> Document:
    return {
        "category": family.category,
        "family": family.family,
        "count_a": family.count_a,
        "count_b": family.count_b,
        "a_ns": family.a_ns,
        "b_ns": family.b_ns,
        "one_a_ns": family.one_a_ns,
        "one_b_ns": family.one_b_ns,
        "grade": "classified",
    }


def _delta(delta: Delta | None) -> Document | None:
    if delta is None:
        return None
    return {
        "a_ns": delta.a_ns,
        "b_ns": delta.b_ns,
        "delta_ns": delta.delta_ns,
        "median_ns": delta.pairs.median_ns,
        "low_ns": delta.pairs.low_ns,
        "high_ns": delta.pairs.high_ns,
        "beyond_noise": delta.beyond_noise,
        "grade": delta.grade,
    }


def _kernel(change: KernelChange) -> Document:
    return {
        "name": change.name,
        "category": change.account[0],
        "family": change.account[1],
        "change": change.change,
        "count_a": change.count_a,
        "count_b": change.count_b,
        "a_ns": change.a_ns,
        "b_ns": change.b_ns,
        "delta_ns": change.b_ns - change.a_ns,
        "one_a": _one(change.a),
        "one_b": _one(change.b),
        "grade": "derived",
    }


def _one(estimate: Estimate | None) -> Document | None:
    if estimate is None:
        return None
    return {"median_ns": estimate.median_ns, "low_ns": estimate.low_ns, "high_ns": estimate.high_ns}


def _messages(comparison: Comparison) -> Document:
    """Every sentence with the template and values that it was made from, for other languages."""
    said: list[Message] = [comparison.causes.headline, *comparison.verdict.sentences, *comparison.verdict.record_with]
    said += [m for cause in comparison.causes.named for m in (*cause.sentences, cause.not_shown)]
    said += [d.text for d in comparison.differences]
    said += [u.reason for u in comparison.unmatched]
    said += [m for c in comparison.workloads for m in (c.workload.label, *c.conclusion.sentences)]
    parts = {str(part): part for message in said for part in message.walk()}
    return {
        text: {"template": part.template, "values": {name: str(value) for name, value in part.values.items()}}
        for text, part in parts.items()
    }


def comparison_rows(document: Document) -> list[Document]:
    """One row a number: wall, parts, categories, families and kernels of each workload; else the whole captures'."""
    head = dict.fromkeys(ROW_COLUMNS) | {"level": "family, whole capture"}
    whole = [
        head | {key: value for key, value in family.items() if key in ROW_COLUMNS} | {"name": family["family"]}
        for family in document["families"]
    ]
    return [row for workload in document["workloads"] for row in _rows(workload)] + whole


def _rows(workload: Document) -> Iterator[Document]:
    head = dict.fromkeys(ROW_COLUMNS) | {
        "rank": workload["rank"],
        "workload": workload["label"],
        "pairs": workload["num_pairs"],
    }
    deltas: list[tuple[str, str | None, str, Document | None]] = [("wall", None, "wall", workload["wall"])]
    deltas += [("part", None, name, delta) for name, delta in workload["parts"].items()]
    deltas += [("category", name, name, delta) for name, delta in workload["categories"].items()]
    deltas += [("family", row["category"], row["family"], row) for row in workload["families"]]
    for level, category, name, delta in deltas:
        numbers = {key: value for key, value in (delta or {"grade": "refused"}).items() if key in ROW_COLUMNS}
        yield head | numbers | {"level": level, "category": category, "name": name}
    for kernel in workload["kernels"]:
        yield head | {key: value for key, value in kernel.items() if key in ROW_COLUMNS} | {"level": "kernel"}
