"""The model wing's documents -> text, Markdown, CSV or JSON. Nothing is computed here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.options import write_result
from stepscope.cli.tabular import TableFormat, to_csv, to_json
from stepscope.errors import BadInput
from stepscope.report.section import Grid, Section, print_sections
from stepscope.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH = 118


def write_view(
    document: Any,
    table: Sequence[dict[str, Any]],
    format_: TableFormat,
    output: Path | None,
    to_sections: Callable[[Any], list[Section]],
) -> None:
    """The document as JSON, its main table as CSV, its sections as text or Markdown."""
    if format_ is TableFormat.json:
        write_result(to_json(document), output)
    elif format_ is TableFormat.csv:
        write_result(to_csv(table, tuple(table[0])), output)
    elif format_ is TableFormat.md:
        write_result("\n".join(section.to_markdown() for section in to_sections(document)), output)
    elif format_ is TableFormat.text:
        sections = to_sections(document)
        widths = [section.grid.width for section in sections if section.grid is not None]
        write_result(print_sections(sections, max([_WIDTH, *widths])), output)
    else:
        raise BadInput(f"--format {format_.value} is not for this command. Choose text, md, csv or json.")


def _number(value: float | None) -> str:
    """Whole numbers with thin groups, others with four decimals; unknown is a dash."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def _grid(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> Grid:
    """Columns by key; a title that starts with > holds numbers."""
    cells = tuple(
        tuple(_number(row[key]) if title.startswith(">") else str(row[key]) for key, title in columns.items())
        for row in rows
    )
    return Grid(columns=tuple(columns.values()), rows=cells)


def predict_sections(document: dict[str, Any]) -> list[Section]:
    """Totals, the experts' rows, and one line per operator."""
    totals, experts, shape = document["totals"], document["experts"], document["shape"]
    rows = f"{shape['prefill_rows']} prefill and {shape['decode_rows']} decode rows"
    lines = [
        f"{shape['num_scheduled_tokens']:,} tokens: {rows}, longest kv_len {shape['max_kv_len']:,}",
        f"{totals['flop']:,} flop, {totals['bytes']:,} bytes, {totals['comm_bytes']:,} bytes sent",
        f"{totals['params_total']:,} parameters, {totals['params_active']:,} active per token",
    ]
    if totals["lower_bound_s"] is not None:
        lines += _time_lines(totals, document["hardware"])
    if experts is not None:
        lines.append(
            f"rows per expert ({experts['source']}): {experts['copies']:,} copies, {experts['num_experts']} experts,"
            f" mean {experts['mean']:g}, median {experts['median']:g}, p90 {experts['p90']:g}, max {experts['max']},"
            f" {experts['active_experts']} active, {100 * experts['empty_fraction']:.1f} % empty"
        )
    columns = {
        "layer_type": "layer type",
        "count": ">count",
        "name": "operator",
        "m": ">m",
        "n": ">n",
        "k": ">k",
        "flop": ">flop",
        "bytes": ">bytes",
        "intensity": ">flop/B",
    }
    if totals["lower_bound_s"] is not None:
        columns |= {"bound": "bound", "time_us": ">us"}
    table = [op | {"time_us": None if op["time_s"] is None else 1e6 * op["time_s"]} for op in document["operators"]]
    return [Section(title=document["model"], lines=(*lines, *document["notes"]), grid=_grid(table, columns))]


def _time_lines(totals: dict[str, Any], hardware: str) -> list[str]:
    lower, serial = 1e3 * totals["lower_bound_s"], 1e3 * totals["serial_bound_s"]
    lines = [
        f"{hardware}: bounds {lower:.3f} ms (terms overlap) to {serial:.3f} ms (none does), {totals['bound']} bound"
    ]
    if totals["time_s"] is None:
        return [*lines, "bounds only: a bound is no prediction"]
    spread = ""
    if totals["low_s"] is not None and totals["high_s"] is not None:
        spread = f" ({1e3 * totals['low_s']:.3f} to {1e3 * totals['high_s']:.3f})"
    return [*lines, f"predicted {1e3 * totals['time_s']:.3f} ms{spread}, {totals['grade'] or 'partly a bound'}"]


def gemm_sections(rows: list[dict[str, Any]]) -> list[Section]:
    """One line per m."""
    columns = {"m": ">m", "flop": ">flop", "bytes": ">bytes", "intensity": ">flop/B"}
    return [Section(title="", grid=_grid(rows, columns))]


def history_sections(document: dict[str, Any]) -> list[Section]:
    """One table per context."""
    sections = []
    columns = {
        "branch": "branch",
        "layers": ">layers",
        "rows": ">rows",
        "layer_bytes": ">bytes a layer",
        "mib": ">MiB a layer",
        "layer_flop": ">flop a layer",
        "total_bytes": ">bytes",
        "bytes_percent": ">% of bytes",
        "flop_percent": ">% of flop",
    }
    for part in document["contexts"]:
        rows = [
            b
            | {
                "mib": b["layer_bytes"] / 2**20,
                "bytes_percent": 100 * b["bytes_fraction"],
                "flop_percent": 100 * b["flop_fraction"],
            }
            for b in part["branches"]
        ]
        lines = [
            f"{name}: attention reads {size:,} bytes ({size / 2**20:g} MiB) a query and layer"
            for name, size in part["attention_bytes"].items()
        ]
        title = f"{document['model']}, {document['layout']}: {part['context']:,} tokens"
        sections.append(Section(title=title, lines=tuple(lines), grid=_grid(rows, columns)))
    states = [
        f"{row['layer_type']}: {row['name']} state row {row['row_bytes']:,} bytes" for row in document["state_rows"]
    ]
    return [*sections, Section(title="", lines=tuple(states))] if states else sections


def models_sections(rows: list[dict[str, Any]]) -> list[Section]:
    """One line per model."""
    columns = {
        "name": "model",
        "family": "family",
        "num_layers": ">layers",
        "params_total": ">parameters",
        "params_active": ">active",
        "kv_bytes_per_token": ">KV B/token (bf16)",
        "max_context_len": ">context",
    }
    whole = [
        row | {"kv_bytes_per_token": int(size) if (size := row["kv_bytes_per_token"]).is_integer() else size}
        for row in rows
    ]
    return [Section(title="", grid=_grid(whole, columns))]


def model_sections(document: dict[str, Any]) -> list[Section]:
    """One model: what it is made of, and the key that gave each dimension."""
    layers = ", ".join(f"{count} {name}" for name, count in document["layer_types"].items())
    caches = ", ".join(f"{name} {size:,g}" for name, size in document["kv_bytes_per_token"].items())
    lines = (
        f"{document['num_layers']} layers: {layers}",
        f"{document['params_total']:,} parameters, {document['params_active']:,} active per token",
        f"stored as {document['weights']}, experts {document['experts']}; draft: {document['draft'] or 'none'}",
        f"cache bytes per token: {caches}",
        f"fixed state per request: {document['state_bytes_per_request']:,} bytes",
    )
    rows = [{"dimension": name, "key": key} for name, key in document["keys"].items()]
    grid = _grid(rows, {"dimension": "dimension", "key": "config key"})
    return [Section(title=document["name"], lines=lines, grid=grid)]
