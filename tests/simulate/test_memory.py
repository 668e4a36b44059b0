"""A device's memory divides into weights, activations and KV blocks; a model that does not fit is told with numbers."""

from __future__ import annotations

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.models.hf_config import bundled_models, read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.models.parameters import count_parameters
from stepscope.operators.deployment import Deployment
from stepscope.simulate.memory import Memory, MemoryUse, plan_memory, weight_bytes

H200 = load_hardware("h200")
USE = MemoryUse(block_size=16, max_num_batched_tokens=8192, max_num_seqs=256)


def plan(model: str, use: MemoryUse = USE, *, tp: int = 1) -> Memory:
    return plan_memory(read_model(model), Deployment(plan=ParallelPlan(tp=tp)), H200, use)


def test_llama_8b_by_hand() -> None:
    """KV: 32 layers x 2 x 8 heads x 128 x 2 B = 131,072 B a token; weights: the matrices of 8.03e9 parameters, bf16."""
    memory = plan("llama-3.1-8b")
    assert memory.token_bytes == 131_072
    assert memory.block_bytes == 16 * 131_072
    vectors = count_parameters(read_model("llama-3.1-8b"))
    assert memory.weight_bytes == 2 * vectors.matrices
    # the widest GEMM: 4096 in, 14336 out (gate and up are two); 2 x 4096 of residual; fp32 logits of 256 rows
    assert memory.activation_bytes == 2 * 8192 * (4096 + 2 * 14336 + 2 * 4096) + 4 * 256 * 128_256
    left = floor(151_397_597_184 * 0.9) - memory.weight_bytes - memory.activation_bytes
    assert memory.num_blocks == left // (16 * 131_072)


@pytest.mark.parametrize("model", [name for name in bundled_models() if "qwen3.5" not in name])
def test_what_one_rank_holds_is_no_less_than_its_share(model: str) -> None:
    architecture = read_model(model)
    whole = weight_bytes(architecture, Deployment())
    shared = weight_bytes(architecture, Deployment(plan=ParallelPlan(tp=4)))
    assert whole / 4 <= shared < whole


@given(tokens=st.integers(256, 65536), seqs=st.integers(1, 256), used=st.floats(0.5, 1.0))
def test_the_parts_are_within_what_is_used(tokens: int, seqs: int, used: float) -> None:
    use = MemoryUse(block_size=16, max_num_batched_tokens=tokens, max_num_seqs=seqs, utilisation=used)
    memory = plan("qwen3-8b", use)
    held = memory.weight_bytes + memory.activation_bytes + memory.reserved_bytes
    assert held + memory.num_blocks * memory.block_bytes <= memory.capacity_bytes * used
    assert held + (memory.num_blocks + 1) * memory.block_bytes > floor(memory.capacity_bytes * used)


def test_fewer_heads_than_ranks_are_copied() -> None:
    """Eight KV heads on 8 ranks are one each; a latent cache is held by every rank."""
    assert plan("llama-3.1-8b", tp=8).token_bytes == 131_072 / 8
    assert plan("deepseek-v3", tp=8).token_bytes == plan("deepseek-v3", tp=16).token_bytes


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(BadInput, match=r"weights take 131\.4 GiB.* are left .*Raise --tp"):
        plan("llama-3.1-70b")
    with pytest.raises(BadInput, match=r"utilisation is 1\.5"):
        plan("llama-3.1-8b", MemoryUse(block_size=16, max_num_batched_tokens=1, max_num_seqs=1, utilisation=1.5))
