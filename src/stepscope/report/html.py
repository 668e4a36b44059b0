"""The document -> one HTML file that opens from disk, offline, and asks the network for nothing.

What the capture says about itself, the totals and the answers are plain HTML; steps and charts are drawn by the script
from the same document, which the file holds. Every text from a trace is escaped. `<data value>` holds the exact number.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput
from stepscope.evidence import GRADES
from stepscope.report.against_model import model_sections
from stepscope.report.chart_rows import rank_name
from stepscope.report.chart_spec import CATEGORY_COLOURS, PHASE_COLOURS, Chart
from stepscope.report.charts import load_converter, make_charts
from stepscope.report.document import shown_grades
from stepscope.report.embed import to_element, to_json
from stepscope.report.html_text import SCRIPT_TEXTS, TERMS
from stepscope.report.translate import Translator
from stepscope.store.schema import CATEGORIES, CATEGORY_MEANING, TABLES
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from jinja2 import Environment

    from stepscope.store.schema import Column

Document = dict[str, Any]

_SCRIPTS = ("numbers.js", "payload.js", "steps.js", "detail.js", "plots.js", "page.js")
_STYLES = ("base.css", "page.css")
_STATUS = {"answered": "answered", "partial": "answered in part", "refused": "refused"}
_LANES = {
    "device": "device lane",
    "host": "CPU backend: the worker thread is the device",
    "none": "no device work",
    "simulated": "simulated: nothing of it was recorded",
    None: "no engine steps (front end or engine core)",
}
# how far an exclusive time can be trusted: what a rule places is classified, what is left over is derived
CATEGORY_GRADE = dict.fromkeys(CATEGORIES, "classified") | dict.fromkeys(("idle", "unmatched", "unknown"), "derived")


def render_html(document: Document, translate: Translator | None = None) -> str:
    """The whole report as one page.

    Raises:
        BadInput: the `html` extra is not installed.
    """
    t = translate or Translator()
    charts = [chart for chart in make_charts(document, t) if chart.id != "budget-total"]  # the page draws that itself
    bundle, script = load_converter().javascript_bundle(), _script()
    template = _environment(t).get_template("report.html")
    return template.render(
        document=document,
        lang=t.lang,
        policy=_policy(bundle, script),
        style="".join(_asset(name) for name in _STYLES),
        script=script,
        payload=to_element("payload", _payload(document, charts, t)),
        bundle=to_element("bundle", bundle),
        charts={chart.id: chart for chart in charts},
        budget=_budget(document),
        families=_families(document),
        kernels=_kernels(document),
        model_sections=model_sections(document, t),
        lanes=_LANES,
        statuses=_STATUS,
        categories=CATEGORIES,
        category_meaning=CATEGORY_MEANING,
        category_grade=CATEGORY_GRADE,
        colours=CATEGORY_COLOURS,
        grades=GRADES,
        shown_grades=shown_grades(document),
        terms=TERMS,
        rank_name=rank_name,
    )


def _environment(t: Translator) -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise BadInput("HTML and charts need the 'html' extra: pip install 'stepscope[html]'.") from error
    environment = Environment(
        loader=PackageLoader("stepscope.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ns": show_ns, "count": show_count, "fraction": show_fraction}
    environment.globals["t"] = t
    return environment


def _asset(name: str) -> str:
    return (files("stepscope.report") / "assets" / name).read_text(encoding="utf-8")


def _script() -> str:
    """The page's own script: one scope, so that nothing leaks into the page."""
    return '"use strict";\n(() => {\n' + "".join(_asset(name) for name in _SCRIPTS) + "})();\n"


def _policy(*scripts: str) -> str:
    """A content policy under which these scripts run, styles stand in the file, and nothing is loaded."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _payload(document: Document, charts: list[Chart], t: Translator) -> str:
    """What the script reads: the document, the specs, its texts, and what a missing number means."""
    nulls = {column.name: t(column.null) for column in TABLES["steps"] if column.null}
    docs = {column.name: _documented(column, t) for column in TABLES["steps"]}
    return to_json(
        {
            "document": document,
            "charts": [
                {"id": chart.id, "spec": json.dumps(chart.spec, ensure_ascii=False), "links": chart.links}
                for chart in charts
                if chart.spec
            ],
            "texts": {text: t(text) for text in SCRIPT_TEXTS},
            "translated": {text: t(text) for text in _said(document) if t(text) != text},
            "nulls": nulls,
            "docs": docs,
            "categories": [[name, t(CATEGORY_MEANING[name]), CATEGORY_COLOURS[name]] for name in CATEGORIES],
            "category_grade": CATEGORY_GRADE,
            "phase_colours": PHASE_COLOURS,
            "grades": {name: [t(shown), t(GRADES[shown])] for name, shown in shown_grades(document).items()},
        }
    )


def _documented(column: Column, t: Translator) -> str:
    return f"{t(column.doc)} ({column.unit})" if column.unit else t(column.doc)


def _said(document: Document) -> list[str]:
    """Sentences that the script shows: why numbers of a rank are withheld."""
    return [reason["text"] for reason in document["coverage"]["reasons"]]


def _claimable(document: Document) -> dict[int | None, bool]:
    return {row["rank"]: row["idle_claimable"] for row in document["coverage"]["ranks"]}


def _withheld_by(document: Document) -> dict[int | None, Document]:
    """The first reason per rank for which idle time is withheld."""
    reasons = [reason for reason in document["coverage"]["reasons"] if reason["withholds"]]
    return {reason["rank"]: reason for reason in reversed(reasons)}


def _budget(document: Document) -> list[Document]:
    """Per rank: its span, and each category's ns, share and reason."""
    claimable, reasons = _claimable(document), _withheld_by(document)
    ranks = []
    for row in document["budget"]:
        if row["step_id"] is not None:
            continue
        may, reason = claimable.get(row["rank"], False), reasons.get(row["rank"])
        parts = {
            name: {
                "ns": ns,
                "share": ns / row["window_ns"] if may and ns is not None and row["window_ns"] else None,
                "width": 100 * ns / row["window_ns"] if ns and row["window_ns"] else 0,
            }
            for name, ns in row["exclusive_ns"].items()
        }
        ranks.append({"rank": row["rank"], "window_ns": row["window_ns"], "parts": parts, "reason": reason})
    return ranks


def _families(document: Document) -> list[Document]:
    """Families with each rank's time, the largest first."""
    table: dict[tuple[str, str], Document] = {}
    for row in document["families"]:
        key = (row["category"], row["family"])
        entry = table.setdefault(key, {"category": key[0], "family": key[1], "ranks": {}, "largest": 0})
        entry["ranks"][row["rank"]] = row
        entry["largest"] = max(entry["largest"], row["exclusive_ns"])
    return sorted(table.values(), key=lambda entry: -entry["largest"])


_MOST_KERNELS = 40


def _kernels(document: Document) -> list[Document]:
    """Kernels summed over the steps' lists of largest ones: at least so much, as a step's list is cut."""
    packed = document["step_kernels"]
    table: dict[tuple[int, int], Document] = {}
    for _, _, account, name, count, sum_ns in packed["rows"]:
        category, family = packed["accounts"][account]
        entry = table.setdefault(
            (account, name),
            {
                "name": packed["names"][name],
                "category": category,
                "family": family,
                "count": 0,
                "sum_ns": 0,
                "steps": 0,
            },
        )
        entry["count"] += count
        entry["sum_ns"] += sum_ns
        entry["steps"] += 1
    return sorted(table.values(), key=lambda entry: (-entry["sum_ns"], entry["name"]))[:_MOST_KERNELS]
