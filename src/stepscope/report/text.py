"""The document -> text for a terminal, and Markdown for an issue or a pull request. Nothing is computed here."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from stepscope.store.schema import CATEGORIES, CATEGORY_MEANING
from stepscope.units import UNKNOWN, show_count, show_fraction, show_ms, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Document = dict[str, Any]

_MAX_STEPS = 24
_TOP_FAMILIES = 12
_STATUS = {"answered": "answered", "partial": "answered in part", "refused": "REFUSED"}


def to_text(document: Document, *, width: int = 118) -> str:
    """The report for a terminal."""
    return _printed(_sections(document), width)


def _printed(sections: Sequence[_Section], width: int) -> str:
    out = StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    for section in sections:
        section.print_to(console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def to_markdown(document: Document) -> str:
    """The same sections in Markdown."""
    return "\n".join(section.to_markdown() for section in _sections(document))


def to_check_text(document: Document, *, markdown: bool = False, width: int = 118) -> str:
    """Only what says whether the capture can be trusted."""
    section = _trust(document)
    if markdown:
        return section.to_markdown()
    return _printed([section], width)


def to_table_text(rows: Sequence[Document], names: Sequence[str] | None = None, *, markdown: bool = False) -> str:
    """Any table, one line a row; unknown is a dash."""
    columns = list(names or (rows[0] if rows else ()))
    numeric = {name for name in columns if any(isinstance(row[name], int | float) for row in rows)}
    cells = [[UNKNOWN if row[name] is None else str(row[name]) for name in columns] for row in rows]
    grid = _Grid([f">{name}" if name in numeric else name for name in columns], cells)
    if markdown:
        return grid.to_markdown() + "\n"
    width = sum(max([len(name), *(len(row[i]) for row in cells)]) + 3 for i, name in enumerate(columns)) + 4
    return _printed([_Section("", (), grid)], width).lstrip("\n")


class _Section:
    """A heading, sentences, and a table."""

    def __init__(self, title: str, lines: Iterable[str] = (), table: _Grid | None = None) -> None:
        self.title = title
        self.lines = list(lines)
        self.table = table

    def print_to(self, console: Console) -> None:
        if self.title:
            console.print(self.title)
        for line in self.lines:
            indent = 2 + len(line) - len(line.lstrip())
            console.print(Padding(line.strip(), (0, 0, 0, indent)))
        if self.table is not None:
            width = console.width
            console.width = max(width, self.table.number_width)  # never squeezed: a cut digit is a wrong digit
            console.print(Padding(self.table.to_rich(), (0, 0, 0, 2)))
            console.width = width
        console.print()

    def to_markdown(self) -> str:
        parts = [f"## {self.title}", ""]
        parts += [f"- {line.strip()}" for line in self.lines]
        if self.table is not None:
            parts += ["", self.table.to_markdown()]
        return "\n".join(parts) + "\n"


class _Grid:
    """Columns with their alignment, and rows of text."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.columns = [(name.lstrip(">"), name.startswith(">")) for name in columns]
        self.rows = rows

    @property
    def number_width(self) -> int:
        """What the table needs, if all its columns but the first few are numbers; else 0, and text wraps."""
        if not all(right for _, right in self.columns[3:]):
            return 0
        widths = [max([len(name), *(len(row[i]) for row in self.rows)]) for i, (name, _) in enumerate(self.columns)]
        return sum(widths) + 3 * len(widths) + 2

    def to_rich(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name, right in self.columns:
            table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        head = "| " + " | ".join(name for name, _ in self.columns) + " |"
        rule = "|" + "|".join("---:" if right else "---" for _, right in self.columns) + "|"
        body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join([head, rule, *body])


def _sections(document: Document) -> list[_Section]:
    return [
        _trust(document),
        _steps_line(document),
        _budget(document),
        _findings(document),
        _families(document),
        _signals(document),
        _questions(document),
        _step_table(document),
    ]


def _rank(value: int | None) -> str:
    return "rank ?" if value is None else f"rank {value}"


def _trust(document: Document) -> _Section:
    lines = []
    for item in document["inputs"]:
        lane = {
            "device": "device lane",
            "host": "CPU backend: the worker thread is the device",
            "none": "no device work",
        }
        what = "no engine steps (front end or engine core)" if item["role"] != "worker" else lane[item["lane"]]
        lost = f"{show_count(item['events_recovered'])} recovered, {show_count(item['events_lost'])} lost"
        lines.append(f"{_rank(item['rank'])}: {show_count(item['events_read'])} events read, {lost}; {what}")
        lines += [
            f"  {row['severity']}: {row['code']} x{row['count']}: {row['detail']}"
            for row in item["health"]
            if row["severity"] != "info"
        ]
    coverage = document["coverage"]
    if coverage["kernels"]:
        lines.append(
            f"{show_count(coverage['kernels'])} device events, {show_count(coverage['kernels_in_steps'])} in steps; "
            f"{show_fraction(coverage['matched_fraction'])} of their time is placed by the catalog"
        )
    if coverage["idle_claimable"]:
        lines.append("Idle time and shares of wall time can be claimed.")
    else:
        lines.append("NOT CLAIMABLE: idle time and shares of wall time are withheld.")
    for reason in coverage["reasons"]:
        lines.append(f"{_rank(reason['rank'])}: {'WITHHELD' if reason['withholds'] else 'note'}: {reason['text']}")
        if reason["withholds"]:
            lines.append(f"  to do: {reason['record_with']}")
    return _Section(f"Can this capture be trusted?  {document['source']}", lines)


def _steps_line(document: Document) -> _Section:
    steps = document["steps"]
    if not steps["count"]:
        return _Section(
            "Steps", ["No engine step is marked or can be inferred; the span of each rank is accounted for."]
        )
    first = next(iter({row["rank"]: None for row in steps["rows"]}))
    phases = [row["phase"] for row in steps["rows"] if row["rank"] == first and row["phase"] != "empty"]
    counted = ", ".join(f"{phases.count(p)} {p or 'of unknown phase'}" for p in dict.fromkeys(phases))
    tokens = [row["num_scheduled_tokens"] for row in steps["rows"] if row["rank"] == first]
    known = sorted(t for t in tokens if t)
    spread = f"; scheduled tokens {known[0]} to {known[-1]} per step" if known else "; scheduled tokens not recorded"
    line = f"{steps['count']} steps a rank that ran tokens: {counted}{spread}"
    empty = f"; {steps['empty']} empty, listed and not counted" if steps["empty"] else ""
    return _Section("Engine steps", [line + empty + ".", f"Marked by: {steps['source']} ({steps['grade']})."])


def _totals(document: Document) -> list[dict[str, Any]]:
    return [row for row in document["budget"] if row["step_id"] is None]


def _budget(document: Document) -> _Section:
    totals = _totals(document)
    columns = ["category", *(f">{_rank(row['rank'])}" for row in totals), "what it is"]
    rows = [
        [name, *(_amount(row["exclusive_ns"][name], row, document) for row in totals), CATEGORY_MEANING[name]]
        for name in CATEGORIES
    ]
    rows.append(["span", *(show_ns(row["window_ns"]) for row in totals), "the sum of the above, to the ns"])
    lines = ["Each ns of a rank's span in exactly one category (- is withheld or unknown, never zero)."]
    return _Section("Where did the time go?", lines, _Grid(columns, rows))


def _amount(ns: int | None, row: dict[str, Any], document: Document) -> str:
    if ns is None:
        return UNKNOWN
    if not document["coverage"]["idle_claimable"] or not row["window_ns"]:
        return show_ns(ns)
    return f"{show_ns(ns)} {100 * ns / row['window_ns']:5.1f} %"


def _families(document: Document) -> _Section:
    ranks = [row["rank"] for row in _totals(document)]
    table: dict[tuple[str, str], dict[int | None, int]] = {}
    for row in document["families"]:
        table.setdefault((row["category"], row["family"]), {})[row["rank"]] = row["exclusive_ns"]
    top = sorted(table.items(), key=lambda item: -max(item[1].values()))[:_TOP_FAMILIES]
    rows = [
        [f"{category} / {family}", *(show_ns(by_rank.get(rank, 0)) for rank in ranks)]
        for (category, family), by_rank in top
    ]
    columns = ["family", *(f">{_rank(rank)}" for rank in ranks)]
    return _Section(f"Largest families, exclusive time ({len(top)} of {len(table)})", (), _Grid(columns, rows))


def _signals(document: Document) -> _Section:
    rows = [
        [
            _rank(s["rank"]),
            s["signal"],
            s["layer"],
            show_count(s["count"]),
            show_ns(s["total_ns"]),
            show_ns(s["median_ns"]),
            show_ns(s["p90_ns"]),
            show_fraction(s["share"]),
        ]
        for s in document["signals"]
    ]
    columns = ["rank", "signal", "layer", ">count", ">total", ">median", ">p90", ">share of span"]
    lines = ["Nested ranges count once; an envelope holds other signals and gets no share."]
    return _Section("Signals of the four layers", lines, _Grid(columns, rows))


def _questions(document: Document) -> _Section:
    lines = []
    for number, question in enumerate(document["questions"], start=1):
        lines.append(f"{number}. {question['title']}  [{_STATUS[question['status']]}, {question['grade']}]")
        if question["answer"]:
            lines.append(f"   {question['answer']}")
        for missing, record_with in zip(question["missing"], question["record_with"], strict=True):
            lines.append(f"   not known: {missing}. To know it, {record_with}.")
    return _Section("Seven questions", lines)


def _findings(document: Document) -> _Section:
    lines = [f"{f['text']}  [{f['grade']}] Not shown: {f['not_shown']}." for f in document["findings"]] or [
        "Nothing stands out, or the evidence does not carry it."
    ]
    return _Section("What stands out", lines)


def _step_table(document: Document) -> _Section:
    rows = [row for row in document["steps"]["rows"] if row["phase"] != "empty"]
    shown = rows[:_MAX_STEPS]
    columns = ["rank", ">step", "phase", ">tokens", ">prefill q", ">decode", ">kv", ">window"]
    columns += [f">{category}" for category in CATEGORIES]
    cells = [
        [
            "?" if row["rank"] is None else str(row["rank"]),
            str(row["step_id"]),
            row["phase"] or UNKNOWN,
            show_count(row["num_scheduled_tokens"]),
            show_count(row["prefill_query_sum"]),
            show_count(row["num_decode_requests"]),
            show_count(_kv(row)),
            show_ms(row["window_ns"]),
            *(show_ms(row[f"exclusive_{category}_ns"]) for category in CATEGORIES),
        ]
        for row in shown
    ]
    lines = ["Times in ms; kv: sum of kv_len over the step's rows."]
    if len(rows) > len(shown):
        lines.append(f"The first {len(shown)} of {len(rows)} rows; `stepscope steps` lists them all.")
    return _Section("Step by step", lines, _Grid(columns, cells))


def _kv(row: dict[str, Any]) -> int | None:
    prefill, decode = row["prefill_kv_sum"], row["decode_kv_sum"]
    return None if prefill is None or decode is None else prefill + decode
