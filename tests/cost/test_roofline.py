"""Roofline: hand-worked terms, lower <= serial, both ridges, and cases A22, A24 and A25."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cost.hardware import load_hardware, parse_hardware
from stepscope.cost.roofline import (
    Terms,
    amdahl_bound,
    bandwidth_use,
    bound_flop_per_s,
    efficiency,
    intensity,
    ridge,
    roofline,
)
from stepscope.errors import BadInput
from stepscope.operators.operator import Dtypes, GemmShape, Operator, Traffic, Transfer

TIME = st.floats(0, 1e3)


def gemm_operator(m: int, n: int, k: int, compute: str = "bf16") -> Operator:
    return Operator(
        layer_type="x",
        count=1,
        name="g",
        role="r",
        kind="gemm",
        flop=2 * m * n * k,
        traffic=Traffic(weight=2 * n * k, read=2 * m * k, written=2 * m * n),
        dtypes=Dtypes(weight="bf16", compute=compute),
        shape=GemmShape(m=m, n=n, k=k),
    )


def test_terms_by_hand() -> None:
    terms = roofline(gemm_operator(2048, 1024, 4096), load_hardware("h200"))
    assert terms.compute_s == pytest.approx(2 * 2048 * 1024 * 4096 / 989e12)
    assert terms.memory_s == pytest.approx(2 * (2048 * 4096 + 4096 * 1024 + 2048 * 1024) / 4.8e12)
    assert terms.network_s == 0
    assert terms.bound == "compute"
    assert roofline(gemm_operator(1, 1024, 4096), load_hardware("h200")).bound == "memory"


def test_a_collective_is_bound_by_its_links() -> None:
    transfer = Transfer(collective="all_reduce", group="tp", group_size=8, payload_bytes=8 * 10**6)
    op = Operator(
        layer_type="x",
        count=1,
        name="ar",
        role="c",
        kind="collective",
        flop=0,
        traffic=Traffic(),
        dtypes=Dtypes(),
        work=transfer,
    )
    terms = roofline(op, load_hardware("h100"))
    assert terms.network_s == pytest.approx(2 * 8e6 * 7 / 8 / 450e9)
    assert terms.bound == "network"


@given(TIME, TIME, TIME)
def test_lower_bound_is_at_most_the_serial_bound(compute: float, memory: float, network: float) -> None:
    terms = Terms(compute_s=compute, memory_s=memory, network_s=network)
    assert terms.lower_s <= terms.serial_s
    assert terms.serial_s <= 3 * float(terms.lower_s) + 1e-9


def test_bounds_of_many_shapes_name_each_binding_term() -> None:
    terms = Terms(compute_s=np.array([3.0, 1.0, 0.0]), memory_s=np.array([1.0, 2.0, 0.0]), network_s=0.5)
    assert terms.bound.tolist() == ["compute", "memory", "network"]
    assert np.asarray(terms.lower_s).tolist() == [3.0, 2.0, 0.5]


def test_a_device_without_the_dtype_is_refused() -> None:
    with pytest.raises(BadInput, match="fp8"):
        roofline(gemm_operator(1, 1, 1, "fp8"), load_hardware("ascend-910b"))


def test_fp32_takes_the_looser_rate_where_a_sheet_has_none() -> None:
    assert bound_flop_per_s(load_hardware("h200"), "fp32") == 989e12


def test_intensity_of_the_second_note() -> None:
    moved = 2 * (64 * 4096 + 4096 * 1024 + 64 * 1024)
    assert round(intensity(2 * 64 * 4096 * 1024, moved), 4) == 59.3623
    with pytest.raises(BadInput):
        intensity(1, 0)


def test_both_ridges_are_shown() -> None:
    found = ridge(load_hardware("h200"), "bf16", efficiencies=(0.86, 0.82))
    assert found.peak == pytest.approx(989e12 / 4.8e12)
    assert found.effective == pytest.approx(989e12 / 4.8e12 * 0.86 / 0.82)
    assert ridge(load_hardware("mi300x"), "fp8").effective is None  # nothing was measured: not guessed


def test_a_probe_gives_the_effective_ridge() -> None:
    text = """
    [achieved]
    memory = { bytes_per_s = 2e10, source = "a probe", date = "2026-11" }
    [achieved.compute]
    bf16 = { flop_per_s = 1e12, source = "a probe", date = "2026-11" }
    """
    found = ridge(parse_hardware(text, "mine", "mine"), "bf16")
    assert (found.peak, found.effective, found.effective_from) == (None, 50.0, "probe")


def test_efficiency_above_one_is_reported_as_it_is() -> None:
    assert efficiency(2.0, 1.6) == 1.25
    with pytest.raises(BadInput):
        efficiency(1.0, 0.0)


def test_a22_fp8_cannot_help_where_the_collective_takes_the_time() -> None:
    assert round(amdahl_bound(1 - 0.71, 2.0), 2) == 1.17  # at most 29 % is GEMM, twice as fast
    assert amdahl_bound(0.0, 100.0) == 1.0
    with pytest.raises(BadInput):
        amdahl_bound(1.2, 2.0)


def test_a24_decode_is_at_the_floor_of_the_probed_bandwidth() -> None:
    low, high = 10e9 / 234e9, 13e9 / 231e9
    assert (round(low * 1e3), round(high * 1e3)) == (43, 56)
    assert all(low <= execute <= high for execute in (45.0e-3, 45.7e-3))  # at the roof
    host = (9.8e-3 + 10.6e-3) / 2
    assert round(host / 55.5e-3, 2) == 0.18  # the only time to be won
    use = bandwidth_use(10.5e9, 45.35e-3, achieved=232.5e9)
    assert use.of_achieved == pytest.approx(0.996, abs=0.001)
    assert use.of_advertised is None  # none was given, so none is claimed


def test_a25_two_denominators_and_the_read_set() -> None:
    use = bandwidth_use(623e9, 1.0, advertised=936.2e9, achieved=854.2e9)
    assert use.of_advertised == pytest.approx(0.665, abs=0.001)
    assert use.of_achieved == pytest.approx(0.729, abs=0.001)
    assert round(854.2 / 936.2, 3) == 0.912  # what was measured of what is advertised
    resident, unread, seconds = 20e9, 2.47e9, 0.0325
    naive = bandwidth_use(resident, seconds, achieved=854.2e9)
    real = bandwidth_use(resident - unread, seconds, achieved=854.2e9)
    assert real.of_achieved is not None
    assert naive.of_achieved is not None
    assert real.of_achieved < naive.of_achieved  # resident weights that are not read flatter the figure
