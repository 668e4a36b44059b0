"""The document of a search -> charts as Vega-Lite specs: cost against latency, and throughput a device against TPOT.

Colour and shape say what binds a point; a line joins the frontier; bars are the interval of the cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.report.chart_spec import CONFIG, Chart, Spec, axis

if TYPE_CHECKING:
    from collections.abc import Mapping

COST, THROUGHPUT = "device_s_per_million_outputs total", "output_tokens_per_device total"
# Okabe and Ito's colours; marks differ in shape as well
COLOURS = {
    "seats": "#0072b2",
    "blocks": "#d55e00",
    "budget": "#e69f00",
    "step": "#009e73",
    "host": "#cc79a7",
    "load": "#7f7f7f",
}
_SHAPES = {
    "seats": "square",
    "blocks": "triangle-up",
    "budget": "diamond",
    "step": "circle",
    "host": "triangle-down",
    "load": "cross",
}


def search_charts(document: Mapping[str, Any]) -> list[Chart]:
    """Both charts; one without a spec where no point has a prediction."""
    where = f"{document['model']} on {document['hardware']}"
    latency = document["latency"]
    rows = _rows(document, latency)
    return [
        Chart(
            id="search-frontier",
            title=f"{where}: cost against {latency}",
            about="One mark a point of the grid; the line is the frontier, bars are the interval of the step times.",
            grade="simulated",
            spec=_spec(rows, ("latency", f"{latency}, s"), ("cost", "device seconds per million outputs")),
        ),
        Chart(
            id="search-throughput",
            title=f"{where}: output tokens per second and device against {latency}",
            about="The same points.",
            grade="simulated",
            spec=_spec(rows, ("latency", f"{latency}, s"), ("throughput", "output tokens per second and device")),
        ),
    ]


def _rows(document: Mapping[str, Any], latency: str) -> list[dict[str, Any]]:
    names = {"latency": latency, "cost": COST, "throughput": THROUGHPUT}
    rows = []
    for place, point in enumerate(document["points"]):
        if any(point["figures"][name] is None for name in names.values()):
            continue
        row: dict[str, Any] = {key: point["figures"][name] for key, name in names.items()}
        row |= {f"{key}_low": point["low"][name] for key, name in names.items()}
        row |= {f"{key}_high": point["high"][name] for key, name in names.items()}
        row |= {
            "point": ", ".join(f"{name} {value}" for name, value in point["settings"].items()),
            "binds": point["binding"],
            "is_best": place in document["frontier"],
        }
        rows.append(row)
    return rows


def _spec(rows: list[dict[str, Any]], across: tuple[str, str], up: tuple[str, str]) -> Spec | None:
    if not rows:
        return None
    x, y = axis(*across), axis(*up)
    there = [name for name in COLOURS if any(row["binds"] == name for row in rows)]
    scale = {"domain": there, "range": [COLOURS[name] for name in there]}
    shapes = {"domain": there, "range": [_SHAPES[name] for name in there]}
    along = {"x": x, "y": y, "order": {"field": across[0]}}
    line = {"transform": [{"filter": "datum.is_best"}], "mark": {"type": "line", "color": "#000000"}, "encoding": along}
    bars = {"mark": {"type": "rule", "opacity": 0.3}}
    return {
        "data": {"values": rows},
        "config": CONFIG,
        "width": 560,
        "height": 320,
        "layer": [
            bars | {"encoding": {"x": x | {"field": f"{across[0]}_low"}, "x2": {"field": f"{across[0]}_high"}, "y": y}},
            bars | {"encoding": {"y": y | {"field": f"{up[0]}_low"}, "y2": {"field": f"{up[0]}_high"}, "x": x}},
            line,
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {"field": "binds", "type": "nominal", "title": "binds", "scale": scale},
                    "shape": {"field": "binds", "type": "nominal", "title": "binds", "scale": shapes},
                    "tooltip": [{"field": name} for name in ("point", "latency", "cost", "throughput", "binds")],
                },
            },
        ],
    }
