"""One definition of TTFT, TPOT, ITL, E2EL and goodput."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.latency import Limits, RequestTimes, goodput_per_s, meets, percentile, pooled_itl_s, spread

ONE = RequestTimes(arrival_s=10.0, first_token_s=10.4, last_token_s=11.4, output_len=11, gaps_s=(0.1,) * 10)


def test_the_four_latencies_worked_by_hand() -> None:
    assert ONE.ttft_s == pytest.approx(0.4)
    assert ONE.tpot_s == pytest.approx(0.1)  # (11.4 - 10.4) / (11 - 1)
    assert ONE.e2el_s == pytest.approx(1.4)


def test_tpot_is_not_the_convention_that_counts_the_first_token_in() -> None:
    assert ONE.e2el_s is not None
    assert ONE.output_len is not None
    assert ONE.tpot_s != pytest.approx(ONE.e2el_s / ONE.output_len)


def test_one_token_has_no_tpot_and_meets_any_limit_of_it() -> None:
    single = RequestTimes(arrival_s=0.0, first_token_s=0.2, last_token_s=0.2, output_len=1)
    assert single.tpot_s is None
    assert meets(single, Limits(tpot_s=0.001))


def test_unknown_stays_unknown() -> None:
    lost = RequestTimes(arrival_s=0.0)
    assert (lost.ttft_s, lost.tpot_s, lost.e2el_s) == (None, None, None)
    assert meets(lost, Limits(ttft_s=1.0)) is None
    assert goodput_per_s([ONE, lost], Limits(ttft_s=1.0), duration_s=1.0) is None
    assert meets(lost, Limits()) is True


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    late = RequestTimes(arrival_s=0.0, first_token_s=2.0, last_token_s=2.5, output_len=6)
    limits = Limits(ttft_s=1.0, tpot_s=0.2)
    assert goodput_per_s([ONE, ONE, late], limits, duration_s=4.0) == 0.5
    with pytest.raises(BadInput):
        goodput_per_s([ONE], limits, duration_s=0.0)


def test_one_broken_limit_is_enough_even_if_another_time_is_unknown() -> None:
    assert meets(RequestTimes(arrival_s=0.0, first_token_s=9.0), Limits(ttft_s=1.0, e2el_s=5.0)) is False


def test_long_answers_weigh_more_in_itl() -> None:
    short = RequestTimes(arrival_s=0.0, gaps_s=(1.0,))
    pooled = pooled_itl_s([ONE, short])
    assert len(pooled) == 11
    assert math.fsum(pooled) / len(pooled) == pytest.approx(2.0 / 11)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values: list[float], fraction: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= percentile(ordered, fraction) <= ordered[-1]
    assert percentile(ordered, 0) == ordered[0]
    assert percentile(ordered, 1) == ordered[-1]


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput):
        percentile([], 0.5)
    with pytest.raises(BadInput):
        percentile([1.0], 1.5)


def test_a_spread_leaves_unknown_and_endless_values_out() -> None:
    found = spread([None, 1.0, math.inf, 3.0])
    assert found is not None
    assert (found.count, found.mean, found.p50, found.max) == (2, 2.0, 2.0, 3.0)
    assert spread([None, math.nan]) is None
