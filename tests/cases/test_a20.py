"""A20, vllm-project/vllm#48892: under speculation ITL is not TPOT; rates by position average to the overall."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from stepscope.batch import BatchShape
from stepscope.latency import pooled_itl_s, spread
from stepscope.simulate.engine import Options, Simulation, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.speculation import Acceptance, Drafts, accept_length, step_of_tpot, with_draft_cost

CONCURRENCY = 64
TPOT_S = {1: 0.0372, 8: 0.0275}
ITL_S = {1: 0.0224, 8: 0.1596}
RATE = {1: 0.836, 8: 0.42525}  # told as 83.6% and 42.5%
LENGTH = {k: accept_length(k, rate) for k, rate in RATE.items()}
RULES = SchedulerRules(max_num_batched_tokens=8192, max_num_seqs=CONCURRENCY, max_model_len=4096, num_blocks=20_000)


def simulated(num_drafts: int) -> Simulation:
    drafts = Drafts(acceptance=Acceptance.from_mean_length(LENGTH[num_drafts], num_drafts, seed=1))
    rules = replace(RULES, num_speculative_tokens=num_drafts, drafts=drafts)

    def step_s(shape: BatchShape) -> float:
        return 0.06 + 5e-5 * (shape.num_scheduled_tokens or 0)

    cost = with_draft_cost(step_s, pass_s=0.003, num_passes=drafts.num_passes(num_drafts))
    asked = [
        Request(request_id=f"r{place}", arrival_s=0.0, prompt_len=64, output_len=300) for place in range(CONCURRENCY)
    ]
    return simulate(asked, rules, cost, Options(with_gaps=True))


def test_accepted_lengths_follow_from_the_rates() -> None:
    assert pytest.approx({1: 1.836, 8: 4.402}, abs=5e-4) == LENGTH


@pytest.mark.parametrize("num_drafts", [1, 8])
def test_rates_by_position_average_to_the_overall_rate(num_drafts: int) -> None:
    found = Acceptance.from_mean_length(LENGTH[num_drafts], num_drafts)
    assert found.rate == pytest.approx(RATE[num_drafts])
    assert found.mean_length == pytest.approx(LENGTH[num_drafts])
    assert all(earlier >= later for earlier, later in pairwise(found.rates))


def test_measured_tpot_falls_though_itl_rises_sevenfold() -> None:
    assert TPOT_S[1] / TPOT_S[8] == pytest.approx(1.35, abs=0.005)
    assert ITL_S[8] / ITL_S[1] == pytest.approx(7.1, abs=0.05)
    # the time between steps that TPOT and length mean rises 1.8 times; the rest of the median's rise is not the step's
    steps = {k: step_of_tpot(TPOT_S[k], LENGTH[k]) for k in TPOT_S}
    assert steps == pytest.approx({1: 0.0683, 8: 0.1211}, abs=1e-4)


def test_simulated_tpot_falls_though_itl_rises() -> None:
    one, eight = simulated(1), simulated(8)
    tpot, itl = [], []
    for found, count in ((one, 1), (eight, 8)):
        per_token = spread(each.times.tpot_s for each in found.requests)
        per_step = spread(pooled_itl_s(each.times for each in found.requests))
        assert per_token is not None
        assert per_step is not None
        # gaps are of steps, TPOT of tokens: a length apart (the last step of a request is cut)
        assert per_step.mean == pytest.approx(step_of_tpot(per_token.mean, LENGTH[count]), rel=0.03)
        tpot.append(per_token.mean)
        itl.append(per_step.p50)
    assert tpot[1] < tpot[0]
    assert itl[1] > itl[0]
    for each in (*one.requests, *eight.requests):
        assert each.times.gaps_s is not None
        assert each.times.last_token_s is not None
        assert each.times.first_token_s is not None
        assert sum(each.times.gaps_s) == pytest.approx(each.times.last_token_s - each.times.first_token_s)
        assert len(each.times.gaps_s) < (each.times.output_len or 0) - 1
