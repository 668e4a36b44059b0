from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.engine import Options, check_workload, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.sarathi import SarathiRules
from stepscope.simulate.step_time import DecodeBins, PrefillTicks, StepTime
from tests.simulate.random_runs import random_run

# Made by benchmarks/vidur_golden.py from Vidur's own scheduler (commit 7d47513), on invented requests and costs.
GOLDEN = json.loads(Path(__file__).with_name("vidur_sarathi.json").read_text(encoding="utf-8"))
UNIT = TICKS_PER_S >> 16
INVENTED = StepTime(
    by_tokens=tuple((100 + 12 * (tokens // 8)) * UNIT for tokens in range(100)),
    decode=DecodeBins(
        bin_len=16, ticks=tuple(tuple((10 * rows + 7 * b) * UNIT for b in range(20)) for rows in range(1, 20))
    ),
    prefill=PrefillTicks(row=5 * UNIT, kv=UNIT),
)


def requests_of(run: dict[str, Any]) -> list[Request]:
    return [
        Request(request_id=str(place), arrival_s=arrival / 65536, prompt_len=prompt, output_len=output)
        for place, (arrival, prompt, output) in enumerate(run["requests"])
    ]


@pytest.mark.parametrize("is_exact", [True, False])
def test_requests_get_their_tokens_when_vidur_gives_them(is_exact: bool) -> None:
    num_restarts = 0
    for run in GOLDEN:
        rules = SarathiRules(max_model_len=4096, **run["rules"])
        found = simulate(requests_of(run), rules, INVENTED, Options(steps="none", is_exact=is_exact))
        times = [
            [(each.times.first_token_s or 0) * 65536, (each.times.last_token_s or 0) * 65536, each.num_preemptions]
            for each in found.requests
        ]
        assert times == run["times"]
        assert found.num_steps == run["num_steps"]
        num_restarts += sum(each.num_preemptions for each in found.requests)
    assert num_restarts > 20


RULES = SarathiRules(chunk_size=8, batch_size_cap=4, num_blocks=100, max_model_len=200, watermark_blocks_fraction=0.0)


def request(name: str, prompt: int, output: int, at: float = 0.0) -> Request:
    return Request(request_id=name, arrival_s=at, prompt_len=prompt, output_len=output)


def rows_of(requests: list[Request], rules: SarathiRules) -> list[list[tuple[str | None, int]]]:
    steps = simulate(requests, rules, lambda _: 1.0, Options(steps="rows")).steps
    return [[(row.request_id, row.query_len) for row in step.shape.rows or ()] for step in steps]


def test_decodes_come_first_and_prompts_fill_the_chunk() -> None:
    assert rows_of([request("a", 5, 3), request("b", 12, 1)], RULES) == [
        [("a", 5), ("b", 3)],
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 2)],
    ]


def test_a_prompt_waits_while_decodes_alone_fill_the_chunk() -> None:
    rules = replace(RULES, chunk_size=2)
    steps = rows_of([request("a", 1, 3), request("b", 1, 3), request("c", 2, 1)], rules)
    assert steps == [[("a", 1), ("b", 1)], [("a", 1), ("b", 1)], [("a", 1), ("b", 1)], [("c", 2)]]


def test_the_request_that_stands_last_gives_up_its_blocks_and_computes_all_it_knows_again() -> None:
    rules = replace(RULES, block_size=4, num_blocks=5, chunk_size=16)
    found = simulate([request("a", 8, 6), request("b", 8, 6)], rules, lambda _: 1.0, Options(steps="rows"))
    assert [each.num_preemptions for each in found.requests] == [0, 1]
    # the first decode of a takes the last block; b, with 8 prompt and 1 output token, starts over when a has ended
    assert [(row.request_id, row.query_len, row.phase) for row in found.steps[6].shape.rows or ()] == [
        ("b", 9, "prefill")
    ]


@settings(max_examples=60)
@given(st.integers(0, 100_000))
def test_blocks_and_tokens_are_conserved(seed: int) -> None:
    run = random_run(seed, order="sarathi")
    assert isinstance(run.rules, SarathiRules)
    check_workload(run.requests, run.rules)
    scheduler = run.rules.build()
    for each in run.requests:
        scheduler.add(each)
    outputs = steps = 0
    while scheduler.has_work:
        steps += 1
        assert steps < 50_000
        plan = scheduler.schedule()
        scheduler.check()
        prompts = [row[1] for row in plan.rows if row[2] < row[0].prefill_end]
        assert not prompts or sum(row[1] for row in plan.rows) <= run.rules.chunk_size
        outputs += sum(row[3] for row in plan.rows)
        scheduler.update(plan)
        scheduler.check()
    assert outputs == sum(each.output_len for each in run.requests)
    assert scheduler.num_free_blocks == run.rules.num_blocks


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chunk_size": 0}, "chunk_size is 0: give 1 or more"),
        ({"watermark_blocks_fraction": 1.0}, "0 or more and below 1"),
    ],
)
def test_rules_that_no_engine_would_start_with_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        replace(RULES, **change)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [(200, "max_model_len is 200"), (150, "needs 11 blocks of 16 tokens, watermark included, and the cache has 10")],
)
def test_a_request_that_could_never_run_is_refused(prompt: int, words: str) -> None:
    rules = replace(RULES, num_blocks=10, watermark_blocks_fraction=0.1)
    with pytest.raises(BadInput, match=words):
        simulate([request("a", prompt, 1)], rules, lambda _: 1.0)
