"""A11, cost set by the configured context: one model, TP4 on H200, context limit 1,048,576 or 131,072.

Stated, tokens/s of one request: 98.4 -> 147.9 (1 stream, 2k tokens), 32.1 -> 86.0 (8 streams), 35.3 -> 88.0 (8 streams
of 64k); the saving is linear in the limit.
"""

from __future__ import annotations

import pytest

from stepscope.cost.width_model import WidthModel, WidthPoint, fit_width

LARGE, SMALL, ASKED = 1_048_576, 131_072, 262_144
STREAMS = {"1 x 2k": (98.4, 147.9), "8 x 2k": (32.1, 86.0), "8 x 64k": (35.3, 88.0)}


def points(name: str, kv_len: float = 2048.0) -> list[WidthPoint]:
    at_large, at_small = STREAMS[name]
    return [
        WidthPoint(context_length=LARGE, kv_len=kv_len, step_s=1 / at_large),
        WidthPoint(context_length=SMALL, kv_len=kv_len, step_s=1 / at_small),
    ]


@pytest.mark.parametrize("name", STREAMS)
def test_the_what_if_lies_on_the_line_between_the_measured_points(name: str) -> None:
    at_large, at_small = STREAMS[name]
    model = fit_width(points(name))
    assert model.step_s(context_length=LARGE) == pytest.approx(1 / at_large)
    assert model.step_s(context_length=SMALL) == pytest.approx(1 / at_small)
    saved = (1 / at_large - model.step_s(context_length=ASKED)) / (1 / at_large - 1 / at_small)
    assert saved == pytest.approx(6 / 7)  # of a limit cut by 7/8, this one cuts 6/8


def eight_streams() -> WidthModel:
    return fit_width(points("8 x 2k", 2048.0) + points("8 x 64k", 65_536.0))


def test_the_step_does_not_depend_on_what_is_there() -> None:
    model = eight_streams()
    assert model.live_s == 0  # 32 times the live length is no slower
    assert model.width_fraction(context_length=LARGE, kv_len=2048) > 0.6
    for name in ("8 x 2k", "8 x 64k"):
        for point in points(name):
            assert model.step_s(context_length=point.context_length) == pytest.approx(point.step_s, rel=0.08)


def test_rate_at_the_limit_that_was_asked_for() -> None:
    assert 86.0 > 1 / eight_streams().step_s(context_length=ASKED) > 35.3
