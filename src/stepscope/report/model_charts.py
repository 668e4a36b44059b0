"""The documents of `crossover` and `history` -> charts as Vega-Lite specs: every number is one of the document's.

One panel per GEMM: intensity (flop per byte) over rows M, its ridge, the exact crossover and the approximation
R b_w / 2. Per grouped GEMM: rows per expert M_e (mean, median, p90, most) over tokens of the EP domain, and the share
of token copies in compute-bound experts. Decode: the binding term of each batch x context. History: bytes of each
branch that one decode query reads, over context, all layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput
from stepscope.report.chart_spec import BAR, CONFIG, Chart, Spec, axis, plot, to_standalone
from stepscope.report.charts import load_converter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Okabe and Ito's colours; marks differ in shape or dash as well
BOUND_COLOURS = {"memory": "#0072b2", "compute": "#d55e00", "network": "#009e73"}
BRANCH_COLOURS = {
    "dense": "#0072b2",
    "sliding_window": "#56b4e9",
    "c4": "#e69f00",
    "dsa_topk": "#cc79a7",
    "indexer": "#d55e00",
    "c128": "#009e73",
    "state": "#7f7f7f",
}
STATISTICS = {"mean": "mean", "median": "median", "p90": "p90", "max": "most"}
_STATISTIC_COLOURS = ("#000000", "#0072b2", "#e69f00", "#d55e00")
_CURVE, _RIDGE, _EXACT, _APPROXIMATE = "#0072b2", "#7f7f7f", "#d55e00", "#e69f00"
_LOG = {"type": "log"}
_SYMLOG = {"type": "symlog"}  # a median of 0 rows has to stand somewhere


def crossover_charts(document: Mapping[str, Any]) -> list[Chart]:
    """The three answers: dense GEMMs, each grouped GEMM, the decode grid."""
    where = f"{document['model']} on {document['hardware']}"
    return [
        _dense(document["dense"], where),
        *(_experts(entry, where) for entry in document["experts"]),
        _decode(document["decode"], where),
    ]


def history_charts(document: Mapping[str, Any]) -> list[Chart]:
    """What each branch reads as context grows: in bytes, and as shares."""
    rows = [
        {
            "context": part["context"],
            "branch": branch["branch"],
            "mib": branch["total_bytes"] / 2**20,
            "percent": 100 * branch["bytes_fraction"],
        }
        for part in document["contexts"]
        for branch in part["branches"]
    ]
    return [_history_bytes(document, rows), _history_shares(document, rows)]


def write_model_charts(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Each chart that has marks as `ID.svg` and `ID.png` (two pixels a unit); returns the files.

    Raises:
        BadInput: the folder cannot be written, or the `html` extra is not installed.
    """
    vl_convert = load_converter()
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            if chart.spec is None:
                continue
            spec = to_standalone(chart)
            for suffix, content in (
                ("svg", vl_convert.vegalite_to_svg(spec).encode()),
                ("png", vl_convert.vegalite_to_png(spec, scale=2)),
            ):
                path = folder / f"{chart.id}.{suffix}"
                path.write_bytes(content)
                written.append(path)
    except OSError as error:
        raise BadInput(f"{folder}: charts cannot be written there ({error.strerror}). Choose another path.") from error
    return written


def _dense(entries: Sequence[Mapping[str, Any]], where: str) -> Chart:
    values: list[dict[str, Any]] = []
    for entry in entries:
        exact = entry["crossover_tokens"]
        panel = {"gemm": _panel(entry)}
        values += [panel | {"kind": "curve", "m": p["m"], "intensity": p["intensity"]} for p in entry["points"]]
        values.append(panel | {"kind": "ridge", "m": None, "intensity": entry["ridge"]})
        values.append(panel | {"kind": "approximation", "m": entry["approximation"], "intensity": entry["ridge"]})
        if exact is not None:
            values.append(panel | {"kind": "crossover", "m": exact, "intensity": entry["ridge"]})
    layers = [
        _layer("curve", {"type": "line", "color": _CURVE, "strokeWidth": 2}),
        _layer("ridge", {"type": "rule", "color": _RIDGE, "strokeDash": [6, 3]}),
        _layer("approximation", {"type": "point", "shape": "diamond", "color": _APPROXIMATE, "size": 110}),
        _layer("crossover", {"type": "point", "shape": "circle", "filled": True, "color": _EXACT, "size": 80}),
    ]
    spec = {
        "data": {"values": values},
        "config": CONFIG,
        "facet": {
            "field": "gemm",
            "type": "nominal",
            "title": None,
            "sort": list(dict.fromkeys(v["gemm"] for v in values)),
        },
        "columns": 3,
        "spec": {"width": 240, "height": 130, "layer": layers},
    }
    return Chart(
        id="crossover-dense",
        title=f"Dense GEMMs of {where}: intensity over rows",
        about="Line: flop per byte. Dashed: the ridge. Dot: the exact crossover. Diamond: R b_w / 2, always too small.",
        grade="modelled",
        spec=spec if values else None,
        refusal="" if values else "The model has no dense GEMM.",
    )


def _panel(entry: Mapping[str, Any]) -> str:
    exact = entry["crossover_tokens"]
    found = "never" if exact is None else f"M = {exact:,.1f}"
    return f"{entry['name']} {entry['k']} x {entry['n']}: {found} (R b_w / 2 = {entry['approximation']:,.1f})"


def _layer(kind: str, mark: Spec) -> Spec:
    encoding = {"y": axis("intensity", "intensity, flop per byte", scale=_LOG)}
    if kind != "ridge":
        encoding["x"] = axis("m", "rows M", scale=_LOG)
    return {"transform": [{"filter": {"field": "kind", "equal": kind}}], "mark": mark, "encoding": encoding}


def _experts(entry: Mapping[str, Any], where: str) -> Chart:
    values: list[dict[str, Any]] = [
        {"kind": "rows", "tokens": p["tokens"], "statistic": label, "rows": p[name]}
        for p in entry["points"]
        for name, label in STATISTICS.items()
    ]
    values += [
        {"kind": "share", "tokens": p["tokens"], "copies_percent": 100 * p["compute_bound_copies_fraction"]}
        for p in entry["points"]
    ]
    if entry["crossover_rows"] is not None:
        values.append({"kind": "crossover", "rows": entry["crossover_rows"]})
    values.append({"kind": "approximation", "rows": entry["approximation"]})
    if entry["crossover_tokens"] is not None:
        values.append({"kind": "crossover_tokens", "tokens": entry["crossover_tokens"]})
    if entry["mean_crossover_tokens"] is not None:
        values.append({"kind": "mean_crossover_tokens", "tokens": entry["mean_crossover_tokens"]})
    spec = {
        "data": {"values": values},
        "config": CONFIG,
        "vconcat": [
            {"width": 620, "height": 230, "layer": _expert_layers()},
            {"width": 620, "height": 90, **_copies_panel()},
        ],
    }
    exact, tokens = entry["crossover_rows"], entry["crossover_tokens"]
    one = "never" if exact is None else f"M_e = {exact:,.1f} (dashed: R b_w / 2 = {entry['approximation']:,.1f})"
    layer = "never" if tokens is None else f"{tokens:,.0f} tokens"
    return Chart(
        id=f"crossover-{entry['name'].replace('_', '-')}",
        title=f"{entry['name']} {entry['k']} x {entry['n']} of {where}: rows per expert",
        about=f"Across: one expert is compute-bound from {one}. Upright: all of them, {layer}; dotted: by mean M_e.",
        grade="modelled",
        spec=spec,
    )


def _expert_layers() -> list[Spec]:
    names = list(STATISTICS.values())
    by_name = {"field": "statistic", "type": "nominal"}
    rows = {
        "x": axis("tokens", "tokens of the EP domain", scale=_LOG),
        "y": axis("rows", "rows per expert M_e", scale=_SYMLOG),
        "color": by_name | {"scale": {"domain": names, "range": list(_STATISTIC_COLOURS)}},
        "shape": by_name | {"scale": {"domain": names}},
    }
    return [
        _kind("rows", {"type": "line", "point": {"filled": True, "size": 45}, "strokeWidth": 1.5}, rows),
        _kind("crossover", {"type": "rule", "color": _EXACT}, {"y": axis("rows", "rows per expert M_e")}),
        _kind(
            "approximation",
            {"type": "rule", "color": _APPROXIMATE, "strokeDash": [6, 3]},
            {"y": axis("rows", "rows per expert M_e")},
        ),
        _kind("crossover_tokens", {"type": "rule", "color": _EXACT}, {"x": axis("tokens", "tokens of the EP domain")}),
        _kind(
            "mean_crossover_tokens",
            {"type": "rule", "color": "#000000", "strokeDash": [2, 3]},
            {"x": axis("tokens", "tokens of the EP domain")},
        ),
    ]


def _copies_panel() -> Spec:
    encoding = {
        "x": axis("tokens", "tokens of the EP domain", scale=_LOG),
        "y": axis("copies_percent", "% of copies compute-bound", scale={"domain": [0, 100]}),
    }
    return _kind("share", {"type": "line", "point": {"filled": True, "color": _EXACT}, "color": _EXACT}, encoding)


def _kind(kind: str, mark: Spec, encoding: Spec) -> Spec:
    return {"transform": [{"filter": {"field": "kind", "equal": kind}}], "mark": mark, "encoding": encoding}


def _decode(decode: Mapping[str, Any], where: str) -> Chart:
    values = []
    for cell in decode["cells"]:
        is_predicted = cell["time_s"] is not None
        ms = 1e3 * (cell["time_s"] if is_predicted else cell["lower_bound_s"])
        label = f"{cell['leading_part']} {'' if is_predicted else '>= '}{ms:,.2f} ms"
        values.append(
            {"batch": cell["batch"], "context": cell["context_len"], "bound": cell["bound"], "ms": ms, "label": label}
        )
    place = {
        "x": {"field": "context", "type": "ordinal", "title": "context of each row, tokens", "axis": _LEVEL},
        "y": {"field": "batch", "type": "ordinal", "title": "decode rows of the step", "sort": "descending"},
    }
    there = [name for name in BOUND_COLOURS if any(row["bound"] == name for row in values)]
    shades = {"domain": there, "range": [BOUND_COLOURS[name] for name in there]}
    spec = plot(
        values,
        28 * len(decode["batches"]),
        layer=[
            {
                "mark": {"type": "rect", "stroke": "#ffffff", "strokeWidth": 1.5},
                "encoding": place | {"color": {"field": "bound", "type": "nominal", "scale": shades}},
            },
            {
                "mark": {"type": "text", "color": "#ffffff", "fontSize": 11},
                "encoding": place | {"text": {"field": "label", "type": "nominal"}},
            },
        ],
    )
    return Chart(
        id="crossover-decode",
        title=f"A decode step of {where}: what binds it",
        about="Colour: the binding term. Text: the part that leads the bound, and ms of one step (>=: a bound only).",
        grade="modelled",
        spec=spec,
    )


_LEVEL = {"labelAngle": 0, "format": ",d"}


def _history_bytes(document: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> Chart:
    colours, names = _branch_colours(rows)
    # a branch that reads nothing yet has no place on a logarithmic axis
    values = [row for row in rows if row["mib"] > 0]
    spec = plot(
        values,
        280,
        mark={"type": "line", "point": {"filled": True, "size": 60}, "strokeWidth": 2},
        encoding={
            "x": axis("context", "context, tokens", scale={"type": "log", "base": 2}),
            "y": axis("mib", "MiB that one decode query reads, all layers", scale=_LOG),
            "color": colours,
            "shape": {"field": "branch", "type": "nominal", "scale": {"domain": names}},
        },
    )
    return Chart(
        id="history-bytes",
        title=f"History that a decode query of {document['model']} reads",
        about=f"Bytes of each branch over context, KV layout {document['layout']}.",
        grade="derived",
        spec=spec if values else None,
        refusal="" if values else "No branch reads anything at these contexts.",
    )


def _history_shares(document: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> Chart:
    colours, _ = _branch_colours(rows)
    spec = plot(
        rows,
        220,
        mark=BAR,
        encoding={
            "x": {"field": "context", "type": "ordinal", "title": "context, tokens", "axis": _LEVEL},
            "y": axis("percent", "% of the bytes", stack="zero", scale={"domain": [0, 100]}),
            "color": colours,
        },
    )
    return Chart(
        id="history-shares",
        title=f"How the history of {document['model']} splits over its branches",
        about=f"Shares of the bytes of one decode query, all layers, KV layout {document['layout']}.",
        grade="derived",
        spec=spec,
    )


def _branch_colours(rows: Sequence[dict[str, Any]]) -> tuple[Spec, list[str]]:
    names = list(dict.fromkeys(row["branch"] for row in rows))
    shades = [BRANCH_COLOURS.get(name, "#7f7f7f") for name in names]
    return {"field": "branch", "type": "nominal", "scale": {"domain": names, "range": shades}}, names
