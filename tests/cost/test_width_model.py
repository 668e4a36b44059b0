from __future__ import annotations

import pytest

from stepscope.cost.width_model import WidthPoint, fit_width
from stepscope.errors import BadInput


def point(context_length: int, kv_len: float, step_s: float) -> WidthPoint:
    return WidthPoint(context_length=context_length, kv_len=kv_len, step_s=step_s)


def test_a_fit_finds_the_parts_it_was_made_of() -> None:
    made = [point(w, k, 0.004 + 2e-8 * w + 1e-7 * k) for w in (1000, 100_000, 1_000_000) for k in (0, 50_000)]
    model = fit_width(made)
    assert (model.fixed_s, model.width_s, model.live_s) == pytest.approx((0.004, 2e-8, 1e-7), rel=1e-6)
    assert model.width_fraction(context_length=1_000_000) == pytest.approx(0.02 / 0.024)


def test_one_live_length_says_nothing_of_it() -> None:
    assert fit_width([point(1000, 500, 0.01), point(2000, 500, 0.02)]).live_s == 0


def test_two_lengths_and_times_above_zero_are_needed() -> None:
    with pytest.raises(BadInput, match="two or more"):
        fit_width([point(1000, 0, 0.01), point(1000, 9, 0.02)])
    with pytest.raises(BadInput, match="measured times"):
        fit_width([point(1000, 0, 0.0), point(2000, 0, 0.02)])
