"""Where a figure is easily misread: each trap that these sources walk into, in a sentence with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from stepscope.chunks import ChunkRule, plan_chunks
from stepscope.join.hits import judge_hits
from stepscope.join.limits import find_budgets
from stepscope.join.reconcile import computed_prompt_tokens, total_of
from stepscope.latency import spread
from stepscope.messages import Message, say
from stepscope.readers.prometheus.aliases import FIGURES
from stepscope.readers.prometheus.series import find_histogram, find_series, gauge
from stepscope.units import show_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.join.sources import Sources
    from stepscope.readers.clients.record import ClientRequest, ClientResult

# code -> what goes wrong
TRAPS: dict[str, str] = {
    "role_chunk": "the first chunk of a chat stream may hold a role and no token, so TTFT and ITL end too early",
    "client_wait": "a client that waits for a free slot leaves that wait out of its latencies",
    "iteration_tokens": "iteration_tokens_total books a prompt in the step that ends its prefill: it is no batch",
    "computed_only": "the log's prompt throughput counts computed tokens only, the counter cached ones too",
    "preempted_hits": "hits after a preemption are a request's own blocks, and no reuse",
    "renamed": "a series under an older name, with another meaning",
    "several_engines": "fractions of several engines are averaged, never added",
    "tpot_convention": "GuideLLM's time_per_output_token counts the first token in; ours does not",
    "sampled_queue": "scrapes sample the queue; their mean is no average over time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """One warning."""

    code: str
    text: Message


def find_traps(sources: Sources) -> tuple[Trap, ...]:
    """Every trap that applies, in the order of TRAPS."""
    found = [*_client_traps(sources), *_metric_traps(sources), *_log_traps(sources)]
    hits = judge_hits(sources)
    if hits is not None and hits.verdict in ("recomputation", "mixed"):
        found.append(Trap(code="preempted_hits", text=hits.text))
    order = list(TRAPS)
    return tuple(sorted(found, key=lambda trap: order.index(trap.code)))


def _client_traps(sources: Sources) -> Iterator[Trap]:
    for client in sources.clients:
        early = [r for r in client.succeeded if r.ttft_s is not None and (r.content_ttft_s or r.ttft_s) > r.ttft_s]
        if early:
            ttft, content = (
                spread(values) for values in ([r.ttft_s for r in early], [r.content_ttft_s for r in early])
            )
            assert ttft is not None
            assert content is not None
            yield Trap(
                code="role_chunk",
                text=say(
                    "{count} requests of {tool} got a chunk without text first: TTFT to the first chunk {early} s, to "
                    "the first content {content} s (medians). TTFT and ITL here are to content.",
                    count=len(early),
                    tool=client.tool,
                    early=f"{ttft.p50:.3f}",
                    content=f"{content.p50:.3f}",
                ),
            )
        elif "role" in client.ttft_ends_at:
            text = say(
                "{tool} measures TTFT to the first chunk, which holds a role and no token in a chat", tool=client.tool
            )
            yield Trap(code="role_chunk", text=text)
        yield from _wait_traps(client)
        if client.tool == "GuideLLM":
            yield Trap(code="tpot_convention", text=say(TRAPS["tpot_convention"]))


def _wait_traps(client: ClientResult) -> Iterator[Trap]:
    delays = spread(r.dispatch_delay_s for r in client.succeeded)
    sent, planned = (spread(r.times(from_schedule=late).e2el_s for r in client.succeeded) for late in (False, True))
    if delays is not None and sent is not None and planned is not None:
        if delays.mean > 0.01 * sent.mean:
            yield Trap(
                code="client_wait",
                text=say(
                    "{tool} sent requests {delay} s late on average: mean latency {sent} s from when they were sent, "
                    "{planned} s from when they should have been; p99 {sent_p99} and {planned_p99} s.",
                    tool=client.tool,
                    delay=f"{delays.mean:.3f}",
                    sent=f"{sent.mean:.3f}",
                    planned=f"{planned.mean:.3f}",
                    sent_p99=f"{sent.p99:.3f}",
                    planned_p99=f"{planned.p99:.3f}",
                ),
            )
    elif client.figures.get("max_concurrency") or "max_concurrency" in client.settings:
        yield Trap(
            code="client_wait",
            text=say(
                "{tool} caps its concurrency: its latencies exclude client queueing, by an unknown time",
                tool=client.tool,
            ),
        )


def _metric_traps(sources: Sources) -> Iterator[Trap]:
    log = sources.metrics
    if log is None:
        return
    budget = min((v for source in sources.logs for v in find_budgets(source.arguments).values()), default=None)
    found = find_series(log, "iteration_tokens")
    histogram = None if found is None else find_histogram(log.snapshots, found.name)
    if histogram is not None and histogram.count:
        above = fsum(
            count
            for low, count in zip((0.0, *histogram.bounds), histogram.counts, strict=False)
            if budget is not None and low >= budget
        )
        text = say(
            "iteration_tokens_total is exported: a prompt is booked whole when its prefill ends, so it is no batch"
        )
        if above:
            text = say(
                "iteration_tokens_total has {count} observations above {budget} tokens, the most that a step can "
                "hold: a prompt is booked whole when its prefill ends, so it is no batch.",
                count=show_count(round(above)),
                budget=show_count(budget),
            )
        yield Trap(code="iteration_tokens", text=text)
    for figure in FIGURES:
        exported = find_series(log, figure)
        if exported is not None and exported.alias is not FIGURES[figure].aliases[0] and exported.alias.caution:
            text = say("{name}: {caution}", name=exported.name, caution=exported.alias.caution)
            yield Trap(code="renamed", text=text)
    usage = find_series(log, "kv_usage_fraction")
    engines = len(gauge(log.snapshots[-1], usage.name)) if usage is not None else 0
    if engines > 1:
        text = say("{count} engines export a fraction each: averaged, never added", count=engines)
        yield Trap(code="several_engines", text=text)
    if find_series(log, "num_waiting") is not None and not sources.schedulers:
        yield Trap(code="sampled_queue", text=say(TRAPS["sampled_queue"]))


def _log_traps(sources: Sources) -> Iterator[Trap]:
    prompt, computed = total_of(sources.metrics, "prompt_tokens"), computed_prompt_tokens(sources.metrics)
    has_rate = any(r.number("prompt_tokens_per_s") is not None for r in sources.log_records)
    if not has_rate:
        return
    text = say("the log's prompt throughput counts computed tokens only: cached ones are not in it")
    if prompt is not None and computed is not None:
        text = say(
            "The log's prompt throughput counts computed tokens only: {computed} of {prompt} prompt tokens here.",
            computed=show_count(round(computed)),
            prompt=show_count(round(prompt)),
        )
    yield Trap(code="computed_only", text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedChunks:
    """What a role chunk times: it leaves after the first prefill chunk, the first content after the last."""

    first_tokens: int
    first_s: float
    rest_tokens: int
    rest_s: float


def time_chunks(request: ClientRequest, rule: ChunkRule) -> TimedChunks | None:
    """A prefill in two timed parts, where a role chunk came first and the prompt was cut; else None."""
    if request.prompt_len is None or request.ttft_s is None or request.content_ttft_s is None:
        return None
    plan = plan_chunks(request.prompt_len, rule, found_tokens=request.cached_tokens or 0)
    if len(plan.chunks) < 2 or request.content_ttft_s <= request.ttft_s:
        return None
    first = plan.chunks[0].query_len
    return TimedChunks(
        first_tokens=first,
        first_s=request.ttft_s,
        rest_tokens=plan.effective_prefill_tokens - first,
        rest_s=request.content_ttft_s - request.ttft_s,
    )
