"""Step cost: laws of bounds and totals, grades, and the time that pricing itself may take."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stepscope.batch import BatchShape, Row
from stepscope.cost.hardware import load_hardware, parse_hardware
from stepscope.cost.step_cost import StepCost, price_step
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import Operator
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators

TP8 = ParallelPlan(tp=8, ep=8)


def decode(batch: int, context_len: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=1, context_len=context_len, phase="decode"),) * batch)


def operators_of(model: str, shape: BatchShape | StepRows, **deployment: object) -> tuple[Operator, ...]:
    return step_operators(read_model(model), shape, Deployment(**deployment))  # type: ignore[arg-type]


def check(cost: StepCost) -> None:
    for found in cost.operators:
        assert np.all(np.asarray(found.terms.lower_s) <= np.asarray(found.terms.serial_s))
        if found.time_s is not None and found.low_s is not None and found.high_s is not None:
            assert np.all(np.asarray(found.low_s) <= np.asarray(found.time_s) * (1 + 1e-12))
            assert np.all(np.asarray(found.time_s) <= np.asarray(found.high_s) * (1 + 1e-12))
    assert np.all(np.asarray(cost.lower_bound_s) <= np.asarray(cost.serial_bound_s))
    total = sum(count * np.asarray(op.terms.lower_s) for count, op in zip(cost.counts, cost.operators, strict=True))
    assert np.allclose(np.asarray(cost.lower_bound_s), total)


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("deepseek-v4-flash-0731", TP8),
        ("glm-5.2", TP8),
        ("llama-3.1-8b", ParallelPlan()),
        ("gpt-oss-120b", ParallelPlan()),
        ("qwen3-next-80b-a3b", ParallelPlan()),
    ],
)
def test_every_family_is_priced_within_its_interval(model: str, plan: ParallelPlan) -> None:
    for shape in (decode(64, 8192), BatchShape.from_rows((Row(query_len=2048, context_len=8192, phase="prefill"),))):
        cost = price_step(operators_of(model, shape, plan=plan), "h200", plan)
        check(cost)
        assert cost.unpriced == ()
        assert cost.time_s is not None
        assert float(cost.time_s) > float(cost.lower_bound_s)  # a step is slower than its roofline
        assert cost.grade in ("modelled", "extrapolated")


def test_a_decode_step_of_llama_by_hand() -> None:
    ops = operators_of("llama-3.1-8b", decode(1, 0))
    cost = price_step(ops, "h200", cost="bound")
    weights = sum(op.count * int(op.traffic.weight) for op in ops)
    assert float(cost.lower_bound_s) == pytest.approx(weights / 4.8e12, rel=0.01)  # weights are all that it reads
    assert cost.time_s is None
    assert cost.bound == "memory"
    assert cost.unpriced == ()  # bounds were asked for: nothing is missing


def test_without_measured_kernels_there_are_bounds_and_no_prediction() -> None:
    cost = price_step(operators_of("llama-3.1-8b", decode(8, 1024)), "mi300x")
    check(cost)
    assert cost.time_s is None
    assert cost.grade is None
    assert "q_proj" in cost.unpriced


def test_borrowed_coefficients_are_called_extrapolated() -> None:
    ops = operators_of("llama-3.1-8b", decode(8, 1024))
    assert {c.grade for c in price_step(ops, "h20").operators if c.source != "no work"} == {"extrapolated"}
    by_name = {op.name: c.grade for op, c in zip(ops, price_step(ops, "h200").operators, strict=True)}
    assert by_name["q_proj"] == "modelled"
    assert by_name["attn_norm"] == "extrapolated"  # a stand-in model


def test_a_probed_machine_is_priced_by_what_was_measured() -> None:
    mine = parse_hardware(
        """
        [achieved]
        memory = { bytes_per_s = 2e10, source = "a probe", date = "2026-11" }
        [achieved.compute]
        bf16 = { flop_per_s = 1e12, source = "a probe", date = "2026-11" }
        """,
        "mine",
        "mine",
    )
    ops = operators_of("llama-3.1-8b", decode(1, 0))
    assert float(price_step(ops, mine).lower_bound_s) == pytest.approx(
        float(price_step(ops, "h200").lower_bound_s) * 4.8e12 / 2e10, rel=0.01
    )


def test_fp8_on_a_device_without_it_is_refused_with_a_way_out() -> None:
    with pytest.raises(BadInput, match="--weights"):
        price_step(operators_of("deepseek-v4-flash-0731", decode(1, 1024)), "ascend-910c")
    ops = operators_of("deepseek-v4-flash-0731", decode(1, 1024), weights="int8", experts="int8")
    check(price_step(ops, load_hardware("ascend-910c")))


def test_more_rows_and_longer_contexts_never_cost_less() -> None:
    def price(batch: int, context_len: int) -> float:
        found = price_step(operators_of("glm-5.2", decode(batch, context_len), plan=TP8), "h200", TP8).time_s
        assert found is not None
        return float(found)

    times = [price(b, 8192) for b in (1, 8, 64, 256)]
    assert times == sorted(times)
    times = [price(64, c) for c in (128, 4096, 32768, 131072)]
    assert times == sorted(times)


def test_many_steps_at_once_are_priced_as_one_by_one() -> None:
    shapes = [decode(3, 500), decode(64, 8000), decode(17, 3), decode(256, 20000)]
    together = price_step(operators_of("deepseek-v4-flash-0731", StepRows.from_shapes(shapes), plan=TP8), "h200", TP8)
    check(together)
    for position, shape in enumerate(shapes):
        alone = price_step(operators_of("deepseek-v4-flash-0731", shape, plan=TP8), "h200", TP8)
        for name in ("time_s", "low_s", "lower_bound_s", "serial_bound_s"):
            assert np.asarray(getattr(together, name))[position] == pytest.approx(getattr(alone, name), rel=1e-9)


def test_a_hundred_thousand_shapes_in_ten_seconds_and_one_in_fifty_ms() -> None:
    rng, number, per_step = np.random.default_rng(0), 100_000, 16
    is_decode = np.arange(number * per_step) % per_step > 0  # one prefill row and fifteen decode rows a step
    start = time.process_time()
    rows = StepRows.from_arrays(
        query_len=np.where(is_decode, 1, rng.integers(1, 8192, number * per_step)),
        context_len=rng.integers(0, 65536, number * per_step),
        is_decode=is_decode,
        step_index=np.repeat(np.arange(number), per_step),
    )
    cost = price_step(operators_of("deepseek-v4-flash-0731", rows, plan=TP8), "h200", TP8)
    assert np.asarray(cost.time_s).shape == (number,)
    assert time.process_time() - start < 10
    one = decode(64, 8192)
    price_step(operators_of("deepseek-v4-flash-0731", one, plan=TP8), "h200", TP8)
    spent = []
    for _ in range(5):
        start = time.process_time()
        price_step(operators_of("deepseek-v4-flash-0731", one, plan=TP8), "h200", TP8)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05
