"""Numbers for people: the only place where nanoseconds become milliseconds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.units import UNKNOWN, show_count, show_fraction, show_ns

_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (None, UNKNOWN),
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (12_345, "12.3 us"),
        (123_456, "123 us"),
        (84_500_000, "84.5 ms"),
        (1_703_000_000, "1.70 s"),
        (-2_500, "-2.50 us"),
        (3_600_000_000_000, "3600 s"),
    ],
)
def test_a_duration_has_three_digits_and_its_unit(duration_ns: int | None, text: str) -> None:
    assert show_ns(duration_ns) == text


@given(st.integers(-(10**13), 10**13))
def test_a_shown_duration_is_within_half_a_percent(duration_ns: int) -> None:
    number, unit = show_ns(duration_ns).split(" ")
    assert abs(float(number) * _NS[unit] - duration_ns) <= 0.005 * abs(duration_ns)


@given(st.integers(1, 10**13))
def test_a_shown_duration_reads_the_same_with_its_sign(duration_ns: int) -> None:
    assert show_ns(-duration_ns) == "-" + show_ns(duration_ns)


@pytest.mark.parametrize(
    ("fraction", "text"), [(None, UNKNOWN), (0.0, "0.0 %"), (0.282, "28.2 %"), (1.0, "100.0 %"), (1.5, "150.0 %")]
)
def test_a_fraction_is_shown_as_percent_and_never_clipped(fraction: float | None, text: str) -> None:
    assert show_fraction(fraction) == text


def test_a_count_is_shown_in_groups() -> None:
    assert (show_count(1_865_737), show_count(12), show_count(None)) == ("1,865,737", "12", UNKNOWN)


@given(st.integers(0, 10**15))
def test_a_shown_count_is_the_count(count: int) -> None:
    assert int(re.sub(",", "", show_count(count))) == count
