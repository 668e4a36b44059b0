"""Recorded Ascend profiles: both exports read whole, the recorder's own figures come out of our events again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

import stepscope
from stepscope.answers.account import explain
from stepscope.answers.counters import find_bounds
from stepscope.answers.overlap import find_overlap
from stepscope.answers.questions import answer_questions
from stepscope.store.schema import KERNEL

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.events import EventStore

pytestmark = pytest.mark.shared
TEXT = ("level0/rank0", "level1/rank0", "level1/rank1", "level2/rank0")
EXPORTS = [f"910b-train-{form}/{name}_ascend_pt" for form in ("text", "db") for name in TEXT]


def store_of(traces: Path, name: str) -> EventStore:
    (store,) = stepscope.open_trace(traces / "ascend" / name).stores
    store.check()
    return store


def kernels(store: EventStore) -> Counter[str]:
    e = store.events
    names = [store.names[i] for i in e.name_id[e.kind == KERNEL].tolist()]
    return Counter("hcom_allReduce" if name.startswith("hcom_allReduce") else name for name in names)


@pytest.mark.parametrize("name", EXPORTS)
def test_every_complete_profile_is_read_without_loss(traces: Path, name: str) -> None:
    store = store_of(traces, name)
    assert store.origin.reader == "ascend"
    assert store.rank == int(name[name.index("rank") + 4])
    assert store.counts.lost == 0
    assert [row.code for row in store.health if row.severity == "loss"] == []
    assert kernels(store).total() == 201  # 187 compute tasks, 4 collectives, 10 device-side waits


@pytest.mark.parametrize("name", TEXT)
def test_text_and_database_hold_the_same_kernels(traces: Path, name: str) -> None:
    """The two exports are of two runs of one program: the same kernels, at other times."""
    text, database = (store_of(traces, f"910b-train-{form}/{name}_ascend_pt") for form in ("text", "db"))
    ours, theirs = kernels(text), kernels(database)
    if name.startswith("level0"):  # types are N/A in the table and in the database
        assert ours.total() == theirs.total()
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", EXPORTS)
def test_the_recorders_own_law_holds_and_its_figures_come_out_of_our_events(traces: Path, name: str) -> None:
    found = find_overlap(explain(traces / "ascend" / name).ranks[0])
    assert found is not None
    assert abs(found.residual_ns) <= 200
    assert abs(found.computing_ns - found.our_computing_ns) <= 200
    assert abs(found.communication_not_overlapped_ns - found.our_communication_not_overlapped_ns) <= 200


def test_ranks_of_a_level_are_one_capture_with_its_skew(traces: Path) -> None:
    account = explain(traces / "ascend" / "910b-train-db" / "level1")
    assert [rank.rank for rank in account.ranks] == [0, 1]
    assert all(rank.budget.coverage.idle_claimable for rank in account.ranks)
    assert not isinstance(account.skew, str)
    assert account.skew.num_instances == 4


@pytest.mark.parametrize("form", ["text", "db"])
def test_level_1_answers_what_bounds_its_kernels(traces: Path, form: str) -> None:
    account = explain(traces / "ascend" / f"910b-train-{form}" / "level1" / "rank0_ascend_pt")
    bounds = {family.family: family for family in find_bounds(account.ranks[0])}
    cores = {core.core: core for core in bounds["gemm"].cores}
    assert 4 < (cores["AIC"].memory_bound or 0) < 4.5
    assert cores["AIV"].memory_bound is None
    assert cores["AIV"].not_run_ns == bounds["gemm"].kernel_ns
    answer = answer_questions(account)[-1]
    assert answer.status == "answered"


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("910b-train-text/level0/rank0_ascend_pt", "AiCoreNone"),
        ("910b-train-db/level0/rank0_ascend_pt", "AiCoreNone"),
        ("kernel-details/arithmetic_utilization.csv", "ArithmeticUtilization"),
    ],
)
def test_another_setting_is_refused_by_name(traces: Path, name: str, setting: str) -> None:
    answer = answer_questions(explain(traces / "ascend" / name))[-1]
    assert answer.status == "refused"
    assert setting in str(answer.refusals[0].missing)


def test_mixed_kernels_have_ratios_of_both_cores(traces: Path) -> None:
    store = store_of(traces, "kernel-details/pipe_utilization_mix.csv")
    assert len(store.events) == 29
    (family,) = [
        f
        for f in find_bounds(explain(traces / "ascend" / "kernel-details" / "pipe_utilization_mix.csv").ranks[0])
        if f.family == "attention"
    ]
    assert [core.memory_bound is not None for core in family.cores] == [True, True]


def test_the_composed_decode_step_reads(traces: Path) -> None:
    account = explain(traces / "ascend" / "composed")
    (rank,) = account.ranks
    assert rank.rank == 0
    assert len(rank.store.events) == 29
    exclusive = rank.budget.total.exclusive_ns
    assert (exclusive["host"], exclusive["idle"], exclusive["supply"]) == (None, None, None)
    assert rank.budget.coverage.matched_fraction == 1
    families = {family.family: family for family in find_bounds(rank)}
    assert families["gemm"].cores[0].memory_bound == pytest.approx(6.54, abs=0.01)
    assert families["dispatch_combine"].category == "comm"
    assert sum(core.missing_ns for core in families["norm"].cores) > 0  # one aiv_mte2_ratio is missing on purpose
