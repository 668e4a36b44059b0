"""The document of a sweep -> charts as Vega-Lite specs: step time over M, TPOT over B by context, with their bends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.report.chart_spec import CONFIG, Chart, Spec, axis

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG = {"type": "log", "nice": False}
# Okabe and Ito's colours, by place of the context
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#000000")


def sweep_charts(document: Mapping[str, Any]) -> list[Chart]:
    """Both charts; one without a spec where no cell of it has a time."""
    where = f"{document['plan']['model']}, {document['plan']['engine']}"
    return [
        Chart(
            id="sweep-prefill",
            title=f"{where}: a prefill step over its tokens",
            about="Bars are the 5th to 95th percentile of the window; a dashed line is where the time bends.",
            grade=_grade(document, "step_s"),
            spec=_spec(_rows(document, "prefill"), ("M, new tokens", "step, s"), _bends(document, "dense")),
        ),
        Chart(
            id="sweep-decode",
            title=f"{where}: time per output token over active requests",
            about="One line a context; dashed lines are where each bends.",
            grade=_grade(document, "tpot_s"),
            spec=_spec(_rows(document, "decode"), ("B, active requests", "TPOT, s"), _bends(document, "decode")),
        ),
    ]


def _grade(document: Mapping[str, Any], name: str) -> str:
    return next((found for row in document["graded"] if (found := row["grades"].get(name))), "refused")


def _rows(document: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = []
    for row in document["cells"]:
        seconds = row["step_s"] if kind == "prefill" else row["tpot_s"]
        if row["kind"] != kind or row["status"] != "ok" or seconds is None:
            continue
        low, high = row["step_low_s"], row["step_high_s"]
        ends = {"low": seconds if low is None else low, "high": seconds if high is None else high}
        series = "prefill" if kind == "prefill" else f"{row['context_len']} tokens"
        rows.append({"x": row["tokens"], "seconds": seconds, "series": series, "cell": row["cell"], **ends})
    return rows


def _bends(document: Mapping[str, Any], crossover: str) -> list[dict[str, Any]]:
    return [
        {"at": row["at"], "series": "prefill" if row["context_len"] is None else f"{row['context_len']} tokens"}
        for row in document["crossovers"]
        if row["crossover"] == crossover and row["at"] is not None
    ]


def _spec(rows: list[dict[str, Any]], titles: tuple[str, str], bends: list[dict[str, Any]]) -> Spec | None:
    if not rows:
        return None
    x, y = axis("x", titles[0], scale=_LOG), axis("seconds", titles[1], scale=_LOG)
    there = list(dict.fromkeys(row["series"] for row in rows))
    colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(there))]
    series = {"field": "series", "type": "nominal", "title": None, "scale": {"domain": there, "range": colours}}
    bars = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": series}
    dashes = {"x": x | {"field": "at"}, "color": series}
    return {
        "data": {"values": rows},
        "config": CONFIG,
        "width": 560,
        "height": 320,
        "layer": [
            {"mark": {"type": "rule", "opacity": 0.4}, "encoding": bars},
            {"mark": {"type": "line", "point": True}, "encoding": {"x": x, "y": y, "color": series}},
            {"data": {"values": bends}, "mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": dashes},
        ],
    }
