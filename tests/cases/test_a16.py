"""A16, the tighter budget wins: SGLang with chunks of 32,768 tokens, prompts of 5000.

Stated: every prefill batch is 3 x 5000 = 15,000 new tokens, 0 cached, with 40 and more waiting: max_prefill_tokens
(16,384 unless set) has room for three whole prompts. With DP attention the chunk is divided by dp_size.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.join.limits import find_binding_budget
from stepscope.readers.server_log.reader import parse_server_log
from stepscope.simulate.engine import SimulatedStep, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.sglang import SglangRules

RULES = SglangRules(
    max_total_tokens=1_000_000,
    max_running_requests=512,
    context_length=8192,
    chunked_prefill_size=32_768,
    holds_whole_prompts=True,  # as in the versions of that time
)
REQUESTS = [Request(request_id=f"r{i}", arrival_s=0.0, prompt_len=5000, output_len=8) for i in range(60)]


def prefill_steps(rules: SglangRules) -> list[SimulatedStep]:
    steps = simulate(REQUESTS, rules, lambda shape: 1e-5 * (shape.num_scheduled_tokens or 0)).steps
    return [step for step in steps if step.shape.prefill.num_requests]


def tokens(rules: SglangRules) -> set[int | None]:
    return {step.shape.prefill.query_sum for step in prefill_steps(rules)}


def test_three_whole_prompts_are_a_batch() -> None:
    steps = prefill_steps(RULES)
    assert [(s.shape.prefill.num_requests, s.shape.prefill.query_sum) for s in steps] == [(3, 15_000)] * 20
    assert steps[0].num_waiting > 40


def test_raising_only_the_chunk_changes_nothing() -> None:
    assert tokens(replace(RULES, chunked_prefill_size=131_072)) == tokens(RULES) == {15_000}


def test_raising_the_budget_that_binds_does() -> None:
    assert tokens(replace(RULES, max_prefill_tokens=26_000)) == {25_000}


def test_the_log_of_such_steps_names_the_budget() -> None:
    lines = ["[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', chunked_prefill_size=32768)"]
    for step in prefill_steps(RULES):
        shape = step.shape.prefill
        lines.append(
            f"[2026-01-01 00:00:00] Prefill batch. #new-seq: {shape.num_requests}, #new-token: {shape.query_sum}, "
            f"#cached-token: 0, token usage: 0.30, #running-req: 0, #queue-req: {step.num_waiting}, "
        )
    found = find_binding_budget(parse_server_log(lines))
    assert found is not None
    assert (found.name, found.tokens, found.largest_batch_tokens) == ("max_prefill_tokens", 16_384, 15_000)


@pytest.mark.parametrize(("dp_size", "most"), [(2, 16_384), (8, 4096)])
def test_with_dp_attention_the_chunk_is_divided(dp_size: int, most: int) -> None:
    rules = replace(RULES, dp_size=dp_size, max_prefill_tokens=100_000)
    assert rules.chunk_len == most
    assert max(size or 0 for size in tokens(rules)) == most


def test_from_0_5_13_on_the_last_prompt_may_pass_the_budget() -> None:
    assert tokens(replace(RULES, holds_whole_prompts=False)) == {20_000}
