from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.balancer import ByHand
from stepscope.simulate.engine import Options, simulate
from stepscope.simulate.engine_pool import EnginePool, simulate_replicas
from tests.simulate.random_load import random_load
from tests.simulate.test_engine import ALL, RULES, affine, one_second, request, times


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_a_pool_of_one_equals_one_engine(seed: int, is_async: bool, spacing: float) -> None:
    load = random_load(seed, is_async=is_async)
    asked = [replace(each, arrival_s=each.arrival_s * spacing) for each in load.requests]
    kept = replace(ALL, host_s=1e-4)
    pool = EnginePool(rules=load.rules, cost=affine)
    assert simulate_replicas(asked, pool, kept) == simulate(asked, load.rules, affine, kept)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.booleans(), st.integers(2, 4))
def test_replicas_equal_engines_of_their_own(seed: int, is_async: bool, num_engines: int) -> None:
    load = random_load(seed, is_async=is_async)
    asked = [replace(each, arrival_s=each.arrival_s * 1e-3) for each in load.requests]
    by_turn = ByHand(ranks={each.request_id: place % num_engines for place, each in enumerate(asked)})
    pool = EnginePool(rules=load.rules, cost=affine, num_engines=num_engines, router=by_turn)
    found = simulate_replicas(asked, pool, Options(steps="none"))
    for rank in range(num_engines):
        alone = simulate(asked[rank::num_engines], load.rules, affine, Options(steps="none"))
        assert [replace(each, rank=0) for each in found.requests[rank::num_engines]] == list(alone.requests)


def test_an_idle_engine_does_not_wait_for_a_busy_one() -> None:
    asked = [request("a", 10, 3), request("b", 10, 1, at=0.5), request("c", 10, 1, after="b")]
    found = simulate_replicas(asked, EnginePool(rules=RULES, cost=one_second, num_engines=2))
    assert times(found) == [(0.0, 1.0, 3.0), (0.5, 1.5, 1.5), (1.5, 3.0, 3.0)]  # c's turn is the first engine's
    assert [each.rank for each in found.requests] == [0, 1, 0]


def test_a_pool_without_engines_is_refused() -> None:
    with pytest.raises(BadInput, match="0 engines"):
        EnginePool(rules=RULES, cost=one_second, num_engines=0)
