"""The document -> text for a terminal, and Markdown for an issue or a pull request. Nothing is computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.report.against_model import model_sections
from stepscope.report.section import Grid, Section, print_sections
from stepscope.report.translate import Translator
from stepscope.store.schema import CATEGORIES, CATEGORY_MEANING
from stepscope.units import UNKNOWN, show_count, show_fraction, show_ms, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

Document = dict[str, Any]

WIDTH = 118
MAX_STEPS = 24
MAX_SHAPES = 16
TOP_FAMILIES = 12
STATUS = {"answered": "answered", "partial": "answered in part", "refused": "REFUSED"}
LANE = {
    "device": "device lane",
    "host": "CPU backend: the worker thread is the device",
    "none": "no device work",
    "simulated": "simulated: nothing of it was recorded",
}
ENGLISH = Translator()


def to_text(document: Document, translate: Translator = ENGLISH, more: Sequence[Section] = ()) -> str:
    """The report for a terminal; `more` sections stand behind it."""
    return print_sections([*_sections(document, translate), *more], WIDTH)


def to_markdown(document: Document, translate: Translator = ENGLISH, more: Sequence[Section] = ()) -> str:
    """The same sections in Markdown."""
    return "\n".join(section.to_markdown() for section in (*_sections(document, translate), *more))


def to_check_text(document: Document, translate: Translator = ENGLISH, *, markdown: bool = False) -> str:
    """Only what says whether the capture can be trusted."""
    section = _trust(document, translate)
    return section.to_markdown() if markdown else print_sections([section], WIDTH)


def to_table_text(rows: Sequence[Document], names: Sequence[str] | None = None, *, markdown: bool = False) -> str:
    """Any table, one line a row; unknown is a dash."""
    columns = list(names or (rows[0] if rows else ()))
    numeric = {name for name in columns if any(isinstance(row[name], int | float) for row in rows)}
    cells = tuple(tuple(UNKNOWN if row[name] is None else str(row[name]) for name in columns) for row in rows)
    grid = Grid(columns=tuple(f">{name}" if name in numeric else name for name in columns), rows=cells)
    if markdown:
        return grid.to_markdown() + "\n"
    return print_sections([Section(title="", grid=grid)], grid.width)


def _sections(document: Document, tr: Translator) -> list[Section]:
    makers = (_trust, _steps_line, _budget, _findings, _families, _signals, _questions, _step_table)
    sections = [make(document, tr) for make in makers]
    return [*sections[:-1], *model_sections(document, tr), sections[-1], *_graph_shapes(document, tr)]


def _rank(value: int | None, tr: Translator) -> str:
    return f"{tr('rank')} {'?' if value is None else value}"


def _trust(document: Document, tr: Translator) -> Section:
    lines: list[str] = []
    for item in document["inputs"]:
        lines += _input_lines(item, tr)
    coverage = document["coverage"]
    if coverage["kernels"]:
        lines.append(
            tr("{kernels} device events, {in_steps} in steps; {matched} of their time is placed by the catalog").format(
                kernels=show_count(coverage["kernels"]),
                in_steps=show_count(coverage["kernels_in_steps"]),
                matched=show_fraction(coverage["matched_fraction"]),
            )
        )
    if coverage["idle_claimable"]:
        lines.append(tr("Idle time and shares of wall time can be claimed."))
    else:
        refused = [_rank(gate["rank"], tr) for gate in coverage["ranks"] if not gate["idle_claimable"]]
        not_claimable = tr("NOT CLAIMABLE: idle time and shares of wall time are withheld ({ranks}).")
        lines.append(not_claimable.format(ranks=", ".join(refused) or "-"))
    for reason in coverage["reasons"]:
        kind = tr("WITHHELD") if reason["withholds"] else tr("note")
        lines.append(f"{_rank(reason['rank'], tr)}: {kind}: {tr(reason['text'])}")
        if reason["withholds"]:
            lines.append(f"  {tr('to do')}: {tr(reason['record_with'])}")
    return Section(title=f"{tr('Can this capture be trusted?')}  {document['source']}", lines=tuple(lines))


def _input_lines(item: Document, tr: Translator) -> list[str]:
    lane = tr(LANE[item["lane"]]) if item["lane"] else tr("no engine steps (front end or engine core)")
    counts = tr("{read} events read, {recovered} recovered, {lost} lost").format(
        read=show_count(item["events_read"]),
        recovered=show_count(item["events_recovered"]),
        lost=show_count(item["events_lost"]),
    )
    if item["events_without_time"]:
        counts += tr(", {count} without a usable time").format(count=show_count(item["events_without_time"]))
    doubts = [
        f"  {tr(row['severity'])}: {row['code']} x{row['count']}: {' '.join(tr(row['detail']).split())}"
        for row in item["health"]
        if row["severity"] != "info"
    ]
    return [
        f"{_rank(item['rank'], tr)}: {counts}; {lane}",
        *doubts,
    ]


def _steps_line(document: Document, tr: Translator) -> Section:
    steps, title = document["steps"], tr("Engine steps")
    if not steps["count"]:
        none = tr("No engine step is marked or can be inferred; the span of each rank is accounted for.")
        return Section(title=title, lines=(none,))
    first = next(iter({row["rank"]: None for row in steps["rows"]}))
    rows = [row for row in steps["rows"] if row["rank"] == first and row["phase"] != "empty"]
    phases = [tr(row["phase"] or "of unknown phase") for row in rows]
    known = sorted(row["num_scheduled_tokens"] for row in rows if row["num_scheduled_tokens"])
    lines = [
        tr("{count} steps a rank that ran tokens: {phases}.").format(
            count=steps["count"], phases=", ".join(f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases))
        ),
        tr("Scheduled tokens: {least} to {most} per step.").format(least=known[0], most=known[-1])
        if known
        else tr("Scheduled tokens: not recorded."),
        tr("Marked by: {source} ({grade}).").format(source=steps["source"], grade=tr(steps["grade"])),
    ]
    if steps["empty"]:
        lines.append(tr("{count} empty steps are listed and not counted.").format(count=steps["empty"]))
    return Section(title=title, lines=tuple(lines))


def _totals(document: Document) -> list[Document]:
    return [row for row in document["budget"] if row["step_id"] is None]


def _budget(document: Document, tr: Translator) -> Section:
    totals = _totals(document)
    rows = [
        (tr(name), *(_amount(row["exclusive_ns"][name], row, document) for row in totals), tr(CATEGORY_MEANING[name]))
        for name in CATEGORIES
    ]
    rows.append((tr("span"), *(show_ns(row["window_ns"]) for row in totals), tr("the sum of the above, to the ns")))
    columns = (tr("category"), *(f">{_rank(row['rank'], tr)}" for row in totals), tr("what it is"))
    line = tr("Each ns of a rank's span in exactly one category (- is withheld or unknown, never zero).")
    return Section(title=tr("Where did the time go?"), lines=(line,), grid=Grid(columns=columns, rows=tuple(rows)))


def _amount(ns: int | None, row: Document, document: Document) -> str:
    if ns is None:
        return UNKNOWN
    claimable = {gate["rank"]: gate["idle_claimable"] for gate in document["coverage"]["ranks"]}
    if not claimable[row["rank"]] or not row["window_ns"]:
        return show_ns(ns)
    return f"{show_ns(ns)} {100 * ns / row['window_ns']:5.1f} %"


def _families(document: Document, tr: Translator) -> Section:
    totals = _totals(document)
    ranks = [row["rank"] for row in totals]
    table: dict[tuple[str, str], dict[int | None, int]] = {}
    for row in document["families"]:
        table.setdefault((row["category"], row["family"]), {})[row["rank"]] = row["exclusive_ns"]
    top = sorted(table.items(), key=lambda item: -max(item[1].values()))[:TOP_FAMILIES]
    # a rank that withholds a category has none of its families: that is unknown, not zero
    absent = {
        row["rank"]: {name: None if ns is None else 0 for name, ns in row["exclusive_ns"].items()} for row in totals
    }
    rows = tuple(
        (f"{tr(category)} / {family}", *(show_ns(by_rank.get(rank, absent[rank][category])) for rank in ranks))
        for (category, family), by_rank in top
    )
    title = tr("Largest families, exclusive time ({shown} of {all})").format(shown=len(top), all=len(table))
    columns = (tr("family"), *(f">{_rank(rank, tr)}" for rank in ranks))
    return Section(title=title, grid=Grid(columns=columns, rows=rows))


def _signals(document: Document, tr: Translator) -> Section:
    rows = tuple(
        (
            _rank(signal["rank"], tr),
            tr(signal["signal"]),
            tr(signal["layer"]),
            show_count(signal["count"]),
            show_ns(signal["total_ns"]),
            show_ns(signal["median_ns"]),
            show_ns(signal["p90_ns"]),
            show_fraction(signal["share"]),
        )
        for signal in document["signals"]
    )
    names = ("rank", "signal", "layer", ">count", ">total", ">median", ">p90", ">share of span")
    return Section(
        title=tr("Signals of the four layers"),
        lines=(tr("Nested ranges count once; an envelope holds other signals and gets no share."),),
        grid=Grid(columns=_titles(names, tr), rows=rows),
    )


def _titles(names: Sequence[str], tr: Translator) -> tuple[str, ...]:
    return tuple(f">{tr(name[1:])}" if name.startswith(">") else tr(name) for name in names)


def _questions(document: Document, tr: Translator) -> Section:
    lines = []
    for number, question in enumerate(document["questions"], start=1):
        status = f"[{tr(STATUS[question['status']])}, {tr(question['grade'])}]"
        lines.append(f"{number}. {tr(question['title'])}  {status}")
        if question["sentences"]:
            lines.append("   " + " ".join(tr(sentence) for sentence in question["sentences"]))
        for missing, record_with in zip(question["missing"], question["record_with"], strict=True):
            known = tr("not known: {missing}. To know it, {recipe}.")
            lines.append("   " + known.format(missing=tr(missing), recipe=tr(record_with)))
    return Section(title=tr("Seven questions"), lines=tuple(lines))


def _findings(document: Document, tr: Translator) -> Section:
    shape = tr("{finding}  [{grade}] Not shown: {not_shown}.")
    lines = [
        shape.format(finding=tr(f["text"]), grade=tr(f["grade"]), not_shown=tr(f["not_shown"]))
        for f in document["findings"]
    ]
    nothing = tr("Nothing stands out, or the evidence does not carry it.")
    return Section(title=tr("What stands out"), lines=tuple(lines) or (nothing,))


def _step_table(document: Document, tr: Translator) -> Section:
    rows = [row for row in document["steps"]["rows"] if row["phase"] != "empty"]
    shown = rows[:MAX_STEPS]
    cells = tuple(
        (
            "?" if row["rank"] is None else str(row["rank"]),
            str(row["step_id"]),
            tr(row["phase"]) if row["phase"] else UNKNOWN,
            show_count(row["num_scheduled_tokens"]),
            show_count(row["prefill_query_sum"]),
            show_count(row["num_decode_requests"]),
            show_count(_kv(row)),
            show_ms(row["window_ns"]),
            *(show_ms(row[f"exclusive_{category}_ns"]) for category in CATEGORIES),
        )
        for row in shown
    )
    lines = [tr("Times in ms; kv: sum of kv_len over the step's rows.")]
    if len(rows) > len(shown):
        more = tr("The first {shown} of {all} rows; `stepscope steps` lists them all.")
        lines.append(more.format(shown=len(shown), all=len(rows)))
    names = ("rank", ">step", "phase", ">tokens", ">prefill q", ">decode", ">kv", ">window")
    columns = _titles((*names, *(f">{category}" for category in CATEGORIES)), tr)
    return Section(title=tr("Step by step"), lines=tuple(lines), grid=Grid(columns=columns, rows=cells))


def _graph_shapes(document: Document, tr: Translator) -> list[Section]:
    """What kernels inside graphs compute; nothing where no graph ran."""
    found = document["graph_shapes"]
    if found["text"] is None:
        return []
    names = ("operation", "shapes", ">kernels", ">total")
    rows = tuple(
        (row["op"], row["dims"] or UNKNOWN, show_count(row["kernels"]), show_ns(row["total_ns"]))
        for row in found["rows"][:MAX_SHAPES]
    )
    grid = Grid(columns=_titles(names, tr), rows=rows) if rows else None
    return [Section(title=tr("Kernels inside graphs"), lines=(tr(found["text"]),), grid=grid)]


def _kv(row: Document) -> int | None:
    prefill, decode = row["prefill_kv_sum"], row["decode_kv_sum"]
    return None if prefill is None or decode is None else prefill + decode
