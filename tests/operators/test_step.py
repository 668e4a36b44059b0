from __future__ import annotations

import time

import numpy as np
import pytest

from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import Operator
from stepscope.operators.rows import StepRows
from stepscope.operators.step import step_operators
from tests.models.reference import MODELS
from tests.operators.steps import decode_step, mixed_step, named, prefill_step, total_bytes, total_flop

SHAPES = [
    decode_step(3, 500),
    prefill_step(700, 1800),
    mixed_step(prefill_step(64), decode_step(2, 5000)),
    prefill_step(9),
]


def per_step(operators: tuple[Operator, ...], what: str) -> list[int]:
    total = sum(op.count * getattr(op, what) for op in operators)
    return [int(value) for value in np.atleast_1d(total)]


@pytest.mark.parametrize("fusion", ["none", "vllm"])
@pytest.mark.parametrize("name", MODELS)
def test_many_shapes_at_once_equal_each_alone(name: str, fusion: str) -> None:
    architecture, deployment = read_model(name), Deployment(fusion=fusion, kv="fp8")
    together = step_operators(architecture, StepRows.from_shapes(SHAPES), deployment)
    alone = [step_operators(architecture, shape, deployment) for shape in SHAPES]
    assert per_step(together, "flop") == [total_flop(operators) for operators in alone]
    assert per_step(together, "bytes_moved") == pytest.approx([total_bytes(operators) for operators in alone], abs=1)


def test_a_hundred_thousand_shapes_are_quick() -> None:
    rng, shapes, rows = np.random.default_rng(0), 100_000, 16
    built = StepRows.from_arrays(
        query_len=np.ones(shapes * rows, dtype=np.int64),
        context_len=rng.integers(1, 100_000, shapes * rows),
        is_decode=np.ones(shapes * rows, dtype=bool),
        step_index=np.repeat(np.arange(shapes), rows),
    )
    start = time.process_time()
    operators = step_operators(read_model("deepseek-v4-flash"), built)
    assert len(per_step(operators, "flop")) == shapes
    assert time.process_time() - start < 10


def test_one_shape_is_quick() -> None:
    flash, shape = read_model("deepseek-v4-flash"), decode_step(64, 8191)
    step_operators(flash, shape)
    start = time.process_time()
    step_operators(flash, shape)
    assert time.process_time() - start < 0.05


def test_context_beyond_the_limit_is_refused() -> None:
    llama = read_model("llama-3.1-8b")
    step_operators(llama, decode_step(1, 131_071))
    with pytest.raises(BadInput, match=r"a row reaches 131073 tokens, the model's limit is 131072\. Shorten"):
        step_operators(llama, decode_step(1, 131_072))
    step_operators(llama, decode_step(1, 200_000), Deployment(max_model_len=262_144))


@pytest.mark.parametrize(
    ("deployment", "problem"),
    [
        (Deployment(weights="fp7"), r"unknown dtype 'fp7'\. Known: fp32, bf16"),
        (Deployment(fusion="tgi"), r"unknown fusion 'tgi'\. Known: none, vllm, sglang"),
        (Deployment(kv="nvfp4"), "'nvfp4' does not exist for GQA"),
        (Deployment(draft_passes=1), "has no draft layers"),
    ],
)
def test_unknown_names_are_refused(deployment: Deployment, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        step_operators(read_model("llama-3.1-8b"), decode_step(1, 1), deployment)


def test_weights_dtype_halves_what_is_read() -> None:
    llama, shape = read_model("llama-3.1-8b"), decode_step(1, 100)
    bf16 = named(step_operators(llama, shape), "down_proj")
    fp8 = named(step_operators(llama, shape, Deployment(weights="fp8")), "down_proj")
    assert bf16.traffic.weight == 2 * int(fp8.traffic.weight)
    assert (bf16.dtypes.compute, fp8.dtypes.compute) == ("bf16", "fp8")
    mxfp4 = named(step_operators(llama, shape, Deployment(weights="mxfp4", activations="fp8")), "down_proj")
    assert mxfp4.traffic.weight == 14_336 * 4096 * 17 // 32  # 4 bits, and 8 bits of scale per 32
    assert mxfp4.dtypes.compute == "fp8"


def test_what_is_never_quantised_stays_bf16() -> None:
    operators = step_operators(read_model("deepseek-v3"), decode_step(1, 100))
    assert named(operators, "gate").dtypes.weight == "bf16"
    assert named(operators, "lm_head").dtypes.weight == "bf16"
    assert named(operators, "experts_w13").dtypes.weight == "fp8_block"


@pytest.mark.parametrize(
    ("name", "layer_type", "tokens"),
    [("deepseek-v4-flash", "mtp", 4), ("deepseek-v4-flash-0731", "dspark", 20), ("deepseek-v3", "mtp", 4)],
)
def test_a_draft_pass_adds_its_own_operators(name: str, layer_type: str, tokens: int) -> None:
    plain = step_operators(read_model(name), decode_step(4, 1000))
    drafted = step_operators(read_model(name), decode_step(4, 1000), Deployment(draft_passes=1))
    added = drafted[len(plain) :]
    assert drafted[: len(plain)] == plain
    assert {op.layer_type for op in added} == {layer_type}
    assert named(added, "lm_head").m == tokens
    stages = {op.count for op in added if op.name == "experts_w13"}
    assert stages == ({3} if layer_type == "dspark" else {1})
