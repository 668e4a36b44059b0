"""The frontier holds what nothing beats; a point that cannot run says why; keys tell points of other searches apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.latency import Limits
from stepscope.simulate.search import COST, find_frontier, keeps_limits, key_of, make_grid, run_point
from tests.simulate.loads import plain_scenario

NONE = Limits()
PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


def point(cost: float | None, latency: float | None) -> dict[str, Any]:
    return {"figures": {COST: cost, "tpot p50": latency}}


@given(PAIRS)
def test_nothing_beats_the_frontier_and_it_beats_all_else(pairs: list[tuple[int, int]]) -> None:
    points = [point(cost, latency) for cost, latency in pairs]
    best = [pairs[place] for place in find_frontier(points, "tpot p50")]

    def beats(a: tuple[int, int], b: tuple[int, int]) -> bool:
        return a != b and a[0] <= b[0] and a[1] <= b[1]

    assert not any(beats(a, b) for a in pairs for b in best)
    assert all(pair in best or any(beats(a, pair) for a in best) for pair in pairs)
    assert best == sorted(best)


def test_a_point_without_a_prediction_is_on_no_frontier() -> None:
    assert find_frontier([point(None, None), point(2.0, 2.0)], "tpot p50") == [1]


def test_a_grid_has_every_combination_in_order() -> None:
    trials = make_grid(plain_scenario(), [("chunk", ("64", "512")), ("max_num_seqs", ("2", "8"))], NONE)
    assert [tuple(value for _, value in trial.settings) for trial in trials] == [
        ("64", "2"),
        ("64", "8"),
        ("512", "2"),
        ("512", "8"),
    ]
    assert len({key_of(trial) for trial in trials}) == 4
    other = make_grid(plain_scenario(block_size=32), [("chunk", ("64",)), ("max_num_seqs", ("2",))], NONE)
    assert key_of(other[0]) != key_of(trials[0])
    for over in ([], [("chunk", ("1",)), ("max_num_batched_tokens", ("2",))], [("speed", ("1",))]):
        with pytest.raises(BadInput):
            make_grid(plain_scenario(), over, NONE)


def test_a_point_holds_figures_or_the_reason_why_not() -> None:
    runs, refused = (
        run_point(trial) for trial in make_grid(plain_scenario(), [("num_blocks", ("400", "3"))], Limits(ttft_s=9.0))
    )
    assert runs["refused"] is None
    assert runs["binding"] is not None
    assert runs["figures"]["tpot p50"] > 0
    assert keeps_limits(runs, Limits(ttft_s=1e9, tpot_s=1e9)) is True
    assert keeps_limits(runs, Limits(tpot_s=1e-9)) is False
    assert "it can never run" in refused["refused"]
    assert keeps_limits(refused, Limits(ttft_s=1.0)) is None
