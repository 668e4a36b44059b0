"""Fits of a step's time: known costs come back, and what cannot be fitted says why."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.answers.scaling import NoFit, ScalingFit, fit_scaling
from tests.traces import GEMM, MS, US, launched, scope, to_account

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import RankAccount
    from tests.traces import Event

ATTENTION = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(Flash_fwd_params)"


def detailed(prefill: tuple[int, int] | None, rows: int, kv_sum: int) -> str:
    """vLLM's detailed annotation: sums of one prefill row (query_len, kv_len), and of decode rows."""
    q, k = prefill or (0, 0)
    one = 1 if prefill else 0
    context = f"context_{one}(sq{q}sk{k}sqsq{q * q}sqsk{q * k})"
    return f"execute_{context}_generation_{rows}(sq{rows}sk{kv_sum}sqsq{rows}sqsk{kv_sum})"


def account_of(steps: Sequence[tuple[tuple[int, int] | None, int, int]], *, slow: Sequence[int] = ()) -> RankAccount:
    """Steps whose GEMM takes 1 ms + 2 us a token, and whose attention takes 20 us + 0.1 us a token of decode's Σk."""
    events: list[Event] = []
    now = 0
    for number, (prefill, rows, kv_sum) in enumerate(steps):
        tokens = (prefill[0] if prefill else 0) + rows
        gemm = 1 * MS + 2 * US * tokens
        attention = 20 * US + kv_sum * US // 10 + (prefill[0] * prefill[1] // 10 if prefill else 0)
        if number in slow:
            gemm *= 2000
        events.append(scope(detailed(prefill, rows, kv_sum), now, 100 * US))
        events += launched(GEMM, now + 10 * US, now + 20 * US, gemm, of=2 * number + 1)
        events += launched(ATTENTION, now + 30 * US, now + 20 * US + gemm, attention, of=2 * number + 2)
        now += 30 * US + gemm + attention
    return to_account(events).ranks[0]


def mixed_steps(count: int) -> list[tuple[tuple[int, int] | None, int, int]]:
    rng = Random(3)
    steps: list[tuple[tuple[int, int] | None, int, int]] = []
    for _ in range(count):
        rows = rng.randint(1, 200)
        prefill = (rng.randint(64, 800), rng.randint(800, 6000)) if rng.random() < 0.4 else None
        steps.append((prefill, rows, rows * rng.randint(100, 4000)))
    return steps


def by_quantity(rank: RankAccount, **known: Any) -> dict[str, ScalingFit | NoFit]:
    return {found.quantity: found for found in fit_scaling(rank, **known)}


def test_known_costs_come_back() -> None:
    found = by_quantity(account_of(mixed_steps(80)))
    attention = found["attention"]
    assert isinstance(attention, ScalingFit)
    slopes = {slope.column: slope for slope in attention.slopes}
    assert slopes["step"].value_ns == pytest.approx(20_000, rel=0.02)
    assert slopes["decode_kv"].value_ns == pytest.approx(100, rel=0.01)
    assert slopes["prefill_query_kv"].value_ns == pytest.approx(0.1, rel=0.02)
    assert attention.error_p90 < 0.01
    assert attention.bend is None
    for slope in attention.slopes:
        assert slope.low_ns <= slope.value_ns <= slope.high_ns
    forward = found["forward"]
    assert isinstance(forward, ScalingFit)
    assert {slope.column: round(slope.value_ns) for slope in forward.slopes}["token"] == pytest.approx(2_000, rel=0.05)
    assert forward.error_p90 < 0.01
    assert sum(forward.left_out.values()) + forward.num_steps == 80


def test_a_bend_is_found_where_there_is_one() -> None:
    """0 ns a token up to 128 tokens (the weights are read anyway), 30 us beyond."""
    rank = account_of(mixed_steps(120))
    accounts = rank.budget.step_families
    tokens = [step.boundary.shape.num_scheduled_tokens or 0 for step in rank.table.counted]
    times = tuple(5 * MS + 30 * US * max(count - 128, 0) for count in tokens)
    families = dict.fromkeys(accounts, (0,) * len(tokens)) | {("compute", "gemm"): times}
    bent = replace(rank, budget=replace(rank.budget, step_families=families))
    forward = by_quantity(bent)["forward"]
    assert isinstance(forward, ScalingFit)
    assert forward.bend == 128
    slopes = {slope.column: slope.value_ns for slope in forward.slopes}
    assert slopes["token_beyond_bend"] == pytest.approx(30_000, rel=0.01)
    assert slopes.get("token_up_to_bend", 0.0) < 300


def test_decode_of_one_batch_has_no_slope_on_its_tokens() -> None:
    found = by_quantity(account_of([(None, 32, 32 * 500 + 32 * step) for step in range(60)]))
    attention = found["attention"]
    assert isinstance(attention, ScalingFit | NoFit)
    forward = found["forward"]
    if isinstance(forward, ScalingFit):
        assert "token" in forward.tied
    else:
        assert "nothing varies" in str(forward.reason)


def test_too_few_steps_are_refused() -> None:
    for found in fit_scaling(account_of(mixed_steps(8))):
        assert isinstance(found, NoFit)
        assert "12 or more are needed" in str(found.reason)


def test_where_cold_steps_dominate_there_is_no_fit() -> None:
    """A public case: one prompt takes 90 s the first time, and two orders less once kernels are compiled."""
    steps = mixed_steps(40)
    sizes: set[tuple[int, bool]] = set()
    first = []
    for number, (prefill, rows, _) in enumerate(steps):
        size = ((prefill[0] if prefill else 0) + rows).bit_length()
        if (size, prefill is None) not in sizes:
            first.append(number)
            sizes.add((size, prefill is None))
    found = by_quantity(account_of(steps, slow=first))["forward"]
    assert isinstance(found, NoFit)
    assert "most of the time is in steps that are left out" in str(found.reason)
    assert "first step of its size" in str(found.reason)


def test_expert_time_against_rows_and_experts_with_rows() -> None:
    rank = account_of(mixed_steps(60))
    rng = Random(5)
    experts = {step.step_id: (rng.randint(100, 5000), rng.randint(20, 128)) for step in rank.table.counted}
    times = tuple(100 * US + 40 * rows + 9_000 * unique for rows, unique in experts.values())
    families = {**rank.budget.step_families, ("compute", "experts"): times}
    moe = replace(rank, budget=replace(rank.budget, step_families=families))
    assert "experts" not in by_quantity(moe)  # no counts, no slope on them
    found = by_quantity(moe, experts=experts)["experts"]
    assert isinstance(found, ScalingFit)
    slopes = {slope.column: slope.value_ns for slope in found.slopes}
    assert slopes["expert_row"] == pytest.approx(40, rel=0.02)
    assert slopes["unique_expert"] == pytest.approx(9_000, rel=0.02)
