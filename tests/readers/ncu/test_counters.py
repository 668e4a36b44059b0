"""Counters of a run of their own: in our units, joined by name and order; missing ones are N/A with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UnreadableTrace
from stepscope.readers.ncu.bound import find_bound
from stepscope.readers.ncu.join import base_name
from stepscope.readers.ncu.page import CORE, read_cell, read_page, sniff
from stepscope.readers.registry import open_trace
from stepscope.store.counters import MISSING
from stepscope.store.run import import_run
from tests.readers.ncu.pages import COMPUTE, DRAM, MEMORY, TIME, page
from tests.readers.nsys.exports import Written, decode_steps

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.events import EventStore

GEMM = "void cutlass::nvjet_tst_64x8<float>(Params)"
FLASH = "void flash::flash_fwd_kernel<(int)128>(flash::Params)"


def read(folder: Path, text: str, *, num_steps: int = 1, name: str = "ncu.csv") -> EventStore:
    written = Written()
    decode_steps(written, num_steps=num_steps)
    written.write(folder / "trace.sqlite")
    (folder / name).write_text(text, encoding="utf-8")
    (store,) = open_trace(folder).stores
    store.check()
    return store


def codes(store: EventStore) -> dict[str, int]:
    return {row.code: row.count for row in store.health}


def cells(compute: str, memory: str) -> dict[str, str]:
    return {COMPUTE: compute, MEMORY: memory, DRAM: "1,500.5", TIME: "20.25"}


def test_counters_are_joined_to_kernels_by_name_and_launch_order(tmp_path: Path) -> None:
    launches = [(GEMM, cells("85.5", "20")), (FLASH, cells("30", "71")), (GEMM, cells("10", "12")), (FLASH, {})]
    store = read(tmp_path, page(launches))
    counters = store.counters
    assert counters is not None
    assert [base_name(store.names[i]) for i in store.events.name_id[counters.row].tolist()] == [
        "nvjet_tst_64x8",
        "flash_fwd_kernel",
    ] * 2
    assert np.diff(store.events.start_ns[counters.row]).tolist() == [20_000] * 3
    assert counters.column(CORE, "compute_ratio").reading(0).value == pytest.approx(0.855)
    assert counters.column(CORE, "dram_bytes_per_s").reading(0).value == pytest.approx(1.5005e12)
    assert counters.column(CORE, "duration_ns").reading(0).value == pytest.approx(20_250)
    assert counters.label(0) == "CC 9.0"
    assert codes(store)["counters_joined"] == 4
    assert "counters_by_order" not in codes(store)
    bounds = [find_bound(counters, i) for i in range(4)]
    assert [(b.bound, b.missing) for b in bounds] == [
        ("compute", "recorded"),
        ("memory", "recorded"),
        ("overhead", "recorded"),
        (None, "empty"),
    ]


def test_part_of_a_step_is_joined_where_its_names_follow_each_other(tmp_path: Path) -> None:
    """ncu --launch-skip: the third and fourth kernel of the trace, the only place where B follows C."""
    written = Written()
    for i, name in enumerate("abcb"):
        written.kernel(f"kernel_{name}", 100 * i, 100 * i + 50, i)
    written.write(tmp_path / "trace.sqlite")
    text = page([("kernel_c", cells("1", "2")), ("kernel_b", cells("3", "4"))])
    (tmp_path / "ncu.csv").write_text(text, encoding="utf-8")
    (store,) = open_trace(tmp_path).stores
    assert store.counters is not None
    assert store.events.start_ns[store.counters.row].tolist() == [200, 300]


def test_other_numbers_of_launches_are_joined_in_order_and_doubted(tmp_path: Path) -> None:
    store = read(tmp_path, page([(GEMM, cells("50", "60"))] * 2 + [("other_kernel", cells("1", "1"))]), num_steps=3)
    assert store.counters is not None
    assert len(store.counters) == 2
    assert (codes(store)["counters_by_order"], codes(store)["counters_without_kernel"]) == (2, 1)
    details = {row.code: row.detail for row in store.health}
    assert details["counters_by_order"] == "nvjet_tst_64x8: 2 profiled, 6 in the trace"


def test_a_counter_without_a_column_is_not_recorded(tmp_path: Path) -> None:
    store = read(tmp_path, page([(GEMM, cells("50", "60"))], [COMPUTE]))
    assert store.counters is not None
    found = find_bound(store.counters, 0)
    assert (found.bound, found.missing) == (None, "no_column")
    assert store.counters.column(CORE, "memory_ratio").reading(0).value is None


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("n/a", "not_available"),
        ("N/A", "not_available"),
        ("(!) n/a", "not_available"),
        ("NA", "not_available_na"),
        ("nan", "not_a_number"),
        ("inf", "not_a_number"),
        ("fast", "not_a_number"),
        ("-1", "out_of_range"),
    ],
)
def test_each_spelling_of_missing_is_missing_with_its_reason(text: str, missing: str) -> None:
    found = read_cell(text, "%", "fraction")
    assert (found.value, found.missing) == (None, missing)


@pytest.mark.parametrize(
    ("text", "unit", "wanted", "value"),
    [
        ("99.5", "%", "fraction", 0.995),
        ("112.5", "%", "fraction", 1.125),  # above the peak is told, not clipped
        ("0", "%", "fraction", 0.0),  # recorded as zero
        ("1,234", "nsecond", "ns", 1234.0),
        ("1.5", "ms", "ns", 1.5e6),
        ("2", "s", "ns", 2e9),
        ("3.35", "Tbyte/s", "B/s", 3.35e12),
        ("7", "byte/second", "B/s", 7.0),
        ("5 (2; 3)", "%", "fraction", 0.05),
    ],
)
def test_units_are_ours(text: str, unit: str, wanted: str, value: float) -> None:
    assert read_cell(text, unit, wanted).value == pytest.approx(value)


def test_an_unknown_unit_gives_no_number() -> None:
    assert read_cell("5", "furlong", "ns").missing == "not_a_number"


@given(text=st.text(max_size=12) | st.floats().map(str), unit=st.sampled_from(("%", "us", "Gbyte/s", "", "?")))
def test_a_reading_is_a_finite_number_or_a_reason(text: str, unit: str) -> None:
    for wanted in ("fraction", "ns", "B/s"):
        found = read_cell(text, unit, wanted)
        assert found.missing in MISSING
        assert found.value is None or (np.isfinite(found.value) and found.value >= 0)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("void at::native::reduce_kernel<(int)512, Op<float>>(Op<float>)", "reduce_kernel"),
        ("reduce_kernel", "reduce_kernel"),
        ("void at::native::<unnamed>::layer_norm<float, (bool)0>(int, T2)", "layer_norm"),
        ("void (anonymous namespace)::softmax<4>(float*)", "softmax"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "ncclDevKernel_SendRecv"),
        ("void f<g<(h)1>::[lambda(int) (instance 1)]>(int, T3)", "f"),
    ],
)
def test_a_kernel_has_one_base_name_in_both_recorders(name: str, base: str) -> None:
    assert base_name(name) == base


def test_a_page_of_another_rank_or_of_several_processes_is_joined_to_none(tmp_path: Path) -> None:
    for name, processes in (("ncu_rank3.csv", (5,)), ("ncu.csv", (5, 6))):
        folder = tmp_path / name
        folder.mkdir()
        store = read(folder, page([(GEMM, {}), (FLASH, {})], processes=processes), name=name)
        assert store.counters is None
        assert codes(store)["counters_without_kernel"] == 2


def test_counters_stay_with_an_imported_run(tmp_path: Path) -> None:
    store = read(tmp_path, page([(GEMM, cells("85", "20"))]))
    import_run([store], tmp_path / "run")
    (again,) = open_trace(tmp_path / "run").stores
    assert again.counters is not None
    assert again.counters.column(CORE, "compute_ratio").reading(0).value == pytest.approx(0.85)


def test_pages_are_known_by_their_columns() -> None:
    assert sniff(page([(GEMM, {})]).encode())
    assert not sniff(b'"Step Id","Name"\n')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hello\n", "no row of column names"),
        ('"ID","Process ID"\n', "no column 'Kernel Name'"),
        ('"ID","Process ID","Kernel Name","Metric Name","Metric Value"\n', "another page than the raw one"),
        (page([(GEMM, {}), (FLASH, {})])[:-30], "the file is cut|the CSV is broken"),
    ],
)
def test_a_broken_page_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "ncu.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableTrace, match=problem):
        read_page(tmp_path / "ncu.csv")
