from __future__ import annotations

import pytest

from stepscope.models.hf_config import read_model
from stepscope.operators.step import step_operators
from tests.models.reference import MODELS, REFERENCE
from tests.operators.steps import decode_step, flop_by_role, prefill_step, total_flop

CASES = {
    "prefill_2048_ctx0": prefill_step(2048),
    "prefill_2048_ctx30720": prefill_step(2048, 30_720),
    "decode_64_ctx8191": decode_step(64, 8191),
    "decode_64_ctx131071": decode_step(64, 131_071),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MODELS)
def test_flop_equal_the_reference_by_role_and_in_total(name: str, case: str) -> None:
    operators = step_operators(read_model(name), CASES[case])
    assert flop_by_role(operators) == REFERENCE[name]["flop"][case]
    assert total_flop(operators) == REFERENCE[name]["flop_total"][case]


def test_one_query_at_a_million_tokens_of_v4_flash_is_two_thirds_indexer() -> None:
    operators = step_operators(read_model("deepseek-v4-flash"), decode_step(1, 1_048_575))
    assert f"{total_flop(operators):.6e}" == "1.403476e+11"
    assert round(flop_by_role(operators)["index_core"] / total_flop(operators), 2) == 0.64
