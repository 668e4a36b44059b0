"""A comparison -> data (JSON-able, versioned), rows for CSV, and text and Markdown that only format the data.

Deltas are B minus A, summed over a workload's pairs; texts show them per step. A withheld number is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import stepscope
from stepscope.answers.compare import PART_MEANING
from stepscope.answers.kernels import CHANGE_MEANING
from stepscope.report.text import Document, _Grid, _printed, _Section
from stepscope.units import UNKNOWN, show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.answers.compare import Compared, Comparison
    from stepscope.answers.kernels import KernelChange
    from stepscope.answers.noise import Delta, Estimate
    from stepscope.messages import Message

SCHEMA = "stepscope.comparison/1"
ROW_COLUMNS = (
    "rank", "workload", "pairs", "level", "category", "name", "a_ns", "b_ns", "delta_ns", "median_ns", "low_ns",
    "high_ns", "beyond_noise", "count_a", "count_b", "change", "grade",
)  # fmt: skip
_SHOWN = 12  # families and kernels of a workload in text
_SHOWN_UNMATCHED = 20
_NAME_CHARS = 56
_EFFECTS = {
    "path": "ANOTHER PATH",
    "evidence": "WITHHELD",
    "overhead": "not recorded alike",
    "caveat": "caveat",
    "note": "note",
}


def to_comparison_document(comparison: Comparison) -> Document:
    """Every fact of a comparison."""
    return {
        "schema": SCHEMA,
        "version": stepscope.__version__,
        "a": comparison.source_a,
        "b": comparison.source_b,
        "kv_tolerance": comparison.kv_tolerance,
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
        "messages": _messages(comparison),
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
    said: list[Message] = [*comparison.verdict.sentences, *comparison.verdict.record_with]
    said += [d.text for d in comparison.differences]
    said += [u.reason for u in comparison.unmatched]
    said += [m for c in comparison.workloads for m in (c.workload.label, *c.conclusion.sentences)]
    parts = {str(part): part for message in said for part in message.walk()}
    return {
        text: {"template": part.template, "values": {name: str(value) for name, value in part.values.items()}}
        for text, part in parts.items()
    }


def comparison_rows(document: Document) -> list[Document]:
    """One row a number: wall, parts, categories, families and kernels of each workload."""
    return [row for workload in document["workloads"] for row in _rows(workload)]


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


def to_comparison_text(document: Document, *, width: int = 118) -> str:
    """For a terminal."""
    return _printed(_sections(document), width)


def to_comparison_markdown(document: Document) -> str:
    """The same sections, to paste into a pull request."""
    return "\n".join(section.to_markdown() for section in _sections(document))


def _sections(document: Document) -> list[_Section]:
    workloads = [section for workload in document["workloads"] for section in _workload_sections(workload)]
    return [_differences(document), _verdict(document), _matched(document), *workloads, _unmatched(document)]


def _differences(document: Document) -> _Section:
    lines = [f"{_EFFECTS[d['effect']]}: {d['text']}  [{d['grade']}]" for d in document["differences"]]
    return _Section(
        f"What differs, before any time  A: {document['a']}  B: {document['b']}",
        lines or ["Nothing that the captures hold: configuration, graph modes and kernels are the same."],
    )


def _verdict(document: Document) -> _Section:
    verdict = document["verdict"]
    lines = list(verdict["sentences"])
    lines += [f"  to do: {record}." for record in verdict["record_with"]]
    return _Section(f"Verdict: {verdict['status'].upper()}", lines)


def _matched(document: Document) -> _Section:
    columns = ["rank", "workload", ">pairs", ">A", ">B", ">B - A", ">kernel", ">comm", ">idle", ">unknown", "outcome"]
    rows = []
    for workload in document["workloads"]:
        n, wall = workload["num_pairs"], workload["wall"]
        parts = [workload["parts"][name] for name in ("kernel", "comm", "idle", "unknown")]
        rows.append(
            [
                _rank(workload["rank"]),
                workload["label"],
                str(n),
                _per_step(wall["a_ns"], n),
                _per_step(wall["b_ns"], n),
                _signed(wall["delta_ns"], n),
                *(UNKNOWN if part is None else _signed(part["delta_ns"], n) for part in parts),
                workload["outcome"],
            ]
        )
    lines = [
        f"Mean per step; B - A splits into its parts to the ns. kv sums match within {document['kv_tolerance']:.0%}.",
        "Bounds hold the spread inside these two captures: record each side again to see how runs differ.",
        *(f"{name}: {meaning}" for name, meaning in PART_MEANING.items()),
    ]
    return _Section("Matched steps, workload by workload", lines, _Grid(columns, rows))


def _workload_sections(workload: Document) -> list[_Section]:
    n, title = workload["num_pairs"], f"{_rank(workload['rank'])}: {workload['label']}  ({workload['num_pairs']} pairs)"
    rows = [_delta_row("wall", workload["wall"], n)]
    rows += [_delta_row(name, delta, n) for name, delta in workload["parts"].items()]
    rows += [_delta_row(f"  {name}", d, n) for name, d in workload["categories"].items() if d is None or _moves(d)]
    rows += [_delta_row(f"  {d['category']} / {d['family']}", d, n) for d in workload["families"][:_SHOWN]]
    columns = ["per step", ">A", ">B", ">B - A", ">median of pairs", "95 % interval", "beyond noise", "grade"]
    kernels = [k for k in workload["kernels"] if k["change"] != "same"] or workload["kernels"]
    shown = kernels[:_SHOWN]
    kernel_columns = ["kernel", "family", "change", ">launches A", ">B", ">one A", ">one B", ">B - A per step"]
    kernel_rows = [
        [
            k["name"][:_NAME_CHARS],
            k["family"],
            k["change"],
            show_count(k["count_a"]),
            show_count(k["count_b"]),
            show_ns(k["one_a"]["median_ns"] if k["one_a"] else None),
            show_ns(k["one_b"]["median_ns"] if k["one_b"] else None),
            _signed(k["delta_ns"], n),
        ]
        for k in shown
    ]
    lines = [f"{name}: {CHANGE_MEANING[name]}" for name in dict.fromkeys(k["change"] for k in shown)]
    note = f"Kernels, the largest change of total time first ({len(shown)} of {len(workload['kernels'])})  [derived]"
    return [
        _Section(title, workload["sentences"], _Grid(columns, rows)),
        _Section(note, lines, _Grid(kernel_columns, kernel_rows)),
    ]


def _moves(delta: Document) -> bool:
    return bool(delta["a_ns"] or delta["b_ns"])


def _delta_row(name: str, delta: Document | None, n: int) -> list[str]:
    if delta is None:
        return [name, *([UNKNOWN] * 6), "refused"]
    low, high = delta["low_ns"], delta["high_ns"]
    beyond = {True: "yes", False: "no", None: "no bound"}[delta["beyond_noise"]]
    share = show_fraction(delta["delta_ns"] / delta["a_ns"]) if delta["a_ns"] else UNKNOWN
    return [
        name,
        _per_step(delta["a_ns"], n),
        _per_step(delta["b_ns"], n),
        f"{_signed(delta['delta_ns'], n)} ({share})",
        _signed(delta["median_ns"], 1),
        UNKNOWN if low is None else f"{_signed(low, 1)} to {_signed(high, 1)}",
        beyond,
        delta["grade"],
    ]


def _unmatched(document: Document) -> _Section:
    rows: Sequence[Document] = document["unmatched"]
    cells = [
        [
            u["side"].upper(),
            _rank(u["rank"]),
            u["phase"] or UNKNOWN,
            show_count(u["num_scheduled_tokens"]),
            _ids(u["step_ids"]),
            u["reason"],
        ]
        for u in rows[:_SHOWN_UNMATCHED]
    ]
    if not cells:
        return _Section("Steps that are not compared", ["None: every step that ran tokens has its partner."])
    lines = [f"{len(cells)} of {len(rows)} rows."] if len(rows) > len(cells) else []
    return _Section(
        "Steps that are not compared", lines, _Grid(["side", "rank", "phase", ">tokens", "steps", "why"], cells)
    )


def _ids(step_ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, step_ids[:8]))
    return shown if len(step_ids) <= 8 else f"{shown}, ... ({len(step_ids)} steps)"


def _rank(value: int | None) -> str:
    return "rank ?" if value is None else f"rank {value}"


def _per_step(ns: int, n: int) -> str:
    return show_ns(ns // n)


def _signed(ns: int, n: int) -> str:
    each = ns // n if ns >= 0 else -(-ns // n)
    return f"+{show_ns(each)}" if each > 0 else show_ns(each)
