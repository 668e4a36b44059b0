"""One hand-worked number per formula."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.batch import BatchShape
from stepscope.models.architecture import Architecture
from stepscope.models.hf_config import read_model
from stepscope.operators.deployment import Deployment
from stepscope.operators.step import step_operators
from tests.operators.steps import decode_step, flop_by_role, mixed_step, named, prefill_step, total_flop


def test_gqa_core_by_hand() -> None:
    """Llama-8B, 3 queries on 2 rows: pairs 3+4+5 = 12; 4 x 32 heads x 128 x 12 = 196,608 flop."""
    core = named(step_operators(read_model("llama-3.1-8b"), prefill_step(3, 2)), "attn_prefill")
    assert core.flop == 196_608
    assert core.traffic.kv_read == 5 * 2 * 8 * 128 * 2  # five rows of K and V, 8 heads of 128 bf16
    assert core.traffic.read == 3 * 32 * 128 * 2


def test_a_window_bounds_the_core() -> None:
    """gpt-oss: at 8192 tokens the sliding layers see 128 rows: 4 x 64 x 64 x 128 flop."""
    operators = step_operators(read_model("gpt-oss-20b"), decode_step(1, 8191))
    assert named(operators, "attn_decode", "swa_moe").flop == 4 * 64 * 64 * 128
    assert named(operators, "attn_decode", "full_moe").flop == 4 * 64 * 64 * 8192
    assert named(operators, "attn_decode", "swa_moe").traffic.kv_read == 128 * 2048


def test_mla_decode_is_absorbed_by_hand() -> None:
    """V3 at 8192 tokens: 2 x 128 x (2 x 512 + 64) x 8192 flop, 8192 rows of 1152 bytes."""
    operators = step_operators(read_model("deepseek-v3"), decode_step(1, 8191))
    core = named(operators, "attn_decode", "mla_moe")
    assert core.flop == 2 * 128 * 1088 * 8192
    assert core.traffic.kv_read == 8192 * 1152
    up = named(operators, "w_uk_decode", "mla_moe")
    assert (up.m, up.n, up.k, up.flop) == (1, 512, 128, 2 * 128 * 128 * 512)


def test_mla_prefill_expands_all_of_its_history() -> None:
    """V3, 2 queries on 3 rows: kv_b over 5 rows; pairs 4+5 = 9; 2 x 128 x (128+64+128) x 9 flop."""
    operators = step_operators(read_model("deepseek-v3"), prefill_step(2, 3))
    assert named(operators, "attn_prefill", "mla_moe").flop == 2 * 128 * 320 * 9
    assert named(operators, "kv_b_proj", "mla_moe").m == 5
    gather = named(operators, "kv_gather", "mla_moe")
    assert (gather.traffic.kv_read, gather.traffic.written) == (3 * 1152, 3 * 576 * 2)


def test_mla_form_can_be_forced() -> None:
    v3 = read_model("deepseek-v3")
    absorbed = step_operators(v3, prefill_step(512, 8192), Deployment(mla="absorbed"))
    assert "kv_b_proj" not in {op.name for op in absorbed}
    expanded = step_operators(v3, decode_step(4, 100), Deployment(mla="expanded"))
    assert named(expanded, "kv_b_proj").m == 404


def test_dsa_core_stops_growing_and_its_indexer_does_not() -> None:
    glm = read_model("glm-5.2")
    short, long = (step_operators(glm, decode_step(1, c)) for c in (8191, 131_071))
    assert named(short, "attn_decode", "dsa_full_moe").flop == named(long, "attn_decode", "dsa_full_moe").flop
    assert named(short, "attn_decode").flop == 2 * 64 * (2 * 512 + 64) * 2048
    assert named(long, "index_scores_decode").flop == 2 * 32 * 128 * 131_072
    assert named(long, "index_scores_decode").traffic.kv_read == 131_072 * 132
    layers = {op.layer_type for op in long if op.name == "index_scores_decode"}
    assert layers == {"dsa_full_dense", "dsa_full_moe"}  # 57 layers reuse the indices of another


def test_vllm_takes_the_dense_path_on_short_prefill() -> None:
    """No history beyond top-k 2048: dense attention and no scores; one token more and the indexer runs."""
    glm = read_model("glm-5.2")
    short = {op.name for op in step_operators(glm, prefill_step(1024, 1024), Deployment(fusion="vllm"))}
    assert "kv_b_proj" in short
    assert "index_scores_prefill" not in short
    assert "index_write" in short  # the keys are kept all the same
    long = {op.name for op in step_operators(glm, prefill_step(1024, 1025), Deployment(fusion="vllm"))}
    assert "kv_b_proj" not in long
    assert "index_scores_prefill" in long


@pytest.mark.parametrize(("model", "longest"), [("deepseek-v4-flash", 2051), ("deepseek-v4-pro", 4099)])
def test_vllm_leaves_out_v4_scores_up_to_the_top_k(model: str, longest: int) -> None:
    v4, vllm = read_model(model), Deployment(fusion="vllm")
    assert "index_scores_prefill" not in {op.name for op in step_operators(v4, prefill_step(longest), vllm)}
    assert "index_scores_prefill" in {op.name for op in step_operators(v4, prefill_step(longest + 1), vllm)}


def test_v4_decode_leaves_the_scores_out_only_without_captured_graphs() -> None:
    flash = read_model("deepseek-v4-flash")
    for longest, has_scores in ((2050, False), (2051, True)):  # kv_len 2051 is the last that the top-k covers
        shape = mixed_step(decode_step(3, 100), decode_step(1, longest))
        eager = step_operators(flash, shape, Deployment(fusion="vllm", is_eager=True))
        assert any(op.name == "index_scores_decode" for op in eager) == has_scores
        captured = step_operators(flash, shape, Deployment(fusion="vllm"))
        assert any(op.name == "index_scores_decode" for op in captured)
    v32 = step_operators(read_model("deepseek-v3.2"), decode_step(1, 100), Deployment(fusion="vllm", is_eager=True))
    assert any(op.name == "index_scores_decode" for op in v32)  # DSA's dense way is for prefill


def test_v4_core_by_hand() -> None:
    """Query at t = 8192: window 128; C4 min(512, 2048) = 512; C128 64 rows; 4 x 64 heads x 512 flop a row."""
    operators = step_operators(read_model("deepseek-v4-flash"), decode_step(1, 8191), Deployment(kv="ascend-910c"))
    per_row = 4 * 64 * 512
    assert named(operators, "attn_decode", "swa_hash").flop == per_row * 128
    assert named(operators, "attn_decode", "csa_c4").flop == per_row * (128 + 512)
    assert named(operators, "attn_decode", "hca_c128").flop == per_row * (128 + 64)
    assert named(operators, "attn_decode", "csa_c4").traffic.kv_read == 655_360
    assert named(operators, "attn_decode", "hca_c128").traffic.kv_read == 196_608
    scores = named(operators, "index_scores_decode", "csa_c4")
    assert (scores.flop, scores.traffic.kv_read) == (2 * 64 * 128 * 2048, 266_240)


def test_v4_compressor_state_by_hand() -> None:
    """t = 8192 closes a C4 and a C128 window: C4 reads (3 + 4) / 2 rows, up to 4, of 10,240 B; C128 127 of 4096 B."""
    operators = step_operators(read_model("deepseek-v4-flash"), decode_step(1, 8191))
    c4, c128 = (named(operators, "compressor_state", kind).traffic for kind in ("csa_c4", "hca_c128"))
    assert (c4.kv_read, c4.kv_written) == (4 * 10_240, 10_240)
    assert (c128.kv_read, c128.kv_written) == (127 * 4096, 4096)
    open_window = step_operators(read_model("deepseek-v4-flash"), decode_step(1, 8192))
    assert named(open_window, "compressor_state", "csa_c4").traffic.kv_read == 0


def test_kv_written_counts_closed_windows_only() -> None:
    """8 tokens from 0: 8 window rows and 2 C4 rows of 584 B; 2 index rows of 132 B; no C128 row yet."""
    operators = step_operators(read_model("deepseek-v4-flash"), prefill_step(8), Deployment(kv="fp8"))
    assert named(operators, "kv_write", "csa_c4").traffic.kv_written == 10 * 584
    assert named(operators, "index_write", "csa_c4").traffic.kv_written == 2 * 132
    assert named(operators, "kv_write", "hca_c128").traffic.kv_written == 8 * 584


def test_gdn_by_hand() -> None:
    """Qwen3-Next: 100 tokens are two chunks; 32 heads x (2 x 64 x 5 x 128 + 6 x 128 x 128) x 128 tokens."""
    operators = step_operators(read_model("qwen3-next-80b-a3b"), prefill_step(100))
    core = named(operators, "gdn_prefill")
    assert core.flop == 32 * (2 * 64 * 5 * 128 + 6 * 128 * 128) * 128
    assert core.traffic.kv_read == 2_097_152
    assert named(operators, "conv").flop == 2 * 8192 * 4 * 100
    decode = named(step_operators(read_model("qwen3-next-80b-a3b"), decode_step(2, 100)), "gdn_decode")
    assert decode.flop == 2 * 32 * 8 * 128 * 128


def test_verification_computes_its_draft_tokens() -> None:
    """1 + 3 tokens per row: four times the projections and logits; queries see 101..104 rows."""
    llama = read_model("llama-3.1-8b")
    operators = step_operators(llama, decode_step(5, 100, query_len=4))
    assert named(operators, "q_proj").m == 20
    assert named(operators, "lm_head").m == 20
    assert named(operators, "attn_decode").flop == 5 * 4 * 32 * 128 * (101 + 102 + 103 + 104)


MODELS = ("llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "glm-5.2", "deepseek-v4-flash", "qwen3-next-80b-a3b")


def chunks(total: int, size: int) -> list[BatchShape]:
    return [prefill_step(min(size, total - start), start) for start in range(0, total, size)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [64, 192, 512])
def test_chunked_prefill_conserves_attention_flop(name: str, size: int) -> None:
    architecture = read_model(name)
    whole = flop_by_role(step_operators(architecture, prefill_step(1024)))
    parts = [flop_by_role(step_operators(architecture, chunk)) for chunk in chunks(1024, size)]
    for role in ("core", "index_core", "attn_proj", "moe_routed", "gdn_proj", "conv"):
        assert sum(part.get(role, 0) for part in parts) == whole.get(role, 0)


@pytest.mark.parametrize("name", MODELS)
def test_a_mixed_step_has_the_flop_of_its_parts(name: str) -> None:
    architecture = read_model(name)
    parts = (prefill_step(100, 300), decode_step(7, 900))
    mixed = total_flop(step_operators(architecture, mixed_step(*parts)))
    assert mixed == sum(total_flop(step_operators(architecture, part)) for part in parts)


def with_one_type(architecture: Architecture, layer_type: str) -> Architecture:
    layers = tuple(layer for layer in architecture.layers if layer.layer_type == layer_type)
    return replace(architecture, layers=layers, schedule=(layer_type,) * 3)


def test_operators_carry_how_often_they_run() -> None:
    one = with_one_type(read_model("deepseek-v4-flash"), "csa_c4")
    operators = step_operators(one, decode_step(1, 100))
    assert {op.count for op in operators if op.layer_type == "csa_c4"} == {3}
    assert {op.count for op in operators if op.layer_type == "model"} == {1}
