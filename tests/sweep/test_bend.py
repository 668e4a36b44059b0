from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.sweep.bend import LEAST_POINTS, Bend, Point, find_bend

X = (16, 32, 64, 128, 256, 512, 1024)


def bent(x: float, at: float, flat: float = 1e-3) -> float:
    """Flat up to `at`, in proportion beyond: a roofline."""
    return flat * max(x / at, 1.0)


def points(seconds: list[float], noise: float = 0.0, seed: int = 1, axis: tuple[int, ...] = X) -> list[Point]:
    rng = np.random.default_rng(seed)
    return [
        Point(x=x, samples=tuple(t * np.exp(noise * rng.standard_normal(9)) if noise else (t,)))
        for x, t in zip(axis, seconds, strict=True)
    ]


@given(at=st.floats(48, 400), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_a_known_bend_is_found_and_its_interval_holds_it(at: float, seed: int) -> None:
    found = find_bend(points([bent(x, at) for x in X], noise=0.02, seed=seed), num_refits=20)
    assert found.answer == "found"
    assert found.at is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.at <= found.high
    assert at / 1.25 < found.at < at * 1.25  # tried are four places an octave
    assert found.low / 1.25 < at < found.high * 1.25


@given(scale=st.floats(1e-6, 1e3))
@settings(max_examples=6, deadline=None)
def test_the_unit_of_time_and_the_order_of_points_do_not_matter(scale: float) -> None:
    plain = [bent(x, 150) for x in X]
    first = find_bend(points(plain), num_refits=10)
    scaled = find_bend(points([scale * t for t in plain])[::-1], num_refits=10)
    assert first.at is not None
    assert scaled.at == pytest.approx(first.at)


@pytest.mark.parametrize(
    ("seconds", "answer", "said"),
    [
        ([1e-3 for _ in X], "not_reached", "not reached in this grid"),
        ([1e-3 + 1e-8 * x for x in X], "not_reached", "not reached in this grid"),
        ([1e-5 * x for x in X], "passed", "the bend is below this grid"),
        ([1e-3 + 4e-6 * x for x in X], "straight", "a straight line explains"),
        ([1e-3 + 4e-6 * x + 1.6e-6 * max(x - 128, 0) for x in X], "straight", "a straight line explains"),
    ],
)
def test_without_a_bend_the_answer_says_which_side(seconds: list[float], answer: str, said: str) -> None:
    found = find_bend(points(seconds), num_refits=10)
    assert (found.answer, found.at) == (answer, None)
    assert said in found.reason


def test_noise_alone_makes_no_bend() -> None:
    answers = [find_bend(points([1e-3 for _ in X], noise=0.1, seed=seed), num_refits=10).answer for seed in range(8)]
    assert answers.count("found") <= 1


def test_few_points_are_no_measurement() -> None:
    few = points([bent(x, 64) for x in X[: LEAST_POINTS - 1]], axis=X[: LEAST_POINTS - 1])
    assert find_bend(few) == Bend(
        answer="not_measured",
        reason=f"{LEAST_POINTS - 1} points with a time, {LEAST_POINTS} or more are needed",
        num_points=LEAST_POINTS - 1,
    )


def test_a_straight_line_tells_where_it_doubles() -> None:
    found = find_bend(points([2e-3 + 1e-5 * x for x in X]), num_refits=10)
    assert found.half == pytest.approx(200, rel=1e-3)
