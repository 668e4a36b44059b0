from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.batch import BatchShape
from stepscope.errors import BadInput
from stepscope.simulate.acceptance_file import read_mean_lengths
from stepscope.simulate.engine import Options, simulate
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.speculation import (
    Acceptance,
    Drafts,
    Tradeoff,
    accept_length,
    decode_shape,
    with_draft_cost,
)
from tests.simulate.random_load import Load, Step, drafting_load, run_schedule

RULES = SchedulerRules(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512, num_blocks=101)
ALL = Options(steps="rows", with_gaps=True)
MEASURED = Path(os.environ.get("STEPSCOPE_ACCEPTANCE") or Path(__file__).parents[3] / "shared" / "data" / "acceptance")
FILE = """# key = num_speculative_tokens; value = golden AL
deepseek-v4-pro:
  thinking_on:
    1: 1.79
    2: 2.27
  thinking_off:
    1: 1.92
"""


def drafting(*rates: float, rules: SchedulerRules = RULES, **changed: Any) -> SchedulerRules:
    drafts = Drafts(acceptance=Acceptance(rates=rates), **changed)
    return replace(rules, num_speculative_tokens=len(rates), drafts=drafts)


def request(name: str, prompt: int, output: int, *, at: float = 0.0) -> Request:
    return Request(request_id=name, arrival_s=at, prompt_len=prompt, output_len=output)


def one_second(_shape: BatchShape) -> float:
    return 1.0


def rows(rules: SchedulerRules, *requests: Request) -> list[Any]:
    return [[tuple(row) for row in step[0]] for step in run_schedule(Load(rules=rules, requests=requests)) if step[0]]


def test_accepted_drafts_and_the_models_own_token_come_of_one_row() -> None:
    # 1 from the prompt, then 3 a step; the last row may ask for more than the request has left
    assert rows(drafting(1.0, 1.0), request("a", 20, 7)) == [[("a", 20, 0)], [("a", 3, 20)], [("a", 3, 23)]]


def test_rejected_drafts_are_computed_again_from_the_first_of_them_on() -> None:
    assert rows(drafting(0.0, 0.0), request("a", 20, 3)) == [[("a", 20, 0)], [("a", 3, 20)], [("a", 3, 21)]]


def test_a_prompt_gets_no_drafts_and_a_short_budget_trims_them() -> None:
    rules = replace(drafting(1.0, 1.0), max_num_batched_tokens=16)
    found = rows(rules, request("a", 15, 20), request("b", 40, 1))
    assert found[0] == [("a", 15, 0), ("b", 1, 0)]
    assert found[1] == [("a", 3, 15), ("b", 13, 1)]
    crowd = rows(replace(rules, max_num_batched_tokens=4), *(request(name, 1, 8) for name in "abc"))
    assert max(sum(query for _, query, _ in step) for step in crowd) == 4
    assert any(step[1:] and step[1][1] < 3 for step in crowd)


def test_the_slots_of_a_draft_models_rows_cost_budget() -> None:
    rules = replace(drafting(0.5, 0.5, method="draft_model"), max_num_batched_tokens=16)
    assert rows(rules, request("a", 10, 1), request("b", 10, 1))[0] == [("a", 10, 0), ("b", 4, 0)]


def test_drafting_from_hidden_states_computes_the_last_block_of_a_hit_again() -> None:
    asked = (request("a", 64, 1), replace(request("a", 64, 1, at=9), request_id="b"))
    told = [replace(each, text=(Segment(source=1, length=each.num_tokens),)) for each in asked]
    assert rows(drafting(0.5), *told)[1] == [("b", 32, 32)]
    assert rows(drafting(0.5, disable_eagle_block_drop=True), *told)[1] == [("b", 16, 48)]
    assert rows(drafting(0.5, method="ngram"), *told)[1] == [("b", 16, 48)]


def test_one_gap_a_step_and_tpot_a_token() -> None:
    found = simulate([request("a", 20, 7)], drafting(1.0, 1.0), one_second, ALL).requests[0].times
    assert found.gaps_s == (1.0, 1.0)
    assert found.tpot_s == pytest.approx(2 / 6)
    assert found.output_len == 7


def test_outputs_end_at_max_model_len() -> None:
    rules = replace(drafting(1.0, 1.0, 1.0), max_model_len=26)
    found = simulate([request("a", 20, 50)], rules, one_second, ALL)
    assert found.requests[0].times.output_len == 6
    assert [step.shape.decode.query_sum for step in found.steps] == [0, 4, 1]  # the last output needs no slot


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans())
def test_laws_hold_with_drafts(seed: int, is_async: bool) -> None:
    load = drafting_load(seed, is_async=is_async, is_small=True)

    def law(scheduler: Any, step: Step) -> None:
        scheduler.check()
        assert sum(query for _, query, _ in step[0]) <= load.rules.max_num_batched_tokens
        assert all(context + query < load.rules.max_model_len for _, query, context in step[0])

    steps = run_schedule(load, law)
    assert steps[-1][3] == load.rules.num_blocks - 1
    assert sorted(name for step in steps for name in step[4]) == sorted(each.request_id for each in load.requests)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_rejected_drafts_cost_tokens_and_change_no_output(seed: int) -> None:
    load = drafting_load(seed, is_async=False, is_small=True)
    none = replace(load.rules.drafts, acceptance=Acceptance(rates=(0.0,) * load.rules.num_speculative_tokens))
    asked = [replace(each, arrival_s=each.arrival_s * 1e-3) for each in load.requests]
    rejected = simulate(asked, replace(load.rules, drafts=none), one_second)
    plain = simulate(asked, replace(load.rules, num_speculative_tokens=0), one_second)
    assert [each.times.output_len for each in rejected.requests] == [each.times.output_len for each in plain.requests]
    alone = [request("a", 20, 10)]
    extra = simulate(alone, drafting(0.0, 0.0), one_second).num_scheduled_tokens - 20
    assert extra == 9 * 3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 99), st.integers(0, 500))
def test_a_draw_depends_on_seed_request_and_place_alone(chances: list[float], seed: int, place: int) -> None:
    acceptance = Acceptance.from_chances(chances, seed=seed)
    count = len(chances)
    drawn = acceptance.draw("r7", place, count)
    assert drawn == Acceptance.from_chances(chances, seed=seed).draw("r7", place, count)
    for fewer in range(count):  # the same drafts, cut
        assert acceptance.draw("r7", place, fewer) == min(drawn, fewer)


def test_drawn_lengths_have_the_rates() -> None:
    acceptance = Acceptance(rates=(0.8, 0.5, 0.1), seed=4)
    drawn = Counter(acceptance.draw(f"r{i % 20}", i, 3) for i in range(20_000))
    for place, rate in enumerate(acceptance.rates, 1):
        assert sum(count for a, count in drawn.items() if a >= place) / 20_000 == pytest.approx(rate, abs=0.012)


def test_a_request_accepts_the_same_under_other_rules() -> None:
    acceptance = Acceptance(rates=(0.7, 0.4), seed=2)
    asked = [request(f"r{i}", 10 + i, 40, at=0.3 * i) for i in range(6)]
    gaps = []
    for seats in (1, 4):
        rules = replace(drafting(0.7, 0.4), max_num_seqs=seats, drafts=Drafts(acceptance=acceptance))
        found = simulate(asked, rules, one_second, ALL)
        gaps.append([len(each.times.gaps_s or ()) for each in found.requests])
    assert gaps[0] == gaps[1]


def test_constructors_agree() -> None:
    assert Acceptance.from_chances([0.5, 0.5]).rates == (0.5, 0.25)
    assert Acceptance.from_counts([2, 1, 1]).rates == (0.5, 0.25)
    assert Acceptance.from_mean_length(1.75, 2).rates == pytest.approx((0.5, 0.25))
    assert Acceptance.from_lengths({1: 1.5, 2: 1.75}, 2).rates == (0.5, 0.25)
    assert Acceptance(rates=(0.5, 0.25)).mean_length == 1.75 == accept_length(2, 0.375)
    assert Acceptance(rates=()).rate is None


@given(st.integers(1, 8), st.floats(0, 1))
def test_a_mean_length_is_kept(num_drafts: int, share: float) -> None:
    length = 1 + share * num_drafts
    found = Acceptance.from_mean_length(length, num_drafts)
    assert found.mean_length == pytest.approx(length, abs=1e-9)


def test_measured_lengths_that_wiggle_keep_their_sum() -> None:
    lengths = {1: 1.92, 2: 2.61, 3: 2.97, 4: 3.00, 5: 3.10}  # DeepSeek-V4-Pro MTP, thinking off
    found = Acceptance.from_lengths(lengths, 5)
    assert found.rates == pytest.approx((0.92, 0.69, 0.36, 0.065, 0.065))
    assert found.mean_length == pytest.approx(3.10)
    with pytest.raises(BadInput, match=r"mean lengths .* fall"):
        Acceptance.from_lengths({1: 1.84, 2: 1.5}, 2)


def test_the_drafters_passes_are_paid_where_there_are_decode_rows() -> None:
    cost = with_draft_cost(one_second, pass_s=0.1, num_passes=Drafts(method="mtp").num_passes(3))
    assert cost(decode_shape(4, 4, 100)) == pytest.approx(1.3)
    assert cost(BatchShape.from_rows(())) == 1.0
    assert Drafts(method="dspark").num_passes(3) == Drafts(parallel_drafting=True).num_passes(3) == 1
    assert Drafts().num_passes(0) == 0


def test_best_k_and_break_even() -> None:
    known = Acceptance(rates=(0.8, 0.6, 0.4))
    tradeoff = Tradeoff(
        cost=lambda shape: 0.02 + 2e-4 * (shape.num_scheduled_tokens or 0),
        acceptance=known.first,
        draft_s=lambda k: 0.001 * k,
        context_len=1000,
    )
    assert tradeoff.speedup(1, 1) == pytest.approx(1.8 * 0.0202 / (0.0204 + 0.001))
    assert tradeoff.best_num_drafts(1, 3) == 3
    assert tradeoff.best_num_drafts(10_000, 3) == 0
    assert [tradeoff.best_num_drafts(rows, 3) for rows in (1, 100, 400)] == sorted(
        (tradeoff.best_num_drafts(rows, 3) for rows in (1, 100, 400)), reverse=True
    )
    edge = tradeoff.break_even(3, 10_000)
    assert edge is not None
    assert tradeoff.speedup(edge - 1, 3) > 1 >= tradeoff.speedup(edge, 3)
    assert replace(tradeoff, cost=one_second, draft_s=lambda k: 0.0).break_even(1, 50) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Acceptance(rates=(0.5, 0.6)), "rise"),
        (lambda: Acceptance(rates=(1.5,)), "share of the steps"),
        (lambda: Acceptance.from_chances([float("nan")]), "each must be 0 to 1"),
        (lambda: Acceptance.from_mean_length(3.5, 2), "mean accepted length of 3.5 with 2 drafts"),
        (lambda: Acceptance.from_counts([0, 0]), "at least one step"),
        (lambda: Acceptance.from_lengths({1: 1.5}, 2), r"no mean length for \[2\] drafts"),
        (lambda: Acceptance(rates=(0.5,)).first(2), "known of 1 drafts, not of 2"),
        (lambda: accept_length(1, 1.2), "mean accepted length"),
        (lambda: replace(RULES, num_speculative_tokens=2), "acceptance is known of 0 drafts"),
        (lambda: replace(RULES, num_speculative_tokens=-1), "num_speculative_tokens is -1"),
        (lambda: replace(drafting(0.5, 0.5), long_prefill_token_threshold=2), "cuts a row of 1 \\+ 2 tokens"),
        (lambda: replace(drafting(0.5, method="dflash"), max_num_batched_tokens=2, max_num_seqs=1), "Give 3 or more"),
        (lambda: with_draft_cost(one_second, pass_s=-1.0, num_passes=1), "draft passes"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()


def test_a_request_whose_drafts_do_not_fit_is_refused() -> None:
    small = replace(drafting(0.5, 0.5), num_blocks=5)
    with pytest.raises(BadInput, match="needs 5 blocks"):
        simulate([request("a", 60, 5)], small, one_second)


def test_the_file_of_mean_lengths_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mtp.yaml"
    path.write_text(FILE)
    assert read_mean_lengths(path) == {
        "deepseek-v4-pro": {"thinking_on": {1: 1.79, 2: 2.27}, "thinking_off": {1: 1.92}}
    }


@pytest.mark.parametrize("text", ["- 1\n", "a: 1\n", "a: {b: {c: 1.0}}\n", "a: {b: {2: 9.0}}\n", "a: [\n", ""])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"other\.yaml"):
        read_mean_lengths(path)
    with pytest.raises(BadInput, match="missing"):
        read_mean_lengths(tmp_path / "missing.yaml")


@pytest.mark.shared
def test_measured_files_become_acceptance() -> None:
    files = sorted(MEASURED.rglob("*.yaml"))
    if not files:
        pytest.skip("no measured acceptance here: set STEPSCOPE_ACCEPTANCE to the folder that holds it")
    for path in files:
        for modes in read_mean_lengths(path).values():
            for lengths in modes.values():
                for count, length in lengths.items():
                    assert Acceptance.from_mean_length(length, count).mean_length == pytest.approx(length)
