from __future__ import annotations

import pytest

from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan


def test_group_sizes() -> None:
    plan = ParallelPlan(tp=2, dp=4, ep=8, pp=3)
    assert (plan.world_size, plan.expert_group_size, plan.moe_tp) == (24, 8, 1)
    assert ParallelPlan(tp=8, ep=2).moe_tp == 4


@pytest.mark.parametrize(
    ("model", "plan", "problem"),
    [
        ("llama-3.1-8b", ParallelPlan(tp=3), "num_attention_heads 32 is not divisible by tp 3. Choose one of 1, 2, 4"),
        ("llama-3.1-8b", ParallelPlan(tp=0), "--tp is 0"),
        ("qwen3-30b-a3b", ParallelPlan(tp=4, ep=3), "--ep 3 does not divide the 4 ranks"),
        ("qwen3-30b-a3b", ParallelPlan(dp=3, ep=3), "num_experts 128 is not divisible by ep 3"),
        ("deepseek-v4-flash", ParallelPlan(tp=16), "o_groups 8 is not divisible by tp 16"),
        ("llama-3.1-8b", ParallelPlan(pp=33), "has only 32 layers"),
        ("qwen3-next-80b-a3b", ParallelPlan(cp=2), "recurrent layers"),
        ("qwen3-next-80b-a3b", ParallelPlan(tp=32), "num_k_heads 16 is not divisible by tp 32"),
    ],
)
def test_what_cannot_be_sharded_is_refused(model: str, plan: ParallelPlan, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        plan.check(read_model(model))


def test_kv_heads_are_copied_where_there_are_more_ranks() -> None:
    ParallelPlan(tp=16).check(read_model("llama-3.1-70b"))  # 8 KV heads
