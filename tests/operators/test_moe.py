from __future__ import annotations

import pytest

from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import ExpertLoad
from stepscope.operators.router import Router
from stepscope.operators.step import step_operators
from tests.operators.steps import decode_step, named, prefill_step


@pytest.mark.parametrize(("shape", "copies"), [(prefill_step(2048), 12_288), (decode_step(64, 8191), 384)])
def test_assignments_of_the_notes(shape: object, copies: int) -> None:
    operators = step_operators(read_model("deepseek-v4-flash"), shape)  # type: ignore[arg-type]
    assert named(operators, "experts_w13").m == copies


def test_only_active_experts_are_read() -> None:
    """64 tokens, top-4 of 128: 111.16 experts of 2880 x 5760 in bf16."""
    operators = step_operators(read_model("gpt-oss-120b"), decode_step(64, 100), Deployment(experts="bf16"))
    w13 = named(operators, "experts_w13")
    assert w13.traffic.weight == round(128 * (1 - (1 - 4 / 128) ** 64) * 2880 * 5760 * 2)
    assert w13.traffic.weight < 128 * 2880 * 5760 * 2


def test_a_measured_histogram_prices_the_fullest_rank() -> None:
    """32 experts, 16 tokens, top-4, ep 2: the first half has 50 of 64 copies on 10 experts."""
    histogram = tuple([5] * 10 + [0] * 6 + [1] * 14 + [0] * 2)
    deployment = Deployment(plan=ParallelPlan(tp=2, ep=2), router=Router(rows_per_expert=histogram))
    w13 = named(step_operators(read_model("gpt-oss-20b"), decode_step(16, 100), deployment), "experts_w13")
    assert isinstance(w13.work, ExpertLoad)
    assert (w13.m, w13.work.num_experts, w13.work.active_experts) == (50, 16, 10)
    assert w13.rows_per_expert == histogram[:16]
    assert sum(histogram) == 16 * 4


def test_a_skewed_router_reads_fewer_experts() -> None:
    flash, shape = read_model("deepseek-v4-flash"), decode_step(64, 1000)
    uniform = named(step_operators(flash, shape), "experts_w13")
    skewed = named(step_operators(flash, shape, Deployment(router=Router(skew=1.2))), "experts_w13")
    assert int(skewed.traffic.weight) < int(uniform.traffic.weight)
    assert skewed.flop == uniform.flop


def test_a_histogram_of_another_model_is_refused() -> None:
    with pytest.raises(BadInput, match="has 3 experts, the model 32"):
        step_operators(
            read_model("gpt-oss-20b"), decode_step(1, 1), Deployment(router=Router(rows_per_expert=(1, 2, 3)))
        )
