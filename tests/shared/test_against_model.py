"""Public captures against their models: products add up to their family, bounds stay below what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepscope.answers.account import explain
from stepscope.answers.against_model import AgainstModel, compare_with_model
from stepscope.answers.modelled_steps import ModelChoice
from stepscope.cost.hardware import load_hardware
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.shared

CAPTURES = (
    ("sglang-qwen3-30b-a3b-decode-B300.json.gz", "qwen3-30b-a3b", "b300", 1),
    ("sglang-qwen3-30b-a3b-decode-MI300.json.gz", "qwen3-30b-a3b", "mi300x", 1),
    ("sglang-mi300x-qwen3-8b-decode/sglang_Qwen3-8B_decode.json.gz", "qwen3-8b", "mi300x", 1),
    ("vllm-mi300x-mixed-piecewise/graph_execution.json.gz", "gpt-oss-20b", "mi300x", 1),
)


def against(path: Path, model: str, hardware: str, tp: int) -> AgainstModel:
    deployment = Deployment(plan=ParallelPlan(tp=tp))
    choice = ModelChoice(architecture=read_model(model), deployment=deployment, hardware=load_hardware(hardware))
    return compare_with_model(explain(path), choice)


@pytest.mark.parametrize(("name", "model", "hardware", "tp"), CAPTURES, ids=[name for name, *_ in CAPTURES])
def test_no_family_of_a_public_capture_beats_its_bound(
    traces: Path, name: str, model: str, hardware: str, tp: int
) -> None:
    found = against(traces / "public" / "tracelens" / name, model, hardware, tp)
    assert found.steps == {"0": (1, 0)}
    modelled = [row for row in found.efficiencies if row.bound_ns]
    assert {"dense_gemm", "attention", "stream"} <= {row.family for row in modelled}
    for row in modelled:
        assert row.efficiency is not None
        assert 0 < row.efficiency < 1


def test_products_with_dims_add_up_to_the_gemm_family(traces: Path) -> None:
    path = traces / "public" / "tracelens" / "vllm-b200-tp8-eager-prefill.json.gz"
    found = against(path, "gpt-oss-120b", "b200", 8)
    families = explain(path).ranks[0].budget.step_families
    assert sum(row.sum_ns for row in found.products) == sum(families["compute", "gemm"])
    # per rank of 8: q, k and v (64 / 8 + 2 x 8 / 8 heads of 64), o, the router of 128 experts, an eighth of the head
    assert {(row.n, row.k): row.calls for row in found.products} == {
        (640, 2880): 36,
        (2880, 512): 36,
        (128, 2880): 36,
        (25_136, 2880): 1,
    }
    assert all(row.share is not None and 0 < row.share < 1 for row in found.products)
    assert found.steps == {"0": (0, 1)}  # its annotation has no kv_len
