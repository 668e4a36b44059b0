"""Two captures side by side: composed pairs whose every difference is known, and laws that hold for any pair."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.answers.compare import PARTS, compare
from stepscope.answers.noise import Delta, estimate, paired
from stepscope.report.comparison import comparison_rows, to_comparison_document
from tests.traces import (
    ALL_REDUCE,
    BASE_NS,
    EXECUTE,
    GEMM,
    MS,
    NORM,
    US,
    Event,
    frame,
    kernel,
    launch,
    scope,
    to_account,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ATTENTION = "void flash::flash_fwd_splitkv_kernel<Traits>(flash::Flash_fwd_params)"
OTHER_ATTENTION = "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext"
COMPILE = "torch/_inductor/compile_fx.py(900): compile_fx_inner"
JITTER_NS = (0, 3 * US, 1 * US)
STEPS = 12


@dataclass(frozen=True, kw_only=True)
class Load:
    """Steps of one shape: `gap` ns of idle device, then the kernels, back to back."""

    kernels: tuple[tuple[str, int], ...]
    gap: int = 1 * MS
    rows: int = 16
    kv: int = 2000
    steps: int = STEPS
    graph: bool = False
    slow: tuple[int, int] = (0, 0)  # so many steps are so much slower


def decode_step(rows: int, kv: int) -> str:
    return f"execute_context_0(0)_generation_{rows}(sq{rows}sk{kv}sqsq{rows}sqsk{kv})"


WARM = Load(kernels=((GEMM, MS),), rows=1, kv=10, steps=1)


def compose(*loads: Load, extra: Sequence[Event] = (), stacks: bool = False, warm: Load = WARM) -> list[Event]:
    """A capture of a device lane: one step of another shape first, so that every window has its gap."""
    events, now, correlation = list(extra), 0, 1
    for load in (warm, *loads):
        for i in range(load.steps):
            gap = load.gap + JITTER_NS[i % 3] + (load.slow[1] if i < load.slow[0] else 0)
            length = gap + sum(ns for _, ns in load.kernels)
            events.append(scope(decode_step(load.rows, load.kv + i * load.rows), now, length))
            if stacks:
                events.append(frame(EXECUTE, now, length))
            at = now + gap
            for place, (name, ns) in enumerate(load.kernels):
                if load.graph and place == 0:
                    events.append(launch(now + 1, correlation, name="cudaGraphLaunch"))
                elif not load.graph:
                    correlation += 1
                    events.append(launch(now + 1 + place, correlation))
                events.append(kernel(name, at, ns, of=correlation))
                at += ns
            correlation += 1
            now = at
    return events


def document(a: Sequence[Event], b: Sequence[Event]) -> dict[str, Any]:
    result: dict[str, Any] = to_comparison_document(compare(to_account(a), to_account(b)))
    return result


def said(compared: dict[str, Any]) -> str:
    return " ".join(compared["verdict"]["sentences"])


def layers(attention: int, gemm: int = 300 * US, norm: int = 50 * US) -> tuple[tuple[str, int], ...]:
    """Four layers and a collective."""
    return ((NORM, norm), (ATTENTION, attention), (GEMM, gemm)) * 4 + ((ALL_REDUCE, 80 * US),)


BASE = Load(kernels=layers(200 * US))


def test_one_slowdown_with_two_causes_is_split_for_each_workload_alone() -> None:
    """Equal kernels: at the short context 89 % of the added time is idle, at the long one 79 % is kernel time."""
    short_a = Load(kernels=((GEMM, 4 * MS),), gap=1 * MS, kv=2_000)
    short_b = Load(kernels=((GEMM, 4 * MS + 29 * US),), gap=1 * MS + 236 * US, kv=2_000)
    long_a = Load(kernels=((GEMM, 9 * MS),), gap=1 * MS, kv=66_000)
    long_b = Load(kernels=((GEMM, 9 * MS + 165 * US),), gap=1 * MS + 44 * US, kv=66_000)
    compared = document(compose(short_a, long_a), compose(short_b, long_b))
    assert [d["effect"] for d in compared["differences"]] == []
    assert compared["verdict"]["status"] == "given"
    first, second = [w for w in compared["workloads"] if w["num_pairs"] == STEPS]
    assert (first["kv_range"][0], second["kv_range"][0]) == (2_000, 66_000)
    assert first["shares"] == pytest.approx({"idle": 236 / 265, "kernel": 29 / 265, "comm": 0, "unknown": 0})
    assert second["shares"] == pytest.approx({"idle": 44 / 209, "kernel": 165 / 209, "comm": 0, "unknown": 0})
    assert (first["outcome"], second["outcome"]) == ("slower", "slower")
    assert "5.3 % more wall time" in first["sentences"][0] and "89.1 % of it is idle time" in first["sentences"][0]
    assert "2.1 % more wall time" in second["sentences"][0] and "78.9 % of it is kernel time" in second["sentences"][0]
    assert all(k["count_a"] == k["count_b"] for w in compared["workloads"] for k in w["kernels"])


def test_leaving_the_captured_sizes_is_another_path_and_no_verdict() -> None:
    graphs = [Load(kernels=layers(200 * US), rows=rows, kv=rows * 500, graph=True) for rows in (23, 28, 32)]
    eager = [Load(kernels=layers(200 * US), gap=9 * MS, rows=rows, kv=rows * 500) for rows in (60, 67)]
    compared = document(compose(*graphs[1:], warm=graphs[0]), compose(*eager[1:], warm=eager[0]))
    assert compared["verdict"]["status"] == "refused"
    assert "did not run the same path" in said(compared)
    assert "no batch above 32 requests replays a full graph" in said(compared)
    modes = next(d for d in compared["differences"] if d["id"] == "graph_mode")
    assert modes["effect"] == "path"
    assert (modes["a"], modes["b"]) == (
        "full in 36 steps of 23 to 32 requests",
        "eager in 24 steps of 60 to 67 requests",
    )
    assert compared["workloads"] == []
    assert {u["reason"] for u in compared["unmatched"]} == {
        "B has no step of this shape",
        "A has no step of this shape",
    }


def test_matched_steps_in_another_graph_mode_are_not_judged() -> None:
    graphs = Load(kernels=layers(200 * US), graph=True)
    compared = document(compose(graphs), compose(Load(kernels=layers(200 * US), gap=9 * MS)))
    assert compared["verdict"]["status"] == "refused"
    assert any("graph mode of decode" in sentence for sentence in compared["verdict"]["sentences"])
    assert all(w["outcome"] == "not judged" and not w["shares"] for w in compared["workloads"])
    assert max(w["parts"]["idle"]["delta_ns"] for w in compared["workloads"]) == STEPS * 8 * MS


def test_attention_that_got_slower_is_named_and_no_cause_is_invented() -> None:
    compared = document(compose(BASE), compose(Load(kernels=layers(260 * US))))
    work = max(compared["workloads"], key=lambda w: w["num_pairs"])
    assert work["outcome"] == "slower"
    assert work["shares"]["kernel"] == pytest.approx(1)
    assert "changed most: compute/attention, +240 us a step" in work["sentences"][0]
    assert {k["name"]: k["change"] for k in work["kernels"]} == {
        ATTENTION: "slower",
        GEMM: "same",
        NORM: "same",
        ALL_REDUCE: "same",
    }


def test_attention_by_another_kernel_is_another_path_that_names_both() -> None:
    other = tuple((OTHER_ATTENTION if name == ATTENTION else name, ns) for name, ns in layers(500 * US))
    compared = document(compose(BASE), compose(Load(kernels=other)))
    assert compared["verdict"]["status"] == "refused"
    assert "flash_fwd_splitkv_kernel<Traits>(flash::Flash_fw` in A only" in said(compared)
    assert "fmhaSm100aKernel" in said(compared)
    work = max(compared["workloads"], key=lambda w: w["num_pairs"])
    changes = {k["name"]: k["change"] for k in work["kernels"]}
    assert (changes[ATTENTION], changes[OTHER_ATTENTION]) == ("removed", "added")
    assert work["families"][0]["family"] == "attention"  # the numbers stand all the same
    share = 4 * 200 / (1000 + 4 * 550 + 80)  # what A alone ran, of its window: the bound of what a change can give
    assert f"take {100 * share:.1f} % of A's window at most" in work["sentences"][0]


def test_a_uniform_slowdown_asks_for_the_clocks() -> None:
    slow = tuple((name, ns * 162 // 100) for name, ns in layers(200 * US))
    compared = document(compose(BASE), compose(Load(kernels=slow)))
    work = max(compared["workloads"], key=lambda w: w["num_pairs"])
    assert work["uniform"]["ratio"] == pytest.approx(1.62)
    assert "clocks.sm" in said(compared)
    one = document(compose(BASE), compose(Load(kernels=layers(400 * US))))
    assert all(w["uniform"] is None for w in one["workloads"])


def test_a_tail_is_no_shift() -> None:
    a = Load(kernels=layers(200 * US), steps=36)
    b = Load(kernels=layers(200 * US), steps=36, slow=(3, 920 * MS))
    work = max(document(compose(a), compose(b))["workloads"], key=lambda w: w["num_pairs"])
    assert work["outcome"] == "within noise"
    assert "a tail, not a shift" in work["sentences"][1] and "2.76 s" in work["sentences"][1]


def test_stacks_on_one_side_leave_only_kernel_time_to_judge() -> None:
    slower = Load(kernels=layers(260 * US), gap=5 * MS)
    compared = document(compose(BASE), compose(slower, stacks=True))
    work = max(compared["workloads"], key=lambda w: w["num_pairs"])
    assert (compared["verdict"]["status"], work["judged"], work["outcome"]) == ("qualified", "kernel", "slower")
    assert "more kernel time, +240 us a step" in work["sentences"][0]
    assert work["shares"] == {}
    assert "not recorded alike" not in said(compared) and "Python stacks" in said(compared)


def test_withheld_idle_time_is_withheld_in_the_comparison() -> None:
    lost = [launch(i, 10_000 + i) for i in range(500)]
    compared = document(compose(BASE), compose(BASE, extra=lost))
    assert compared["verdict"]["status"] == "refused"
    assert any(d["id"] == "coverage" and d["effect"] == "evidence" for d in compared["differences"])
    for work in compared["workloads"]:
        assert work["parts"]["idle"] is None
        assert [work["categories"][name] for name in ("supply", "host", "idle")] == [None] * 3
        known = [part["a_ns"] for part in work["parts"].values() if part is not None]
        assert sum(known) == work["wall"]["a_ns"]


def test_a_cold_step_is_set_aside_and_said() -> None:
    events = compose(BASE)
    cold = next(e for e in events if e["name"] == decode_step(16, 2000 + 16))
    compiled = [*events, frame(COMPILE, round(cold["ts"] * 1000), 400 * US)]
    compared = document(compose(BASE, stacks=True), [*compiled, frame(EXECUTE, 0, 1)])
    left = [u for u in compared["unmatched"] if u["side"] == "b"]
    assert [(u["step_ids"], u["reason"][:11]) for u in left] == [([2], "it compiles")]
    assert [d["effect"] for d in compared["differences"] if d["id"] == "cold_steps"] == ["caveat"]
    pairs = max(w["num_pairs"] for w in compared["workloads"])
    assert pairs == STEPS - 1


def test_another_layout_is_another_path() -> None:
    events = compose(BASE)
    compared = to_comparison_document(compare(to_account(events), to_account(events, events)))
    assert compared["verdict"]["status"] == "refused"
    assert {d["id"]: d["effect"] for d in compared["differences"]} == {"world_size": "path", "ranks": "note"}


def test_steps_without_a_shape_are_listed_and_not_compared() -> None:
    marked = [scope(f"ProfilerStep#{i}", i * MS, MS) for i in range(8)]
    work = [e for i in range(8) for e in (launch(i * MS, i + 1), kernel(GEMM, i * MS + 10, US, of=i + 1))]
    compared = document([*marked, *work], [*marked, *work])
    assert compared["verdict"]["status"] == "refused" and compared["workloads"] == []
    assert {u["reason"] for u in compared["unmatched"]} == {"its shape or its window was not recorded"}


def test_a_run_with_itself_differs_by_nothing() -> None:
    events = compose(BASE, Load(kernels=layers(900 * US), kv=40_000))
    compared = document(events, events)
    assert compared["differences"] == [] and compared["unmatched"] == []
    assert compared["verdict"] == {
        "status": "given",
        "sentences": ["No difference beyond noise in the wall time of 3 workloads."],
        "record_with": [],
    }
    assert {row["delta_ns"] for row in comparison_rows(compared)} == {0}


def test_swapping_the_sides_flips_every_sign() -> None:
    a = compose(BASE, Load(kernels=layers(900 * US), kv=40_000))
    b = compose(Load(kernels=layers(230 * US), gap=2 * MS), Load(kernels=layers(880 * US), kv=40_500))
    there, back = document(a, b), document(b, a)
    key = ("workload", "level", "category", "name")
    first = {tuple(row[k] for k in key): row for row in comparison_rows(there)}
    second = {tuple(row[k] for k in key): row for row in comparison_rows(back)}
    assert first.keys() == second.keys() and len(first) > 20
    for where, row in first.items():
        assert row["delta_ns"] == -second[where]["delta_ns"]
        assert row["median_ns"] is None or row["median_ns"] == -second[where]["median_ns"]
        assert row["low_ns"] is None or row["low_ns"] == -second[where]["high_ns"]
    assert [w["outcome"] for w in there["workloads"]] == [
        {"slower": "faster", "faster": "slower"}.get(w["outcome"], w["outcome"]) for w in back["workloads"]
    ]


def test_shuffling_events_changes_nothing() -> None:
    a, b = compose(BASE), compose(Load(kernels=layers(230 * US)))
    want = document(a, b)
    for seed in range(3):
        mixed = random.Random(seed).sample(b, len(b))
        assert document(a, mixed) == want


def test_parts_and_categories_add_up_to_the_wall_and_families_to_their_category() -> None:
    compared = document(compose(BASE), compose(Load(kernels=layers(230 * US), gap=2 * MS)))
    for work in compared["workloads"]:
        for key in ("a_ns", "b_ns", "delta_ns"):
            assert sum(part[key] for part in work["parts"].values()) == work["wall"][key]
            for name, members in PARTS.items():
                assert sum(work["categories"][c][key] for c in members) == work["parts"][name][key]
            for category, delta in work["categories"].items():
                families = [f[key] for f in work["families"] if f["category"] == category]
                assert sum(families) == delta[key]


def test_every_number_has_a_grade() -> None:
    compared = document(compose(BASE), compose(Load(kernels=layers(230 * US))))
    assert all(row["grade"] for row in comparison_rows(compared))
    assert all(d["grade"] for d in compared["differences"])


def test_base_times_do_not_matter() -> None:
    assert BASE_NS > 0
    events = compose(BASE)
    later = [{**e, "ts": e["ts"] + 10_000_000.0} for e in events]
    assert {row["delta_ns"] for row in comparison_rows(document(events, later))} == {0}


@pytest.mark.parametrize("n", [6, 7, 10, 25, 100, 400])
def test_the_interval_misses_the_median_at_most_once_in_twenty(n: int) -> None:
    found = estimate(list(range(1, n + 1)))
    assert found.low_ns is not None and found.high_ns is not None
    rank = found.low_ns
    assert found.high_ns == n + 1 - rank
    missed = 2 * sum(comb(n, i) for i in range(rank)) / 2**n
    assert missed <= 0.05 < missed + 2 * comb(n, rank) / 2**n  # and it is the narrowest such interval


def test_below_six_values_there_is_no_bound() -> None:
    assert estimate([1, 2, 3, 4, 5]).low_ns is None
    assert paired([1] * 5, [2] * 5, "derived").beyond_noise is None
    assert paired([1] * 5, [1] * 5, "derived").beyond_noise is False


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), min_size=1, max_size=40))
def test_paired_differences_flip_with_the_sides(pairs: list[tuple[int, int]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    there, back = paired(a, b, "derived"), paired(b, a, "derived")
    assert there.delta_ns == -back.delta_ns and there.pairs.median_ns == -back.pairs.median_ns
    assert there.beyond_noise == back.beyond_noise
    if there.pairs.low_ns is not None and back.pairs.high_ns is not None:
        assert there.pairs.low_ns == -back.pairs.high_ns
    assert isinstance(there, Delta)
