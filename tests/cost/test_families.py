"""Every operator of every bundled model has a family, and each family is there for some operator."""

from __future__ import annotations

import pytest

from stepscope.batch import BatchShape, Row
from stepscope.cost.families import FAMILIES, family_of
from stepscope.models.hf_config import bundled_models, read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.operator import Operator
from stepscope.operators.step import step_operators

MIXED = BatchShape.from_rows(
    (
        Row(query_len=512, context_len=512, phase="prefill"),
        Row(query_len=1, context_len=4096, phase="decode"),
    )
)


def operators_of(model: str) -> tuple[Operator, ...]:
    return step_operators(read_model(model), MIXED, Deployment(plan=ParallelPlan(tp=2)))


@pytest.mark.parametrize("model", bundled_models())
def test_every_operator_has_a_family(model: str) -> None:
    assert {family_of(operator) for operator in operators_of(model)} <= set(FAMILIES)


def test_every_family_has_operators() -> None:
    assert {family_of(o) for model in bundled_models() for o in operators_of(model)} == set(FAMILIES)


@pytest.mark.parametrize(
    ("model", "name", "family"),
    [
        ("qwen3-8b", "q_proj", "dense_gemm"),
        ("qwen3-8b", "kv_write", "stream"),
        ("qwen3-30b-a3b", "experts_w13", "experts"),
        ("qwen3-30b-a3b", "gate", "dense_gemm"),
        ("deepseek-v3", "w_uk_decode", "dense_gemm"),
        ("deepseek-v3.2", "index_scores_decode", "indexer"),
        ("deepseek-v3.2", "indexer_wk", "indexer"),
        ("deepseek-v4-flash", "compressor_state", "compressor"),
        ("deepseek-v4-flash", "compressor_wkv", "compressor"),
        ("deepseek-v4-flash", "indexer_compressor_wkv", "indexer"),
        ("qwen3-next-80b-a3b", "gdn_decode", "recurrent"),
        ("llama-3.1-8b", "attn_all_reduce", "collective"),
    ],
)
def test_a_family_is_by_what_the_kernel_walks(model: str, name: str, family: str) -> None:
    assert {family_of(o) for o in operators_of(model) if o.name == name} == {family}
