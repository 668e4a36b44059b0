"""Sixty small files, each broken in one way that somebody met: what must be read, lost and said of each.

Every expectation is worked out from the file's text by hand, never copied from a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepscope.errors import AmbiguousInput, UnreadableTrace
from stepscope.readers.registry import open_trace
from stepscope.store.schema import FRAME, KERNEL, KINDS, LAST_DEVICE_KIND, OTHER

if TYPE_CHECKING:
    from stepscope.store.events import EventStore

ROBUST = Path(__file__).parent / "robust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One file and what reading it must give; `health` leaves out the two codes for an unknown rank and base time."""

    file: str
    intact: int
    recovered: int = 0
    lost: int = 0
    rows: int
    has_base: bool = False
    rank: int | None = None
    health: dict[str, int] = field(default_factory=dict)

    @property
    def all_health(self) -> dict[str, int]:
        absent = {"rank_unknown": int(self.rank is None), "no_base_time": int(not self.has_base)}
        return {code: count for code, count in (self.health | absent).items() if count}


def unlinked(count: int, **others: int) -> dict[str, int]:
    """Kernels written without a correlation id, and what else there is to say."""
    return {"missing_correlation": count, **others}


CASES = (
    # container and text
    Case(file="01_ok.json", intact=2, rows=2, has_base=True),
    Case(
        file="02_truncated.json",
        intact=1,
        lost=1,
        rows=1,
        has_base=True,
        health={"truncated_file": 1, "event_lost": 1},
    ),
    Case(file="03_array_no_close.json", intact=2, rows=2, health=unlinked(2, array_form=1)),
    Case(file="04_nested_traceEvents.json", intact=2, rows=2, has_base=True, health={"nested_trace_events": 1}),
    Case(file="05_nan_inf.json", intact=0, recovered=1, rows=1, health=unlinked(1, non_finite_number=1)),
    Case(
        file="06_bare_nan_ts.json",
        intact=0,
        recovered=1,
        rows=0,
        health={"non_finite_number": 1, "missing_start": 1},
    ),
    Case(file="07_int_gt_int64.json", intact=1, rows=1, health=unlinked(1)),
    Case(file="08_int_gt_2p53.json", intact=2, rows=2),
    Case(file="09_bad_backslash.json", intact=0, recovered=1, rows=1, health={"invalid_json": 1}),
    Case(file="10_unescaped_quote.json", intact=0, recovered=1, rows=1, health={"invalid_json": 1}),
    Case(file="11_control_char.json", intact=0, recovered=1, rows=1, health={"invalid_json": 1}),
    Case(file="12_invalid_utf8.json", intact=0, recovered=1, rows=1, health={"invalid_utf8": 1}),
    Case(file="13_lone_surrogate.json", intact=0, recovered=1, rows=1, health=unlinked(1, invalid_json=1)),
    Case(file="14_comma_decimal.json", intact=0, recovered=1, rows=1, health=unlinked(1, invalid_json=1)),
    Case(file="15_bom.json", intact=2, rows=2, has_base=True, health={"byte_order_mark": 1}),
    Case(file="16_gz_ok.json.gz", intact=2, rows=2, has_base=True),
    Case(
        file="17_gz_truncated.json.gz",  # inflates up to `"args": {"strea` of the second event
        intact=1,
        lost=1,
        rows=1,
        has_base=True,
        health={"gzip_truncated": 1, "truncated_file": 1, "event_lost": 1},
    ),
    Case(file="18_gz_two_members_one_doc.json.gz", intact=2, rows=2, has_base=True, health={"gzip_several_members": 1}),
    Case(
        file="20_gz_interleaved_garbage.json.gz",  # 40 bytes of a member, then the whole member
        intact=2,
        rows=2,
        has_base=True,
        health={"gzip_member_lost": 1, "gzip_several_members": 1},
    ),
    Case(file="21_plain_named_gz.json.gz", intact=2, rows=2, has_base=True, health={"name_mismatch": 1}),
    Case(file="22_gz_named_json.json", intact=2, rows=2, has_base=True, health={"name_mismatch": 1}),
    Case(file="24_no_events.json", intact=0, rows=0, health={"no_events": 1}),
    Case(file="25_trailing_comma.json", intact=1, rows=1, health=unlinked(1, stray_comma=1)),
    Case(
        file="26_missing_brace.json",  # neither event has a category
        intact=1,
        recovered=1,
        rows=2,
        health={"array_form": 1, "invalid_json": 1, "unknown_category": 2},
    ),
    # time fields
    Case(file="30_ts_string_abs.json", intact=2, rows=2, health=unlinked(2, string_times=4)),
    Case(file="31_missing_ts.json", intact=1, rows=0, health={"missing_start": 1}),
    Case(file="32_missing_dur.json", intact=1, rows=0, health={"missing_duration": 1}),
    Case(file="33_ts0_dur0.json", intact=2, rows=1, health={"zero_time_kernel": 1}),
    Case(file="34_neg_dur.json", intact=1, rows=0, health={"negative_duration": 1}),
    Case(file="35_dur_minus1_unfinished.json", intact=1, rows=1, health={"unfinished_duration": 1}),
    Case(file="36_uint64_wrap_ts.json", intact=2, rows=1, health=unlinked(1, out_of_range_time=1)),
    Case(file="37_zero_dur_kernel.json", intact=2, rows=2, health=unlinked(2, zero_duration=1)),
    Case(file="38_sub_us_precision.json", intact=2, rows=2, health=unlinked(2)),
    Case(file="39_displayTimeUnit_ns.json", intact=1, rows=1, health=unlinked(1)),
    Case(file="40a_baseTime_rank0.json", intact=1, rows=1, rank=0, has_base=True),
    Case(file="40b_baseTime_rank1.json", intact=1, rows=1, rank=1, has_base=True),
    Case(file="41_kernel_before_launch.json", intact=2, rows=2, health={"kernel_before_launch": 1}),
    # structure
    Case(file="50_BE_unfinished.json", intact=3, rows=2, health={"begin_without_end": 1, "unknown_category": 2}),
    Case(file="51_E_without_B.json", intact=2, rows=1, health=unlinked(1, end_without_begin=1)),
    Case(file="52_X_overlap_same_stream.json", intact=2, rows=2, health=unlinked(2)),
    Case(file="53_X_child_overruns_parent.json", intact=2, rows=2, health={"overrunning_child": 1}),
    Case(file="54_dur_overflows_next.json", intact=3, rows=3, health=unlinked(3, duration_outlier=1)),
    # correlation
    Case(file="55_graph_shared_corr.json", intact=7, rows=7),
    Case(file="56_graph_launch_no_kernels.json", intact=32, rows=32),
    Case(file="57_graph_one_of_n_recorded.json", intact=20, rows=20),
    Case(file="58_deferred_burst.json", intact=408, rows=408, health=unlinked(400)),
    Case(file="59_missing_correlation.json", intact=2, rows=2, health=unlinked(1)),
    Case(file="60_corr_zero_everywhere.json", intact=6, rows=6, health={"constant_correlation": 3}),
    Case(file="61_ac2g_no_finish.json", intact=3, rows=2),  # a flow is read, and is no row
    Case(file="62_flow_id_reuse.json", intact=4, rows=0),
    # vendors
    Case(file="63_pid_tid_strings.json", intact=1, rows=1, health=unlinked(1)),
    Case(
        file="64_category_variants.json",  # six are device work; four of them start before the first host event, at 40
        intact=10,
        rows=10,
        health=unlinked(6, previous_session=4),
    ),
    Case(file="65_gpu_user_annotation_no_stream.json", intact=2, rows=2, health=unlinked(1)),
    Case(file="66_xpu_no_stream_field.json", intact=1, rows=1),
    Case(file="67_no_distributedInfo.json", intact=2, rows=2, has_base=True),
    Case(file="68a_rank0.json", intact=1, rows=1, rank=0, health=unlinked(1)),
    Case(file="68b_rank0_again.json", intact=1, rows=1, rank=0, health=unlinked(1)),
    Case(file="69_multi_stream_overlap.json", intact=3, rows=3, health=unlinked(3)),
    Case(file="70_multi_device_one_file.json", intact=2, rows=2, health=unlinked(2, several_devices=2)),
    Case(file="71_pdl_overlap.json", intact=2, rows=2, health=unlinked(2)),
    Case(file="72_prev_session_kernel.json", intact=3, rows=3, health=unlinked(2, previous_session=1)),
)
REFUSED = ("19_gz_two_docs_concat.json.gz", "23_empty.json")

# codes that say how many rows a file's complete events gave less
LEFT_OUT = ("missing_start", "missing_duration", "negative_duration", "out_of_range_time", "zero_time_kernel")


def read(file: str) -> EventStore:
    (store,) = open_trace(ROBUST / file).stores
    return store


def health_of(store: EventStore) -> dict[str, int]:
    return {row.code: row.count for row in store.health}


def timeline(store: EventStore) -> list[tuple[str, int, int]]:
    """(name, start_ns, duration_ns), in time order."""
    e = store.events
    names = [store.name(i) for i in e.name_id.tolist()]
    return list(zip(names, e.start_ns.tolist(), e.duration_ns.tolist(), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_broken_file_is_read_as_far_as_it_goes(case: Case) -> None:
    store = read(case.file)
    store.check()
    assert (store.counts.intact, store.counts.recovered, store.counts.lost) == (case.intact, case.recovered, case.lost)
    assert len(store.events) == case.rows
    assert store.rank == case.rank
    assert health_of(store) == case.all_health


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_what_is_present_is_intact_recovered_or_lost(case: Case) -> None:
    store = read(case.file)
    counts, health = store.counts, health_of(store)
    assert counts.present == counts.intact + counts.recovered + counts.lost
    assert health.get("event_lost", 0) == counts.lost
    repaired = sum(health.get(code, 0) for code in ("invalid_json", "invalid_utf8", "non_finite_number"))
    assert repaired == counts.recovered
    assert len(store.events) <= counts.read - sum(health.get(code, 0) for code in LEFT_OUT)


def test_every_file_has_its_row() -> None:
    assert sorted(path.name for path in ROBUST.iterdir()) == sorted([*(case.file for case in CASES), *REFUSED])


TIMES: tuple[tuple[str, list[tuple[str, int, int]]], ...] = (
    ("01_ok.json", [("cudaLaunchKernel", 1_000, 2_000), ("gemm", 5_000, 10_000)]),
    ("02_truncated.json", [("cudaLaunchKernel", 1_000, 2_000)]),
    ("26_missing_brace.json", [("a", 1_000, 2_000), ("b", 4_000, 2_000)]),
    ("30_ts_string_abs.json", [("a", 1_778_000_000_000_000_125, 3_500), ("b", 1_778_000_000_000_003_625, 2_000)]),
    ("33_ts0_dur0.json", [("cudaLaunchKernel", 1_000_000_000, 5_000)]),
    ("35_dur_minus1_unfinished.json", [("aten::mm", 5_000, 0)]),  # nothing later: the capture ends where it starts
    ("36_uint64_wrap_ts.json", [("a", 10_000, 2_000)]),
    ("37_zero_dur_kernel.json", [("b", 10_000, 5_000), ("a", 10_000, 0)]),
    # the writer's floats had rounded .123 to .0 and .601 to .5 already
    ("38_sub_us_precision.json", [("a", 1_778_000_000_000_000_000, 400), ("b", 1_778_000_000_000_000_500, 400)]),
    ("39_displayTimeUnit_ns.json", [("a", 1_000, 2_000)]),
    ("50_BE_unfinished.json", [("outer", 0, 9_000), ("inner", 5_000, 4_000)]),
    ("52_X_overlap_same_stream.json", [("A", 3_000, 3_776), ("B", 5_000, 2_000)]),
    ("54_dur_overflows_next.json", [("fmha", 0, 1_600_000_000), ("gemm", 30_000, 20_000), ("gemm", 55_000, 20_000)]),
    (
        "72_prev_session_kernel.json",
        [("stale", -4_000_000, 4_090_000), ("ProfilerStep#0", 100_000, 50_000), ("a", 110_000, 5_000)],
    ),
)


@pytest.mark.parametrize(("file", "expected"), TIMES, ids=lambda value: value if isinstance(value, str) else "")
def test_times_are_exact_to_the_nanosecond(file: str, expected: list[tuple[str, int, int]]) -> None:
    assert timeline(read(file)) == expected


def test_base_time_makes_two_ranks_comparable() -> None:
    # 2,678,400,000,000 us is the difference of the two bases: both kernels start at one wall-clock instant
    first, second = open_trace(ROBUST / "40*.json").stores
    assert (first.origin.base_time_ns, second.origin.base_time_ns) == (
        1_767_225_600_000_000_000,
        1_764_547_200_000_000_000,
    )
    starts = [int(s.events.start_ns[0]) for s in (first, second)]
    assert starts == [100_000, 2_678_400_000_100_000]
    assert (first.origin.base_time_ns or 0) + starts[0] == (second.origin.base_time_ns or 0) + starts[1]
    assert first.origin.world_size == second.origin.world_size == 2


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("09_bad_backslash.json", "torch\\cuda\\__init__.py(219): _lazy_init"),
        ("10_unescaped_quote.json", '{"device": "cpu"}(12): run'),
        ("11_control_char.json", "cfg.py(0): \x01\n"),
        ("12_invalid_utf8.json", "cfg.py(0): \ufffd\ufffd"),
        ("13_lone_surrogate.json", "k\ufffd"),
    ],
)
def test_a_name_of_broken_text_is_kept(file: str, name: str) -> None:
    store = read(file)
    assert timeline(store) == [(name, 1_000, 1_000)]
    assert int(store.events.kind[0]) == (KERNEL if file.startswith("13") else FRAME)


def test_ids_beyond_2_to_53_stay_apart() -> None:
    assert read("08_int_gt_2p53.json").events.correlation_id.tolist() == [2**53 + 1, 2**53]


def test_each_device_has_its_own_tracks() -> None:
    tracks = read("70_multi_device_one_file.json").tracks
    assert [(t.device, t.thread, t.is_device) for t in tracks] == [("0", "7", True), ("1", "7", True)]


def test_text_ids_name_a_device_stream() -> None:
    (track,) = read("63_pid_tid_strings.json").tracks
    assert (track.process, track.thread, track.device) == ("GPU 0", "stream 7", "GPU 0")


def test_category_case_and_vendor_do_not_hide_device_work() -> None:
    kinds = [KINDS[k] for k in read("64_category_variants.json").events.kind.tolist()]
    device = ["kernel", "kernel", "memcpy", "memset"]
    assert kinds == [*device, "runtime", "runtime", "kernel", "kernel", "overhead", "device_scope"]


def test_a_mirrored_annotation_is_no_kernel() -> None:
    store = read("65_gpu_user_annotation_no_stream.json")
    assert [n for n, work in zip(timeline(store), store.device_work.tolist(), strict=True) if work] == [
        ("k", 1_000, 5_000)
    ]


def test_a_category_nobody_knows_is_kept_as_other() -> None:
    assert set(read("50_BE_unfinished.json").events.kind.tolist()) == {OTHER}
    assert OTHER > LAST_DEVICE_KIND


def test_an_empty_file_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        UnreadableTrace, match=r"23_empty\.json: the file is empty\. .*let the profiler finish writing"
    ) as caught:
        read("23_empty.json")
    assert caught.value.path.endswith("23_empty.json")


def test_two_documents_in_one_file_are_refused_with_what_to_do() -> None:
    with pytest.raises(AmbiguousInput, match=r"19_gz.*several trace documents.*Split it") as caught:
        read("19_gz_two_docs_concat.json.gz")
    assert caught.value.candidates


def test_one_rank_twice_is_refused_with_what_to_do() -> None:
    with pytest.raises(AmbiguousInput, match=r"rank 0 is there 2 times.*pass one of them") as caught:
        open_trace(ROBUST / "68*.json")
    assert caught.value.candidates == ("68a_rank0.json", "68b_rank0_again.json")
