"""A calibration's file holds all of it; a broken one is refused with its place; grades follow the ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.batch import BatchShape, Row, RowPhase
from stepscope.cost.calibration import Calibration, Factor, HeldOut, Source, bend_name, bend_of
from stepscope.cost.calibration_file import parse_calibration, read_calibration, to_toml, write_calibration
from stepscope.errors import BadInput
from stepscope.models.parallel import ParallelPlan


def factor(value: float) -> Factor:
    return Factor(value=value, low=value * 0.9, high=value * 1.1)


def a_calibration(**changes: object) -> Calibration:
    values: dict[str, object] = {
        "name": "mine",
        "model": "qwen3-8b",
        "hardware": "h200",
        "engine": "vllm",
        "engine_version": "0.32.0",
        "plan": ParallelPlan(tp=2),
        "source": Source(files=("steps.steplog",), content_hash="sha256:00", date="2026-11-29"),
        "cost": "model",
        "host_s": factor(0.0005),
        "fixed": {"step_s": factor(0.001), "token_s": factor(2e-6), "token_s_from_64": factor(1e-6)},
        "families": {"dense_gemm": factor(1.2), "attention": factor(1.7), "stream": factor(1.7)},
        "tied": (("attention", "stream"),),
        "dtypes": {"kv": "fp8"},
        "drift": Factor(value=1.0, low=0.9, high=1.2),
        "ranges": {
            phase: {"tokens": (1.0, 512.0), "requests": (1.0, 8.0), "kv_len": (10.0, 1000.0)}
            for phase in ("prefill", "decode")
        },
        "held_out": {"all": HeldOut(median=0.03, p90=0.12, num_steps=240)},
        "unexplained_fraction": 0.05,
        "left_out": {"cold: first step of its shape": 3},
        "draws": {"families.dense_gemm": (1.1, 1.3), "fixed.step_s": (0.002, 0.0005)},
    }
    return Calibration(**(values | changes))  # type: ignore[arg-type]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_calibration(a_calibration(), path)
    assert read_calibration(path) == a_calibration()
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.toml"]


@given(
    st.text(max_size=20),
    st.lists(st.text(max_size=12), max_size=3),
    st.floats(min_value=0, max_value=1e300, allow_subnormal=True),
    st.dictionaries(st.text(max_size=12), st.integers(0, 10**9), max_size=3),
)
def test_any_text_and_number_comes_back(name: str, files: list[str], value: float, left: dict[str, int]) -> None:
    written = a_calibration(
        name=name,
        engine=name[::-1],
        source=Source(files=tuple(files), content_hash=name, date="2026-11"),
        host_s=Factor(value=value, low=value, high=value),
        left_out=left,
    )
    assert parse_calibration(to_toml(written), "test") == written


def test_a_cost_of_none_has_a_fixed_part_alone() -> None:
    plain = a_calibration(cost="none", families={}, tied=(), hardware=None, draws={})
    assert parse_calibration(to_toml(plain), "test") == plain
    with pytest.raises(BadInput, match="'none' with 3 families"):
        a_calibration(cost="none")
    with pytest.raises(BadInput, match="'bound' with 0 families"):
        a_calibration(cost="bound", families={})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = 1", "version = 2", "version = 1"),
        ('cost = "model"', 'cost = "guess"', "Known: model, bound, none"),
        ("dense_gemm = {", "dense = {", "unknown family 'dense'"),
        ("step_s = {", "steps = {", "unknown fixed cost 'steps'"),
        ("value = 1.2, low", "value = -1.2, low", "families.dense_gemm.value: expected a number of 0 or more"),
        ("value = 1.2, low", "value = 0.2, low", "low <= value <= high"),
        ("tp = 2", "tp = 2\nxp = 1", "plan: unknown key 'xp'"),
        ("tokens = [1.0, 512.0]", "tokens = [9.0, 5.0]", r"ranges.prefill.tokens: expected \[least, most\]"),
        ("num_steps = 240", "num_steps = 2.5", "held_out.all.num_steps: expected a whole number"),
        ("model = ", "modell = ", "has no 'model'"),
        ("[plan]", "[plan", "not TOML"),
        ('files = ["steps.steplog"]', 'files = "steps.steplog"', "source.files: expected a list"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(old: str, new: str, said: str) -> None:
    text = to_toml(a_calibration())
    assert old in text
    with pytest.raises(BadInput, match=said):
        parse_calibration(text.replace(old, new, 1), "mine.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing.toml: cannot be read"):
        read_calibration(tmp_path / "nothing.toml")
    with pytest.raises(BadInput, match="cannot be written"):
        write_calibration(a_calibration(), tmp_path / "no folder" / "mine.toml")


def shape(query_len: int, context_len: int, rows: int = 1) -> BatchShape:
    phase: RowPhase = "decode" if query_len == 1 else "prefill"
    return BatchShape.from_rows(
        tuple(Row(query_len=query_len, context_len=context_len, phase=phase) for _ in range(rows))
    )


@pytest.mark.parametrize(
    ("asked", "grade"),
    [
        (shape(100, 0), "modelled"),
        (shape(512, 488), "modelled"),
        (shape(513, 0), "extrapolated"),
        (shape(1, 999, 8), "modelled"),
        (shape(1, 1000), "extrapolated"),
        (shape(1, 500, 9), "extrapolated"),
        (BatchShape(), "extrapolated"),
        (BatchShape.from_rows((*(shape(100, 0).rows or ()), *(shape(1, 99).rows or ()))), "extrapolated"),
    ],
)
def test_a_shape_outside_of_what_was_fitted_is_extrapolated(asked: BatchShape, grade: str) -> None:
    assert a_calibration().grade(asked) == grade


def test_a_draw_takes_its_row_and_the_speed_of_its_run() -> None:
    drawn = a_calibration().drawn(1, speed=2.0)
    assert drawn.families["dense_gemm"].value == 2.6
    assert drawn.families["attention"].value == 3.4  # no draws of it: its value
    assert drawn.fixed["step_s"].value == 0.001
    assert drawn.host_s.value == 0.001


@given(st.integers(1, 10**9))
def test_a_bend_is_told_by_its_name(tokens: int) -> None:
    assert bend_of(bend_name(tokens)) == tokens
    assert bend_of("token_s") is None
