"""What stands out beside the trace: which admission limit held requests back, and layers whose router is skewed.

Queue length is a time average and no batch size: requests wait although batches are small where a limit binds. A limit
is named where it was reached in half or more of the steps with requests waiting. Routing is called skewed where the
busiest expert has more rows than even routing gives one expert in twenty layers by chance (binomial tail, all experts).
"""

from __future__ import annotations

from collections import defaultdict
from math import lgamma, log, log1p
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.finding import Finding
from stepscope.messages import say
from stepscope.units import show_count, show_fraction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.join.evidence import Joined
    from stepscope.join.experts import LayerLoad
    from stepscope.join.sources import Sources

_MOSTLY = 0.5
_FULL = 0.95  # of the KV blocks
_CHANCE = 0.05
_LIMITS = {
    "max_num_seqs": "the running requests reach max_num_seqs",
    "max_num_batched_tokens": "the scheduled tokens reach max_num_batched_tokens",
    "KV blocks": "the KV cache is full",
}


def find_load_findings(joined: Joined) -> tuple[Finding, ...]:
    """Admission first, then routing."""
    return (*_admission(joined.sources), *_routing(joined.expert_loads))


def _admission(sources: Sources) -> Iterator[Finding]:
    arguments: dict[str, str] = {}
    for log_ in sources.logs:
        arguments.update(log_.arguments)
    steps = [step for stream in sources.schedulers for step in stream.steps if step.num_waiting]
    if not steps:
        return
    reached = dict.fromkeys(_LIMITS, 0)
    for step in steps:
        reached["max_num_seqs"] += _at_least(step.num_running, arguments, "max_num_seqs")
        reached["max_num_batched_tokens"] += _at_least(step.num_scheduled_tokens, arguments, "max_num_batched_tokens")
        reached["KV blocks"] += (step.kv_usage_fraction or 0.0) >= _FULL
    name = max(reached, key=lambda limit: reached[limit])
    waiting = float(np.mean([step.num_waiting or 0 for step in steps]))
    running = float(np.mean([step.num_running or 0 for step in steps]))
    values = {"steps": len(steps), "waiting": f"{waiting:.1f}", "running": f"{running:.1f}"}
    if reached[name] >= _MOSTLY * len(steps):
        text = say(
            "In {steps} steps with requests waiting ({waiting} on average, {running} running) {what} in {count}: that "
            "limit holds the others back. Queue length is a time average, no batch size.",
            what=say(_LIMITS[name]),
            count=reached[name],
            **values,
        )
    else:
        text = say(
            "In {steps} steps with requests waiting ({waiting} on average, {running} running) no known limit is "
            "reached in most of them. Queue length is a time average, no batch size.",
            **values,
        )
    yield Finding(
        id="admission",
        layer="supply",
        rank=None,
        text=text,
        value_ns=0,
        grade="joined",
        not_shown=say("limits that the log's arguments do not hold: give the server's log (--log)"),
    )


def _at_least(value: int | None, arguments: Mapping[str, str], name: str) -> bool:
    given = arguments.get(name, "")
    return value is not None and given.isdigit() and value >= int(given)


def _routing(loads: tuple[LayerLoad, ...]) -> Iterator[Finding]:
    by_layer: dict[int, list[LayerLoad]] = defaultdict(list)
    for load in loads:
        if load.num_rows:
            by_layer[load.layer].append(load)
    skewed = {layer: own for layer, own in by_layer.items() if _share_beyond_chance(own) > _MOSTLY}
    if not skewed:
        return
    ratios = {layer: float(np.mean([load.imbalance or 0.0 for load in own])) for layer, own in skewed.items()}
    worst = max(ratios, key=lambda layer: ratios[layer])
    empty = [load.num_empty / load.num_experts for own in skewed.values() for load in own]
    yield Finding(
        id="routing_skew",
        layer="compute",
        rank=None,
        text=say(
            "In {skewed} of {layers} MoE layers the busiest expert has more rows than even routing gives by chance: "
            "{mean} times the mean (layer {worst}: {most} times), and {empty} of the experts have none.",
            skewed=show_count(len(skewed)),
            layers=show_count(len(by_layer)),
            mean=f"{np.mean(list(ratios.values())):.1f}",
            worst=worst,
            most=f"{ratios[worst]:.1f}",
            empty=show_fraction(float(np.mean(empty))),
        ),
        value_ns=0,
        grade="joined",
        not_shown=say("what it costs: experts' time against their rows (`stepscope explain --experts`)"),
    )


def _share_beyond_chance(loads: list[LayerLoad]) -> float:
    beyond = [load.num_experts * _tail(load.max_rows, load.num_rows, 1 / load.num_experts) < _CHANCE for load in loads]
    return sum(beyond) / len(beyond)


def _tail(least: int, n: int, p: float) -> float:
    """P(Binomial(n, p) >= least); above the mean its terms fall, so the sum ends where they vanish."""
    if least <= n * p or p >= 1:
        return 1.0
    total, k = 0.0, least
    term = np.exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log1p(-p))
    while k <= n and term > total * 1e-12:
        total += float(term)
        term *= (n - k) / (k + 1) * p / (1 - p)
        k += 1
    return total
