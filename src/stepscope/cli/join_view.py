"""The joined evidence and chunk plans -> sections of text. Knows how they look, not what they mean."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from stepscope.join.disaggregated import STAGES
from stepscope.join.figures import DEFINITIONS
from stepscope.report.section import Grid, Section
from stepscope.units import UNKNOWN, show_count, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.chunks import ChunkPlan
    from stepscope.join.evidence import Joined
    from stepscope.join.figures import FigureRow
    from stepscope.join.requests import RequestAccount
    from stepscope.messages import Message

_MOST = 20  # rows that a text report shows of a long list
_MOST_CHUNKS = 6
_ROUNDING = 1e-9


def evidence_sections(joined: Joined, translate: Callable[[Message], str] = str) -> list[Section]:
    """What the join adds to a report; sections without content are left out."""
    parts = [
        _joined_section(joined, translate),
        _metrics_section(joined, translate),
        _definition_section(joined),
        _warning_section(joined, translate),
        _reconciliation_section(joined, translate),
        _request_section(joined),
        _stage_section(joined),
    ]
    return [part for part in parts if part is not None]


def _joined_section(joined: Joined, translate: Callable[[Message], str]) -> Section | None:
    lines = [
        f"{_rank(how.rank)}, {how.source}: {how.num_joined} of {how.num_trace_steps} steps {translate(how.text)}"
        for how in joined.steps.sources
    ]
    lines += [
        f"{_rank(d.rank)}, step {d.step_id}, {d.fact}: "
        + ", ".join(f"{source} {value}" for source, value in d.values.items())
        for d in joined.steps.disagreements[:_MOST]
    ]
    more = len(joined.steps.disagreements) - _MOST
    if more > 0:
        lines.append(f"{more} more disagreements are in the table step_sources.")
    return Section(title="Joined with the trace's steps", lines=tuple(lines)) if lines else None


def _rank(rank: int | None) -> str:
    return "Rank ?" if rank is None else f"Rank {rank}"


def _metrics_section(joined: Joined, translate: Callable[[Message], str]) -> Section | None:
    if not joined.figures:
        return None
    rows = tuple(
        (
            row.name,
            row.statistic if row.value is not None else "",
            _number(row.value, row.unit),
            _bounds(row),
            row.source + (f" ({row.clock})" if row.clock not in ("", row.source) else ""),
            translate(row.window if row.missing is None else row.missing),
            row.grade,
        )
        for row in joined.figures
    )
    columns = ("figure", "of", ">value", ">bounds", "source (clock)", "window", "grade")
    return Section(title="Metrics", grid=Grid(columns=columns, rows=rows))


def _definition_section(joined: Joined) -> Section | None:
    names = dict.fromkeys(row.figure for row in joined.figures)
    lines = tuple(f"{DEFINITIONS[name][0]}{_in(DEFINITIONS[name][1])}: {DEFINITIONS[name][2]}." for name in names)
    return Section(title="What they mean", lines=lines) if lines else None


def _in(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _warning_section(joined: Joined, translate: Callable[[Message], str]) -> Section | None:
    lines = [f"{trap.code}: {translate(trap.text)}" for trap in joined.traps]
    if joined.hits is not None and joined.hits.text not in [trap.text for trap in joined.traps]:
        lines.append(translate(joined.hits.text))
    lines += [translate(part.text) for part in (joined.tiers, joined.budget) if part is not None]
    if joined.starvation is not None:
        s = joined.starvation
        lines.append(
            f"Decodes wait {show_ns(s.duration_ns)} while {s.num_steps} prefill-only steps compute "
            f"{show_count(s.num_prefill_tokens)} tokens."
        )
    return Section(title="Read with care", lines=tuple(lines)) if lines else None


def _reconciliation_section(joined: Joined, translate: Callable[[Message], str]) -> Section | None:
    lines = []
    for item in joined.reconciliations:
        parts = " + ".join(f"{name} {_number(value, item.unit)}" for name, value in item.parts.items())
        rest = item.residual if abs(item.residual) > _ROUNDING * max(abs(item.total), 1.0) else 0.0
        lines.append(
            f"{item.total_name} {_number(item.total, item.unit)} {item.unit} = {parts} + residual "
            f"{_number(rest, item.unit)}"
        )
        if rest:
            lines.append(f"  residual: {translate(item.residual_is)}")
    return Section(title="Reconciled", lines=tuple(lines)) if lines else None


def _request_section(joined: Joined) -> Section | None:
    accounts = [account for _, account in joined.requests]
    return request_sections(accounts)[0] if accounts else None


def request_sections(accounts: Sequence[RequestAccount]) -> list[Section]:
    """Requests with their chunks; the longest prefills first, since a list may be cut."""
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
    columns = ("request", ">prompt", ">hit", ">effective", ">again", "chunks (query/kv+others)")
    grid = Grid(columns=(*columns, ">front", ">queue", ">prefill", ">decode"), rows=rows)
    more = len(ordered) - _MOST
    lines = (f"{more} more requests are in the table requests.",) if more > 0 else ()
    return [Section(title="Requests: prefix first, then chunk", lines=lines, grid=grid)]


def _chunks(request: RequestAccount) -> str:
    parts = []
    for chunk in request.chunks[:_MOST_CHUNKS]:
        others = chunk.other_prefill_tokens + chunk.decode_tokens
        parts.append(f"{chunk.query_len}/{chunk.kv_len}" + (f"+{others}" if others else ""))
    return " ".join(parts) + (" ..." if len(request.chunks) > _MOST_CHUNKS else "")


def _stage_section(joined: Joined) -> Section | None:
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
    lines = [f"not recorded for some request: {', '.join(missing)}"] if missing else []
    lines += [
        f"{t.num_transfers} transfers in an interval: mean {show_ns(None if t.mean_ns is None else round(t.mean_ns))}"
        for t in joined.transfers[:_MOST]
    ]
    grid = Grid(columns=("request", *(f">{stage}" for stage in STAGES), ">transfer rate"), rows=rows) if rows else None
    return Section(title="Prefill and decode apart: stages", lines=tuple(lines), grid=grid)


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
        return "open"
    if unit in ("tokens", "") and value == int(value):
        return show_count(int(value))
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def _bounds(row: FigureRow) -> str:
    if row.low is None or row.high is None or row.low == row.high:
        return ""
    return f"{_number(row.low, row.unit)} to {_number(row.high, row.unit)}"
