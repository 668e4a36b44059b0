"""The joined evidence and chunk plans -> sections of text. Knows how they look, not what they mean."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from stepscope.answers.load_findings import find_load_findings
from stepscope.join.disaggregated import STAGES
from stepscope.join.figures import DEFINITIONS
from stepscope.messages import Message, say
from stepscope.report.section import Grid, Section
from stepscope.units import UNKNOWN, show_count, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.chunks import ChunkPlan
    from stepscope.join.evidence import Joined
    from stepscope.join.figures import FigureRow
    from stepscope.join.requests import RequestAccount

    Say = Callable[[Message], str]

_MOST = 20  # rows that a text report shows of a long list
_MOST_CHUNKS = 6
_ROUNDING = 1e-9
_OPEN = say("open")


def evidence_sections(joined: Joined, translate: Callable[[Message], str] = str) -> list[Section]:
    """What the join adds to a report; sections without content are left out."""
    t = _by_template(translate)
    parts = [
        _joined_section(joined, t),
        _metrics_section(joined, t),
        _definition_section(joined, t),
        _load_section(joined, t),
        _warning_section(joined, t),
        _reconciliation_section(joined, t),
        _request_section(joined, t),
        _stage_section(joined, t),
    ]
    return [part for part in parts if part is not None]


def _by_template(translate: Say) -> Say:
    """Translate a message by its template and its values: what only this view says stands in no document."""

    def words(text: str) -> str:
        return translate(Message("{text}", {"text": text}))

    def t(message: Message) -> str:
        values = {name: t(v) if isinstance(v, Message) else words(v) for name, v in message.values.items()}
        return words(message.template).format(**values)

    return t


def _word(text: str, t: Say) -> str:
    """A name out of the evidence, which a catalog may hold."""
    return t(say("{text}", text=text))


def _titles(names: Sequence[str], t: Say) -> tuple[str, ...]:
    return tuple(f">{_word(name[1:], t)}" if name.startswith(">") else _word(name, t) for name in names)


def _joined_section(joined: Joined, t: Say) -> Section | None:
    lines = [
        t(
            say(
                "{rank}, {source}: {joined} of {all} steps {how}",
                rank=_rank(how.rank),
                source=how.source,
                joined=how.num_joined,
                all=how.num_trace_steps,
                how=how.text,
            )
        )
        for how in joined.steps.sources
    ]
    lines += [
        t(
            say(
                "{rank}, step {step}, {fact}: {values}",
                rank=_rank(d.rank),
                step=d.step_id,
                fact=d.fact,
                values=", ".join(f"{source} {value}" for source, value in d.values.items()),
            )
        )
        for d in joined.steps.disagreements[:_MOST]
    ]
    more = len(joined.steps.disagreements) - _MOST
    if more > 0:
        lines.append(t(say("{count} more disagreements are in the table step_sources.", count=more)))
    return Section(title=t(say("Joined with the trace's steps")), lines=tuple(lines)) if lines else None


def _rank(rank: int | None) -> Message:
    return say("Rank ?") if rank is None else say("Rank {rank}", rank=rank)


def _metrics_section(joined: Joined, t: Say) -> Section | None:
    if not joined.figures:
        return None
    rows = tuple(
        (
            _word(row.name, t),
            _word(row.statistic, t) if row.value is not None else "",
            _number(row.value, row.unit),
            _bounds(row, t),
            _word(row.source, t) + (f" ({row.clock})" if row.clock not in ("", row.source) else ""),
            t(row.window if row.missing is None else row.missing),
            _word(row.grade, t),
        )
        for row in joined.figures
    )
    names = ("figure", "statistic", ">value", ">bounds", "source (clock)", "window", "grade")
    return Section(title=t(say("Metrics")), grid=Grid(columns=_titles(names, t), rows=rows))


def _definition_section(joined: Joined, t: Say) -> Section | None:
    found = dict.fromkeys(row.figure for row in joined.figures)
    lines = tuple(_define(*DEFINITIONS[figure], t) for figure in found)
    return Section(title=t(say("What they mean")), lines=lines) if lines else None


def _define(name: str, unit: str, meaning: str, t: Say) -> str:
    if not unit:
        return t(say("{name}: {meaning}.", name=name, meaning=meaning))
    return t(say("{name} ({unit}): {meaning}.", name=name, unit=unit, meaning=meaning))


def _load_section(joined: Joined, t: Say) -> Section | None:
    shape = say("{finding}  [{grade}] Not shown: {not_shown}.")
    lines = [
        t(Message(shape.template, {"finding": f.text, "grade": say(f.grade), "not_shown": f.not_shown}))
        for f in find_load_findings(joined)
    ]
    return Section(title=t(say("What stands out in the load")), lines=tuple(lines)) if lines else None


def _warning_section(joined: Joined, t: Say) -> Section | None:
    lines = [t(say("{code}: {text}", code=trap.code, text=trap.text)) for trap in joined.traps]
    if joined.hits is not None and joined.hits.text not in [trap.text for trap in joined.traps]:
        lines.append(t(joined.hits.text))
    lines += [t(part.text) for part in (joined.tiers, joined.budget) if part is not None]
    if joined.starvation is not None:
        s = joined.starvation
        lines.append(
            t(
                say(
                    "Decodes wait {span} while {count} prefill-only steps compute {tokens} tokens.",
                    span=show_ns(s.duration_ns),
                    count=s.num_steps,
                    tokens=show_count(s.num_prefill_tokens),
                )
            )
        )
    return Section(title=t(say("Read with care")), lines=tuple(lines)) if lines else None


def _reconciliation_section(joined: Joined, t: Say) -> Section | None:
    lines = []
    for item in joined.reconciliations:
        parts = " + ".join(f"{_word(name, t)} {_number(value, item.unit)}" for name, value in item.parts.items())
        rest = item.residual if abs(item.residual) > _ROUNDING * max(abs(item.total), 1.0) else 0.0
        line = say(
            "{name} {total} {unit} = {parts} + residual {rest}",
            name=item.total_name,
            total=_number(item.total, item.unit),
            unit=item.unit,
            parts=parts,
            rest=_number(rest, item.unit),
        )
        lines.append(t(line))
        if rest:
            lines.append("  " + t(say("residual: {what}", what=item.residual_is)))
    return Section(title=t(say("Reconciled")), lines=tuple(lines)) if lines else None


def _request_section(joined: Joined, t: Say) -> Section | None:
    accounts = [account for _, account in joined.requests]
    return request_sections(accounts, t)[0] if accounts else None


def request_sections(accounts: Sequence[RequestAccount], translate: Callable[[Message], str] = str) -> list[Section]:
    """Requests with their chunks; the longest prefills first, since a list may be cut."""
    t = _by_template(translate)
    ordered = sorted(accounts, key=lambda r: (-(r.effective_prefill_tokens or 0), r.request_id))
    rows = tuple(
        (
            request.request_id,
            show_count(request.prompt_len),
            show_count(request.prefix_hit_tokens),
            show_count(request.effective_prefill_tokens),
            show_count(request.recomputed_tokens),
            _chunks(request),
            *(show_ns(span) for span in request.stages.spans().values()),
        )
        for request in ordered[:_MOST]
    )
    names = (
        "request",
        ">prompt",
        ">hit",
        ">effective",
        ">again",
        "chunks (query/kv+others)",
        ">front",
        ">queue",
        ">prefill",
        ">decode",
    )
    more = len(ordered) - _MOST
    lines = (t(say("{count} more requests are in the table requests.", count=more)),) if more > 0 else ()
    grid = Grid(columns=_titles(names, t), rows=rows)
    return [Section(title=t(say("Requests: prefix first, then chunk")), lines=lines, grid=grid)]


def _chunks(request: RequestAccount) -> str:
    parts = []
    for chunk in request.chunks[:_MOST_CHUNKS]:
        others = chunk.other_prefill_tokens + chunk.decode_tokens
        parts.append(f"{chunk.query_len}/{chunk.kv_len}" + (f"+{others}" if others else ""))
    return " ".join(parts) + (" ..." if len(request.chunks) > _MOST_CHUNKS else "")


def _stage_section(joined: Joined, t: Say) -> Section | None:
    if not joined.staged and not joined.transfers:
        return None
    rows = tuple(
        (
            request.request_id,
            *(show_ns(request.stages_ns[stage]) for stage in STAGES),
            UNKNOWN if request.transfer_bytes_per_s is None else f"{request.transfer_bytes_per_s / 1e9:.2f} GB/s",
        )
        for request in joined.staged[:_MOST]
    )
    missing = sorted({name for request in joined.staged for name in request.missing})
    unknown = ", ".join(_word(name, t) for name in missing)
    lines = [t(say("not recorded for some request: {names}", names=unknown))] if missing else []
    lines += [
        t(
            say(
                "{count} transfers in an interval: mean {mean}",
                count=each.num_transfers,
                mean=show_ns(None if each.mean_ns is None else round(each.mean_ns)),
            )
        )
        for each in joined.transfers[:_MOST]
    ]
    names = ("request", *(f">{stage}" for stage in STAGES), ">transfer rate")
    grid = Grid(columns=_titles(names, t), rows=rows) if rows else None
    return Section(title=t(say("Prefill and decode apart: stages")), lines=tuple(lines), grid=grid)


def chunk_sections(plan: ChunkPlan, rows: Sequence[dict[str, Any]]) -> list[Section]:
    """A plan."""
    hit, effective = show_count(plan.prefix_hit_tokens), show_count(plan.effective_prefill_tokens)
    total = f"prompt {show_count(plan.prompt_len)} = hit {hit} + effective {effective} tokens"
    lines = [f"{total}, in {len(plan.chunks)} chunks"]
    if plan.alignment_loss_tokens:
        lines.append(
            f"{show_count(plan.alignment_loss_tokens)} of {show_count(plan.found_tokens)} tokens found are computed "
            "all the same: a hit is whole blocks, and the last token is always computed"
        )
    columns = ("chunk", ">query_len", ">context_len", ">kv_len", ">shared tokens", ">step tokens")
    cells = tuple(tuple(show_count(value) for value in row.values()) for row in rows)
    return [Section(title="Prefix first, then chunk", lines=tuple(lines), grid=Grid(columns=columns, rows=cells))]


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    if not isfinite(value):
        return str(_OPEN)
    if unit in ("tokens", "") and value == int(value):
        return show_count(int(value))
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def _bounds(row: FigureRow, t: Say) -> str:
    if row.low is None or row.high is None or row.low == row.high:
        return ""
    return t(say("{low} to {high}", low=_number(row.low, row.unit), high=_number(row.high, row.unit)))
