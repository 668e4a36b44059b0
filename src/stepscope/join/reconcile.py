"""Client against server against log: one total, its parts, and what is left over, by name.

Every line is total = Σ parts + residual. A residual is not an error: the text says what can be in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import TYPE_CHECKING

from stepscope.join.requests import account_requests
from stepscope.latency import spread
from stepscope.messages import Message, say
from stepscope.readers.prometheus.series import counter_deltas, find_histogram, find_series, gauge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.join.sources import Sources
    from stepscope.readers.prometheus.reader import MetricsLog
    from stepscope.readers.server_log.reader import LogRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """total = Σ parts + residual, in one unit; `residual_is` says what the residual can be."""

    id: str
    total_name: str
    total: float
    parts: Mapping[str, float]
    unit: str
    residual_is: Message
    count: int | None = None

    @property
    def residual(self) -> float:
        """What no part explains; negative where the parts are more than the total."""
        return self.total - fsum(self.parts.values())


def reconcile(sources: Sources) -> tuple[Reconciliation, ...]:
    """Every pair of sources that can be held against each other."""
    found = [
        _server_latency(sources.metrics),
        _logged_latency(sources),
        *_client_latency(sources),
        *_client_tokens(sources),
        _log_tokens(sources),
        _step_tokens(sources),
        _prompt_tokens(sources.metrics),
    ]
    return tuple(item for item in found if item is not None)


def _mean(log: MetricsLog | None, figure: str) -> tuple[float, int] | None:
    found = None if log is None else find_series(log, figure)
    histogram = None if log is None or found is None else find_histogram(log.snapshots, found.name)
    if histogram is None or histogram.mean is None or not histogram.count:
        return None
    return histogram.mean, round(histogram.count)


def total_of(log: MetricsLog | None, figure: str) -> float | None:
    """A counter's growth over the window, all engines together; None where it is not exported."""
    found = None if log is None else find_series(log, figure)
    if log is None or found is None:
        return None
    if len(log.snapshots) == 1:
        return fsum(gauge(log.snapshots[0], found.name).values())
    return fsum(delta.value for delta in counter_deltas(log.snapshots, found.name).values())


def _server_latency(log: MetricsLog | None) -> Reconciliation | None:
    """E2E = queue + prefill + decode + residual, as means over the same requests."""
    total = _mean(log, "e2el_s")
    stages = {name: _mean(log, f"{name}_s") for name in ("queue", "prefill", "decode")}
    if total is None or any(stage is None for stage in stages.values()):
        return None
    return Reconciliation(
        id="server_e2el",
        total_name="server E2EL, mean",
        total=total[0],
        parts={name: stage[0] for name, stage in stages.items() if stage is not None},
        unit="s",
        count=total[1],
        residual_is=say(
            "the front end: E2EL is on its clock (tokenising, sending to the engine core, detokenising, a blocked "
            "event loop), the stages on the engine core's"
        ),
    )


def _logged_latency(sources: Sources) -> Reconciliation | None:
    """The same per request from the step log, whose requests are known one by one."""
    requests = [r for stream in sources.schedulers for r in account_requests(stream)]
    whole = [r for r in requests if None not in r.stages.spans().values()]
    if not whole:
        return None
    spans = [r.stages.spans() for r in whole]
    totals = [(r.stages.end_ns or 0) - (r.stages.arrival_ns or 0) for r in whole]
    return Reconciliation(
        id="step_log_e2el",
        total_name="step log E2EL, mean",
        total=fsum(totals) / len(whole) * 1e-9,
        parts={name: fsum(s[name] or 0 for s in spans) / len(whole) * 1e-9 for name in spans[0]},
        unit="s",
        count=len(whole),
        residual_is=say("nothing: the stages share their ends"),
    )


def _client_latency(sources: Sources) -> list[Reconciliation]:
    server = _mean(sources.metrics, "e2el_s")
    found = []
    for client in sources.clients:
        ours = spread(r.times().e2el_s for r in client.succeeded)
        if ours is None or server is None:
            continue
        note = say("network, HTTP, the client's own event loop")
        if ours.count != server[1]:
            note = say(
                "other requests: the client has {ours}, the server {theirs} in this window",
                ours=ours.count,
                theirs=server[1],
            )
        found.append(
            Reconciliation(
                id="client_e2el",
                total_name=f"{client.tool} E2EL, mean",
                total=ours.mean,
                parts={"server E2EL": server[0]},
                unit="s",
                count=ours.count,
                residual_is=note,
            )
        )
    return found


def _client_tokens(sources: Sources) -> list[Reconciliation]:
    found = []
    for client in sources.clients:
        for label, figure, values in (
            ("prompt tokens", "prompt_tokens", [r.prompt_len for r in client.succeeded]),
            ("cached tokens", "cached_tokens", [r.cached_tokens for r in client.succeeded]),
            ("output tokens", "generation_tokens", [r.output_len for r in client.succeeded]),
        ):
            server = total_of(sources.metrics, figure)
            if server is None or not values or None in values:
                continue
            found.append(
                Reconciliation(
                    id=f"client_{figure}",
                    total_name=f"{client.tool} {label}",
                    total=float(sum(v or 0 for v in values)),
                    parts={"server counter": server},
                    unit="tokens",
                    count=len(values),
                    residual_is=say("requests of others, or requests that began before the first scrape"),
                )
            )
    return found


def _log_tokens(sources: Sources) -> Reconciliation | None:
    """Throughput x interval, summed over the log, against computed prompt tokens."""
    records = [r for r in sources.log_records if r.kind == "vllm_interval" and r.num_engines == 1]
    computed = computed_prompt_tokens(sources.metrics)
    if computed is None or len(records) < 2:
        return None
    logged = _logged_tokens(records)
    if logged is None:
        return None
    return Reconciliation(
        id="log_prompt_tokens",
        total_name="computed prompt tokens, server counters",
        total=computed,
        parts={"log throughput x interval": logged},
        unit="tokens",
        count=len(records),
        residual_is=say(
            "the log's clock (whole seconds), the length of its first interval (taken as the shortest), intervals "
            "without a line, and what came after the last line"
        ),
    )


def _logged_tokens(records: Sequence[LogRecord]) -> float | None:
    times = [r.time_ns for r in records]
    spans = [b - a for a, b in pairwise(times) if a is not None and b is not None and b > a]
    if len(spans) != len(records) - 1:
        return None
    rates = [r.number("prompt_tokens_per_s") or 0.0 for r in records]
    return fsum(rate * span * 1e-9 for rate, span in zip(rates, [min(spans), *spans], strict=True))


def computed_prompt_tokens(log: MetricsLog | None) -> float | None:
    """Prompt tokens without cached ones, from counters."""
    prompt, cached = total_of(log, "prompt_tokens"), total_of(log, "cached_tokens")
    if cached is None:
        cached = total_of(log, "prefix_hit_tokens")
    return None if prompt is None or cached is None else prompt - cached


def _step_tokens(sources: Sources) -> Reconciliation | None:
    """Prefill tokens of the step log against the counters."""
    computed = computed_prompt_tokens(sources.metrics)
    steps = [step for stream in sources.schedulers for step in stream.steps]
    if computed is None or not steps:
        return None
    return Reconciliation(
        id="step_log_prompt_tokens",
        total_name="prefill tokens, step log",
        total=float(sum(step.shape.prefill.query_sum or 0 for step in steps)),
        parts={"server counters": computed},
        unit="tokens",
        residual_is=say("tokens computed again after a preemption, and prefills that had not ended at the last scrape"),
    )


def _prompt_tokens(log: MetricsLog | None) -> Reconciliation | None:
    """Prompt tokens by where their KV came from."""
    prompt = total_of(log, "prompt_tokens")
    found = None if log is None else find_series(log, "prompt_tokens_by_source")
    if log is None or prompt is None or found is None:
        return None
    parts: dict[str, float] = {}
    deltas = (
        {labels: delta.value for labels, delta in counter_deltas(log.snapshots, found.name).items()}
        if len(log.snapshots) > 1
        else gauge(log.snapshots[0], found.name)
    )
    for labels, value in deltas.items():
        source = dict(labels).get("source", "?")
        parts[source] = parts.get(source, 0.0) + value
    return Reconciliation(
        id="prompt_by_source",
        total_name="prompt tokens",
        total=prompt,
        parts=parts,
        unit="tokens",
        residual_is=say("nothing: the parts are of the same requests"),
    )
