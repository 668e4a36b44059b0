"""Hardware files: every number carries its source and date; advertised stays apart from achieved; errors say what."""

from __future__ import annotations

from importlib.resources import files

import pytest

from stepscope.cost.hardware import compute_dtype, hardware_names, load_hardware, parse_hardware
from stepscope.errors import BadInput

NAMED = {"h100", "h200", "h20", "h800", "b200", "b300", "a100", "mi300x", "mi325x", "ascend-910b", "ascend-910c"}

PROBED = """
title = "mine"
[achieved]
memory = { bytes_per_s = 2e10, low = 1.9e10, high = 2.1e10, source = "stepscope probe", date = "2026-11-29" }
[achieved.compute]
fp32 = { flop_per_s = 1e11, source = "stepscope probe", date = "2026-11-29" }
"""


def test_every_named_device_ships() -> None:
    assert set(hardware_names()) >= NAMED


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_number_has_source_and_date(name: str) -> None:
    device = load_hardware(name)
    figures = [*device.compute.values(), *device.rates.values()]
    assert len(figures) >= 6
    for figure in figures:
        assert figure.value > 0
        assert len(figure.source) > 10
        assert figure.date[:4] in ("2025", "2026")
    assert device.flop_per_s("bf16") > 1e14
    assert device.bytes_per_s() > 1e12


def test_a_file_names_no_address() -> None:
    for entry in files("stepscope.cost").joinpath("hardware").iterdir():
        assert "http" not in entry.read_text(encoding="utf-8")


def test_peaks_are_the_makers() -> None:
    h200 = load_hardware("h200")
    assert (h200.flop_per_s("bf16"), h200.flop_per_s("fp8"), h200.bytes_per_s()) == (989e12, 1978e12, 4.8e12)
    assert load_hardware("ascend-910c").flop_per_s("int8") == 1504e12
    assert load_hardware("b200").link_bytes_per_s(8) == 900e9
    assert load_hardware("b200").link_bytes_per_s(16) == 100e9  # beyond one node


def test_block_scales_do_not_change_the_rate() -> None:
    h100 = load_hardware("h100")
    assert h100.flop_per_s("fp8_block") == h100.flop_per_s("fp8")
    assert compute_dtype("mxfp4") == "bf16"  # weights alone are 4-bit; the product is bf16


@pytest.mark.parametrize(("name", "dtype"), [("a100", "fp8"), ("ascend-910c", "fp8"), ("h100", "nvfp4"), ("h100", "x")])
def test_unknown_dtype_is_an_error_that_lists_what_is_known(name: str, dtype: str) -> None:
    with pytest.raises(BadInput, match="Known: bf16") as caught:
        load_hardware(name).flop_per_s(dtype)
    assert dtype in str(caught.value)


def test_unknown_hardware_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match="ascend-910c"):
        load_hardware("h300")


def test_a_probed_file_is_achieved_only_and_prices_by_that() -> None:
    mine = parse_hardware(PROBED, "mine", "mine.toml")
    assert mine.basis == "achieved"
    assert mine.flop_per_s("fp32") == 1e11
    assert mine.rates["achieved", "memory"].low == 1.9e10
    with pytest.raises(BadInput, match="no advertised 'memory'"):
        mine.bytes_per_s("advertised")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[advertised]\nmemory = { bytes_per_s = 1e12, date = '2026-11' }", "no 'source'"),
        ("[advertised]\nmemory = { bytes_per_s = 1e12, source = 'sheet' }", "no 'date'"),
        ("[advertised]\nmemory = { bytes_per_s = -1, source = 'sheet', date = '2026-11' }", "above 0"),
        ("[advertised]\nmemory = { bytes_per_s = 1e12, source = ' ', date = '2026-11' }", "source is empty"),
        ("[advertised]\nmemory = { bytes_per_s = 1e12, source = 'sheet', date = 'soon' }", "yyyy-mm"),
        ("[advertised]\nmemry = { bytes_per_s = 1e12, source = 'sheet', date = '2026-11' }", "unknown key"),
        ("[advertised]\nmemory = 1e12", "a table"),
        ("bandwidth = 3", "unknown key 'bandwidth'"),
        ("[advertised", "not TOML"),
    ],
)
def test_a_broken_file_says_where(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as caught:
        parse_hardware(text, "x", "x.toml")
    assert "x.toml" in str(caught.value)


def test_an_achieved_rate_above_the_advertised_one_is_refused() -> None:
    entry = 'source = "a measurement", date = "2026-11"'
    text = (
        f"[advertised]\nmemory = {{ bytes_per_s = 2e12, {entry} }}\n"
        f"[achieved]\nmemory = {{ bytes_per_s = 2.5e12, {entry} }}\n"
    )
    with pytest.raises(BadInput, match=r"mine: achieved memory 2\.5e\+12 is above .* an efficiency of 1\.25"):
        parse_hardware(text, "mine", "mine")
    parse_hardware(text.replace("2.5e12", "1.5e12"), "mine", "mine")


def test_what_nobody_checked_says_so_in_its_source() -> None:
    found = []
    for name in hardware_names():
        device = load_hardware(name)
        for figure in (*device.compute.values(), *device.rates.values()):
            assert ("not verified" in figure.source) == (not figure.is_checked)
            found.append(figure.is_checked)
    assert any(found)
    assert not all(found)
    assert "cores" in load_hardware("b300").unchecked
    assert load_hardware("h100").unchecked == ()
