"""Everything that the join finds, together: step links, metrics, requests, stages, reconciliations, traps, rows.

`join_sources` is the pipeline; each part of it is a pure function of the sources. `to_document` is what reports hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.join import tables
from stepscope.join.clients import ClientLink, link_requests
from stepscope.join.disaggregated import StagedRequest, TransferInterval, find_transfers, stage_requests
from stepscope.join.experts import LayerLoad, layer_loads
from stepscope.join.hits import HitJudgement, Tiers, find_tiers, judge_hits
from stepscope.join.limits import BindingBudget, Starvation, StepSpan, find_binding_budget, find_starvation
from stepscope.join.metrics import metric_rows
from stepscope.join.observation import (
    Side,
    observe_experts,
    observe_forwards,
    observe_log,
    observe_stream,
    observe_trace,
)
from stepscope.join.reconcile import Reconciliation, reconcile
from stepscope.join.requests import RequestAccount, account_requests
from stepscope.join.steps import StepJoin, join_steps
from stepscope.join.traps import Trap, find_traps
from stepscope.readers.experts.reader import read_markers

if TYPE_CHECKING:
    from stepscope.join.figures import FigureRow
    from stepscope.join.sources import Sources
    from stepscope.messages import Message

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The joined evidence. `requests` come with the data-parallel rank of their engine core."""

    sources: Sources
    steps: StepJoin
    trace_facts: dict[tuple[int | None, int], dict[str, int]]
    figures: tuple[FigureRow, ...]
    requests: tuple[tuple[int | None, RequestAccount], ...]
    client_links: tuple[ClientLink, ...]
    staged: tuple[StagedRequest, ...]
    transfers: tuple[TransferInterval, ...]
    reconciliations: tuple[Reconciliation, ...]
    traps: tuple[Trap, ...]
    hits: HitJudgement | None
    expert_loads: tuple[LayerLoad, ...]
    tiers: Tiers | None
    budget: BindingBudget | None
    starvation: Starvation | None

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every sentence, for translation."""
        said: list[Message] = [how.text for how in self.steps.sources]
        said += [trap.text for trap in self.traps]
        said += [item.residual_is for item in self.reconciliations]
        said += [part.text for part in (self.hits, self.tiers, self.budget) if part is not None]
        said += [m for row in self.figures for m in (row.window, row.missing) if m is not None]
        return tuple(said)


def join_sources(sources: Sources) -> Joined:
    """Join whatever was given."""
    ranks = [observe_trace(store, table) for store, table in sources.ranks]
    accounts = [(stream.number("dp_rank"), account_requests(stream)) for stream in sources.schedulers]
    records = sources.log_records
    budgets = (find_binding_budget(log) for log in sources.logs)
    facts = {(trace.rank, i): dict(step.facts) for trace in ranks for i, step in enumerate(trace.steps)}
    return Joined(
        sources=sources,
        steps=join_steps(ranks, _sides(sources)),
        trace_facts=facts,
        figures=metric_rows(sources),
        requests=tuple((engine, request) for engine, requests in accounts for request in requests),
        client_links=tuple(
            link
            for client in sources.clients
            for link in link_requests(client.succeeded, [r for _, requests in accounts for r in requests])
        ),
        staged=stage_requests(records),
        transfers=find_transfers(records),
        reconciliations=reconcile(sources),
        traps=find_traps(sources),
        hits=judge_hits(sources),
        expert_loads=layer_loads(sources, ranks),
        tiers=find_tiers(records),
        budget=next((budget for budget in budgets if budget is not None), None),
        starvation=_starvation(sources),
    )


def _sides(sources: Sources) -> list[Side]:
    sides = [observe_stream(stream) for stream in sources.schedulers]
    for log in sources.logs:
        sides += observe_log(log.records)
    if sources.forwards is not None:
        sides += observe_forwards(sources.forwards.iterations)
    if sources.experts is not None:
        sides.append(observe_experts(sources.experts.steps, "expert recorder", "forward id"))
    logged = [step for stream in (sources.step_log.workers if sources.step_log else ()) for step in stream.experts]
    if logged:
        sides.append(observe_experts(logged, "expert counts, step log", "step id"))
    marked = {name for store, _ in sources.ranks for name in store.names}
    markers = read_markers(sorted(marked), "trace").steps
    if markers:
        sides.append(observe_experts(markers, "expert counts, markers", "step id"))
    return [side for side in sides if side.steps]


def _starvation(sources: Sources) -> Starvation | None:
    """From vLLM's iteration lines: prefill-only steps between steps that decode."""
    own = [r for r in sources.log_records if r.kind == "vllm_iteration" and not r.values.get("is_dummy")]
    spans = []
    running = 0.0
    for record in own:
        decodes, prefills = record.number("num_decode_requests") or 0, record.number("num_prefill_tokens") or 0
        phase = "prefill" if prefills and not decodes else "decode"
        running = decodes if decodes else running
        spans.append(
            StepSpan(
                phase=phase,
                duration_ns=round(record.number("elapsed_ns") or 0),
                num_prefill_tokens=round(prefills),
                num_running_decodes=round(running),
            )
        )
    return find_starvation(spans)


def join_rows(joined: Joined) -> dict[str, list[Row]]:
    """The rows of every table of the join."""
    links = {link.server.request_id: link for link in joined.client_links}
    return {
        "step_sources": tables.step_source_rows(joined.steps, joined.trace_facts),
        "metrics": [tables.figure_table_row(row) for row in joined.figures],
        "requests": [
            tables.request_row(engine, request, links.get(request.request_id)) for engine, request in joined.requests
        ],
        "chunks": [row for engine, request in joined.requests for row in tables.chunk_rows(engine, request)],
        "expert_loads": [tables.expert_row(load) for load in joined.expert_loads],
        "stages": [row for request in joined.staged for row in tables.stage_rows(request)],
        "reconciliations": [row for item in joined.reconciliations for row in tables.reconciliation_rows(item)],
    }


def to_document(joined: Joined) -> dict[str, Any]:
    """The joined evidence as JSON-able data; tables are rows, sentences stand beside what they say."""
    return {
        "inputs": [
            {"path": r.path, "health": [{"code": h.code, "count": h.count, "detail": h.detail} for h in r.health]}
            for r in joined.sources.readings
        ],
        "joined_by": [
            {
                "rank": how.rank,
                "source": how.source,
                "method": how.method,
                "steps_of_source": how.num_side_steps,
                "steps_of_trace": how.num_trace_steps,
                "steps_joined": how.num_joined,
                "clock_offset_ns": how.offset_ns,
                "text": str(how.text),
            }
            for how in joined.steps.sources
        ],
        "disagreements": [
            {"rank": d.rank, "step_id": d.step_id, "fact": d.fact, "values": dict(d.values)}
            for d in joined.steps.disagreements
        ],
        "traps": [{"code": trap.code, "text": str(trap.text)} for trap in joined.traps],
        "hits": None if joined.hits is None else {"verdict": joined.hits.verdict, "text": str(joined.hits.text)},
        "tiers": None if joined.tiers is None else {"text": str(joined.tiers.text)},
        "binding_budget": None
        if joined.budget is None
        else {"name": joined.budget.name, "text": str(joined.budget.text)},
        "missing_stages": sorted({name for request in joined.staged for name in request.missing}),
        "tables": join_rows(joined),
    }
