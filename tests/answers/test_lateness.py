"""Why a rank is late: the account it was longer in, or that nothing recorded says; and what balance would gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepscope.answers.lateness import explain_lateness, skew_by_step, total_balance_ns
from stepscope.answers.skew import skew_sentences
from stepscope.steps.ranks import ArrivalSkew
from tests.traces import ALL_REDUCE, GEMM, decode, kernel, launch, scope, to_account, to_report, to_store

if TYPE_CHECKING:
    from stepscope.answers.account import Account
    from tests.traces import Event

EXPERTS = "fused_moe_kernel"
DISPATCH = "void deep_ep::internode_ll::dispatch<true, 7168>(void*)"
LAYERS = 48
LAYER_NS = 91_250


def layers(expert_ns: int) -> list[Event]:
    """A decode step of 48 layers: expert GEMMs, then a collective that all ranks leave together."""
    events = [scope(decode(1), 0, LAYERS * LAYER_NS)]
    for layer in range(LAYERS):
        start, end = layer * LAYER_NS, (layer + 1) * LAYER_NS
        events += [
            launch(start, of=2 * layer),
            kernel(EXPERTS, start, expert_ns, of=2 * layer),
            launch(start, of=2 * layer + 1),
            kernel(ALL_REDUCE, start + expert_ns, end - start - expert_ns, of=2 * layer + 1),
        ]
    return events


def balanced(account: Account) -> int:
    assert isinstance(account.skew, ArrivalSkew), account.skew
    return total_balance_ns(account.skew)


def said(account: Account) -> str:
    return " ".join(str(message) for message in skew_sentences(account))


def test_imbalance_of_the_experts_is_named_not_the_barrier() -> None:
    """NVIDIA/Megatron-LM#6468: 63.0 us of expert GEMM against a mean of 58.15; 48 layers of 4.85 us: 233 us a step."""
    account = to_account(*(layers(ns) for ns in (63_000, 56_800, 56_400, 56_400)))
    assert balanced(account) == LAYERS * 4_850 == 232_800
    (late,) = explain_lateness(account)
    assert (late.rank, late.num_instances, late.cause) == (0, LAYERS, ("compute", "experts"))
    assert late.causes == ((("compute", "experts"), 232_800),)
    (step,) = skew_by_step(account)
    assert (step.step_id, step.num_collectives, step.busiest_rank) == (0, LAYERS, 0)
    assert step.own_ns == 47 * 63_000  # from the end of one collective to the last arrival at the next
    assert step.transfer_ns == LAYERS * (LAYER_NS - 63_000)
    text = said(account)
    assert "longer in experts (compute) 233 us" in text
    assert "gain 233 us at most" in text
    assert "too long" not in text


def test_a_rank_that_is_late_without_recorded_work_is_named_and_its_cause_is_not() -> None:
    """deepspeedai/DeepSpeed#8423: at each dispatch 15 of 16 ranks wait for one, which was in nothing instrumented."""

    def events(rank: int) -> list[Event]:
        made: list[Event] = []
        for i in range(6):
            start, late = i * 1_000_000, 300_000 if rank == 5 else 0
            made += [kernel(GEMM, start, 100_000), kernel(DISPATCH, start + 200_000 + late, 350_000 - late)]
        return made

    account = to_account(*(events(rank) for rank in range(16)))
    (late,) = explain_lateness(account)
    assert (late.rank, late.num_instances, late.cause) == (5, 6, None)
    assert late.uninstrumented_ns == late.behind_ns == 6 * 300_000 * 15 // 16
    assert "Rank 5 arrives last 6 times" in said(account)
    assert "cause before the collective is not instrumented" in said(account)


def test_two_ranks_that_are_late_in_turn_have_a_cause_each() -> None:
    def events(rank: int) -> list[Event]:
        made: list[Event] = []
        for i in range(8):
            start, gemm = i * 1_000_000, 300_000 if i % 2 == rank else 100_000
            made += [launch(start, of=i + 1), kernel(GEMM, start, gemm, of=i + 1)]
            made += [kernel(ALL_REDUCE, start + gemm, 400_000 - gemm)]
        return made

    account = to_account(events(0), events(1))
    assert [(late.rank, late.num_instances) for late in explain_lateness(account)] == [(0, 4), (1, 4)]
    assert {late.cause for late in explain_lateness(account)} == {("compute", "gemm")}
    assert balanced(account) == 8 * 100_000


def test_without_skew_nothing_is_explained() -> None:
    alone = to_account(layers(60_000))
    assert (explain_lateness(alone), skew_by_step(alone), skew_sentences(alone)) == ((), (), [])
    same = to_account(layers(60_000), layers(60_000))
    assert explain_lateness(same) == ()
    assert balanced(same) == 0
    assert "no arrival skew stands out" in said(same)


@pytest.mark.parametrize(
    ("here", "detail"), [((0, 1), "of 4 ranks not here: 2, 3"), ((3,), "of 4 ranks not here: 0, 1, 2")]
)
def test_ranks_that_are_missing_are_said_once(here: tuple[int, ...], detail: str) -> None:
    account = to_account(*(to_store(layers(60_000), rank=rank, world_size=4) for rank in here))
    rows = [
        (rank.rank, row.detail) for rank in account.ranks for row in rank.store.health if row.code == "ranks_missing"
    ]
    assert rows == [(here[0], detail)]


def reductions(begin: int, end: int) -> list[Event]:
    """Collectives at uneven times, as a part of twelve."""
    return [kernel(ALL_REDUCE, 1_000_000 * i + 7_000 * i * i, 50_000) for i in range(begin, end)]


def test_a_shorter_capture_is_said_of_its_rank() -> None:
    def codes(account: Account) -> list[list[tuple[str, int]]]:
        own = [[(row.code, row.count) for row in rank.store.health] for rank in account.ranks]
        return [[row for row in rows if row[0].startswith("rank_")] for rows in own]

    assert codes(to_account(reductions(0, 12), reductions(0, 12))) == [[], []]
    assert codes(to_account(reductions(0, 12), reductions(3, 12))) == [[], [("rank_cut", 3)]]


def test_a_shorter_capture_of_even_collectives_fits_in_many_places_and_is_refused() -> None:
    even = [kernel(ALL_REDUCE, 1_000_000 * i, 50_000) for i in range(12)]
    account = to_account(even, even[:9])
    assert account.skew == "the ranks hold different numbers of collectives (12, 9)"


def test_the_report_holds_clock_residual_causes_and_steps() -> None:
    report = to_report(*(layers(ns) for ns in (63_000, 56_800)))
    skew = report["skew"]
    assert skew["method"] == "recorded clocks"
    assert (skew["residual_ns"], skew["residual_p95_ns"], skew["balance_ns"]) == (0, 0, LAYERS * 3_100)
    assert skew["late"][0]["causes"] == [{"category": "compute", "family": "experts", "ns": LAYERS * 3_100}]
    assert skew["steps"][0]["transfer_ns"] == LAYERS * (LAYER_NS - 63_000)
