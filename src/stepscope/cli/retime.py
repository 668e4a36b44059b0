"""The command retime: a what-if on the recorded order of a capture."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.answers.retime import retime as retime_capture
from stepscope.answers.walk import Changes
from stepscope.cli.options import CatalogFiles, Device, Output, TracePath, read_account
from stepscope.cli.predict_view import write_view
from stepscope.cli.tabular import TableFormat, TableFormatOption
from stepscope.errors import BadInput
from stepscope.report.section import Grid, Section
from stepscope.units import UNKNOWN, show_ms

if TYPE_CHECKING:
    from stepscope.answers.retime import Retimed, Retiming

_EXAMPLE = "--scale kv=0, --scale family:collective=0.5 or --scale name:all_reduce=0.5"


def retime(
    trace: TracePath,
    *,
    scale: Annotated[
        list[str] | None, typer.Option(help=f"WHAT=FACTOR on recorded durations: {_EXAMPLE}; may be repeated.")
    ] = None,
    host: Annotated[float, typer.Option(help="Factor on the host's own work between its calls.")] = 1.0,
    catalog: CatalogFiles = None,
    device: Device = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Retime a capture with some durations changed, everything else in its recorded order."""
    changes = read_changes(scale or [], host)
    account = read_account(trace, catalog, device)
    document = retiming_document(account.source, changes, retime_capture(account, changes))
    rows = [{"rank": rank["rank"], **step} for rank in document["ranks"] for step in rank["steps"]] or [
        {"rank": None, "step_id": None, "recorded_end_ns": None, "retimed_end_ns": None}
    ]
    write_view(document, rows, format_, output, _sections)


def read_changes(scale: list[str], host: float) -> Changes:
    """The factors of --scale and --host.

    Raises:
        BadInput: no factor, or something named twice.
    """
    found: dict[str, dict[str, float]] = {"category": {}, "family": {}, "name": {}}
    for text in scale:
        what, _, factor = text.rpartition("=")
        kind, _, name = what.rpartition(":") if what.startswith(("family:", "name:")) else ("category", "", what)
        try:
            value = float(factor)
        except ValueError as error:
            raise BadInput(f"--scale {text}: WHAT=FACTOR was expected, such as {_EXAMPLE}.") from error
        if not name or name in found[kind]:
            raise BadInput(f"--scale {text}: each WHAT is named once, such as {_EXAMPLE}.")
        found[kind][name] = value
    return Changes(categories=found["category"], families=found["family"], names=found["name"], host=host)


def retiming_document(source: str, changes: Changes, retiming: Retiming) -> dict[str, Any]:
    """The JSON-able answer. All ns are derived from recorded ones; what no order supports is null, with its reason."""
    return {
        "source": source,
        "grade": "modelled",
        "changes": asdict(changes),
        "apart": retiming.apart,
        "ranks": [_rank_document(rank) for rank in retiming.ranks],
    }


def _rank_document(rank: Retimed) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "recorded_ns": rank.recorded_ns,
        "reproduced_ns": rank.reproduced_ns,
        "reproduced_error": rank.error,
        "retimed_ns": rank.retimed_ns,
        "saving_ns": rank.saving_ns,
        "critical_ns": dict(rank.critical_ns),
        "unexplained_ns": rank.unexplained_ns,
        "inferred_dependencies": rank.num_inferred,
        "refusal": rank.refusal,
        "steps": [asdict(step) for step in rank.steps],
    }


def _sections(document: dict[str, Any]) -> list[Section]:
    columns = (">rank", ">recorded ms", ">reproduced ms", ">retimed ms", ">saving ms", ">saving %")
    rows, lines = [], []
    for rank in document["ranks"]:
        saving = rank["saving_ns"]
        share = UNKNOWN if saving is None else f"{100 * saving / rank['reproduced_ns']:.2f}"
        times = [rank[key] for key in ("recorded_ns", "reproduced_ns", "retimed_ns", "saving_ns")]
        name = UNKNOWN if rank["rank"] is None else str(rank["rank"])
        rows.append((name, *(show_ms(ns) for ns in times), share))
        lines += _rank_lines(rank)
    if document["apart"]:
        lines.append(document["apart"])
    lines.append("The order of everything is as recorded: a shorter step takes in no other requests here.")
    return [
        Section(
            title=f"{document['source']} retimed [{document['grade']}]", grid=Grid(columns=columns, rows=tuple(rows))
        ),
        Section(title="what holds it up", lines=tuple(lines)),
    ]


def _rank_lines(rank: dict[str, Any]) -> list[str]:
    name = f"rank {UNKNOWN if rank['rank'] is None else rank['rank']}"
    if rank["refusal"]:
        return [f"{name}: refused: {rank['refusal']}"]
    chain = sorted(rank["critical_ns"].items(), key=lambda part: -abs(part[1]))
    told = ", ".join(f"{category} {show_ms(ns)}" for category, ns in chain)
    lines = [f"{name}: the longest chain after the change, in ms: {told}"]
    if rank["inferred_dependencies"]:
        lines.append(f"{name}: {rank['inferred_dependencies']} dependencies between streams are inferred from times")
    return lines
