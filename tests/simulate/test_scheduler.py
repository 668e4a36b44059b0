from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.batch import BatchShape
from stepscope.errors import BadInput
from stepscope.simulate.policy import StepPlan
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scheduler import Scheduler, SchedulerRules
from tests.simulate.random_load import Load, Step, drafting_load, loading_load, random_load, run_schedule

GOLDEN = json.loads((Path(__file__).parent / "schedules.json").read_text(encoding="utf-8"))
DRAFTING = json.loads((Path(__file__).parent / "drafting_schedules.json").read_text(encoding="utf-8"))
LOADING = json.loads((Path(__file__).parent / "loading_schedules.json").read_text(encoding="utf-8"))
RULES = SchedulerRules(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512, num_blocks=101)


def request(name: str, prompt: int, output: int, *, at: int = 0, source: int | None = None) -> Request:
    text = () if source is None else (Segment(source=source, length=prompt + output),)
    return Request(request_id=name, arrival_s=float(at), prompt_len=prompt, output_len=output, text=text)


def rows(rules: SchedulerRules, *requests: Request) -> list[Any]:
    """Per step its rows as (name, query_len, context_len)."""
    return [[tuple(row) for row in step[0]] for step in run_schedule(Load(rules=rules, requests=requests)) if step[0]]


@pytest.mark.parametrize(
    "golden", GOLDEN, ids=lambda golden: "-".join(str(golden[key]) for key in ("seed", "is_async", "num_stages"))
)
def test_same_schedule_as_recorded_from_the_engines_scheduler(golden: dict[str, Any]) -> None:
    drawn = {key: golden[key] for key in ("seed", "is_async", "num_stages")}
    assert run_schedule(random_load(**drawn, is_small=True)) == golden["steps"]


@pytest.mark.parametrize("golden", DRAFTING, ids=lambda golden: f"{golden['seed']}-{golden['is_async']}")
def test_same_schedule_with_drafts_as_recorded_from_the_engines_scheduler(golden: dict[str, Any]) -> None:
    load = drafting_load(golden["seed"], is_async=golden["is_async"], is_small=True)
    assert run_schedule(load) == golden["steps"]


@pytest.mark.parametrize("golden", LOADING, ids=lambda golden: str(golden["seed"]))
def test_same_schedule_while_kv_is_loaded_as_recorded_from_the_engines_scheduler(golden: dict[str, Any]) -> None:
    assert run_schedule(loading_load(golden["seed"], is_small=True)) == golden["steps"]


def test_golden_schedules_hold_what_is_hard() -> None:
    steps = [step for each in GOLDEN for step in each["steps"]]
    assert len(GOLDEN) == 16
    assert sum(len(step[1]) for step in steps) > 20
    assert any(context and query > 1 for step in steps for _, query, context in step[0])


def test_a_prompt_is_cut_by_the_budget_and_the_last_token_is_a_decode() -> None:
    assert rows(RULES, request("a", 100, 3)) == [[("a", 64, 0)], [("a", 36, 64)], [("a", 1, 100)], [("a", 1, 101)]]


def test_running_requests_come_first_and_a_waiting_one_takes_what_is_left() -> None:
    assert rows(RULES, request("a", 20, 3), request("b", 100, 1))[:3] == [
        [("a", 20, 0), ("b", 44, 0)],
        [("a", 1, 20), ("b", 56, 44)],
        [("a", 1, 21)],
    ]


def test_equal_prompts_of_one_step_already_share_their_blocks() -> None:
    first = rows(
        replace(RULES, max_num_batched_tokens=512), request("a", 100, 1, source=1), request("b", 100, 1, source=1)
    )
    assert first == [[("a", 100, 0), ("b", 4, 96)]]


def test_a_full_hit_still_computes_the_last_block() -> None:
    assert rows(RULES, request("a", 64, 1, source=1), request("b", 64, 1, at=5, source=1))[1] == [("b", 16, 48)]


def test_without_caching_nothing_is_shared() -> None:
    rules = replace(RULES, enable_prefix_caching=False)
    assert rows(rules, request("a", 64, 1, source=1), request("b", 64, 1, at=5, source=1))[1] == [("b", 64, 0)]


def test_the_long_prefill_cap_holds_unless_the_request_is_alone() -> None:
    rules = replace(RULES, long_prefill_token_threshold=10)
    assert rows(rules, request("a", 40, 1)) == [[("a", 40, 0)]]
    assert rows(rules, request("a", 40, 1), request("b", 40, 1))[0] == [("a", 10, 0), ("b", 10, 0)]


def test_the_latest_admitted_loses_its_blocks_and_computes_all_it_knows_again() -> None:
    rules = replace(RULES, num_blocks=5, enable_prefix_caching=False)  # 4 blocks of 16
    steps = run_schedule(Load(rules=rules, requests=(request("a", 31, 4), request("b", 31, 4))))
    assert [step[1] for step in steps[:3]] == [[], [], ["b"]]
    assert [step[0] for step in steps[2:6]] == [[["a", 1, 32]], [["a", 1, 33]], [["b", 33, 0]], [["b", 1, 33]]]


def test_async_schedules_a_decode_before_its_input_is_known_and_frees_a_step_later() -> None:
    synchronous = run_schedule(Load(rules=RULES, requests=(request("a", 20, 3),)))
    ahead = run_schedule(Load(rules=replace(RULES, async_scheduling=True), requests=(request("a", 20, 3),)))
    assert [step[0] for step in ahead if step[0]] == [step[0] for step in synchronous if step[0]]
    assert [step[4] for step in synchronous].index(["a"]) == 2
    assert [step[4] for step in ahead].index(["a"]) == 3


def test_async_learns_of_a_stop_token_one_decode_late() -> None:
    stopped = replace(request("a", 20, 3), max_tokens=50)
    assert len(rows(replace(RULES, async_scheduling=True), stopped)) == 1 + len(rows(RULES, stopped))


def test_a_resumed_request_is_prefill_up_to_what_it_knew() -> None:
    scheduler = Scheduler(replace(RULES, num_blocks=5, enable_prefix_caching=False))
    scheduler.add(request("a", 31, 4))
    scheduler.add(request("b", 31, 4))
    phases: list[tuple[str, int, str]] = []
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        phases += [(r.request_id or "", r.query_len, r.phase) for r in plan.to_shape().rows or ()]
        scheduler.update(plan)
    assert [each[1:] for each in phases if each[0] == "b"] == [
        (31, "prefill"),
        (1, "decode"),
        (33, "prefill"),
        (1, "decode"),
    ]


def test_sums_are_those_of_the_rows() -> None:
    def compare(scheduler: Scheduler, plan: StepPlan) -> None:
        with_rows, without = plan.to_shape(), plan.to_shape(with_rows=False)
        assert BatchShape.from_sums(with_rows.prefill, with_rows.decode) == without
        with_rows.check()

    scheduler = Scheduler(RULES)
    for place in range(6):
        scheduler.add(request(f"r{place}", 10 + 30 * place, 5))
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        compare(scheduler, plan)
        scheduler.update(plan)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_laws_hold_on_random_workloads(seed: int, is_async: bool, is_small: bool) -> None:
    load = random_load(seed, is_async=is_async, is_small=is_small)
    computed: dict[str, int] = {}
    resumed: set[str] = set()

    def law(scheduler: Scheduler, step: Step) -> None:
        scheduler.check()
        resumed.update(step[1])
        for name, query, context in step[0]:
            # a row begins where the one before it ended, or after an admission at whole blocks of a prefix hit
            if context != computed.get(name):
                assert name in resumed or name not in computed
                assert context % load.rules.block_size == 0
                resumed.discard(name)
            computed[name] = context + query
        assert sum(query for _, query, _ in step[0]) <= load.rules.max_num_batched_tokens
        assert len(step[0]) <= load.rules.max_num_seqs

    steps = run_schedule(load, law)
    assert steps[-1][3] == load.rules.num_blocks - 1  # every block is free again
    assert sorted(name for step in steps for name in step[4]) == sorted(r.request_id for r in load.requests)
    for each in load.requests:
        last = min(each.num_tokens, load.rules.max_model_len) - 1  # the last token put out is never an input
        assert computed[each.request_id] in ((last,) if not (is_async and each.max_tokens) else (last, last + 1))


@pytest.mark.parametrize("is_async", [False, True])
def test_same_seed_same_bytes(is_async: bool) -> None:
    told = [json.dumps(run_schedule(random_load(7, is_async=is_async))) for _ in range(2)]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"num_blocks": 1}, "num_blocks is 1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"max_model_len": 1}, "max_model_len is 1"),
        ({"max_num_seqs": 65}, "below max_num_seqs"),
        ({"long_prefill_token_threshold": -1}, "threshold is -1"),
        ({"long_prefill_token_threshold": 513}, "no chunk can be as long"),
        ({"watermark": -0.1}, "fraction of the blocks"),
        ({"watermark": 1.0}, "fraction of the blocks"),
    ],
)
def test_rules_that_no_engine_starts_with_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        replace(RULES, **changed)


def test_a_request_that_can_never_run_is_refused() -> None:
    with pytest.raises(BadInput, match="the longest is 511"):
        Scheduler(RULES).add(request("a", 512, 1))
    small = replace(RULES, num_blocks=5)
    Scheduler(small).add(request("a", 60, 5))  # 64 tokens need slots: the last one put out needs none
    with pytest.raises(BadInput, match="needs 5 blocks of 16 tokens and the cache has 4"):
        Scheduler(small).add(request("a", 60, 6))
