from __future__ import annotations

import pytest

from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.operators.history import branch_totals, history_branches, state_rows
from stepscope.operators.step import step_operators
from tests.operators.steps import decode_step, flop_by_role

# the second note's tables: L, C4 rows, indexer bytes (910C), indexer bytes (CUDA fp8, mxfp4), C128 rows and bytes
NOTE = [
    (2048, 512, 66_560, 67_584, 34_816, 16, 147_456),
    (8192, 2048, 266_240, 270_336, 139_264, 64, 196_608),
    (32_768, 8192, 1_064_960, 1_081_344, 557_056, 256, 393_216),
    (131_072, 32_768, 4_259_840, 4_325_376, 2_228_224, 1024, 1_179_648),
    (1_048_576, 262_144, 34_078_720, 34_603_008, 17_825_792, 8192, 8_519_680),
]


@pytest.mark.parametrize(("length", "c4", "index", "index_fp8", "index_mxfp4", "c128", "c128_bytes"), NOTE)
def test_payloads_of_the_note(
    *, length: int, c4: int, index: int, index_fp8: int, index_mxfp4: int, c128: int, c128_bytes: int
) -> None:
    flash = read_model("deepseek-v4-flash-0731")
    found = {(b.layer_type, b.branch): b for b in history_branches(flash, length, "ascend-910c")}
    indexer = found["csa_c4", "indexer"]
    assert (indexer.rows, indexer.payload_bytes) == (c4, index)
    attention = found["csa_c4", "sliding_window"].payload_bytes + found["csa_c4", "c4"].payload_bytes
    assert attention == 655_360
    history = found["hca_c128", "c128"]
    assert history.rows == c128
    assert found["hca_c128", "sliding_window"].payload_bytes + history.payload_bytes == c128_bytes
    for layout, expected in (("fp8", index_fp8), ("fp8-mxfp4-index", index_mxfp4)):
        other = {(b.layer_type, b.branch): b for b in history_branches(flash, length, layout)}
        assert other["csa_c4", "indexer"].payload_bytes == expected


def test_kernels_read_closed_windows_and_the_cache_has_room_for_open_ones() -> None:
    found = {b.branch: b for b in history_branches(read_model("deepseek-v4-flash"), 130, "bf16")}
    assert (found["c128"].rows, found["c128"].stored_rows) == (1, 2)
    assert (found["c4"].rows, found["c4"].stored_rows) == (32, 33)


def test_state_rows_of_the_note() -> None:
    rows = {(row.layer_type, row.name): row.row_bytes for row in state_rows(read_model("deepseek-v4-flash"))}
    assert rows["csa_c4", "c4"] == 8192
    assert rows["csa_c4", "indexer"] == 2048
    assert rows["hca_c128", "c128"] == 4096


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro", "glm-5.2", "deepseek-v3", "gpt-oss-20b"])
def test_branches_add_up_to_the_step_that_reads_them(name: str) -> None:
    architecture = read_model(name)
    branches = history_branches(architecture, 5000, "bf16")
    step = flop_by_role(step_operators(architecture, decode_step(1, 4999)))
    totals = {t.branch: t.total_flop for t in branch_totals(branches)}
    assert totals.pop("indexer", 0) == step.get("index_core", 0)
    assert sum(totals.values()) == step["core"]


def test_shares_sum_to_one_and_the_indexer_takes_over() -> None:
    flash = read_model("deepseek-v4-flash")
    shares = []
    for length in (8192, 1_048_576):
        totals = branch_totals(history_branches(flash, length, "fp8"))
        assert sum(t.bytes_fraction for t in totals) == pytest.approx(1)
        assert sum(t.flop_fraction for t in totals) == pytest.approx(1)
        shares.append(next(t.flop_fraction for t in totals if t.branch == "indexer"))
    assert shares[0] < 0.3
    assert shares[1] > 0.75


def test_a_context_beyond_the_limit_is_refused() -> None:
    with pytest.raises(BadInput, match="1 to 131072 was expected"):
        history_branches(read_model("llama-3.1-8b"), 131_073, "bf16")
