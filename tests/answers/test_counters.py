"""Question 7: bounds of kernels; missing is never zero, aggregates are weighted by time, scalar-bound is told apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stepscope
from stepscope.answers.counters import _share, _weigh, find_bounds
from stepscope.answers.pipes import CORES, bound_of, bounds, joint_memory_bound, memory_bound
from stepscope.answers.questions import answer_questions
from stepscope.errors import InvariantBroken
from stepscope.store.counters import CODES, MISSING, CounterColumn, Counters, Reading
from stepscope.store.devices import only_device
from tests.readers.ascend.profiles import COLUMNS_910B, CUBE, MIXED, NOTHING, VECTOR, profile, row, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.answers.account import Account
    from stepscope.answers.counters import CoreShare

T = 1_736_408_883_704_643
VALUES = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0.0, 5e-324, 1e-300, 1e300, 0.001, 1.0]),
)
READINGS = st.one_of(
    VALUES.map(lambda value: Reading(value=value)),
    st.sampled_from([code for code in MISSING if code != "recorded"]).map(lambda c: Reading(value=None, missing=c)),
)


def explain(tmp_path: Path, *kernels: tuple[str, str, str, str]) -> Account:
    """Kernels (name, core, us, counters) one after the other."""
    rows, now = [], T
    for name, core, us, counters in kernels:
        rows.append(row(name, core, f"{now}.000", us, counters))
        now += math.ceil(float(us))
    return stepscope.explain(profile(tmp_path, kernel_details_csv=table(*rows)))


def share(account: Account, family: str, core: str) -> CoreShare:
    (found,) = [f for f in find_bounds(account.ranks[0]) if f.family == family]
    (of_core,) = [c for c in found.cores if c.core == core]
    return of_core


# --- One kernel


@given(READINGS, st.lists(READINGS, min_size=1, max_size=2))
@example(Reading(value=0.0), [Reading(value=0.0)])
@example(Reading(value=5e-324), [Reading(value=1.0)])
@example(Reading(value=1.0), [Reading(value=5e-324)])
@example(Reading(value=1e-300), [Reading(value=1e300)])
def test_no_input_makes_memory_bound_zero_infinite_or_nan(memory: Reading, compute: list[Reading]) -> None:
    found = memory_bound(memory, *compute)
    if found.value is None:
        assert found.missing in set(MISSING) - {"recorded"}
    else:
        assert math.isfinite(found.value)
        assert found.value > 0


@given(st.lists(st.tuples(READINGS, READINGS, READINGS), min_size=1, max_size=12))
def test_columns_and_aggregates_obey_the_same_law(rows: list[tuple[Reading, Reading, Reading]]) -> None:
    columns = [
        CounterColumn.from_readings("AIC", name, "fraction", readings)
        for name, readings in (
            ("mac_ratio", [mac for mac, _, _ in rows]),
            ("mte2_ratio", [mte2 for _, mte2, _ in rows]),
            ("scalar_ratio", [scalar for _, _, scalar in rows]),
        )
    ]
    counters = to_counters(columns)
    weighed = _weigh(counters, CORES["AIC"])
    duration = np.arange(len(rows), dtype=np.int64)
    whole = _share("AIC", weighed, duration, np.ones(len(rows), bool))
    assert whole.memory_bound is None or 0 < whole.memory_bound < math.inf
    for index in range(len(rows)):
        (found,) = bounds(counters, index)
        assert found.memory_bound.value is None or 0 < found.memory_bound.value < math.inf
        assert CODES[found.memory_bound.missing] == weighed.missing[index]  # one rule, written twice
        assert (found.bound == "scalar") == bool(weighed.is_scalar[index])


def to_counters(columns: Sequence[CounterColumn]) -> Counters:
    count = len(columns[0].value)
    return Counters(
        source="test",
        setting=None,
        record_with="a setting",
        row=np.arange(count, dtype=np.int64),
        label_id=np.zeros(count, np.int8),
        labels=("AI_CORE",),
        columns=tuple(columns),
    )


def test_the_decode_product_of_a_910b_is_memory_bound(tmp_path: Path) -> None:
    """Ratios printed as 0.902 and 0.138; their quotient is 6.56 before rounding, 6.54 after it."""
    exact = memory_bound(Reading(value=0.9023), Reading(value=0.13755)).value
    assert exact is not None
    assert f"{exact:.2f}" == "6.56"
    printed = memory_bound(Reading(value=0.902), Reading(value=0.138)).value
    assert printed is not None
    assert f"{printed:.2f}" == "6.54"
    assert 0.9015 / 0.1385 <= exact <= 0.9025 / 0.1375  # what three decimals leave open
    account = explain(tmp_path, ("aclnnMatmul_MatMulCommon_MatMulV2", "AI_CORE", "50.0", CUBE))
    assert share(account, "gemm", "AIC").memory_bound == pytest.approx(printed)


def test_a_mixed_kernel_without_mac_and_vec_is_na_and_scalar_bound(tmp_path: Path) -> None:
    cells = "50.0,9000,0.0,0.3,0.1,50.0,9000,0.0,0.999,0.05"
    account = explain(tmp_path, ("SparseFlashMla", "MIX_AIC", "50.0", cells))
    counters = account.ranks[0].store.counters
    assert counters is not None
    for found in bounds(counters, 0):
        assert (found.memory_bound.missing, found.bound) == ("zero_denominator", "scalar")
    assert joint_memory_bound(counters, 0).value is None
    of_core = share(account, "attention_sparse", "AIV")
    assert (of_core.memory_bound, of_core.scalar_ns, of_core.missing_ns) == (None, 50_000, 0)


def test_a_high_memory_bound_under_a_busier_scalar_pipe_is_scalar_bound() -> None:
    memory, vec, scalar = Reading(value=0.356), Reading(value=0.02), Reading(value=0.57)
    assert memory_bound(memory, vec).value == pytest.approx(17.8)
    assert bound_of(memory, (vec,), scalar) == "scalar"
    assert bound_of(memory, (vec,), None) == "memory"
    assert bound_of(memory, (Reading(value=0.9),), scalar) == "compute"
    assert bound_of(Reading(value=None, missing="no_column"), (vec,), scalar) == "unknown"


# --- Families


def test_aggregates_are_sums_weighted_by_time_and_not_means_of_quotients(tmp_path: Path) -> None:
    long = "90.0,9000,0.8,0.1,0.4,0.0,0,0.0,0.0,0.0"
    account = explain(tmp_path, ("MatMulV2", "AI_CORE", "90.0", long), ("MatMulV2", "AI_CORE", "10.0", CUBE))
    of_core = share(account, "gemm", "AIC")
    assert of_core.memory_bound == pytest.approx((90 * 0.4 + 10 * 0.902) / (90 * 0.8 + 10 * 0.138))
    assert (of_core.memory_ns, of_core.compute_ns) == (10_000, 90_000)


def test_the_share_without_a_value_is_of_the_time_and_has_its_reason(tmp_path: Path) -> None:
    without = CUBE.replace("0.902", "N/A")
    account = explain(tmp_path, ("MatMulV2", "AI_CORE", "10.0", CUBE), ("MatMulV2", "AI_CORE", "30.0", without))
    of_core = share(account, "gemm", "AIC")
    assert of_core.missing_share == 0.75
    assert of_core.reasons == {"not_available": 30_000}
    assert of_core.memory_bound == pytest.approx(0.902 / 0.138)
    assert share(account, "gemm", "AIV").not_run_ns == 40_000
    text = str(answer_questions(account)[-1].sentences[1])
    assert "N/A for 75.0 % of its time (the recorder wrote N/A)" in text
    assert "40.0 us of 40.0 us on the path" in text


def test_the_times_of_a_core_add_up_to_the_familys(tmp_path: Path) -> None:
    kernels = [(name, core, "7.0", cells) for name in ("MatMulV2", "RmsNorm") for core, cells in CASES]
    account = explain(tmp_path, *kernels)
    for family in find_bounds(account.ranks[0]):
        for core in family.cores:
            assert core.ran_ns + core.not_run_ns == family.kernel_ns
            assert sum(core.reasons.values()) == core.missing_ns


CASES = (("AI_CORE", CUBE), ("AI_VECTOR_CORE", VECTOR), ("MIX_AIC", MIXED), ("AI_CPU", NOTHING))


def test_families_with_the_most_time_on_the_path_come_first(tmp_path: Path) -> None:
    account = explain(tmp_path, ("RmsNorm", "AI_VECTOR_CORE", "5.0", VECTOR), ("MatMulV2", "AI_CORE", "50.0", CUBE))
    assert [family.family for family in find_bounds(account.ranks[0])] == ["gemm", "norm"]


def test_memory_bound_never_stands_for_the_critical_path(tmp_path: Path) -> None:
    answer = answer_questions(explain(tmp_path, ("MatMulV2", "AI_CORE", "50.0", CUBE)))[-1]
    assert answer.status == "answered"
    assert "critical path, which the budget gives" in str(answer.sentences[-1])


def test_a_column_that_was_not_recorded_is_refused_with_the_setting(tmp_path: Path) -> None:
    columns = COLUMNS_910B.replace("aiv_mte2_ratio", "aiv_mte3_ratio")
    text = table(row("MatMulV2", "AI_CORE", f"{T}.000", "5", CUBE), columns=columns)
    answer = answer_questions(stepscope.explain(profile(tmp_path, kernel_details_csv=text)))[-1]
    assert answer.status == "partial"
    assert "AIV mte2_ratio: no such column" in str(answer.refusals[0].missing)
    assert "PipeUtilization" in str(answer.refusals[0].record_with)


# --- The store


def test_a_run_gives_its_counters_back(tmp_path: Path) -> None:
    trace = stepscope.open_trace(
        profile(
            tmp_path, kernel_details_csv=table(*(row("A", c, f"{T}.00{i}", "1", x) for i, (c, x) in enumerate(CASES)))
        )
    )
    (before,) = trace.stores
    (after,) = stepscope.open_run(stepscope.import_run(trace.stores, tmp_path / "run"))
    after.check()
    assert before.counters is not None
    assert after.counters is not None
    for name in ("source", "setting", "record_with", "labels", "cores"):
        assert getattr(before.counters, name) == getattr(after.counters, name)
    for ours, theirs in zip(before.counters.columns, after.counters.columns, strict=True):
        assert (ours.core, ours.name, ours.unit) == (theirs.core, theirs.name, theirs.unit)
        assert np.array_equal(ours.value, theirs.value, equal_nan=True)
        assert np.array_equal(ours.missing, theirs.missing)
    assert np.array_equal(before.counters.row, after.counters.row)


def test_counters_follow_their_device(tmp_path: Path) -> None:
    rows = [
        row("MatMulV2", "AI_CORE", f"{T}.000", "9", CUBE, device=0),
        row("B", "MIX_AIC", f"{T}.001", "1", MIXED, device=1),
    ]
    (store,) = stepscope.open_trace(profile(tmp_path, kernel_details_csv=table(*rows))).stores
    for device, label in (("0", "AI_CORE"), ("1", "MIX_AIC")):
        alone = only_device(store, device)
        alone.check()
        assert alone.counters is not None
        assert [alone.counters.label(i) for i in range(len(alone.counters))] == [label]


def test_a_value_and_a_reason_exclude_each_other() -> None:
    with pytest.raises(InvariantBroken):
        Reading(value=None)
    with pytest.raises(InvariantBroken):
        Reading(value=0.0, missing="empty")
    column = CounterColumn(
        core="AIC",
        name="mac_ratio",
        unit="fraction",
        value=np.array([0.0]),
        missing=np.array([CODES["empty"]], np.int8),
    )
    with pytest.raises(InvariantBroken):
        to_counters([column]).check(1)
