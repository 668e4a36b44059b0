"""A comparison's document -> text for a terminal, and Markdown for a pull request. Times are shown per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.answers.compare import PART_MEANING
from stepscope.answers.kernels import CHANGE_MEANING
from stepscope.report.section import Grid, Section, print_sections
from stepscope.report.text import ENGLISH, WIDTH
from stepscope.units import UNKNOWN, show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.report.comparison import Document
    from stepscope.report.translate import Translator

SHOWN = 12  # families and kernels of a workload
SHOWN_WORKLOADS = 4  # in detail, the largest differences first
SHOWN_UNMATCHED = 20
SHOWN_CAUSES = 4
_NAME_CHARS = 48
EFFECTS = {
    "path": "ANOTHER PATH",
    "evidence": "NOT COMPARABLE",
    "overhead": "not recorded alike",
    "caveat": "caveat",
    "note": "note",
}
BEYOND = {True: "yes", False: "no", None: "no bound"}


def to_comparison_text(document: Document, translate: Translator = ENGLISH) -> str:
    """For a terminal."""
    return print_sections(_sections(document, translate), WIDTH)


def to_comparison_markdown(document: Document, translate: Translator = ENGLISH) -> str:
    """The same sections in Markdown."""
    return "\n".join(section.to_markdown() for section in _sections(document, translate))


def _sections(document: Document, tr: Translator) -> list[Section]:
    largest = sorted(document["workloads"], key=lambda w: -abs(w["wall"]["delta_ns"]))[:SHOWN_WORKLOADS]
    workloads = [s for w in largest for s in (_times(w, tr), _kernels(w, tr))]
    return [
        _causes(document, tr),
        _differences(document, tr),
        _verdict(document, tr),
        _matched(document, tr),
        *workloads,
        *([_whole(document, tr)] if document["families"] else []),
        _unmatched(document, tr),
    ]


def _causes(document: Document, tr: Translator) -> Section:
    named = document["cause"]["named"]
    if not named:
        return Section(title=tr("Cause"), lines=(tr(document["cause"]["headline"]),))
    lines = []
    for number, cause in enumerate(named[:SHOWN_CAUSES], 1):
        first, *more = (tr(sentence) for sentence in cause["sentences"])
        lines.append(f"{number}. {first}  [{tr(cause['grade'])}]")
        lines += [f"   {sentence}" for sentence in more]
        lines.append(tr("   does not show {what}").format(what=tr(cause["not_shown"])))
    if len(named) > SHOWN_CAUSES:
        lines.append(tr("... and {count} more").format(count=len(named) - SHOWN_CAUSES))
    return Section(title=tr("Causes, the largest first"), lines=tuple(lines))


def _differences(document: Document, tr: Translator) -> Section:
    lines = [f"{tr(EFFECTS[d['effect']])}: {tr(d['text'])}  [{tr(d['grade'])}]" for d in document["differences"]]
    nothing = tr("Nothing that the captures hold: configuration, graph modes and kernels are the same.")
    return Section(
        title=tr("What differs, before any time: A {a}, B {b}").format(a=document["a"], b=document["b"]),
        lines=tuple(lines) or (nothing,),
    )


def _verdict(document: Document, tr: Translator) -> Section:
    verdict = document["verdict"]
    lines = [tr(sentence) for sentence in verdict["sentences"]]
    lines += [tr("  to do: {recipe}").format(recipe=tr(recipe)) for recipe in verdict["record_with"]]
    return Section(title=tr("Verdict: {status}").format(status=tr(verdict["status"].upper())), lines=tuple(lines))


def _matched(document: Document, tr: Translator) -> Section:
    names = ("rank", "workload", ">pairs", ">A", ">B", ">B - A", ">kernel", ">comm", ">idle", ">unknown", "outcome")
    rows = tuple(
        (
            _rank(w["rank"], tr),
            tr(w["label"]),
            str(w["num_pairs"]),
            _per_step(w["wall"]["a_ns"], w["num_pairs"]),
            _per_step(w["wall"]["b_ns"], w["num_pairs"]),
            _signed(w["wall"]["delta_ns"], w["num_pairs"]),
            *(
                UNKNOWN if part is None else _signed(part["delta_ns"], w["num_pairs"])
                for part in (w["parts"][name] for name in PART_MEANING)
            ),
            tr(w["outcome"]),
        )
        for w in document["workloads"]
    )
    matched = tr("Mean per step of A and of B; B - A splits into kernel, comm, idle and unknown, to the ns.")
    kv = tr("Phase, requests and tokens are the same; kv sums agree within {part}.")
    lines = (
        matched,
        kv.format(part=show_fraction(document["kv_tolerance"])),
        tr("Bounds hold the spread inside these two captures; how runs differ shows when each is recorded again."),
        *(f"{tr(name)}: {tr(meaning)}" for name, meaning in PART_MEANING.items()),
    )
    grid = Grid(columns=_titles(names, tr), rows=rows) if rows else None
    return Section(title=tr("Matched steps, workload by workload"), lines=lines, grid=grid)


def _times(workload: Document, tr: Translator) -> Section:
    n = workload["num_pairs"]
    deltas = [(tr(name), d) for name, d in (("wall", workload["wall"]), *workload["parts"].items())]
    deltas += [
        (f"  {tr(name)}", d) for name, d in workload["categories"].items() if d is None or d["a_ns"] or d["b_ns"]
    ]
    deltas += [(f"  {tr(d['category'])} / {d['family']}", d) for d in workload["families"][:SHOWN]]
    names = ("per step", ">A", ">B", ">B - A", ">median of pairs", ">95 % interval", "beyond noise", "grade")
    rows = tuple(_delta_row(name, delta, n, tr) for name, delta in deltas)
    title = tr("{rank}: {workload}, {pairs} pairs").format(
        rank=_rank(workload["rank"], tr), workload=tr(workload["label"]), pairs=n
    )
    sentences = tuple(tr(sentence) for sentence in workload["sentences"])
    return Section(title=title, lines=sentences, grid=Grid(columns=_titles(names, tr), rows=rows))


def _delta_row(name: str, delta: Document | None, n: int, tr: Translator) -> tuple[str, ...]:
    if delta is None:
        return (name, *([UNKNOWN] * 6), tr("refused"))
    low, high = delta["low_ns"], delta["high_ns"]
    ratio = f" ({show_fraction(delta['delta_ns'] / delta['a_ns'])})" if delta["a_ns"] else ""
    return (
        name,
        _per_step(delta["a_ns"], n),
        _per_step(delta["b_ns"], n),
        _signed(delta["delta_ns"], n) + ratio,
        _signed(delta["median_ns"], 1),
        UNKNOWN if low is None else f"{_signed(low, 1)} .. {_signed(high, 1)}",
        tr(BEYOND[delta["beyond_noise"]]),
        tr(delta["grade"]),
    )


def _kernels(workload: Document, tr: Translator) -> Section:
    n = workload["num_pairs"]
    changed = [k for k in workload["kernels"] if k["change"] != "same"] or workload["kernels"]
    shown = changed[:SHOWN]
    names = ("kernel", "family", "change", ">launches A", ">B", ">one in A", ">one in B", ">B - A a step")
    rows = tuple(
        (
            k["name"][:_NAME_CHARS],
            k["family"],
            tr(k["change"]),
            show_count(k["count_a"]),
            show_count(k["count_b"]),
            show_ns(k["one_a"] and k["one_a"]["median_ns"]),
            show_ns(k["one_b"] and k["one_b"]["median_ns"]),
            _signed(k["delta_ns"], n),
        )
        for k in shown
    )
    counts = {name: sum(k["change"] == name for k in workload["kernels"]) for name in CHANGE_MEANING}
    lines = tuple(f"{count} {tr(name)}: {tr(CHANGE_MEANING[name])}" for name, count in counts.items() if count)
    title = tr("Its kernels, by the change of their total time ({shown} of {all})")
    return Section(
        title=title.format(shown=len(shown), all=len(workload["kernels"])),
        lines=lines,
        grid=Grid(columns=_titles(names, tr), rows=rows) if rows else None,
    )


def _whole(document: Document, tr: Translator) -> Section:
    """Families of the whole captures, ranked: all that can be said where no step has its partner."""
    names = ("family", ">events A", ">B", ">total A", ">B", ">one in A", ">one in B")
    rows = tuple(
        (
            f"{tr(f['category'])} / {f['family']}",
            show_count(f["count_a"]),
            show_count(f["count_b"]),
            show_ns(f["a_ns"]),
            show_ns(f["b_ns"]),
            show_ns(f["one_a_ns"]),
            show_ns(f["one_b_ns"]),
        )
        for f in document["families"][:SHOWN]
    )
    lines = (
        tr("No step has its partner, so the captures may hold different work: compare the means, not the totals."),
        tr("Sums of recorded device events over all ranks; overlaps count twice, and idle time is not in them."),
    )
    title = tr("Kernel families of the whole captures, most time first")
    return Section(title=title, lines=lines, grid=Grid(columns=_titles(names, tr), rows=rows))


def _unmatched(document: Document, tr: Translator) -> Section:
    rows = tuple(
        (
            u["side"].upper(),
            _rank(u["rank"], tr),
            tr(u["phase"] or UNKNOWN),
            show_count(u["num_scheduled_tokens"]),
            _ids(u["step_ids"]),
            tr(u["reason"]),
        )
        for u in document["unmatched"]
    )
    title = tr("Steps that are not compared")
    if not rows:
        return Section(title=title, lines=(tr("None: every step that ran tokens has its partner."),))
    shown = rows[:SHOWN_UNMATCHED]
    more = tr("The first {shown} of {all} rows.").format(shown=len(shown), all=len(rows))
    names = ("side", "rank", "phase", ">tokens", "steps", "why")
    grid = Grid(columns=_titles(names, tr), rows=shown)
    return Section(title=title, lines=(more,) if len(rows) > len(shown) else (), grid=grid)


def _titles(names: Sequence[str], tr: Translator) -> tuple[str, ...]:
    return tuple(f">{tr(name[1:])}" if name.startswith(">") else tr(name) for name in names)


def _ids(step_ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, step_ids[:8]))
    return shown if len(step_ids) <= 8 else f"{shown}, ... ({len(step_ids)})"


def _rank(value: int | None, tr: Translator) -> str:
    return tr("rank {n}").format(n="?" if value is None else value)


def _per_step(ns: int, n: int) -> str:
    return show_ns(ns // n)


def _signed(ns: int, n: int) -> str:
    each = ns // n if ns >= 0 else -(-ns // n)
    return f"+{show_ns(each)}" if each > 0 else show_ns(each)
