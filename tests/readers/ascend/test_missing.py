"""One test per spelling of missing and per structural zero: never 0, always with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import stepscope
from stepscope.answers.pipes import bounds, joint_memory_bound
from stepscope.answers.questions import answer_questions
from tests.readers.ascend.profiles import COLUMNS_910A, COLUMNS_910B, CUBE, MIXED, VECTOR, profile, row, table

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.counters import Counters

T = "1736408883704643.000"


def counters_of(path: Path) -> Counters:
    (store,) = stepscope.open_trace(path).stores
    store.check()
    assert store.counters is not None
    return store.counters


def one(tmp_path: Path, core: str, counters: str, columns: str = COLUMNS_910B) -> Counters:
    return counters_of(
        profile(tmp_path, kernel_details_csv=table(row("A", core, T, "50.0", counters), columns=columns))
    )


def reason(counters: Counters, core: str) -> str:
    (found,) = [bound for bound in bounds(counters, 0) if bound.core == core]
    assert found.memory_bound.value is None
    return found.memory_bound.missing


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("N/A", "not_available"),
        ("NA", "not_available_na"),
        ("", "empty"),
        ("  ", "empty"),
        ("nan", "not_a_number"),
        ("inf", "not_a_number"),
        ("-", "not_a_number"),
        ("-0.5", "out_of_range"),
    ],
)
@pytest.mark.parametrize("place", [2, 4])
def test_a_cell_without_a_value_is_na_with_its_reason(tmp_path: Path, cell: str, why: str, place: int) -> None:
    cells = CUBE.split(",")
    cells[place] = cell
    counters = one(tmp_path, "AI_CORE", ",".join(cells))
    assert reason(counters, "AIC") == why
    assert "PipeUtilization" in counters.record_with


def test_a_column_that_is_absent_is_na(tmp_path: Path) -> None:
    columns = COLUMNS_910B.replace("aic_mte2_ratio", "aic_l2_read_bw(GB/s)")
    assert reason(one(tmp_path, "AI_CORE", CUBE, columns), "AIC") == "no_column"


def test_a_cube_kernel_has_structural_zeros_on_the_vector_core(tmp_path: Path) -> None:
    counters = one(tmp_path, "AI_CORE", CUBE)
    assert reason(counters, "AIV") == "core_not_run"
    assert counters.column("AIV", "total_cycles").reading(0).value == 0  # counted, and 0
    assert counters.column("AIV", "total_time").reading(0).missing == "core_not_run"


def test_a_vector_kernel_has_structural_zeros_on_the_cube_core(tmp_path: Path) -> None:
    assert reason(one(tmp_path, "AI_VECTOR_CORE", VECTOR), "AIC") == "core_not_run"


def test_a_mixed_kernel_without_vector_cycles_has_structural_zeros_there(tmp_path: Path) -> None:
    assert reason(one(tmp_path, "MIX_AIC", CUBE), "AIV") == "core_not_run"


def test_zero_cycles_with_ratios_all_the_same_are_structural(tmp_path: Path) -> None:
    assert reason(one(tmp_path, "MIX_AIV", "0.0,0,0.3,0.2,0.9,5.0,9000,0.25,0.1,0.5"), "AIC") == "core_not_run"


def test_without_cycles_the_kernels_core_tells_what_is_structural(tmp_path: Path) -> None:
    columns = COLUMNS_910B.replace("aic_total_cycles", "aic_fops").replace("aiv_total_cycles", "aiv_fops")
    assert reason(one(tmp_path, "AI_VECTOR_CORE", VECTOR, columns), "AIC") == "core_not_run"
    mixed = one(tmp_path, "MIX_AIC", MIXED, columns)
    assert [bound.memory_bound.value for bound in bounds(mixed, 0)] == [pytest.approx(1.5), pytest.approx(0.5)]


@pytest.mark.parametrize(
    ("mac", "mte2", "why"), [("0.0", "0.5", "zero_denominator"), ("0.5", "0.0", "rounded_to_zero")]
)
def test_zeros_of_a_core_that_ran_are_no_quotient(tmp_path: Path, mac: str, mte2: str, why: str) -> None:
    counters = one(tmp_path, "AI_CORE", f"50.0,9000,{mac},0.2,{mte2},0.0,0,0.0,0.0,0.0")
    assert reason(counters, "AIC") == why


def test_910a_needs_mac_and_vec(tmp_path: Path) -> None:
    def of(vec: str, mac: str, official: str) -> Counters:
        text = f"{COLUMNS_910A}\n0,2,A,A,AI_CORE,{T}\t,10.0,9.0,9000,{vec},{mac},0.2,0.75,{official}\n"
        return counters_of(profile(tmp_path, kernel_details_csv=text))

    assert bounds(of("0.1", "0.5", "1.5"), 0)[0].memory_bound.value == 1.5
    assert reason(of("N/A", "0.5", "N/A"), "AICORE") == "not_available"
    assert reason(of("0.0", "0.0", "0"), "AICORE") == "zero_denominator"  # the official tool writes 0


def test_a_collective_and_an_ai_cpu_kernel_are_na(tmp_path: Path) -> None:
    text = table(row("hcom_allReduce__868_0_1", "COMMUNICATION", T, "5"), row("Cast", "AI_CPU", T, "4"))
    counters = counters_of(profile(tmp_path, kernel_details_csv=text + row("B", "AI_CORE", T, "3", CUBE) + "\r\n"))
    for index in (0, 1):
        assert {bound.memory_bound.missing for bound in bounds(counters, index)} == {"not_available"}


def test_a_mixed_kernel_has_one_number_beside_its_two(tmp_path: Path) -> None:
    counters = one(tmp_path, "MIX_AIC", MIXED)
    assert joint_memory_bound(counters, 0).value == pytest.approx(0.6 / 0.8)
    assert joint_memory_bound(one(tmp_path, "AI_CORE", CUBE), 0).value == pytest.approx(0.902 / 0.138)


@pytest.mark.parametrize(
    ("setting", "shown"), [("ACL_AICORE_NONE", "AiCoreNone"), ("ACL_AICORE_ARITHMETIC_UTILIZATION", "ARITHMETIC")]
)
def test_a_setting_without_ratios_is_refused_by_name(tmp_path: Path, setting: str, shown: str) -> None:
    columns = "Name,Type,Accelerator Core,Start Time(us),Duration(us)"
    path = profile(tmp_path, kernel_details_csv=f"{columns}\nMatMulV2,MatMulV2,AI_CORE,{T}\t,5.0\n")
    info = f'{{"config": {{"experimental_config": {{"_aic_metrics": "{setting}"}}}}, "rank_id": 3}}'
    (path / "profiler_info_3.json").write_text(info)
    answer = answer_questions(stepscope.explain(path))[-1]
    assert answer.status == "refused"
    assert shown in str(answer.refusals[0].missing)
    assert "N/A, not zero" in str(answer.refusals[0].missing)
    assert "aic_metrics=AiCMetrics.PipeUtilization" in str(answer.refusals[0].record_with)
