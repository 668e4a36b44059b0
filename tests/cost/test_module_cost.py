from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.batch import BatchShape
from stepscope.cost.hardware import load_hardware
from stepscope.cost.kernel_model import load_coefficients
from stepscope.cost.module_cost import ROLES, find_modules
from stepscope.cost.step_cost import StepCost, price_step
from stepscope.cost.step_notes import price_notes
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import Operator
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators
from tests.operators.steps import decode_step, mixed_step, prefill_step

TP8 = ParallelPlan(tp=8)


def operators_of(model: str, shape: BatchShape | StepRows, **options: Any) -> tuple[Operator, ...]:
    options.setdefault("plan", TP8)
    return step_operators(read_model(model), shape, Deployment(fusion="vllm", kv="fp8", **options))


def attention_s(operators: tuple[Operator, ...], cost: StepCost, layer_type: str) -> float:
    pairs = zip(operators, cost.operators, strict=True)
    return sum(float(found.time_s or 0) for op, found in pairs if op.layer_type == layer_type and op.role in ROLES)


def coefficients(name: str) -> tuple[float, ...]:
    fits = load_coefficients(load_hardware("h200"))
    assert fits is not None
    return fits.models[name].coefficients


@pytest.mark.parametrize(
    ("model", "layer_type", "name", "cap"),
    [
        ("deepseek-v3.2", "dsa_full_moe", "module.dsa_7168_16_fp8_fp8_block", 2048),
        ("deepseek-v4-flash", "csa_c4", "module.csa_4096_8_fp8_fp8_block", 2048),
        ("deepseek-v4-flash", "hca_c128", "module.hca_4096_8_fp8_fp8_block", 128),
        ("deepseek-v3", "mla_moe", "module.mla_7168_16_fp8_fp8_block", 10**9),
    ],
)
@pytest.mark.parametrize("context", [1024, 32768])
def test_operators_of_a_measured_module_add_up_to_it(
    model: str, layer_type: str, name: str, cap: int, context: int
) -> None:
    operators = operators_of(model, decode_step(64, context), weights="fp8_block")
    assert layer_type in {op.layer_type for op in operators}
    c, kept = coefficients(name), min(context, cap)
    expected = c[0] + 64 * c[1] + 6 * c[2] + kept * c[3] + 64 * kept * c[4] + 64 * context * c[5]
    cost = price_step(operators, "h200", TP8)
    assert attention_s(operators, cost, layer_type) == pytest.approx(expected, rel=0.01)
    found = next(x for op, x in zip(operators, cost.operators, strict=True) if op.layer_type == layer_type)
    shares = [x.source for op, x in zip(operators, cost.operators, strict=True) if op.layer_type == layer_type]
    assert f"share of {name} of h200" in shares
    assert found.low_s is not None


def test_the_rest_of_the_layer_keeps_its_own_price() -> None:
    operators = operators_of("deepseek-v3.2", decode_step(64, 8192))
    cost = price_step(operators, "h200", TP8)
    for op, found in zip(operators, cost.operators, strict=True):
        assert ("share of" in str(found.source)) == (op.role in ROLES)


def test_layers_that_reuse_an_index_take_the_factor_and_are_extrapolated() -> None:
    operators = operators_of("glm-5.2", decode_step(64, 8192), weights="fp8_block")
    cost = price_step(operators, "h200", TP8)
    sources = {op.layer_type: x.source for op, x in zip(operators, cost.operators, strict=True) if op.role == "core"}
    lent = [layer for layer, source in sources.items() if "of the indexed layer" in str(source)]
    assert lent
    own = next(layer for layer in sources if layer not in lent)
    assert attention_s(operators, cost, lent[0]) < attention_s(operators, cost, own)
    grades = {x.grade for op, x in zip(operators, cost.operators, strict=True) if op.layer_type == lent[0]}
    assert "extrapolated" in grades


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (prefill_step(4096), {}),
        (mixed_step(prefill_step(2048), decode_step(16, 8192)), {}),
        (decode_step(8, 4096), {"weights": "int8", "experts": "int8"}),
    ],
)
def test_what_was_not_measured_as_a_module_keeps_the_sum(shape: BatchShape, options: dict[str, str]) -> None:
    operators = operators_of("deepseek-v3.2", shape, **options)
    cost = price_step(operators, "h200", TP8)
    assert all("share of" not in str(found.source) for found in cost.operators)


def test_only_pure_decode_steps_of_many_take_the_module() -> None:
    mixed = mixed_step(prefill_step(2048), decode_step(16, 8192))
    shapes = [decode_step(16, 8192), mixed, decode_step(64, 100), BatchShape(rows=())]
    rows = StepRows.from_shapes(shapes)
    together = price_step(operators_of("deepseek-v3.2", rows), "h200", TP8)
    alone = [price_step(operators_of("deepseek-v3.2", shape), "h200", TP8) for shape in shapes]
    assert np.asarray(together.time_s) == pytest.approx([x.time_s for x in alone], rel=1e-9)
    assert np.all(np.asarray(together.low_s) <= np.asarray(together.time_s))
    assert np.all(np.asarray(together.time_s) <= np.asarray(together.high_s))


def test_verification_and_gqa_have_no_module() -> None:
    rows = StepRows.from_arrays(
        query_len=np.full(4, 3), context_len=np.full(4, 900), is_decode=np.ones(4, bool), step_index=np.zeros(4, int)
    )
    assert not any(np.any(m.is_decode) for m in find_modules(operators_of("deepseek-v3.2", rows)))
    assert find_modules(operators_of("qwen3-8b", decode_step(4, 900))) == ()
    kinds = {m.kind for m in find_modules(operators_of("deepseek-v4-flash", decode_step(4, 900)))}
    assert kinds == {"csa", "hca"}


def test_a_like_device_borrows_modules_and_another_does_not() -> None:
    operators = operators_of("deepseek-v3.2", decode_step(64, 8192))
    for name, borrows in (("h800", True), ("h20", False)):
        found = price_step(operators, name, TP8)
        assert any("share of" in str(x.source) for x in found.operators) == borrows


def test_collectives_beyond_a_node_are_bounds_and_the_notes_say_so() -> None:
    plan = ParallelPlan(dp=16, ep=16)
    operators = operators_of("deepseek-v3", decode_step(64, 8192), plan=plan)
    cost = price_step(operators, "h200", plan)
    assert cost.time_s is None
    assert set(cost.unpriced) == {"moe_dispatch", "moe_combine"}
    notes = price_notes(operators, cost, load_hardware("h200"))
    assert any("over 16 ranks: measured ones reach 8" in note for note in notes)
    rest = next(note for note in notes if note.startswith("all other operators"))
    assert float(rest.split()[-2]) > 0


def test_figures_that_nobody_checked_are_named_where_they_are_used() -> None:
    operators = operators_of("qwen3-8b", decode_step(64, 8192))
    device = load_hardware("mi300x")
    notes = price_notes(operators, price_step(operators, device, TP8), device)
    assert any("not verified: scale_up" in note for note in notes)
    alone = operators_of("qwen3-8b", decode_step(64, 8192), plan=ParallelPlan())
    notes = price_notes(alone, price_step(alone, device), device)
    assert not any("not verified" in note for note in notes)
