"""The command hypotheses: what a capture's findings would gain at most, how to test that, and the verdicts so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.answers.compare import compare
from stepscope.answers.hypotheses import find_hypotheses, judge
from stepscope.answers.ledger import Ledger, read_ledger, to_trial
from stepscope.cli.options import CatalogFiles, Output, read_account, write_result
from stepscope.cli.predict_view import write_view
from stepscope.cli.tabular import TableFormat, TableFormatOption, to_json
from stepscope.errors import BadInput
from stepscope.report.section import Section
from stepscope.units import UNKNOWN, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS = ("id", "source", "rank", "status", "statement", "basis", "bound_ns", "span_ns", "num_steps")


def hypotheses(
    trace: Annotated[
        str | None,
        typer.Argument(help="A trace file, a directory of ranks, a glob, or a run folder.", metavar="[TRACE]"),
    ] = None,
    *,
    ledger: Annotated[Path | None, typer.Option(help="Keep them, and what came of them, in this JSON file.")] = None,
    test: Annotated[str | None, typer.Option(help="Judge this one of the ledger by two runs.", metavar="ID")] = None,
    before: Annotated[str | None, typer.Option(help="The run before the change.", metavar="TRACE")] = None,
    after: Annotated[str | None, typer.Option(help="The run after it.", metavar="TRACE")] = None,
    catalog: CatalogFiles = None,
    format_: TableFormatOption = TableFormat.text,
    output: Output = None,
) -> None:
    """Turn findings into hypotheses with an upper bound and a test; keep a ledger of their verdicts."""
    kept = read_ledger(ledger) if ledger is not None else Ledger()
    if test is not None:
        if ledger is None or before is None or after is None:
            raise BadInput("--test needs --ledger FILE, --before TRACE and --after TRACE.")
        kept = _tested(kept, test, (before, after), catalog)
    elif trace is not None:
        kept = kept.with_hypotheses(trace, find_hypotheses(read_account(trace, catalog)))
    elif ledger is None:
        raise BadInput("name a TRACE to take hypotheses from, or a --ledger to show.")
    document = kept.to_document()
    if ledger is not None and (test is not None or trace is not None):
        write_result(to_json(document), ledger)
    rows = [{name: entry[name] for name in _COLUMNS} for entry in document["entries"]]
    write_view(document, rows or [dict.fromkeys(_COLUMNS)], format_, output, _sections)


def _tested(kept: Ledger, name: str, runs: tuple[str, str], catalog: list[Path] | None) -> Ledger:
    entry = kept.find(name)
    a, b = (read_account(run, catalog) for run in runs)
    return kept.with_trial(entry, to_trial(*runs, judge(entry, compare(a, b))))


def _sections(document: dict[str, Any]) -> list[Section]:
    entries: Sequence[dict[str, Any]] = document["entries"]
    if not entries:
        return [Section(title="hypotheses", lines=("No finding asks for one: nothing stands out in this capture.",))]
    return [
        Section(title=f"{entry['id']}  [{entry['status']}]  {entry['source']}", lines=tuple(_lines(entry)))
        for entry in entries
    ]


def _lines(entry: dict[str, Any]) -> list[str]:
    lines = [entry["statement"], f"  bound: {entry['basis']}; what takes its place is not in it"]
    lines += [f"  to test it: {test}" for test in entry["tests"]]
    for trial in entry["trials"]:
        delta = trial["delta_per_step_ns"]
        change = UNKNOWN if delta is None else f"{'-' if delta < 0 else '+'}{show_ns(abs(delta))} a step"
        lines.append(
            f"  {trial['before']} -> {trial['after']}: {trial['status']}, {change} over {trial['num_pairs']} matched "
            f"steps: {trial['reason']}"
        )
    return lines
