from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.balancer import LeastLoaded
from stepscope.simulate.disaggregated import FirstFrom, Link, simulate_disaggregated
from stepscope.simulate.engine import Simulation
from stepscope.simulate.engine_pool import EnginePool
from stepscope.simulate.request import Request, Segment
from stepscope.simulate.scheduler import Scheduler, SchedulerRules
from tests.simulate.random_load import random_load
from tests.simulate.test_engine import ALL, RULES, affine, one_second, request, times

if TYPE_CHECKING:
    from stepscope.simulate.policy import LiveRequest, StepPlan

FREE = Link(kv_bytes_per_token=1.0)
POOL = EnginePool(rules=RULES, cost=one_second)


class CheckedScheduler(Scheduler):
    """Its laws are checked at every step: blocks are conserved."""

    def schedule(self) -> StepPlan:
        self.check()
        return super().schedule()

    def update(self, plan: StepPlan) -> list[LiveRequest]:
        ended = super().update(plan)
        self.check()
        return ended


class CheckedRules(SchedulerRules):
    def build(self) -> Scheduler:
        return CheckedScheduler(self)


def checked(rules: SchedulerRules) -> CheckedRules:
    return CheckedRules(**{name: getattr(rules, name) for name in SchedulerRules.__dataclass_fields__})


def spaced(requests: tuple[Request, ...], spacing: float) -> list[Request]:
    return [replace(each, arrival_s=each.arrival_s * spacing) for each in requests]


def test_the_first_token_is_there_before_the_kv_is_sent() -> None:
    found = simulate_disaggregated([request("a", 30, 4)], POOL, POOL, Link(kv_bytes_per_token=1, bytes_per_s=64))
    assert times(found) == [(0.0, 1.0, 4.5)]  # 32 tokens of two blocks take half a second
    handover = found.requests[0].handover
    assert handover is not None
    assert (handover.prefill_rank, handover.decode_rank) == (0, 1)
    assert (handover.wait_s, handover.transfer_s, handover.num_bytes) == (0.0, 0.5, 32.0)
    assert found.num_scheduled_tokens == 30 + 3


def test_or_sampled_anew_on_the_decode_side() -> None:
    link = Link(kv_bytes_per_token=1, bytes_per_s=64)
    found = simulate_disaggregated([request("a", 30, 4)], POOL, POOL, link, "decode", ALL)
    assert times(found) == [(0.0, 2.5, 5.5)]
    rows = [(step.rank, row.query_len, row.context_len) for step in found.steps for row in step.shape.rows or ()]
    assert rows == [(0, 30, 0), (1, 1, 29), (1, 1, 30), (1, 1, 31), (1, 1, 32)]
    assert found.requests[0].times.gaps_s == (1.0, 1.0, 1.0)


def test_a_request_of_one_token_is_not_sent() -> None:
    found = simulate_disaggregated([request("a", 30, 1)], POOL, POOL, FREE)
    assert (found.requests[0].handover, found.requests[0].rank) == (None, 0)
    again = simulate_disaggregated([request("a", 30, 1)], POOL, POOL, FREE, "decode")
    assert (again.requests[0].rank, again.requests[0].times.ttft_s) == (1, 2.0)


def test_transfers_side_by_side_or_one_after_another() -> None:
    asked = [request("a", 32, 2), request("b", 32, 2)]
    link = Link(kv_bytes_per_token=1, bytes_per_s=64, latency_s=0.5)
    waits = []
    for lanes in ("free", "per_sender", "one"):
        found = simulate_disaggregated(asked, POOL, POOL, replace(link, lanes=cast("Any", lanes)))
        waits.append([each.handover.wait_s for each in found.requests if each.handover])
    assert waits == [[0.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    two = replace(POOL, num_engines=2)
    found = simulate_disaggregated(asked, two, POOL, replace(link, lanes="per_sender"))
    assert [each.handover.wait_s for each in found.requests if each.handover] == [0.0, 0.0]


def test_where_decode_has_no_blocks_the_kv_waits_on_the_prefill_side() -> None:
    small = replace(RULES, num_blocks=5, max_num_batched_tokens=64, enable_prefix_caching=False)
    asked = [request("a", 40, 8), request("b", 40, 2), request("c", 40, 2)]
    found = simulate_disaggregated(asked, replace(POOL, rules=small), replace(POOL, rules=small), FREE)
    # 3 blocks of 4 each: b's KV waits until a has ended on the decode side, and c's prompt until b's was sent
    assert [each.times.first_token_s for each in found.requests] == [1.0, 2.0, 9.0]
    assert [each.handover.wait_s for each in found.requests if each.handover] == [0.0, 6.0, 0.0]


def test_what_the_decode_side_holds_is_not_sent_again() -> None:
    text = (Segment(source=1, length=64),)
    asked = [
        Request(request_id="a", arrival_s=0.0, prompt_len=48, output_len=2, text=text),
        Request(request_id="b", arrival_s=9.0, prompt_len=60, output_len=2, text=text),
    ]
    found = simulate_disaggregated(asked, POOL, POOL, FREE)
    assert [each.handover.num_bytes for each in found.requests if each.handover] == [48.0, 16.0]


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from(["prefill", "decode"]),
    st.sampled_from([FREE, Link(kv_bytes_per_token=1e5, bytes_per_s=1e9, latency_s=1e-4, lanes="one")]),
)
def test_laws_hold_on_random_workloads(
    seed: int, is_async: bool, sizes: tuple[int, int], first_from: FirstFrom, link: Link
) -> None:
    load = random_load(seed, is_async=is_async)
    asked = spaced(load.requests, 1e-3)
    prefill = EnginePool(rules=checked(load.rules), cost=affine, num_engines=sizes[0], router=LeastLoaded())
    found = simulate_disaggregated(asked, prefill, replace(prefill, num_engines=sizes[1]), link, first_from, ALL)
    assert found == simulate_disaggregated(
        asked, prefill, replace(prefill, num_engines=sizes[1]), link, first_from, ALL
    )
    for told, each in zip(asked, found.requests, strict=True):
        check_request(told, each, load.rules, sizes[0])
    assert found.num_scheduled_tokens == sum(step.shape.num_scheduled_tokens or 0 for step in found.steps)
    if not is_async and not any(each.num_preemptions for each in found.requests):
        assert found.num_scheduled_tokens == sum(needed(each, first_from) for each in found.requests)


def needed(each: Any, first_from: FirstFrom) -> int:
    """Tokens that are computed for a request, without preemptions."""
    outputs = each.times.output_len or 0
    return int(each.prompt_len - each.prefix_hit_tokens + outputs - (1 if first_from == "prefill" else 0))


def check_request(told: Request, each: Any, rules: SchedulerRules, num_prefill: int) -> None:
    assert each.request_id == told.request_id
    assert each.times.output_len == min(told.output_len, rules.max_model_len - told.prompt_len)
    assert len(each.times.gaps_s) == each.times.output_len - 1
    assert each.times.arrival_s < each.times.first_token_s <= each.times.last_token_s
    if each.handover is not None:
        assert each.handover.prefill_rank < num_prefill <= each.handover.decode_rank == each.rank
        assert each.handover.wait_s >= 0
        assert each.handover.transfer_s >= 0


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.booleans())
def test_with_a_decode_engine_each_and_free_transfers_tpot_is_that_of_a_request_alone(
    seed: int, is_async: bool
) -> None:
    load = random_load(seed, is_async=is_async)
    asked = spaced(load.requests, 1e-3)
    prefill = EnginePool(rules=load.rules, cost=affine)
    found = simulate_disaggregated(asked, prefill, replace(prefill, num_engines=len(asked)), FREE, "prefill", ALL)
    decoded: dict[str | None, list[float]] = {}
    for step in found.steps:
        for row in step.shape.rows or ():
            if step.rank > 0:
                assert step.shape.num_requests == 1
                decoded.setdefault(row.request_id, []).append(affine(step.shape))
    for each in found.requests:
        if each.times.tpot_s is not None:
            count = (each.times.output_len or 0) - 1  # an unforeseen stop costs an async engine one step more
            assert each.times.tpot_s == pytest.approx(sum(decoded[each.request_id][:count]) / count, rel=1e-9)


def test_a_full_decode_pool_is_relieved_by_more_engines() -> None:
    """True where each has a request of its own to take over; batching anomalies make it false in general."""
    asked = [request(f"r{place}", 60, 60) for place in range(8)]
    wide = EnginePool(rules=replace(RULES, max_num_seqs=64), cost=affine)

    def mean_tpot(num_engines: int) -> float:
        found: Simulation = simulate_disaggregated(asked, wide, replace(wide, num_engines=num_engines), FREE)
        return sum(each.times.tpot_s or 0.0 for each in found.requests) / len(asked)

    assert mean_tpot(1) > mean_tpot(2) > mean_tpot(8)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput, match="above 0"):
        Link(kv_bytes_per_token=1.0, bytes_per_s=0.0)
    with pytest.raises(BadInput, match="latency_s"):
        Link(kv_bytes_per_token=1.0, latency_s=inf)
    small = replace(POOL, rules=replace(RULES, num_blocks=3))
    with pytest.raises(BadInput, match="needs 4 blocks"):
        simulate_disaggregated([request("a", 30, 30)], POOL, small, FREE)
    assert simulate_disaggregated([request("a", 30, 30)], small, POOL, FREE).requests[0].rank == 1
