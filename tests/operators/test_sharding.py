from __future__ import annotations

import pytest

from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import Operator, Transfer
from stepscope.operators.step import step_operators
from tests.operators.steps import decode_step, named, prefill_step

SPLIT = ("core", "dense_mlp", "moe_routed", "moe_shared", "attn_kvb", "gdn_proj", "conv", "lm_head")
REPLICATED = ("router", "mhc", "mhc_mix", "index_core")


def by_role(operators: tuple[Operator, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in operators:
        found[op.role] = found.get(op.role, 0) + int(op.count * op.flop)
    return found


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "glm-5.2", "deepseek-v4-flash", "qwen3-next-80b-a3b"]
)
def test_ranks_together_do_the_unsharded_work(name: str, tp: int) -> None:
    architecture = read_model(name)
    for shape in (prefill_step(256, 4096), decode_step(64, 4096)):
        whole = by_role(step_operators(architecture, shape))
        for plan in (ParallelPlan(tp=tp), ParallelPlan(tp=tp, ep=tp)):
            rank = by_role(step_operators(architecture, shape, Deployment(plan=plan)))
            for role in SPLIT:
                if role == "moe_shared" and name == "qwen3-next-80b-a3b":
                    continue  # the shared expert's gate, [H, 1], is replicated
                assert tp * rank.get(role, 0) == whole.get(role, 0), role
            for role in REPLICATED:
                assert rank.get(role, 0) == whole.get(role, 0), role


def test_experts_see_the_copies_of_every_dp_rank() -> None:
    """8 ranks of 64 tokens, top-6 of 256: 3072 copies in the domain, 384 a rank on 32 experts."""
    flash = read_model("deepseek-v4-flash")
    operators = step_operators(flash, decode_step(64, 8191), Deployment(plan=ParallelPlan(dp=8, ep=8)))
    w13 = named(operators, "experts_w13")
    assert (w13.m, w13.n, w13.k) == (384, 4096, 4096)
    assert named(operators, "wq_b").m == 64


def test_kv_heads_are_copied_when_ranks_outnumber_them() -> None:
    operators = step_operators(read_model("llama-3.1-70b"), decode_step(1, 100), Deployment(plan=ParallelPlan(tp=16)))
    assert named(operators, "k_proj").n == 128
    assert named(operators, "q_proj").n == 512


def transfers(plan: ParallelPlan, model: str = "deepseek-v3") -> dict[str, Transfer]:
    operators = step_operators(read_model(model), decode_step(16, 1000), Deployment(plan=plan))
    return {op.name: op.work for op in operators if isinstance(op.work, Transfer)}


def test_one_device_sends_nothing() -> None:
    assert transfers(ParallelPlan()) == {}


def test_tensor_parallelism_reduces_twice_a_layer() -> None:
    found = transfers(ParallelPlan(tp=8))
    assert set(found) == {"attn_all_reduce", "ffn_all_reduce", "embed_all_reduce", "logits_all_gather"}
    payload = 16 * 7168 * 2
    assert found["attn_all_reduce"].payload_bytes == payload
    assert found["attn_all_reduce"].wire_bytes == 2 * payload * 7 // 8


def test_expert_parallelism_with_dp_dispatches_in_the_activations_dtype() -> None:
    found = transfers(ParallelPlan(dp=16, ep=16))
    assert found["moe_combine"].payload_bytes == 16 * 8 * 7168 * 2
    assert found["moe_dispatch"].payload_bytes == 16 * 8 * 7168  # fp8


def test_dp_without_ep_gathers_and_scatters() -> None:
    found = transfers(ParallelPlan(dp=4))
    assert {"moe_all_gather", "moe_reduce_scatter"} <= set(found)
    assert found["moe_all_gather"].group_size == 4


def test_pipeline_hands_over_once_per_boundary() -> None:
    operators = step_operators(
        read_model("deepseek-v4-flash"), decode_step(16, 1000), Deployment(plan=ParallelPlan(pp=4))
    )
    send = named(operators, "pp_send")
    assert send.count == 3
    assert send.comm_bytes == 16 * 4 * 4096 * 2  # four residual streams


def test_context_parallelism_splits_queries_of_prefill_and_history_of_decode() -> None:
    v3, plan = read_model("deepseek-v3"), Deployment(plan=ParallelPlan(cp=4))
    whole, part = step_operators(v3, decode_step(8, 4095)), step_operators(v3, decode_step(8, 4095), plan)
    assert 4 * int(named(part, "attn_decode").flop) == named(whole, "attn_decode").flop
    assert named(part, "q_b_proj").m == 8
    prefill = step_operators(v3, prefill_step(1024), plan)
    assert named(prefill, "q_b_proj").m == 256
    assert {"kv_all_gather"} <= {op.name for op in prefill}


def test_fused_projections_add_up() -> None:
    """V4: wq_a + wkv is one GEMM of N 1536, 60.53 flop per byte in bf16 at M = 64; GLM: 2624 and 160."""
    bf16 = Deployment(fusion="vllm", weights="bf16")
    fused = named(step_operators(read_model("deepseek-v4-flash"), decode_step(64, 8191), bf16), "fused_wqa_wkv")
    assert fused.n == 1536
    assert fused.intensity is not None
    assert round(fused.intensity, 2) == 60.53
    glm = step_operators(read_model("glm-5.2"), decode_step(1, 8191), bf16)
    assert named(glm, "fused_qkv_a_proj").n == 2624
    assert named(glm, "wk_weights_proj").n == 160
    sglang = step_operators(read_model("deepseek-v4-flash"), decode_step(1, 8191), Deployment(fusion="sglang"))
    assert named(sglang, "wqkv_a").n == 1536


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "glm-5.2", "qwen3-30b-a3b", "gpt-oss-20b"])
def test_fusion_changes_no_flop(name: str) -> None:
    shape = decode_step(8, 4000)
    plain = sum(int(op.count * op.flop) for op in step_operators(read_model(name), shape))
    for fusion in ("vllm", "sglang"):
        operators = step_operators(read_model(name), shape, Deployment(fusion=fusion))
        assert sum(int(op.count * op.flop) for op in operators) == plain
