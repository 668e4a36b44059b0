from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.engine import Options, simulate
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.sglang import SglangRules, SglangScheduler
from tests.simulate.sglang_load import SglangLoad, Step, random_load, run_schedule

GOLDEN = json.loads((Path(__file__).parent / "sglang_schedules.json").read_text(encoding="utf-8"))
RULES = SglangRules(
    max_total_tokens=1000,
    max_running_requests=8,
    context_length=512,
    chunked_prefill_size=64,
    disable_overlap_schedule=True,
)


def request(name: str, prompt: int, output: int, *, at: int = 0, source: int | None = None) -> Request:
    text = () if source is None else (Segment(source=source, length=prompt + output),)
    return Request(request_id=name, arrival_s=float(at), prompt_len=prompt, output_len=output, text=text)


def rows(rules: SglangRules, *requests: Request) -> list[Any]:
    """Per step its rows as (name, query_len, context_len)."""
    return [
        [tuple(row) for row in step[0]] for step in run_schedule(SglangLoad(rules=rules, requests=requests)) if step[0]
    ]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden['seed']}-{golden['is_async']}")
def test_same_schedule_as_recorded_from_the_engines_scheduler(golden: dict[str, Any]) -> None:
    load = random_load(golden["seed"], is_async=golden["is_async"], is_small=True)
    assert run_schedule(load) == golden["steps"]


def test_golden_schedules_hold_what_is_hard() -> None:
    steps = [step for each in GOLDEN for step in each["steps"]]
    assert {golden["is_async"] for golden in GOLDEN} == {False, True}
    assert sum(len(step[1]) for step in steps) >= 6  # retractions
    assert any(context and query > 1 for step in steps for _, query, context in step[0])  # hits and chunks


def test_prefill_comes_first_and_decode_waits() -> None:
    assert rows(RULES, request("a", 20, 3), request("b", 20, 2, at=1), request("c", 20, 1, at=2)) == [
        [("a", 20, 0)],
        [("b", 20, 0)],
        [("c", 20, 0)],
        [("a", 1, 20), ("b", 1, 20)],
        [("a", 1, 21)],
    ]


def test_one_request_is_cut_and_the_next_prompts_fill_its_last_step() -> None:
    assert rows(RULES, request("a", 100, 1), request("b", 20, 1), request("c", 50, 1)) == [
        [("a", 64, 0)],
        [("a", 36, 64), ("b", 20, 0), ("c", 8, 0)],
        [("c", 42, 8)],
    ]


def test_without_chunks_the_first_prompt_passes_the_budget_and_the_next_waits() -> None:
    rules = replace(RULES, chunked_prefill_size=-1, max_prefill_tokens=64)
    assert rows(rules, request("a", 100, 1), request("b", 40, 1), request("c", 24, 1))[:3] == [
        [("a", 100, 0)],
        [("b", 40, 0)],
        [("c", 24, 0)],
    ]


def test_mixed_steps_hold_decode_rows_too() -> None:
    rules = replace(RULES, enable_mixed_chunk=True)
    assert rows(rules, request("a", 20, 4), request("b", 100, 1, at=1)) == [
        [("a", 20, 0)],
        [("b", 63, 0), ("a", 1, 20)],
        [("b", 37, 63), ("a", 1, 21)],
        [("a", 1, 22)],
    ]


def test_a_hit_is_of_single_tokens_and_the_last_one_is_computed() -> None:
    assert rows(RULES, request("a", 33, 1, source=1), request("b", 33, 1, at=2, source=1))[1] == [("b", 1, 32)]


def test_with_pages_a_hit_and_a_cut_are_whole_pages() -> None:
    rules = replace(RULES, page_size=16, chunked_prefill_size=40)
    found = rows(rules, request("a", 33, 1, source=1), request("b", 100, 1, at=2, source=1))
    assert found == [[("a", 32, 0)], [("a", 1, 32)], [("b", 32, 32)], [("b", 36, 64)]]


def test_without_the_cache_nothing_is_shared() -> None:
    rules = replace(RULES, disable_radix_cache=True)
    assert rows(rules, request("a", 33, 1, source=1), request("b", 33, 1, at=2, source=1))[1] == [("b", 33, 0)]


def test_lpm_takes_the_longest_hit_first() -> None:
    rules = replace(RULES, schedule_policy="lpm", max_running_requests=1)
    asked = (request("a", 40, 4, source=1), request("b", 40, 1, at=1), request("c", 40, 1, at=1, source=1))
    assert [step[0][0] for step in rows(rules, *asked)][-2:] == ["c", "b"]
    assert [step[0][0] for step in rows(replace(rules, schedule_policy="fcfs"), *asked)][-2:] == ["b", "c"]


def test_admission_counts_on_a_share_of_the_outputs_still_to_come() -> None:
    # 100 slots: a holds 20 and may want 60 more, of which 42 are promised; b asks for 20 + 20 + 1 and has 38
    asked = (request("a", 20, 60), request("b", 20, 20, at=1))
    assert rows(replace(RULES, max_total_tokens=100), *asked)[1] == [("a", 1, 20)]
    assert rows(replace(RULES, max_total_tokens=100, schedule_conservativeness=0.5), *asked)[1] == [("b", 20, 0)]


def test_the_shortest_answer_is_retracted_and_the_ratio_rises() -> None:
    rules = replace(RULES, max_total_tokens=100, schedule_conservativeness=0.1)
    steps = run_schedule(SglangLoad(rules=rules, requests=(request("a", 20, 60), request("b", 20, 40, at=3))))
    at = next(i for i, step in enumerate(steps) if step[1])
    assert steps[at][1] == ["b"]
    assert float(steps[at - 1][3]) < 0.07 < float(steps[at][3])
    done = sum(name == "a" for step in steps[:at] for name, _, _ in step[0])
    assert steps[at][3] == f"{(done + 20) / 61:.9f}"  # a's outputs and 20 more, of 60 + 1
    assert steps[-1][3] == f"{rules.first_ratio:.9f}"  # idle again


def test_dp_attention_divides_chunk_seats_and_conservativeness() -> None:
    rules = replace(RULES, dp_size=4, chunked_prefill_size=256, max_running_requests=8)
    assert (rules.chunk_len, rules.num_seats) == (64, 2)
    assert rules.first_ratio == pytest.approx(0.7 * 0.3)


def test_a_decode_step_after_so_many_prefill_steps() -> None:
    asked = (request("a", 20, 9), request("b", 200, 1, at=1))
    every = rows(replace(RULES, prefill_decode_interval=1), *asked)
    assert [step[0][0] for step in every][:6] == ["a", "a", "b", "a", "b", "a"]
    third = rows(replace(RULES, max_consecutive_prefill_batches=2), *asked)
    assert [step[0][0] for step in third][:7] == ["a", "b", "a", "b", "b", "a", "b"]


def test_the_overlap_scheduler_admits_and_frees_a_step_later() -> None:
    ahead = replace(RULES, disable_overlap_schedule=False)
    load = SglangLoad(rules=ahead, requests=(request("a", 20, 3),))
    steps = run_schedule(load)
    assert [step[0] for step in steps if step[0]] == [[["a", 20, 0]], [["a", 1, 20]], [["a", 1, 21]]]
    assert [step[6] for step in steps].index(["a"]) == 3
    stopped = replace(request("a", 20, 3), max_tokens=50)  # an end that it learns of too late
    assert len(rows(ahead, stopped)) == 4


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_laws_hold_on_random_workloads(seed: int, is_async: bool) -> None:
    load = random_load(seed, is_async=is_async, is_small=True)
    rules, computed = load.rules, dict[str, int]()
    lost: set[str] = set()

    def law(scheduler: SglangScheduler, step: Step) -> None:
        scheduler.check()
        lost.update(step[1])
        prefill = [row for row in step[0] if row[0] not in computed or row[0] in lost or row[1] > 1]
        for name, query, context in step[0]:
            assert context == computed.get(name, context) or name in lost
            lost.discard(name)
            computed[name] = context + query
        if rules.chunk_len is not None:
            assert sum(query for _, query, _ in prefill) <= rules.chunk_len
        assert len(step[0]) <= rules.num_seats

    steps = run_schedule(load, law)
    assert steps[-1][4] + steps[-1][5] == rules.max_total_tokens  # every slot is free or only cached
    assert sorted(name for step in steps for name in step[6]) == sorted(r.request_id for r in load.requests)
    for each in load.requests:
        last = each.prompt_len + min(each.output_len, max(rules.max_new(each), 1)) - 1
        assert last <= computed[each.request_id] <= last + int(is_async)


def test_same_seed_same_bytes() -> None:
    assert len({json.dumps(run_schedule(random_load(7, is_async=True))) for _ in range(2)}) == 1


def test_the_engine_delivers_every_request_and_no_more_outputs_than_it_has() -> None:
    load = random_load(100, is_async=True, is_small=True)
    found = simulate(
        load.requests, load.rules, lambda shape: 0.001 * (shape.num_scheduled_tokens or 0), Options(with_gaps=True)
    )
    for asked, done in zip(load.requests, found.requests, strict=True):
        put_out = min(asked.output_len, max(load.rules.max_new(asked), 1))
        assert done.times.output_len == put_out
        assert len(done.times.gaps_s or ()) == put_out - 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_total_tokens": 1}, "max_total_tokens is 1"),
        ({"max_running_requests": 0}, "max_running_requests is 0"),
        ({"page_size": 0}, "page_size is 0"),
        ({"page_size": 600}, "two pages"),
        ({"page_size": 128}, "never be scheduled"),
        ({"chunked_prefill_size": -2}, "chunked_prefill_size is -2"),
        ({"dp_size": 0}, "dp_size is 0"),
        ({"schedule_policy": "lof"}, "give fcfs or lpm"),
        ({"schedule_conservativeness": -1.0}, "schedule_conservativeness"),
        ({"prefill_max_requests": 0}, "prefill_max_requests"),
    ],
)
def test_rules_that_no_engine_starts_with_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        replace(RULES, **changed)


def test_a_prompt_that_the_engine_refuses_is_refused() -> None:
    with pytest.raises(BadInput, match="longest is 505"):
        RULES.check_request(request("a", 506, 1))
    RULES.check_request(request("a", 505, 1))


def test_outputs_beyond_the_limit_are_cut_as_the_engine_cuts_them() -> None:
    assert rows(replace(RULES, context_length=32), request("a", 20, 100))[-1] == [("a", 1, 28)]
