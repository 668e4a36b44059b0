"""A22, vllm-project/vllm#7579: FP8 cannot help at TP2, batch 1: the cross-device reduce is 71 % of the timeline."""

from __future__ import annotations

import pytest

from stepscope.answers.against_model import compare_with_model
from stepscope.answers.modelled_steps import ModelChoice
from stepscope.cost.hardware import load_hardware
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from tests.traces import ALL_REDUCE, GEMM, MS, US, Event, launched, scope, to_account, to_store

STEP = 20 * MS
REDUCE_FRACTION = 0.71


def rank(index: int) -> list[Event]:
    """Three decode steps of one row, back to back on the device: 29 % products, then 71 % reduce."""
    events: list[Event] = []
    for i in range(3):
        at, products = MS + i * STEP, round((1 - REDUCE_FRACTION) * STEP)
        name = f"execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk{500 + i}sqsq1sqsk{500 + i})"
        events.append(scope(name, at - 900 * US, 500 * US))
        events += launched(GEMM, at - 800 * US, at, products, of=2 * i + 1)
        events += launched(ALL_REDUCE, at - 700 * US, at + products, STEP - products, of=2 * i + 2)
    return events


def test_fp8_gains_at_most_a_sixth_and_the_collective_is_named() -> None:
    chosen = ModelChoice(
        architecture=read_model("llama-3.1-8b"),
        deployment=Deployment(plan=ParallelPlan(tp=2)),
        hardware=load_hardware("a100"),
    )
    account = to_account(*(to_store(rank(i), rank=i, world_size=2) for i in range(2)))
    found = compare_with_model(account, chosen)
    for row in found.quantisation:
        assert row.is_wall
        assert row.fraction == pytest.approx(1 - REDUCE_FRACTION)
        assert row.best_case == pytest.approx(1.17, abs=0.005)
        assert row.largest == ("collective", round(3 * REDUCE_FRACTION * STEP))
    told = next(str(sentence) for sentence in found.sentences if "at best" in str(sentence))
    assert "products are 29.0 % of the steps' time" in told
    assert "at best 1.17x faster; look at collective first (71.0 %)" in told
