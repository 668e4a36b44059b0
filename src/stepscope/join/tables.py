"""The tables that the join adds: their columns, declared as in `store.schema`, and the rows of each."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from stepscope.store.schema import Column, Dtype

if TYPE_CHECKING:
    from stepscope.join.clients import ClientLink
    from stepscope.join.disaggregated import StagedRequest
    from stepscope.join.experts import LayerLoad
    from stepscope.join.figures import FigureRow
    from stepscope.join.reconcile import Reconciliation
    from stepscope.join.requests import RequestAccount
    from stepscope.join.steps import StepJoin

Row = dict[str, Any]
_LOG = "the step log has no such event"


def _column(name: str, dtype: Dtype, unit: str, doc: str, null: str = "") -> Column:
    return Column(name=name, dtype=dtype, unit=unit, doc=doc, null=null)


_RANK = _column("rank", "int64", "", "the rank in its engine", "the capture does not say")

STEP_SOURCES = (
    _RANK,
    _column("step_id", "int64", "", "the trace's step"),
    _column("source", "string", "", "where it was found: step log, log iterations, log prefill batches, experts"),
    _column("method", "string", "", "step id, forward id or clock"),
    _column("source_step", "int64", "", "the source's own number of the step", "it has none"),
    _column("residual_ns", "int64", "ns", "the trace's time minus the source's, offset taken out", "no common clock"),
    _column("fact", "string", "", "what it says something about"),
    _column("value", "int64", "", "what it says"),
    _column("trace_value", "int64", "", "what the trace says of the same", "the trace does not say"),
    _column("agrees", "bool", "", "whether both are equal", "the trace does not say"),
)
METRICS = (
    _column("figure", "string", "", "which figure: its meaning is in docs/metrics.md"),
    _column("statistic", "string", "", "mean, p50, p99, max or total"),
    _column("value", "float64", "", "in `unit`", "no source that was given has it"),
    _column("low", "float64", "", "the value is not below this", "no value"),
    _column("high", "float64", "", "the value is not above this", "no value, or no upper bound"),
    _column("unit", "string", "", "of value, low and high"),
    _column("clock", "string", "", "whose clock it is on"),
    _column("window", "string", "", "over what"),
    _column("source", "string", "", "which file it is from"),
    _column("grade", "string", "", "how far it can be trusted"),
    _column("count", "int64", "", "how many values it rests on", "not counted"),
    _column("definition", "string", "", "what the number is"),
    _column("missing", "string", "", "why there is no value", "there is one"),
)
REQUESTS = (
    _column("engine", "int64", "", "data-parallel rank of the engine core", "the log does not say"),
    _column("request_id", "string", "", "as the engine has it, or a hash of it"),
    _column("prompt_len", "int64", "tokens", "tokens of the prompt", "not recorded"),
    _column(
        "prefix_hit_tokens", "int64", "tokens", "found in the cache at the first admission", "began before the log"
    ),
    _column("external_hit_tokens", "int64", "tokens", "of them, from a KV connector", "not known"),
    _column("effective_prefill_tokens", "int64", "tokens", "prompt minus hit", "began before the log"),
    _column("recomputed_tokens", "int64", "tokens", "computed again after a preemption"),
    _column("recovered_tokens", "int64", "tokens", "found again after a preemption: no reuse"),
    _column("num_preemptions", "int64", "", "times it lost its blocks"),
    _column("num_chunks", "int64", "", "prefill rows"),
    _column("front_ns", "int64", "ns", "front end took it, to queued in the engine core", _LOG),
    _column("queue_ns", "int64", "ns", "queued, to first scheduled", _LOG),
    _column("prefill_ns", "int64", "ns", "first scheduled, to the end of the step with its last prompt token", _LOG),
    _column("decode_ns", "int64", "ns", "from there to its end", _LOG),
    _column("client_ttft_ns", "int64", "ns", "TTFT as the client measured it", "no client result has it"),
    _column("client_e2el_ns", "int64", "ns", "E2EL as the client measured it", "no client result has it"),
    _column("client_method", "string", "", "request id or clock: how it was found there", "it was not"),
)
CHUNKS = (
    _column("engine", "int64", "", "data-parallel rank of the engine core", "the log does not say"),
    _column("request_id", "string", "", "as the engine has it, or a hash of it"),
    _column("chunk_index", "int64", "", "0-based in its request, over all admissions"),
    _column("source_step", "int64", "", "the scheduler's step id"),
    _column("query_len", "int64", "tokens", "tokens computed"),
    _column("kv_len", "int64", "tokens", "context_len + query_len"),
    _column("recomputed_tokens", "int64", "tokens", "of query_len, computed before"),
    _column("num_other_prefills", "int64", "rows", "other prefill rows in the step"),
    _column("other_prefill_tokens", "int64", "tokens", "their tokens"),
    _column("num_decodes", "int64", "rows", "decode rows in the step"),
    _column("decode_tokens", "int64", "tokens", "their tokens"),
)
STAGES = (
    _column("request_id", "string", "", "as the decode side prints it, else the prefill side"),
    _column("stage", "string", "", "router, bootstrap, queue, prefill, preallocation, transfer, decode_queue, decode"),
    _column("duration_ns", "int64", "ns", "how long", "no log that was given has it"),
    _column("transfer_bytes_per_s", "float64", "bytes/s", "of the transfer", "not recorded, or another stage"),
)
EXPERT_LOADS = (
    _RANK,
    _column("step_id", "int64", "", "the trace's step", "no trace, or it has no such number"),
    _column("source", "string", "", "markers, step log or expert recorder"),
    _column("source_step", "int64", "", "the number it was recorded under", "none was"),
    _column("layer", "int64", "", "layer index"),
    _column("num_experts", "int64", "", "experts counted (physical ones in the recorder's passes)"),
    _column("num_rows", "int64", "rows", "token copies over all experts"),
    _column("max_rows", "int64", "rows", "of the busiest expert"),
    _column("num_empty", "int64", "", "experts without a row"),
    _column("imbalance", "float64", "", "max over mean", "no rows"),
    _column("adds_up", "bool", "", "whether num_rows is tokens x top_k", "one of them is not recorded"),
)
RECONCILIATIONS = (
    _column("comparison", "string", "", "which figures are held against each other"),
    _column("total", "float64", "", "in `unit`"),
    _column("part", "string", "", "a part's name; `residual` is what no part explains"),
    _column("value", "float64", "", "in `unit`"),
    _column("unit", "string", "", "of total and value"),
    _column("note", "string", "", "what the residual can be", "a part"),
)

JOIN_TABLES: dict[str, tuple[Column, ...]] = {
    "step_sources": STEP_SOURCES,
    "metrics": METRICS,
    "requests": REQUESTS,
    "chunks": CHUNKS,
    "stages": STAGES,
    "expert_loads": EXPERT_LOADS,
    "reconciliations": RECONCILIATIONS,
}
JOIN_TABLE_MEANING: dict[str, str] = {
    "step_sources": "what other sources say of the trace's steps, fact by fact, never averaged",
    "metrics": "every figure with its definition, clock, window and source",
    "requests": "each request's prompt, hit, effective tokens and stages",
    "chunks": "each prefill row, and what shared its step",
    "stages": "stages of requests over a prefill and a decode server",
    "expert_loads": "rows per expert, layer by layer: sum, maximum, empty experts",
    "reconciliations": "client against server against log: parts and residual",
}


def step_source_rows(join: StepJoin, trace_facts: dict[tuple[int | None, int], dict[str, int]]) -> list[Row]:
    """One row a step, source and fact."""
    rows = []
    for link in join.links:
        ours = trace_facts.get((link.rank, link.step_id), {})
        for fact, value in sorted(link.facts.items()):
            own = ours.get(fact)
            rows.append(
                {
                    "rank": link.rank,
                    "step_id": link.step_id,
                    "source": link.source,
                    "method": link.method,
                    "source_step": link.number,
                    "residual_ns": link.residual_ns,
                    "fact": fact,
                    "value": value,
                    "trace_value": own,
                    "agrees": None if own is None else own == value,
                }
            )
    return rows


def figure_table_row(row: FigureRow) -> Row:
    """One figure; an open upper bound is null."""
    return {
        "figure": row.figure,
        "statistic": row.statistic,
        "value": row.value,
        "low": row.low,
        "high": row.high if row.high is None or isfinite(row.high) else None,
        "unit": row.unit,
        "clock": row.clock,
        "window": str(row.window),
        "source": row.source,
        "grade": row.grade,
        "count": row.count,
        "definition": row.definition,
        "missing": None if row.missing is None else str(row.missing),
    }


def request_row(engine: int | None, request: RequestAccount, link: ClientLink | None = None) -> Row:
    """One request, with what a client says of it."""
    names = ("request_id", "prompt_len", "prefix_hit_tokens", "external_hit_tokens", "effective_prefill_tokens")
    more = ("recomputed_tokens", "recovered_tokens", "num_preemptions")
    row: Row = {"engine": engine} | {name: getattr(request, name) for name in (*names, *more)}
    row["num_chunks"] = len(request.chunks)
    row |= {f"{name}_ns": span for name, span in request.stages.spans().items()}
    times = None if link is None else link.client.times()
    return row | {
        "client_ttft_ns": _ns(None if times is None else times.ttft_s),
        "client_e2el_ns": _ns(None if times is None else times.e2el_s),
        "client_method": None if link is None else link.method,
    }


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def chunk_rows(engine: int | None, request: RequestAccount) -> list[Row]:
    """A request's chunks."""
    rows = []
    for chunk in request.chunks:
        values = asdict(chunk)
        values["source_step"] = values.pop("step_id")
        row = {"engine": engine, "request_id": request.request_id} | values
        rows.append({column.name: row[column.name] for column in CHUNKS})
    return rows


def stage_rows(request: StagedRequest) -> list[Row]:
    """A request's stages, missing ones too."""
    return [
        {
            "request_id": request.request_id,
            "stage": stage,
            "duration_ns": span,
            "transfer_bytes_per_s": request.transfer_bytes_per_s if stage == "transfer" else None,
        }
        for stage, span in request.stages_ns.items()
    ]


def expert_row(load: LayerLoad) -> Row:
    """One layer of one step."""
    return {column.name: getattr(load, column.name) for column in EXPERT_LOADS}


def reconciliation_rows(item: Reconciliation) -> list[Row]:
    """The parts, and the residual last."""
    parts = [*((name, value, None) for name, value in item.parts.items())]
    return [
        {
            "comparison": item.total_name,
            "total": item.total,
            "part": name,
            "value": value,
            "unit": item.unit,
            "note": note,
        }
        for name, value, note in [*parts, ("residual", item.residual, str(item.residual_is))]
    ]
