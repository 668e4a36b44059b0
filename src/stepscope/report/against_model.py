"""A run against a model -> its part of the document, and the document's part -> sections of text, Markdown and HTML.

The document holds every rank; a section shows the first one, for ranks of one engine run the same steps.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepscope.report.section import Grid, Section
from stepscope.units import UNKNOWN, show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.answers.against_model import AgainstModel
    from stepscope.answers.alternative import Alternative

Document = dict[str, Any]
_TOP_UNEXPLAINED = 6


def to_model_document(found: AgainstModel) -> Document:
    """JSON-able; ns as whole numbers, bytes and flop as counts, unknown as None."""
    choice = found.choice
    plan, deployment = choice.deployment.plan, choice.deployment
    return {
        "model": choice.architecture.name,
        "hardware": choice.hardware.name,
        "calibration": None if choice.calibration is None else choice.calibration.name,
        "plan": {name: getattr(plan, name) for name in ("tp", "dp", "ep", "pp", "cp")},
        "kv": deployment.kv,
        "weights": deployment.weights or choice.architecture.checkpoint.weights,
        "experts": deployment.experts or deployment.weights or choice.architecture.checkpoint.experts,
        "steps": {rank: {"priced": priced, "left_out": left} for rank, (priced, left) in found.steps.items()},
        "measured_grade": found.measured_grade,
        "families": [
            asdict(row) | {"efficiency": row.efficiency, "efficiency_most": row.efficiency_most}
            for row in found.efficiencies
        ],
        "unexplained": [asdict(row) for row in found.unexplained],
        "products": [asdict(row) for row in found.products],
        "launches": [asdict(row) for row in found.launches],
        "kv_savings": [
            asdict(row) | {"other": _alternative(row.other), "measured_ns": row.measured_ns, "verdict": row.verdict}
            for row in found.kv_savings
        ],
        "quantisation": [
            asdict(row)
            | {
                "formats": list(row.formats),
                "largest": None if row.largest is None else list(row.largest),
                "other": None if row.other is None else _alternative(row.other),
                "fraction": row.fraction,
                "best_case": row.best_case,
                "verdict": row.verdict,
            }
            for row in found.quantisation
        ],
        "sentences": [str(sentence) for sentence in found.sentences],
        "kv_sentences": [str(sentence) for sentence in found.kv_sentences],
        "missing": [str(refusal.missing) for refusal in found.refusals],
        "record_with": [str(refusal.record_with) for refusal in found.refusals],
    }


def _alternative(other: Alternative) -> Document:
    return {"bound_ns": other.bound_ns, "low_ns": other.low_ns, "high_ns": other.high_ns, "grade": other.grade}


def model_sections(document: Document, tr: Callable[[str], str]) -> list[Section]:
    """Nothing where no model was given."""
    found = document.get("against_model")
    if found is None:
        return []
    parts = [_families(found, tr)]
    parts += [_products(found, tr)] if found["products"] else []
    return [*parts, *([_launches(found, tr)] if found["launches"] else [])]


def _families(found: Document, tr: Callable[[str], str]) -> Section:
    title = tr("Against the model: {model} on {hardware}").format(model=found["model"], hardware=found["hardware"])
    lines = [tr(sentence) for sentence in found["sentences"]]
    known = tr("not known: {missing}. To know it, {recipe}.")
    for missing, record_with in zip(found["missing"], found["record_with"], strict=True):
        lines.append(known.format(missing=tr(missing), recipe=tr(record_with)))
    rows = _of_first_rank(found["families"])
    lines += _unexplained(found, tr)
    if not rows:
        return Section(title=title, lines=tuple(lines))
    note = tr(
        "Measured: exclusive time [{grade}]; efficiency: lower bound / measured. A range is of routed experts, from "
        "the fewest to the most that their tokens can reach."
    )
    names = ("phase", "family", ">measured", ">lower bound", ">predicted", ">interval", ">efficiency", "grade")
    return Section(
        title=title,
        lines=(*lines, note.format(grade=tr(found["measured_grade"]))),
        grid=Grid(columns=_titles(names, tr), rows=tuple(_family(row, tr) for row in rows)),
    )


def _of_first_rank(rows: list[Document]) -> list[Document]:
    return [row for row in rows if row["rank"] == rows[0]["rank"]]


def _titles(names: tuple[str, ...], tr: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(f">{tr(name[1:])}" if name.startswith(">") else tr(name) for name in names)


def _family(row: Document, tr: Callable[[str], str]) -> tuple[str, ...]:
    bounds = (show_ns(row["bound_ns"]), show_ns(row["bound_most_ns"]))
    shares = (_share(row["efficiency"]), _share(row["efficiency_most"]))
    has_interval = row["low_ns"] is not None and row["high_ns"] is not None
    return (
        tr(row["phase"]),
        row["family"],
        show_ns(row["measured_ns"]),
        _range(*bounds) if row["bound_ns"] else UNKNOWN,
        show_ns(row["predicted_ns"]),
        _range(show_ns(row["low_ns"]), show_ns(row["high_ns"])) if has_interval else UNKNOWN,
        _range(*shares),
        UNKNOWN if row["grade"] is None else tr(row["grade"]),
    )


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} - {high}"


def _share(fraction: float | None) -> str:
    """Below a percent a decimal more: a bound far below the measured time is not 0 %."""
    return f"{100 * fraction:.2f} %" if fraction is not None and fraction < 0.01 else show_fraction(fraction)


def _unexplained(found: Document, tr: Callable[[str], str]) -> list[str]:
    rows = _of_first_rank(found["unexplained"])
    if not rows:
        return []
    totals: dict[str, int] = {}
    for row in rows:
        name = f"{row['category']} / {row['family']}"
        totals[name] = totals.get(name, 0) + row["measured_ns"]
    largest = sorted(totals.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {show_ns(ns)}" for name, ns in largest[:_TOP_UNEXPLAINED])
    line = tr("Measured without a modelled counterpart: {total} ({largest}).")
    return [line.format(total=show_ns(sum(totals.values())), largest=told)]


def _products(found: Document, tr: Callable[[str], str]) -> Section:
    names = ("product", ">m", ">n", ">k", ">calls", ">time", ">Tflop/s", ">GB/s", ">share of ceiling", "bound")
    rows = _of_first_rank(found["products"])
    return Section(
        title=tr("Matrix products with recorded input dims, by time"),
        lines=(tr("Time: kernels that the operation launched. Bytes: inputs and output once each."),),
        grid=Grid(columns=_titles(names, tr), rows=tuple(_product(row) for row in rows)),
    )


def _product(row: Document) -> tuple[str, ...]:
    name = f"{row['op']} {row['dtype']}"
    return (
        name if row["groups"] == 1 else f"{name} x{row['groups']}",
        *(show_count(row[size]) for size in ("m", "n", "k", "calls")),
        show_ns(row["sum_ns"]),
        f"{row['flop'] / row['sum_ns'] / 1e3:.3g}",
        f"{row['moved_bytes'] / row['sum_ns']:.3g}",
        _share(row["share"]),
        row["bound"] or UNKNOWN,
    )


def _launches(found: Document, tr: Callable[[str], str]) -> Section:
    names = (
        "phase",
        ">steps",
        ">tokens a step",
        ">Gflop a step",
        ">kernels a step",
        ">launches a step",
        ">tokens a kernel",
        ">Mflop a kernel",
        ">host a step",
    )
    rows = tuple(_launch(row, tr) for row in _of_first_rank(found["launches"]))
    return Section(
        title=tr("Useful work per launch"),
        lines=(tr("A graph's launch starts many kernels. Flop are the model's; host is idle time that it causes."),),
        grid=Grid(columns=_titles(names, tr), rows=rows),
    )


def _launch(row: Document, tr: Callable[[str], str]) -> tuple[str, ...]:
    steps, kernels = row["steps"], row["kernels"]
    return (
        tr(row["phase"]),
        show_count(steps),
        f"{row['tokens'] / steps:.1f}",
        f"{row['flop'] / steps / 1e9:.3g}",
        UNKNOWN if kernels is None else f"{kernels / steps:.1f}",
        UNKNOWN if row["launches"] is None else f"{row['launches'] / steps:.1f}",
        f"{row['tokens'] / kernels:.3g}" if kernels else UNKNOWN,
        f"{row['flop'] / kernels / 1e6:.3g}" if kernels else UNKNOWN,
        show_ns(None if row["host_ns"] is None else round(row["host_ns"] / steps)),
    )
