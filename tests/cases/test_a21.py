"""A21, DFlash2-2x-DGX-Spark#16: the best k depends on concurrency, and a higher acceptance rate does not say which."""

from __future__ import annotations

import pytest

from stepscope.batch import BatchShape
from stepscope.simulate.speculation import Acceptance, Drafts, Tradeoff

# tokens per second after over before, k 7 -> 5, by streams, as told
MEASURED = {1: 1 - 0.057, 2: 1 - 0.060, 4: 1.299, 6: 1.183}
KNOWN = Acceptance.from_chances([0.84] * 7)
DRAFTS = Drafts(method="dflash")
FREE_TOKENS = 24  # of a step that costs no more than its weights' bytes; beyond it each token adds


def step_s(shape: BatchShape) -> float:
    return 0.1 + 0.0055 * max((shape.num_scheduled_tokens or 0) - FREE_TOKENS, 0)


TRADEOFF = Tradeoff(
    cost=step_s, acceptance=KNOWN.first, draft_s=lambda k: 0.004 * DRAFTS.num_passes(k), context_len=2000
)


def change(streams: int) -> float:
    return TRADEOFF.speedup(streams, 5) / TRADEOFF.speedup(streams, 7)


def test_fewer_drafts_have_a_higher_rate_and_a_shorter_length_whatever_the_load() -> None:
    rate = {k: KNOWN.first(k).rate for k in (5, 7)}
    assert (rate[5] or 0) > (rate[7] or 0)
    assert KNOWN.first(5).mean_length < KNOWN.first(7).mean_length


@pytest.mark.parametrize("streams", sorted(MEASURED))
def test_fewer_drafts_lose_alone_and_gain_in_company_as_measured(streams: int) -> None:
    assert (change(streams) > 1) == (MEASURED[streams] > 1)


def test_where_steps_cost_the_same_the_accepted_length_decides() -> None:
    assert change(1) == pytest.approx(KNOWN.first(5).mean_length / KNOWN.first(7).mean_length)


def test_the_best_number_of_drafts_falls_with_streams() -> None:
    best = [TRADEOFF.best_num_drafts(streams, 7) for streams in (1, 2, 4, 6, 32)]
    assert best[0] == 7
    assert best == sorted(best, reverse=True)
    assert best[-1] < best[2] < 7
