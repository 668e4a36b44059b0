"""Prefix first, then chunk: what an engine's scheduler does to a prompt, worked by hand and as laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.chunks import ChunkPlan, ChunkRule, chunk_len, plan_chunks, usable_hit
from stepscope.errors import BadInput, InvariantBroken


def lengths(plan: ChunkPlan) -> list[tuple[int, int]]:
    return [(chunk.query_len, chunk.kv_len) for chunk in plan.chunks]


def test_a_hit_is_taken_off_before_the_prompt_is_cut() -> None:
    # 20,000 tokens, 8,192 found, budget 8,192: 11,808 to compute, in 8,192 and 3,616; K keeps the hit
    plan = plan_chunks(20_000, ChunkRule(token_budget=8_192, block_size=16), found_tokens=8_192)
    assert plan.effective_prefill_tokens == 11_808
    assert lengths(plan) == [(8_192, 16_384), (3_616, 20_000)]


def test_the_last_token_is_computed_even_if_all_of_it_was_found() -> None:
    # 64 tokens in whole blocks of 16: at most (64 - 1) // 16 = 3 blocks count
    plan = plan_chunks(64, ChunkRule(token_budget=512), found_tokens=64)
    assert (plan.prefix_hit_tokens, lengths(plan)) == (48, [(16, 64)])
    assert plan.alignment_loss_tokens == 16


def test_a_page_of_one_token_leaves_one_token_to_compute() -> None:
    plan = plan_chunks(64, ChunkRule(token_budget=512, block_size=1), found_tokens=64)
    assert lengths(plan) == [(1, 64)]


def test_half_a_block_is_no_hit() -> None:
    assert usable_hit(15, prompt_len=100, block_size=16) == 0
    assert usable_hit(96, prompt_len=100, block_size=16) == 96


def test_decodes_take_their_tokens_before_a_prompt_gets_any() -> None:
    # seen in the recorded server: budget 512, two decodes: chunks of 510
    plan = plan_chunks(2_107, ChunkRule(token_budget=512, block_size=128), shared_tokens=2)
    assert [q for q, _ in lengths(plan)] == [510, 510, 510, 510, 67]
    assert {chunk.step_tokens for chunk in plan.chunks[:-1]} == {512}


def test_the_cap_cuts_below_the_budget() -> None:
    plan = plan_chunks(1_000, ChunkRule(token_budget=2_048, cap=400))
    assert [q for q, _ in lengths(plan)] == [400, 400, 200]


def test_a_cut_chunk_is_whole_pages_and_the_last_need_not_be() -> None:
    plan = plan_chunks(1_000, ChunkRule(token_budget=500, block_size=64, chunk_multiple=64))
    assert [q for q, _ in lengths(plan)] == [448, 448, 104]


@pytest.mark.parametrize(
    ("prompt", "rule", "found", "shared"),
    [
        (0, ChunkRule(token_budget=8), 0, 0),
        (10, ChunkRule(token_budget=8), 11, 0),
        (10, ChunkRule(token_budget=8), -1, 0),
        (10, ChunkRule(token_budget=8), 0, -1),
        (10, ChunkRule(token_budget=8), 0, 8),  # nothing is left
        (10, ChunkRule(token_budget=8, chunk_multiple=16), 0, 0),  # no whole page fits
    ],
)
def test_what_cannot_be_planned_is_refused(prompt: int, rule: ChunkRule, found: int, shared: int) -> None:
    with pytest.raises(BadInput, match=r"\. |\.$"):
        plan_chunks(prompt, rule, found_tokens=found, shared_tokens=shared)


def test_a_rule_without_a_budget_is_refused() -> None:
    for wrong in ({"token_budget": 0}, {"token_budget": 8, "block_size": 0}, {"token_budget": 8, "cap": -1}):
        with pytest.raises(BadInput):
            ChunkRule(**wrong)


@given(
    prompt=st.integers(1, 40_000),
    found=st.integers(0, 40_000),
    budget=st.integers(64, 16_384),
    block=st.sampled_from((1, 16, 64, 128)),
    cap=st.sampled_from((0, 32, 512)),
    shared=st.integers(0, 63),
)
def test_hit_and_chunks_are_the_prompt(prompt: int, found: int, budget: int, block: int, cap: int, shared: int) -> None:
    rule = ChunkRule(token_budget=budget, block_size=block, cap=cap)
    plan = plan_chunks(prompt, rule, found_tokens=min(found, prompt), shared_tokens=shared)
    assert plan.prefix_hit_tokens + sum(chunk.query_len for chunk in plan.chunks) == prompt
    assert plan.prefix_hit_tokens % block == 0
    assert plan.prefix_hit_tokens < prompt
    assert all(chunk.step_tokens <= budget for chunk in plan.chunks)
    assert all(chunk.query_len <= (cap or budget) for chunk in plan.chunks)
    assert [chunk.chunk_index for chunk in plan.chunks] == list(range(len(plan.chunks)))


@given(needed=st.integers(1, 9_000), budget=st.integers(0, 9_000), multiple=st.sampled_from((1, 16)))
def test_a_chunk_never_exceeds_need_or_budget(needed: int, budget: int, multiple: int) -> None:
    length = chunk_len(needed, budget_left=budget, multiple=multiple)
    assert 0 <= length <= min(needed, budget)
    assert length == needed or length % multiple == 0


def test_a_plan_with_a_hole_breaks_the_law() -> None:
    plan = plan_chunks(100, ChunkRule(token_budget=64))
    broken = ChunkPlan(prompt_len=100, found_tokens=0, prefix_hit_tokens=0, chunks=plan.chunks[1:])
    with pytest.raises(InvariantBroken):
        broken.check()
    with pytest.raises(InvariantBroken):
        ChunkPlan(prompt_len=100, found_tokens=0, prefix_hit_tokens=0, chunks=plan.chunks[:1]).check()
