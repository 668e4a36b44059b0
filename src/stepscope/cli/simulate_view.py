"""An outcome of a simulation -> its document, and the document -> sections. Numbers are made in `simulate.summary`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import stepscope
from stepscope.report.section import Grid, Section
from stepscope.simulate.step_shares import find_step_bound
from stepscope.simulate.summary import BINDING, LATENCIES, STATISTICS, find_binding, find_figures, name_binding
from stepscope.units import UNKNOWN, show_fraction

if TYPE_CHECKING:
    from stepscope.latency import Limits
    from stepscope.simulate.memory import Memory
    from stepscope.simulate.scenario import Outcome
    from stepscope.simulate.summary import Figure

Document = dict[str, Any]
SCHEMA = "stepscope.simulation/1"
_GIB = 2**30
INTERVALS = {
    "ends": "the same requests under the low and the high end of the cost",
    "draws": "5th to 95th percentile of the same requests under {count} refits of the calibration",
}
# the figures below the latencies: name, what it is called
TOTALS = {
    "requests": "requests per second",
    "prompt_tokens": "prompt tokens per second",
    "output_tokens": "output tokens per second",
    "output_tokens_per_device": "output tokens per second and device",
    "device_s_per_million_outputs": "device seconds per million outputs",
    "goodput": "good requests per second",
    "duration": "seconds, first arrival to last output",
    "steps": "engine steps",
    "preemptions": "preemptions",
    "prefix_hit_share": "prefix hits, share of the prompt tokens",
}


def to_simulation_document(outcome: Outcome, limits: Limits, load: str) -> Document:
    """Everything that is told of a simulation, JSON-able."""
    served = outcome.scenario.served
    costs = outcome.costs
    binding = find_binding(outcome)
    return {
        "schema": SCHEMA,
        "version": stepscope.__version__,
        "grade": "simulated",
        "model": None if served is None else served.model,
        "hardware": None if served is None else served.hardware,
        "plan": None if served is None else asdict(served.deployment.plan),
        "load": {"source": load, "requests": len(outcome.scenario.requests)},
        "rules": to_rules(outcome),
        "layout": {
            "prefill_engines": outcome.scenario.engine.prefill_engines,
            "decode_engines": outcome.scenario.engine.decode_engines,
            "devices": outcome.num_devices,
            "dummy_steps": outcome.shown.num_dummy_steps,
        },
        "memory": None if outcome.memory is None else _memory(outcome.memory),
        "cost": {
            "source": costs.source,
            "grade": costs.grade,
            "unpriced": list(costs.unpriced),
            "notes": list(costs.notes),
            "interval": INTERVALS[costs.kind].format(count=len(costs.alternatives)),
        },
        "limits": asdict(limits),
        "run": None,
        "binding": binding,
        "binding_resource": name_binding(binding),
        "step_bound": find_step_bound(outcome),
        "compared": None,
        "figures": [asdict(figure) for figure in find_figures(outcome, limits)],
    }


def to_rules(outcome: Outcome) -> Document:
    """The engine's options as they were used, by vLLM's names."""
    engine = outcome.scenario.engine
    drafts = getattr(outcome.rules, "drafts", None)
    return asdict(engine) | {
        "num_blocks": outcome.num_blocks,
        "max_model_len": outcome.rules.max_model_len,
        "host_s": outcome.costs.shown.host_s,
        "drafting": drafts.method if engine.speculative_tokens and drafts is not None else None,
    }


def _memory(memory: Memory) -> Document:
    return asdict(memory) | {"kv_bytes": memory.kv_bytes, "num_blocks": memory.num_blocks}


def simulation_sections(document: Document) -> list[Section]:
    """What was simulated, on what it rests, latencies, and the rest."""
    figures = {(row["name"], row["statistic"]): row for row in document["figures"]}
    sections = [
        Section(title=_title(document), lines=(*_setup_lines(document), *_cost_lines(document))),
        Section(title="Latencies in seconds (low to high) [simulated]", grid=_latency_grid(figures)),
        Section(title="Throughput [simulated]", lines=_binding_lines(document), grid=_total_grid(figures)),
    ]
    compared = document["compared"]
    if compared is not None:
        count = f"{compared['requests']:,} measured requests"
        sections.append(
            Section(
                title=f"Against {compared['source']}, in seconds",
                lines=(f"{count}; an error is simulated / measured - 1",),
                grid=reproduction_grid(compared["rows"]),
            )
        )
    return sections


def reproduction_grid(rows: list[Document]) -> Grid:
    """Measured beside simulated."""
    cells = tuple(
        (
            f"{row['name'].upper()} {row['statistic']}",
            show_number(row["measured"]),
            show_with_ends(row, "simulated"),
            UNKNOWN if row["error"] is None else f"{100 * row['error']:+.1f} %",
        )
        for row in rows
        if row["measured"] is not None
    )
    return Grid(columns=("", ">measured", ">simulated (low to high)", ">error"), rows=cells)


def show_with_ends(row: Document, name: str) -> str:
    """A value of a row with its ends."""
    if row[name] is None and row["low"] is None:
        return UNKNOWN
    return f"{show_number(row[name])} ({show_number(row['low'])} to {show_number(row['high'])})"


def _title(document: Document) -> str:
    if document["model"] is None:
        return f"Simulated: {document['load']['requests']:,} requests"
    plan = ", ".join(f"{name} {size}" for name, size in document["plan"].items() if size > 1 or name == "tp")
    return f"Simulated: {document['model']} on {document['hardware']}, {plan}"


def _setup_lines(document: Document) -> list[str]:
    rules, load = document["rules"], document["load"]
    mode = "async" if rules["async_scheduling"] else "synchronous"
    lines = [
        f"load: {load['requests']:,} requests, {load['source']}",
        (
            f"scheduler: chunk (max_num_batched_tokens) {rules['max_num_batched_tokens']:,}, max_num_seqs "
            f"{rules['max_num_seqs']:,}, max_model_len {rules['max_model_len']:,}, {rules['num_blocks']:,} blocks of "
            f"{rules['block_size']} tokens, {mode}, host work {1e3 * rules['host_s']:,.4g} ms a step"
        ),
    ]
    lines += _layout_lines(document)
    memory = document["memory"]
    if memory is not None:
        lines.append(
            f"memory of a device: {memory['capacity_bytes'] / _GIB:.1f} GiB x {memory['utilisation']:g} - weights "
            f"{memory['weight_bytes'] / _GIB:.1f} - activations {memory['activation_bytes'] / _GIB:.1f} - windows and "
            f"states {memory['reserved_bytes'] / _GIB:.1f} = {memory['kv_bytes'] / _GIB:.1f} GiB of KV at "
            f"{memory['token_bytes']:,.0f} bytes a token [modelled; the engine's own count: --num-blocks]"
        )
    return lines


def _layout_lines(document: Document) -> list[str]:
    layout, rules = document["layout"], document["rules"]
    lines = []
    if layout["prefill_engines"]:
        lines.append(
            f"{layout['prefill_engines']} prefill and {layout['decode_engines']} decode engines, {layout['devices']} "
            "devices; KV goes over the scale-out links, one transfer at a time from each engine"
        )
    if layout["dummy_steps"]:
        lines.append(f"{layout['dummy_steps']:,} steps in which every rank ran a dummy")
    if rules["speculative_tokens"]:
        rates = "/".join(f"{rate:g}" for rate in rules["acceptance"])
        cost = (
            "its passes are in the step times" if rules["drafting"] == "mtp" else "drafting itself costs nothing here"
        )
        lines.append(f"{rules['speculative_tokens']} drafts a row, accepted {rates}; by {rules['drafting']}: {cost}")
    if rules["policy"] == "sglang":
        lines.append("SGLang's policy: chunk is chunked_prefill_size, max_num_seqs max_running_requests")
    return lines


def _cost_lines(document: Document) -> list[str]:
    cost = document["cost"]
    grade = cost["grade"] or "bounds, no prediction"
    lines = [f"step times: {cost['source']} [{grade}]; interval: {cost['interval']}", *cost["notes"]]
    return lines if document["run"] is None else [*lines, f"written as a run: stepscope explain {document['run']}"]


def _latency_grid(figures: dict[tuple[str, str], Document]) -> Grid:
    rows = []
    for name in LATENCIES:
        cells = [show_figure(figures[name, statistic]) for statistic in STATISTICS]
        count = figures[name, "mean"]["count"]
        rows.append((name.upper(), *cells, UNKNOWN if count is None else f"{count:,}"))
    return Grid(columns=("", *(f">{name}" for name in STATISTICS), ">values"), rows=tuple(rows))


def show_figure(figure: Document | Figure) -> str:
    """Value and interval; without a prediction only the bounds."""
    row = figure if isinstance(figure, dict) else asdict(figure)
    value, low, high = (show_number(row[key]) for key in ("value", "low", "high"))
    if row["low"] == row["high"]:
        return value if row["value"] is not None else low
    return f"{value} ({low} to {high})" if row["value"] is not None else f"{low} to {high}"


def show_number(value: float | None) -> str:
    """Four significant digits, whole numbers whole."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _total_grid(figures: dict[tuple[str, str], Document]) -> Grid:
    rows = [(title, show_figure(figures[name, "total"])) for name, title in TOTALS.items()]
    return Grid(columns=("", ">value (low to high)"), rows=tuple(rows))


def _binding_lines(document: Document) -> tuple[str, ...]:
    shares = document["binding"]
    if shares is None:
        return ("what binds is not known: no steps were kept, or they took no time",)
    listed = ", ".join(f"{name} {show_fraction(share)}" for name, share in shares.items() if share >= 0.0005)
    name = document["binding_resource"]
    lines = (f"what binds: {name} ({BINDING[name]}); of the run's time: {listed}",)
    bound = document["step_bound"]
    return lines if bound is None else (*lines, f"a typical step is {bound} bound, by the roofline")
