"""Settings change what they name; figures lie within their ends; what binds adds up; the impossible is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.cost.calibration import Factor
from stepscope.errors import BadInput
from stepscope.latency import Limits
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.simulate.scenario import EngineOptions, Scenario, run_scenario
from stepscope.simulate.settings import SETTINGS, apply_setting, find_setting, mean_rate_per_s, split_setting
from stepscope.simulate.step_costs import Served
from stepscope.simulate.summary import BINDING, find_binding, find_figures, name_binding
from tests.simulate.loads import plain_calibration, plain_scenario, poisson_load

LIMITS = Limits(ttft_s=0.5, tpot_s=0.02)
SERVED = Served(model="llama-3.1-8b", hardware="h200")


def test_figures_lie_within_their_ends_and_do_not_change() -> None:
    outcome = run_scenario(plain_scenario())
    figures = find_figures(outcome, LIMITS)
    assert figures == find_figures(run_scenario(plain_scenario()), LIMITS)
    for figure in figures:
        assert figure.low is not None and figure.value is not None and figure.high is not None
        assert figure.low <= figure.value <= figure.high
    spread = {(each.name, each.statistic): each for each in figures}
    assert spread["tpot", "p50"].low < spread["tpot", "p50"].high  # type: ignore[operator]


def test_a_calibration_with_draws_gives_percentiles_of_them() -> None:
    draws = {"fixed.step_s": (0.004, 0.005, 0.006), "fixed.token_s": (20e-6,) * 3, "host_s": (0.001,) * 3}
    scenario = replace(plain_scenario(), calibration=plain_calibration(draws=draws))
    outcome = run_scenario(scenario)
    assert outcome.costs.kind == "draws"
    assert len(outcome.alternatives) == 3
    assert outcome.middle is not None
    assert len({simulation.end_s for simulation in outcome.alternatives}) == 3


def test_steps_that_take_no_time_have_no_rates_and_nothing_binds() -> None:
    nothing = Factor(value=0.0, low=0.0, high=0.0)
    below_a_tick = Factor(value=1e-15, low=1e-15, high=1e-15)
    free = plain_calibration(host_s=nothing, fixed={"step_s": below_a_tick})
    at_once = tuple(replace(request, arrival_s=0.0) for request in poisson_load(count=3))
    outcome = run_scenario(replace(plain_scenario(), requests=at_once, calibration=free))
    figures = {figure.name: figure.value for figure in find_figures(outcome, LIMITS) if figure.statistic == "total"}
    assert figures["duration"] == 0
    assert {figures[name] for name in ("requests", "prompt_tokens", "output_tokens", "goodput")} == {None}
    assert find_binding(outcome) is None


def test_the_host_time_is_the_calibrations_unless_it_is_set() -> None:
    assert run_scenario(plain_scenario()).costs.shown.host_s == 0.001
    assert run_scenario(plain_scenario(host_s=0.003)).costs.shown.host_s == 0.003


@settings(max_examples=15)
@given(seats=st.integers(1, 16), budget=st.integers(16, 2000), blocks=st.integers(180, 600))
def test_what_binds_adds_up_to_the_run(seats: int, budget: int, blocks: int) -> None:
    outcome = run_scenario(plain_scenario(max_num_seqs=seats, max_num_batched_tokens=budget, num_blocks=blocks))
    shares = find_binding(outcome)
    assert shares is not None
    assert set(shares) == set(BINDING)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= 0


@pytest.mark.parametrize(
    ("engine", "resource"),
    [
        ({"max_num_seqs": 1, "max_num_batched_tokens": 4096}, "seats"),
        ({"max_num_batched_tokens": 16, "max_num_seqs": 16}, "budget"),
        ({"max_num_batched_tokens": 4096, "num_blocks": 160, "max_num_seqs": 64}, "blocks"),
        ({"max_num_batched_tokens": 4096, "max_num_seqs": 64, "num_blocks": 4000}, "step"),
        ({"max_num_batched_tokens": 4096, "max_num_seqs": 64, "num_blocks": 4000, "host_s": 0.05}, "host"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_scarce_resource_is_named(engine: dict[str, Any], resource: str) -> None:
    rate = 400.0 if resource == "blocks" else 20.0
    scenario = replace(plain_scenario(**engine), requests=poisson_load(rate=rate))
    assert name_binding(find_binding(run_scenario(scenario))) == resource


@pytest.mark.parametrize("name", [each.name for each in fields(EngineOptions)])
def test_every_engine_option_can_be_set_by_name(name: str) -> None:
    scenario = replace(plain_scenario(), served=SERVED, calibration=None)
    texts: dict[str, tuple[str, object]] = {
        "bool": ("off", False),
        "float": ("0.5", 0.5),
        "float | None": ("0.5", 0.5),
        "tuple[float, ...]": ("0.8/0.6", (0.8, 0.6)),
        "str": ("sglang", "sglang"),
    }
    text, value = texts.get(str(EngineOptions.__dataclass_fields__[name].type), ("77", 77))
    changed = apply_setting(scenario, name, text)
    assert getattr(changed.engine, name) == value
    assert replace(changed, engine=scenario.engine) == scenario


def test_loads_are_changed_by_factors() -> None:
    scenario = plain_scenario()
    dense = apply_setting(scenario, "rate", "x2")
    assert mean_rate_per_s(dense.requests) == pytest.approx(2 * mean_rate_per_s(scenario.requests))
    assert mean_rate_per_s(apply_setting(scenario, "rate", "7").requests) == pytest.approx(7)
    longer = apply_setting(scenario, "output_len", "x3")
    for request, before in zip(longer.requests, scenario.requests, strict=True):
        assert request.output_len == 3 * before.output_len
        assert sum(part.length for part in request.text) >= request.num_tokens


def test_a_prefix_hit_is_found_by_all_but_the_first() -> None:
    scenario = apply_setting(plain_scenario(num_blocks=4000), "prefix_hit", "0.5")
    found = run_scenario(scenario).shown.requests
    assert found[0].prefix_hit_tokens == 0
    longest = 0
    for request in found:
        shared = min(round(0.5 * request.prompt_len), longest) // 16 * 16
        assert request.prefix_hit_tokens <= shared
        longest = max(longest, round(0.5 * request.prompt_len))
    assert sum(request.prefix_hit_tokens > 0 for request in found) > len(found) // 2


def test_plans_and_formats_change_the_deployment() -> None:
    scenario = Scenario(requests=plain_scenario().requests, engine=EngineOptions(), served=SERVED)
    changed = apply_setting(apply_setting(apply_setting(scenario, "tp", "4"), "kv", "fp8"), "hardware", "b200")
    assert changed.served is not None
    assert (changed.served.deployment.plan.tp, changed.served.deployment.kv) == (4, "fp8")
    assert changed.served.hardware == "b200"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("speed", "2", "unknown setting 'speed'. Known: max_num_batched_tokens"),
        ("max_num_seqs", "many", "a whole number was expected"),
        ("host_s", "fast", "a number was expected"),
        ("async_scheduling", "maybe", "on or off was expected"),
        ("rate", "x0", "a factor above 0"),
        ("prefix_hit", "1.5", "0 to 1"),
        ("tp", "2", "Give --model and --hardware"),
    ],
)
def test_what_cannot_be_set_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        apply_setting(plain_scenario(), name, value)
    assert said in str(refused.value)


def test_counts_alone_do_not_tell_of_another_plan() -> None:
    with pytest.raises(BadInput, match="knows steps by their counts alone"):
        apply_setting(replace(plain_scenario(), served=SERVED), "tp", "2")


def test_a_setting_is_written_with_an_equals_sign() -> None:
    assert split_setting("chunk = 512") == ("chunk", "512")
    assert find_setting("chunk").name == "max_num_batched_tokens"
    for text in ("chunk", "=1", "chunk="):
        with pytest.raises(BadInput, match="name=value"):
            split_setting(text)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 4}, "below max_num_seqs"),
        ({"num_blocks": None}, "number of KV blocks is not known"),
        ({"num_blocks": 3}, "it can never run"),
        ({"host_s": -1.0}, "host_s is -1.0"),
        ({"speculative_tokens": 3}, "3 speculative tokens with 0 acceptance rates"),
        ({"speculative_tokens": 3, "acceptance": (0.9, 0.8)}, "3 speculative tokens with 2"),
        ({"policy": "orca"}, "one of vllm, sglang"),
        ({"policy": "sglang", "speculative_tokens": 1, "acceptance": (0.9,)}, "are not simulated"),
        ({"prefill_engines": 1}, "1 prefill and 0 decode engines"),
        ({"prefill_engines": 1, "decode_engines": 1}, "whose size is a model's"),
    ],
)
def test_an_impossible_engine_is_refused(engine: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        run_scenario(plain_scenario(**engine))


def test_every_setting_says_what_it_needs() -> None:
    assert {setting.needs for setting in SETTINGS.values()} == {"scheduler", "load", "model"}
    assert all(setting.meaning for setting in SETTINGS.values())


def modelled(model: str = "qwen3-8b", *, plan: ParallelPlan | None = None, **engine: Any) -> Scenario:
    served = Served(model=model, hardware="h200", deployment=Deployment(plan=plan or ParallelPlan()))
    return replace(plain_scenario(**engine), served=served, calibration=None)


@pytest.mark.parametrize(
    ("scenario", "devices"),
    [
        (modelled("qwen3-30b-a3b", plan=ParallelPlan(dp=2, ep=2)), 2),  # lockstep: it has experts
        (modelled(plan=ParallelPlan(dp=2)), 2),  # replicas
        (modelled(plan=ParallelPlan(pp=2)), 2),
        (modelled(prefill_engines=1, decode_engines=2), 3),
        (modelled(speculative_tokens=2, acceptance=(0.8, 0.5)), 1),
        (modelled(policy="sglang", block_size=1, num_blocks=6400), 1),
    ],
    ids=["lockstep", "replicas", "pipeline", "disaggregated", "speculation", "sglang"],
)
def test_every_layout_ends_every_request(scenario: Scenario, devices: int) -> None:
    outcome = run_scenario(scenario)
    assert outcome.num_devices == devices
    assert [request.times.output_len for request in outcome.shown.requests] == [
        request.output_len for request in scenario.requests
    ]
    ranks = {step.rank for step in outcome.shown.steps}
    assert len(ranks) == (devices if not outcome.shown.stages else 1)
    shares = find_binding(outcome)
    assert shares is not None
    assert sum(shares.values()) == pytest.approx(1)


def test_accepted_drafts_save_steps() -> None:
    plain, drafted = (
        run_scenario(modelled(speculative_tokens=count, acceptance=(0.9,) * count)).shown for count in (0, 1)
    )
    assert drafted.num_steps < plain.num_steps
    times = [fsum(request.times.tpot_s or 0.0 for request in each.requests) for each in (plain, drafted)]
    assert times[1] < 0.7 * times[0]  # 1.9 tokens a step, which verifies two


def test_what_is_not_simulated_together_is_refused() -> None:
    for scenario in (
        modelled(plan=ParallelPlan(dp=2, pp=2)),
        modelled(plan=ParallelPlan(dp=2), prefill_engines=1, decode_engines=1),
    ):
        with pytest.raises(BadInput, match="is not simulated together"):
            run_scenario(scenario)
