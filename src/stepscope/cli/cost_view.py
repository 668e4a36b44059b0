"""Crossovers, hardware and probe results -> sections of text with charts. Nothing is computed here but the drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.cost.hardware import Hardware
from stepscope.report.section import Grid, Section
from stepscope.units import UNKNOWN

_LETTER = {"compute": "C", "memory": "M", "network": "N"}
_BAR = 30


def show(value: float | None, digits: int = 1, unknown: str = UNKNOWN) -> str:
    """A number with thin groups.

    >>> show(1234.56), show(None, unknown="never")
    ('1,234.6', 'never')
    """
    return unknown if value is None else f"{value:,.{digits}f}"


def crossover_sections(document: Mapping[str, Any]) -> list[Section]:
    """The ridges, then the three crossovers."""
    head = f"{document['model']} on {document['hardware']}"
    return [
        _ridge_section(head, document),
        _dense_section(document["dense"]),
        *(_expert_section(entry) for entry in document["experts"]),
        _decode_section(document["decode"]),
    ]


def _ridge_section(head: str, document: Mapping[str, Any]) -> Section:
    rows = tuple(
        (name, show(found["peak"]), show(found["effective"]), found["effective_from"] or "not measured")
        for name, found in document["ridges"].items()
    )
    grid = Grid(columns=("dtype", ">ridge_peak", ">ridge_effective", "effective from"), rows=rows)
    return Section(
        title=head, lines=(*document["notes"], f"ridge, in flop per byte; used: {document['ridge_used']}"), grid=grid
    )


def _dense_section(entries: Sequence[Mapping[str, Any]]) -> Section:
    largest = max((e["crossover_tokens"] or 0.0 for e in entries), default=0.0)
    rows = tuple(
        (
            e["name"],
            f"{e['k']} x {e['n']}",
            show(e["crossover_tokens"], unknown="never"),
            show(e["approximation"]),
            _bar(e["crossover_tokens"], largest),
        )
        for e in entries
    )
    return Section(
        title="1. dense GEMM: rows M from which compute binds",
        lines=("M = R b_w K N / (2 K N - R (b_x K + b_y N)); the approximation R b_w / 2 leaves out input and output",),
        grid=Grid(columns=("GEMM", "K x N", ">M", ">R b_w / 2", "M"), rows=rows),
    )


def _bar(value: float | None, largest: float) -> str:
    if value is None or largest <= 0:
        return "memory at any M"
    return "#" * max(round(value / largest * _BAR), 1)


def _expert_section(entry: Mapping[str, Any]) -> Section:
    rows = tuple(
        (
            f"{p['tokens']:,}",
            show(p["mean"], 2),
            show(p["median"], 0),
            show(p["p90"], 0),
            f"{p['max']:,}",
            f"{p['active_experts']}",
            f"{100 * p['compute_bound_copies_fraction']:.0f} %",
            p["bound"],
            "#" * round(p["compute_bound_copies_fraction"] * 10),
        )
        for p in entry["points"]
    )
    rows_found, all_found = show(entry["crossover_rows"], unknown="never"), show(entry["crossover_tokens"], 0, "never")
    mean_found = show(entry["mean_crossover_tokens"], 0, "never")
    lines = (
        f"one expert turns compute-bound at M_e = {rows_found} rows (R b_w / 2 = {show(entry['approximation'])})",
        f"all experts together at {all_found} tokens of the EP domain, weights paid per active expert",
        f"the mean M_e alone would say {mean_found} tokens",
    )
    columns = (">tokens", ">mean M_e", ">median", ">p90", ">max", ">active", ">compute-bound copies")
    return Section(
        title=f"2. experts, {entry['name']} {entry['k']} x {entry['n']}, {entry['num_experts']} experts, "
        f"top {entry['top_k']}",
        lines=lines,
        grid=Grid(columns=(*columns, "layer's bound", "chart"), rows=rows),
    )


def _decode_section(decode: Mapping[str, Any]) -> Section:
    contexts = decode["context_lens"]
    cells = {(c["batch"], c["context_len"]): c for c in decode["cells"]}
    rows = tuple((f"{batch:,}", *(_cell(cells[batch, context]) for context in contexts)) for batch in decode["batches"])
    found = ", ".join(
        f"{c['context_len']:,}: {'none of these batches' if c['batch'] is None else c['batch']}"
        for c in decode["crossover_batch"]
    )
    lines = (
        "each cell: binding term (M memory, C compute, N network), the part that leads it, ms (predicted, else bound)",
        f"compute-bound from batch, by context: {found}",
    )
    columns = (">batch", *(f"{context:,} tokens" for context in contexts))
    return Section(title="3. decode step, batch x context", lines=lines, grid=Grid(columns=columns, rows=rows))


def _cell(cell: Mapping[str, Any]) -> str:
    is_predicted = cell["time_s"] is not None
    seconds = cell["time_s"] if is_predicted else cell["lower_bound_s"]
    return f"{_LETTER[cell['bound']]} {cell['leading_part']} {'' if is_predicted else '>= '}{1e3 * seconds:.2f}"


def hardware_document(found: Hardware) -> dict[str, Any]:
    """One device, every figure with its source and date."""
    figures = [
        {
            "basis": basis,
            "figure": name,
            "value": figure.value,
            "unit": figure.unit,
            "low": figure.low,
            "high": figure.high,
            "source": figure.source,
            "date": figure.date,
            "note": figure.note,
            "is_checked": figure.is_checked,
        }
        for table in (found.rates, found.compute)
        for (basis, name), figure in table.items()
    ]
    return {
        "name": found.name,
        "title": found.title,
        "maker": found.maker,
        "coefficients": found.coefficients,
        "is_borrowed": found.is_borrowed,
        "notes": found.notes,
        "figures": figures,
    }


def hardware_sections(documents: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Several devices as one table, or one device with its sources."""
    if len(documents) == 1:
        return [_device_section(documents[0])]
    names = ("memory", "bf16", "fp8", "scale_up")
    rows = []
    for document in documents:
        best = {(f["basis"], f["figure"]): f["value"] for f in document["figures"]}
        value = [next((best[b, n] for b in ("achieved", "advertised") if (b, n) in best), None) for n in names]
        basis = "achieved" if ("achieved", "memory") in best else "advertised"
        kernels = document["coefficients"] or "none: bounds only"
        rows.append(
            (
                document["name"],
                basis,
                show(None if value[0] is None else value[0] / 1e12, 3),
                _tflops(value[1]),
                _tflops(value[2]),
                show(None if value[3] is None else value[3] / 1e9, 0),
                f"{kernels}{' (borrowed)' if document['is_borrowed'] else ''}",
                ", ".join(f["figure"] for f in document["figures"] if not f["is_checked"]) or "none",
            )
        )
    columns = ("name", "basis", ">TB/s", ">bf16 Tflop/s", ">fp8 Tflop/s", ">link GB/s", "fitted kernels", "not checked")
    return [Section(title="", grid=Grid(columns=columns, rows=tuple(rows)))]


def _tflops(flop_per_s: float | None) -> str:
    """Whole ones of an accelerator, three decimals of a processor: 0 would be a device that computes nothing."""
    value = None if flop_per_s is None else flop_per_s / 1e12
    return show(value, 0 if value is None or value >= 10 else 3)


def _device_section(document: Mapping[str, Any]) -> Section:
    rows = tuple(
        (
            f["figure"],
            f["basis"],
            f"{f['value']:.4g}",
            f["unit"],
            f["source"] + (f"; {f['note']}" if f["note"] else ""),
            f["date"],
            "yes" if f["is_checked"] else "no",
        )
        for f in document["figures"]
    )
    lines = tuple(line for line in (document["notes"],) if line)
    columns = ("figure", "basis", ">value", "unit", "source", "date", "checked")
    return Section(title=document["title"], lines=lines, grid=Grid(columns=columns, rows=rows))


def probe_sections(rows: Sequence[Mapping[str, Any]]) -> list[Section]:
    """One line per measured kernel."""
    cells = tuple(
        (
            r["kernel"],
            r["label"],
            show(r["seconds"] * 1e6),
            show(r["flop_per_s"] / 1e9, 2) if r["flop_per_s"] else UNKNOWN,
            show(r["bytes_per_s"] / 1e9, 2),
            f"{r['repeats']}",
        )
        for r in rows
    )
    columns = ("kernel", "size", ">us", ">Gflop/s", ">GB/s", ">repeats")
    return [Section(title="measured on this machine", grid=Grid(columns=columns, rows=cells))]
