"""Kernel models: hand-worked times, monotone and bounded as their terms are, and found again from 60 points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cost.core_model import (
    CoreWork,
    core_seconds,
    equal_rows,
    fit_module,
    fit_transfer,
    module_terms,
    transfer_seconds,
)
from stepscope.cost.expert_model import ExpertWork, expert_seconds, fit_experts
from stepscope.cost.gemm_model import FEW, Device, GemmWork, fit_gemm, gemm_seconds, smooth_max
from stepscope.cost.hardware import Hardware, hardware_names, load_hardware
from stepscope.cost.kernel_model import FORMS, load_coefficients, parse_coefficients, to_toml
from stepscope.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]
DEVICE = Device(flop_per_s=100e12, bytes_per_s=1e12, num_cores=100)
SUMMING = np.array([1e-6, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0])  # p = 1, no overheads: launch + compute + memory
H200 = np.array([2.6e-6, 0.85, 0.84, 4.4, 150.0, 2.3e-6, 35.0])


def test_one_tile_by_hand() -> None:
    work = GemmWork.from_shape(64, 64, 1000)
    compute = 2 * 64 * 64 * 1000 / (100e12 / 100)  # one core of a hundred
    memory = 2 * (64 * 1000 + 1000 * 64 + 64 * 64) / 1e12
    assert float(gemm_seconds(SUMMING, work, DEVICE)) == pytest.approx(1e-6 + compute + memory)


def test_a_second_wave_costs_a_whole_wave() -> None:
    c = np.array([1e-12, 1.0, 1e9, 60.0, 1e-9, 1.0, 1e-9])  # memory free, splits dear
    one = float(gemm_seconds(c, GemmWork.from_shape(64, 64 * 100, 512), DEVICE))
    two = float(gemm_seconds(c, GemmWork.from_shape(65, 64 * 100, 512), DEVICE))
    assert two == pytest.approx(2 * one, rel=1e-3)


def test_a_few_shapes_and_many_are_priced_alike() -> None:
    m = np.arange(1, FEW + 200, dtype=float)
    many = gemm_seconds(H200, GemmWork.from_shape(m, 4096, 1024), DEVICE)
    few = [float(gemm_seconds(H200, GemmWork.from_shape(x, 4096, 1024), DEVICE)) for x in m[::50]]
    assert many[::50] == pytest.approx(few)


@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3), st.floats(1, 50))
def test_smooth_max_lies_between_maximum_and_sum(a: float, b: float, sharpness: float) -> None:
    value = float(smooth_max(np.array(a), np.array(b), sharpness))
    assert max(a, b) * (1 - 1e-9) <= value <= (a + b) * (1 + 1e-9)


@given(st.integers(1, 8192), st.integers(8, 512), st.integers(8, 512))
def test_gemm_time_grows_with_k_and_n(m: int, n: int, k: int) -> None:
    at = [
        float(gemm_seconds(H200, GemmWork.from_shape(m, 128 * x, 128 * y), DEVICE))
        for x, y in ((n, k), (n, 2 * k), (2 * n, k))
    ]
    assert at[0] <= at[1] * (1 + 1e-9)
    assert at[0] <= at[2] * (1 + 1e-9)


@given(st.integers(1, 64), st.integers(8, 256), st.integers(8, 256))
def test_gemm_time_grows_with_whole_tiles_of_m(blocks: int, n: int, k: int) -> None:
    c = H200.copy()
    c[6] = 1e-9  # what a half-empty memory gains from more blocks is not monotone, in tables as here
    at = [
        float(gemm_seconds(c, GemmWork.from_shape(m, 128 * n, 128 * k), DEVICE)) for m in (128 * blocks, 256 * blocks)
    ]
    assert at[0] <= at[1] * (1 + 1e-9)


def test_unaligned_rows_cost_more_only_where_quantised() -> None:
    c = np.concatenate([H200, [2e-6, 4.0, 0.4]])
    quantised = [
        float(gemm_seconds(c, GemmWork.from_shape(m, 8192, 8192, has_quantisation=True), DEVICE)) for m in (1023, 1024)
    ]
    plain = [float(gemm_seconds(H200, GemmWork.from_shape(m, 8192, 8192), DEVICE)) for m in (1023, 1024)]
    assert quantised[0] > 1.2 * quantised[1]
    assert plain[0] <= plain[1]


def test_gemm_coefficients_come_back_from_sixty_points() -> None:
    rng = np.random.default_rng(0)
    work = GemmWork.from_shape(*(np.exp(rng.uniform(np.log(low), np.log(16384), 1060)) for low in (1, 256, 256)))
    truth = gemm_seconds(H200, work, DEVICE)
    measured = truth * rng.lognormal(0, 0.03, 1060)
    c = fit_gemm(work.part(np.arange(60)), measured[:60], DEVICE)
    assert (c > 0).all()
    error = np.abs(gemm_seconds(c, work, DEVICE)[60:] / truth[60:] - 1)
    assert np.median(error) < 0.02
    assert np.quantile(error, 0.9) < 0.06


def expert_work(tokens: Array, ep: Array) -> ExpertWork:
    experts, rows = 256 / ep, tokens * 8 / ep
    return ExpertWork(
        hidden_size=np.full_like(tokens, 4096),
        intermediate_size=np.full_like(tokens, 2048),
        num_experts=experts,
        active_experts=np.minimum(experts, np.maximum(rows, 1)),
        rows=rows,
        copies=tokens * 8,
        local_copies=tokens * np.minimum(8, experts),
        w_bytes=1.0,
    )


def test_experts_by_hand_pay_weights_per_active_expert() -> None:
    c = np.array([1e-6, 1.0, 1.0, 60.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    one = expert_seconds(c, expert_work(np.array([1.0]), np.array([1.0])), DEVICE)
    assert one == pytest.approx(1e-6 + 8 * 3 * 4096 * 2048 / 1e12, rel=1e-6)
    more = expert_seconds(c, expert_work(np.array([1.0, 16.0, 64.0]), np.ones(3)), DEVICE)
    assert (more[1] - 1e-6) / (more[0] - 1e-6) == pytest.approx(16)  # 128 active experts
    assert (more[2] - 1e-6) / (more[0] - 1e-6) == pytest.approx(32)  # all 256, twice as many rows


def test_no_rows_cost_nothing() -> None:
    assert float(expert_seconds(np.full(9, 1.0), expert_work(np.zeros(1), np.ones(1)), DEVICE)[0]) == 0.0
    idle = CoreWork(flop=np.zeros(1), moved_bytes=np.zeros(1), blocks=np.zeros(1), walkers=np.zeros(1))
    assert float(core_seconds(np.full(5, 1.0), idle, DEVICE)[0]) == 0.0
    assert float(transfer_seconds(np.ones(2), 0)) == 0.0


def test_expert_time_grows_with_tokens() -> None:
    c = np.array([3e-5, 0.7, 0.8, 2.0, 20.0, 1e-7, 1.0, 0.3, 0.3])
    times = expert_seconds(c, expert_work(np.arange(1.0, 4000.0), np.ones(3999)), DEVICE)
    assert (np.diff(times) > 0).all()


def test_expert_fit_predicts_what_it_has_not_seen() -> None:
    rng = np.random.default_rng(2)
    tokens, ep = np.exp(rng.uniform(0, 10, 400)), rng.choice([1.0, 2.0, 4.0, 8.0], 400)
    work, c = expert_work(tokens, ep), np.array([3e-5, 0.6, 0.85, 2.5, 24.0, 1e-7, 1.5, 0.5, 0.1])
    truth = expert_seconds(c, work, DEVICE)
    found = fit_experts(work.part(np.arange(60)), truth[:60] * rng.lognormal(0, 0.02, 60), DEVICE)
    error = np.abs(expert_seconds(found, work, DEVICE)[60:] / truth[60:] - 1)
    assert np.median(error) < 0.02
    assert np.quantile(error, 0.9) < 0.06


def test_core_by_hand() -> None:
    c = np.array([5e-6, 0.5, 0.5, 1.0, 1e-8])
    amounts = {"flop": np.array([1e9]), "moved_bytes": np.array([1e6]), "blocks": np.array([100.0])}
    split = core_seconds(c, CoreWork(**amounts, walkers=np.zeros(1)), DEVICE)[0]
    assert split == pytest.approx(5e-6 + 1e9 / 50e12 + 1e6 / 0.5e12 + 1e-6)
    alone = core_seconds(c, CoreWork(**amounts, walkers=np.ones(1)), DEVICE)[0]  # one core of a hundred works
    assert alone == pytest.approx(5e-6 + 100 * 1e9 / 50e12 + 1e6 / 0.5e12 + 1e-6)
    waves = core_seconds(c, CoreWork(**amounts, walkers=np.array([101.0])), DEVICE)[0]
    assert waves == pytest.approx(5e-6 + 200 / 101 * 1e9 / 50e12 + 1e6 / 0.5e12 + 1e-6)


def test_a_module_bends_at_its_cap_and_nowhere_else() -> None:
    c = np.array([1e-4, 1e-6, 0.0, 1e-8, 1e-9, 1e-11])
    times = module_terms(equal_rows(np.full(5, 8), [512, 1024, 2048, 4096, 8192], 2048)) @ c
    before, after = times[1] - times[0], (times[4] - times[3]) / 8
    assert (times[2] - times[1]) == pytest.approx(2 * before)
    assert after < before / 10


def test_module_fit_from_fifteen_points_is_nonnegative_and_close() -> None:
    rng = np.random.default_rng(4)
    rows, context = 2.0 ** rng.integers(0, 10, 200), 2.0 ** rng.integers(1, 17, 200)
    truth = module_terms(equal_rows(rows, context, 2048)) @ np.array([1e-4, 1e-6, 5e-6, 1e-8, 2e-10, 3e-12])
    c = fit_module(rows[:15], context[:15], truth[:15] * rng.lognormal(0, 0.01, 15), 2048)
    assert (c >= 0).all()
    assert np.median(np.abs(module_terms(equal_rows(rows, context, 2048))[15:] @ c / truth[15:] - 1)) < 0.03


def test_transfer_is_latency_and_a_rate() -> None:
    sent = np.array([1e3, 1e6, 1e8])
    assert fit_transfer(sent, 5e-6 + sent / 200e9) == pytest.approx([5e-6, 1 / 200e9], rel=1e-6)


def test_a23_step_time_is_affine_in_the_batch_and_not_a_weight_floor() -> None:
    batch, tpot = np.array([64.0, 96, 128, 256]), np.array([31.4, 36.6, 41.3, 58.3])
    c = fit_transfer(batch, tpot)  # any time that is affine in one amount
    assert c == pytest.approx([23.1, 0.138], rel=0.02)
    assert np.max(np.abs((c[0] + c[1] * batch) / tpot - 1)) < 0.02
    unique = 128 * (1 - (1 - 4 / 128) ** batch)
    assert unique.round(1).tolist() == [111.2, 121.9, 125.8, 128.0]
    assert (unique[3] / unique[0] - 1) < 0.16  # weights grow 15 %, TPOT 86 %: the slope is another term


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "b300"])
def test_shipped_coefficients_are_nonnegative_and_say_where_from(name: str) -> None:
    found = load_coefficients(load_hardware(name))
    assert found is not None
    assert "gemm.bf16" in found.models
    for key, model in found.models.items():
        assert key.split(".")[0] in FORMS
        assert min(model.coefficients) >= 0
        assert 0 < model.band.low <= 1 <= model.band.high
        assert "points of" in model.source
        assert parse_coefficients(to_toml({key: model}, "x"), "x", "x").models[key].form == model.form


def test_a_borrowed_kernel_keeps_the_time_of_its_overhead() -> None:
    found = load_coefficients(load_hardware("h20"))
    assert found is not None
    model = found.models["gemm.bf16"]
    fast, slow = Device(flop_per_s=1e15, bytes_per_s=1e12, num_cores=100), replace(DEVICE, flop_per_s=1e14)
    moved = model.on_another_device(fast, slow)
    assert moved.coefficients[4] == pytest.approx(model.coefficients[4] / 10)
    assert moved.coefficients[:4] == model.coefficients[:4]


def test_devices_without_measured_kernels_have_none() -> None:
    without = [n for n in hardware_names() if load_hardware(n).coefficients is None]
    assert {"mi300x", "ascend-910c"} <= set(without)
    assert load_coefficients(load_hardware("mi300x")) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[gemm.bf16]\nsource = 'x'", "has no 'coefficients'"),
        ("[transfer.a]\nsource='x'\ndate='y'\nband={}\ncoefficients={base_s=1, rate=2}", "lacks 'byte_s'"),
        ("[transfer.a]\nsource='x'\ndate='y'\nband={}\ncoefficients={base_s=-1, byte_s=2}", "negative"),
    ],
)
def test_a_broken_coefficient_file_says_where(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        parse_coefficients(text, "x", "x.toml")


def test_a_hardware_that_names_unknown_coefficients_is_refused() -> None:
    odd = Hardware(name="odd", title="", maker="", compute={}, rates={}, coefficients="nope")
    with pytest.raises(BadInput, match="Known: a100"):
        load_coefficients(odd)
