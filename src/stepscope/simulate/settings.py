"""Settings: what can be changed in a scenario by name, as `name=value`, and what each change needs.

`simulate`, `whatif` and `search` read the same names. A factor is written x1.5.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from stepscope.errors import BadInput
from stepscope.operators.deployment import Deployment
from stepscope.simulate.request import Segment
from stepscope.simulate.scenario import EngineOptions
from stepscope.simulate.workload import OUTPUTS, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.simulate.request import Request
    from stepscope.simulate.scenario import Scenario

    Change = Callable[[Scenario, str], Scenario]

Needs = Literal["scheduler", "load", "model"]
COMMON_TEXT = 2 * OUTPUTS  # a source that no workload uses: what all prompts of prefix_hit begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One name. `needs`: the rules alone, the requests, or a model on a device, whose times and memory change."""

    name: str
    needs: Needs
    meaning: str
    change: Change


def find_setting(name: str) -> Setting:
    """A setting by its name.

    Raises:
        BadInput: nobody knows it.
    """
    found = SETTINGS.get(ALIASES.get(name, name))
    if found is None:
        raise BadInput(f"unknown setting '{name}'. Known: {', '.join(SETTINGS)}; chunk is max_num_batched_tokens.")
    return found


def apply_setting(scenario: Scenario, name: str, value: str) -> Scenario:
    """The scenario with one thing changed.

    Raises:
        BadInput: an unknown name, a value that is none, or a change that this scenario lacks the means for.
    """
    setting = find_setting(name)
    if setting.needs == "model" and scenario.served is None:
        raise BadInput(
            f"{name}={value}: step times at another {name} come from the cost model. Give --model and --hardware."
        )
    if setting.needs == "model" and scenario.calibration is not None and scenario.calibration.cost == "none":
        raise BadInput(
            f"{name}={value}: calibration {scenario.calibration.name} knows steps by their counts alone, and they "
            "would not change with it. Calibrate with --model and --hardware (--cost model or bound)."
        )
    return setting.change(scenario, value)


def split_setting(text: str) -> tuple[str, str]:
    """`name=value` as its two parts.

    Raises:
        BadInput: there is no `=`.
    """
    name, sign, value = text.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise BadInput(f"'{text}': a setting is written name=value. Known: {', '.join(SETTINGS)}.")
    return name.strip(), value.strip()


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise BadInput(f"{name}={text}: a number was expected.")
    return value


def _numbers(name: str, text: str) -> tuple[float, ...]:
    return tuple(_number(name, part) for part in text.split("/"))


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise BadInput(f"{name}={text}: a whole number was expected.") from error


def _switch(name: str, text: str) -> bool:
    known = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
    if text.lower() not in known:
        raise BadInput(f"{name}={text}: on or off was expected.")
    return known[text.lower()]


_READ: dict[str, Callable[[str, str], Any]] = {
    "bool": _switch,
    "float": _number,
    "float | None": _number,
    "int": _whole,
    "int | None": _whole,
    "tuple[float, ...]": _numbers,
    "str": lambda _, text: text,
}


def _engine(name: str, kind: str) -> Change:
    def change(scenario: Scenario, text: str) -> Scenario:
        value: Any = _READ[kind](name, text)
        return replace(scenario, engine=replace(scenario.engine, **{name: value}))

    return change


def _plan(name: str) -> Change:
    def change(scenario: Scenario, text: str) -> Scenario:
        deployment = _deployment(scenario)
        plan = replace(deployment.plan, **{name: _whole(name, text)})
        return _with_deployment(scenario, replace(deployment, plan=plan))

    return change


def _format(name: str) -> Change:
    def change(scenario: Scenario, text: str) -> Scenario:
        value: Any = text
        return _with_deployment(scenario, replace(_deployment(scenario), **{name: value}))

    return change


def _deployment(scenario: Scenario) -> Deployment:
    return Deployment() if scenario.served is None else scenario.served.deployment


def _with_deployment(scenario: Scenario, deployment: Deployment) -> Scenario:
    assert scenario.served is not None
    return replace(scenario, served=replace(scenario.served, deployment=deployment))


def _hardware(scenario: Scenario, text: str) -> Scenario:
    assert scenario.served is not None
    return replace(scenario, served=replace(scenario.served, hardware=text))


def _factor(name: str, text: str) -> float:
    value = _number(name, text[1:] if text.startswith("x") else text)
    if value <= 0:
        raise BadInput(f"{name}={text}: a factor above 0 was expected, such as x1.5.")
    return value


def _rate(scenario: Scenario, text: str) -> Scenario:
    """x1.5: arrivals 1.5 times as dense; 4: as dense as 4 requests/s on average."""
    factor = _factor("rate", text)
    if not text.startswith("x"):
        factor /= mean_rate_per_s(scenario.requests)
    return replace(scenario, requests=Workload(requests=scenario.requests).sped_up(factor).requests)


def mean_rate_per_s(requests: tuple[Request, ...]) -> float:
    """Requests per second between the first arrival and the last.

    Raises:
        BadInput: there is no span to have a rate over.
    """
    times = [request.arrival_s for request in requests if request.after is None]
    if len(times) < 2 or max(times) <= min(times):
        raise BadInput("the requests come all at once or one after another: they have no rate to change.")
    return (len(times) - 1) / (max(times) - min(times))


def _output_len(scenario: Scenario, text: str) -> Scenario:
    """Answers longer or shorter by a factor, at least one token; the last stretch of a text grows with them."""
    factor = _factor("output_len", text)
    return replace(scenario, requests=tuple(_with_output(request, factor) for request in scenario.requests))


def _with_output(request: Request, factor: float) -> Request:
    length = max(round(request.output_len * factor), 1)
    told = None if request.max_tokens is None else max(round(request.max_tokens * factor), length)
    text = request.text
    lacking = request.prompt_len + length - sum(part.length for part in text)
    if text and lacking > 0:
        text = (*text[:-1], replace(text[-1], length=text[-1].length + lacking))
    return replace(request, output_len=length, max_tokens=told, text=text)


def _prefix_hit(scenario: Scenario, text: str) -> Scenario:
    """Every prompt begins with that share of one common text: all but the first find it, while it is cached."""
    share = _number("prefix_hit", text)
    if not 0 <= share <= 1:
        raise BadInput(f"prefix_hit={text}: a share of the prompt was expected, 0 to 1.")
    if any(request.after is not None for request in scenario.requests):
        raise BadInput("prefix_hit: these requests are turns that share their conversation; their hits follow from it.")
    made = [_with_prefix(request, share, OUTPUTS + place) for place, request in enumerate(scenario.requests)]
    return replace(scenario, requests=tuple(made))


def _with_prefix(request: Request, share: float, source: int) -> Request:
    shared = round(share * request.prompt_len)
    own = Segment(source=source, length=request.num_tokens - shared)
    return replace(request, text=(Segment(source=COMMON_TEXT, length=shared), own) if shared else ())


def _settings() -> dict[str, Setting]:
    kinds = {each.name: str(each.type) for each in fields(EngineOptions)}
    rows: list[tuple[str, Needs, str, Change]] = [
        (name, "model" if name in _OF_MODEL else "scheduler", meaning, _engine(name, kinds[name]))
        for name, meaning in _ENGINE_MEANING.items()
    ]
    rows += [
        ("rate", "load", "arrivals: x1.5 as dense, or 4 requests/s on average", _rate),
        ("output_len", "load", "answers by a factor, such as x0.5", _output_len),
        ("prefix_hit", "load", "share of every prompt that is one common text, 0 to 1", _prefix_hit),
    ]
    rows += [(name, "model", f"ranks: {name}", _plan(name)) for name in ("tp", "dp", "ep", "pp", "cp")]
    rows += [(name, "model", meaning, _format(name)) for name, meaning in _FORMAT_MEANING.items()]
    rows.append(("hardware", "model", "the device", _hardware))
    return {
        name: Setting(name=name, needs=needs, meaning=meaning, change=change) for name, needs, meaning, change in rows
    }


_ENGINE_MEANING = {
    "max_num_batched_tokens": "the token budget of a step, and so the longest chunk",
    "max_num_seqs": "most running requests",
    "max_model_len": "the longest sequence",
    "num_blocks": "KV blocks, as the engine logs them",
    "block_size": "tokens of a KV block",
    "enable_prefix_caching": "on or off",
    "long_prefill_token_threshold": "most prefill tokens of one request in a step; 0: no cap",
    "watermark": "share of the blocks kept free at admission",
    "async_scheduling": "on or off",
    "host_s": "host work per step, in seconds",
    "utilisation": "share of the device's memory that the engine takes",
    "speculative_tokens": "drafts of a decode row in each step",
    "acceptance": "accepted share of each draft position, as 0.8/0.6, or one chance for all",
    "prefill_engines": "engines that only prefill; with decode_engines",
    "decode_engines": "engines that only decode; KV is sent to them",
    "policy": "whose scheduler: vllm or sglang",
}
_OF_MODEL = ("utilisation", "prefill_engines", "decode_engines")
_FORMAT_MEANING = {
    "weights": "number format of the projections",
    "experts": "number format of the routed experts",
    "activations": "number format of the GEMMs' inputs",
    "kv": "layout of the KV cache",
}
SETTINGS: dict[str, Setting] = _settings()
ALIASES = {"chunk": "max_num_batched_tokens"}
