"""The exclusive partition and the busy view, against oracles that look at every single ns."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.budget.breakdown import RankBudget, compute_budget
from stepscope.budget.catalog import load_catalog
from stepscope.steps.step import StepTable, find_steps
from stepscope.store.schema import CATEGORIES, FRAME, KINDS, LAST_DEVICE_KIND, OP, RUNTIME, SCOPE
from tests.traces import (
    ACQUIRE,
    ALL_REDUCE,
    ATTENTION_OP,
    BMM_OP,
    COPY,
    ELSEWHERE,
    EXECUTE,
    GEMM,
    METADATA,
    MS,
    MYSTERY,
    NORM,
    REDUCE_OP,
    SAMPLE,
    SWAP_OP,
    US,
    ZERO_KV,
    Event,
    call,
    catalog,
    copy,
    decode,
    frame,
    kernel,
    launch,
    launched,
    op,
    prefill,
    scope,
    to_account,
    to_report,
    to_store,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stepscope.intervals import Spans
    from stepscope.store.events import EventStore

Account = tuple[str, str]

# what each name is, written down here once more: the oracles do not ask the catalog
DEVICE_NAMES: dict[str, Account] = {
    GEMM: ("compute", "gemm"),
    NORM: ("compute", "norm"),
    COPY: ("compute", "copy"),
    ZERO_KV: ("kv", "kv_copy"),
    ALL_REDUCE: ("comm", "collective"),
    MYSTERY: ("unmatched", "unmatched"),
}


def budget_of(store: EventStore) -> tuple[StepTable, RankBudget]:
    table = find_steps(store)
    return table, compute_budget(store, table, catalog())


def per_ns(parts: dict[Account, Spans], start: int, end: int) -> list[list[Account]]:
    """For each ns, the accounts that hold it."""
    held: list[list[Account]] = [[] for _ in range(end - start)]
    for account, part in parts.items():
        for a, b in zip(part.starts.tolist(), part.ends.tolist(), strict=True):
            for t in range(a, b):
                held[t - start].append(account)
    return held


def hold_the_laws(table: StepTable, budget: RankBudget, *, has_frames: bool, has_host: bool = True) -> None:
    budget.partition.check()
    # without Python stacks no wait of a worker can be seen, without a host lane nothing of the host
    withheld = [] if has_frames else ["supply", "idle"]
    if not budget.coverage.idle_claimable or not has_host:
        withheld = ["supply", "host", "idle"]
    for window in (*budget.windows, budget.total):
        window.check()
        assert set(window.exclusive_ns) == set(CATEGORIES)
        assert sum(ns for ns in window.exclusive_ns.values() if ns is not None) == window.window_ns
        assert [name for name, ns in window.exclusive_ns.items() if ns is None] == withheld
        for name in ("compute", "kv", "comm", "unmatched"):
            exclusive, busy = window.exclusive_ns[name], window.busy_ns[name]
            assert exclusive is not None
            assert busy is not None
            assert exclusive <= busy <= window.window_ns
    assert [w.step_id for w in budget.windows] == [step.step_id for step in table.counted]


def has_worker_frames(store: EventStore, table: StepTable) -> bool:
    e = store.events
    return any(e.kind[i] == FRAME and e.track_id[i] in workers(store, table) for i in range(len(e)))


def workers(store: EventStore, table: StepTable) -> set[int]:
    """The thread of the first step, else of most launches, operations or frames."""
    e = store.events
    for step in table.steps:
        if step.boundary.track_id is not None:
            return {step.boundary.track_id}
    for kind in (RUNTIME, OP, FRAME):
        tracks = [int(track) for track, own in zip(e.track_id, e.kind, strict=True) if own == kind]
        if tracks:
            return {max(sorted(set(tracks)), key=tracks.count)}
    return set()


# --- device lane

DeviceRow = tuple[str, int, int, int, bool]  # name, start, duration, stream, has a launch
HostRow = tuple[str, int, int, int]  # name, start, duration, thread

DEVICE_ROWS = st.lists(
    st.tuples(
        st.sampled_from(sorted(DEVICE_NAMES)), st.integers(1, 120), st.integers(0, 40), st.integers(7, 9), st.booleans()
    ),
    min_size=1,
    max_size=14,
)
HOST_ROWS = st.lists(
    st.tuples(
        st.sampled_from([ACQUIRE, EXECUTE, SAMPLE, ELSEWHERE, METADATA]),
        st.integers(0, 140),
        st.integers(0, 50),
        st.integers(1, 2),
    ),
    max_size=6,
)
STEP_ROWS = st.lists(st.tuples(st.integers(0, 140), st.integers(1, 40)), max_size=3)


def device_events(device: list[DeviceRow], host: list[HostRow], steps: list[tuple[int, int]]) -> list[Event]:
    events: list[Event] = []
    for i, (name, start, duration, stream, has_launch) in enumerate(device, start=1):
        of = i if has_launch else None
        events.append(
            copy(start, duration, of=of, stream=stream)
            if name == COPY
            else kernel(name, start, duration, of=of, stream=stream)
        )
        if has_launch:
            events.append(launch(max(start - 15, 0), i, duration=2, thread=1 + stream % 2))
    events += [frame(name, start, duration, thread=thread) for name, start, duration, thread in host]
    end = 0
    for start, duration in sorted(steps):
        if start >= end:
            events.append(scope(decode(1), start, duration))
            end = start + duration
    return events


def device_oracle(store: EventStore, table: StepTable, budget: RankBudget) -> list[Account]:
    """Per ns of the span, the one account that holds it."""
    e = store.events
    rows = [
        (int(e.start_ns[i]), int(e.end_ns[i]), store.names[e.name_id[i]], int(e.kind[i]), int(e.track_id[i]))
        for i in range(len(e))
    ]
    ranges = [(s.boundary.start_ns, s.boundary.end_ns) for s in table.counted if s.boundary.first_work is None]
    worker = workers(store, table)
    # threads with a launch of recorded work: all launches here are of that kind
    launching = worker | {track for *_, kind, track in rows if kind == RUNTIME}
    result: list[Account] = []
    for t in range(*table.windows.span):
        now = [row for row in rows if row[0] <= t < row[1]]
        device = [DEVICE_NAMES[name] for _, _, name, kind, _ in now if kind <= LAST_DEVICE_KIND]
        on_worker = [(name, kind) for _, _, name, kind, track in now if kind > LAST_DEVICE_KIND and track in worker]
        on_launching = [
            (name, kind) for _, _, name, kind, track in now if kind > LAST_DEVICE_KIND and track in launching
        ]
        helped = any(kind in (OP, RUNTIME) and track not in worker for *_, kind, track in now if track in launching)
        if device:
            first = min(("compute", "kv", "comm", "unmatched").index(category) for category, _ in device)
            category = ("compute", "kv", "comm", "unmatched")[first]
            result.append(next(account for account in device if account[0] == category))  # rows are in order of start
        elif any(name == ACQUIRE for name, _ in on_worker) and not helped:
            result.append(("supply", "dequeue"))
        elif any(a <= t < b for a, b in ranges) or any(
            kind in (OP, RUNTIME) or name in (EXECUTE, SAMPLE) for name, kind in on_launching
        ):
            result.append(("host", "launch_gap"))
        elif any(kind == FRAME for _, kind in on_worker):
            result.append(("idle", "worker_elsewhere"))
        else:
            result.append(("unknown", "no_evidence"))
    assert len(result) == budget.total.window_ns
    return result


@settings(max_examples=150, deadline=None)
@given(device=DEVICE_ROWS, host=HOST_ROWS, steps=STEP_ROWS)
def test_each_ns_of_a_device_lane_is_in_the_one_account_that_an_oracle_names(
    device: list[DeviceRow], host: list[HostRow], steps: list[tuple[int, int]]
) -> None:
    store = to_store(device_events(device, host, steps))
    table, budget = budget_of(store)
    hold_the_laws(
        table,
        budget,
        has_frames=has_worker_frames(store, table),
        has_host=bool(host or steps or any(has_launch for *_, has_launch in device)),
    )
    held = per_ns(budget.partition.parts, *budget.partition.span)
    assert held == [[account] for account in device_oracle(store, table, budget)]


@settings(max_examples=100, deadline=None)
@given(device=DEVICE_ROWS, host=HOST_ROWS, steps=STEP_ROWS)
def test_busy_is_the_union_and_exposed_communication_is_what_compute_and_kv_leave(
    device: list[DeviceRow], host: list[HostRow], steps: list[tuple[int, int]]
) -> None:
    store = to_store(device_events(device, host, steps))
    table, budget = budget_of(store)
    busy: dict[str, set[int]] = {name: set() for name in ("compute", "kv", "comm", "unmatched")}
    for name, start, duration, _, _ in device:
        busy[DEVICE_NAMES[name][0]] |= set(range(start, start + duration))
    for window in (*budget.windows, budget.total):
        inside = set(range(window.start_ns, window.start_ns + window.window_ns))
        assert {name: window.busy_ns[name] for name in busy} == {name: len(busy[name] & inside) for name in busy}
        exposed = (busy["comm"] - busy["compute"] - busy["kv"]) & inside
        assert window.exclusive_ns["comm"] == len(exposed)
    assert table.windows.lane == "device"


@settings(max_examples=40, deadline=None)
@given(device=DEVICE_ROWS, host=HOST_ROWS, steps=STEP_ROWS, seed=st.integers(0, 1000))
def test_shuffling_the_events_changes_nothing_in_the_report(
    device: list[DeviceRow], host: list[HostRow], steps: list[tuple[int, int]], seed: int
) -> None:
    events = device_events(device, host, steps)
    shuffled = random.Random(seed).sample(events, len(events))
    assert without_paths(to_report(events)) == without_paths(to_report(shuffled))


def without_paths(report: dict[str, Any]) -> dict[str, Any]:
    return report | {"inputs": [row | {"path": ""} for row in report["inputs"]]}


def test_of_overlapping_kernels_of_a_category_the_earliest_started_wins() -> None:
    # as fixture 71: programmatic dependent launch, both on one stream
    _, budget = budget_of(to_store([kernel(GEMM, 0, 10), kernel(NORM, 8, 6)]))
    parts = {account: part.total_ns for account, part in budget.partition.parts.items()}
    assert parts == {("compute", "gemm"): 10, ("compute", "norm"): 4}


def test_communication_under_compute_is_hidden_and_the_rest_exposed() -> None:
    # as fixture 69: a collective on its own stream beside two products
    _, budget = budget_of(
        to_store([kernel(GEMM, 0, 100), kernel(ALL_REDUCE, 20, 100, stream=21), kernel(ZERO_KV, 110, 5)])
    )
    assert budget.total.exclusive_ns["comm"] == 10 + 5
    assert budget.total.busy_ns["comm"] == 100
    assert budget.total.exclusive_ns["kv"] == 5


@pytest.mark.parametrize("on_device", [True, False], ids=["device lane", "host lane"])
def test_a_waiting_frame_of_another_thread_is_no_supply(on_device: bool) -> None:
    events = [
        scope(decode(1), 0, 20),
        scope(decode(1), 100, 20),
        frame(ACQUIRE, 20, 80, thread=2),
        frame(ACQUIRE, 30, 10),
    ]
    for i in range(2):
        events += launched(GEMM, 100 * i + 5, 100 * i + 6, 10, of=i) if on_device else [op(BMM_OP, 100 * i + 5, 10)]
    _, budget = budget_of(to_store(events))
    assert budget.windows[1].exclusive_ns["supply"] == 10
    assert budget.windows[1].busy_ns["supply"] == 10


def test_a_wait_of_the_worker_while_a_helper_thread_launches_is_host_time_and_no_supply() -> None:
    # as SGLang's overlap thread: the scheduler thread waits, another one launches the forward
    events = [scope(decode(1), 0, 5), frame(ACQUIRE, 10, 80), scope(decode(1), 95, 5), op(BMM_OP, 20, 30, thread=2)]
    events += [*launched(GEMM, 1, 2, 6, of=1), launch(40, 2, thread=2), kernel(GEMM, 60, 10, of=2)]
    _, budget = budget_of(to_store([*events, *launched(NORM, 96, 97, 3, of=3)]))
    first, second = budget.windows
    assert (first.exclusive_ns["supply"], first.exclusive_ns["host"]) == (10 + 10, 30)
    assert second.exclusive_ns["supply"] == 90 - 70


def test_stacks_of_another_thread_show_no_wait_of_the_worker() -> None:
    events = [scope(decode(1), t, 20) for t in (0, 100)] + [frame(ELSEWHERE, 0, 120, thread=2)]
    report = to_report([*events, *launched(GEMM, 5, 6, 10, of=1), *launched(GEMM, 105, 106, 10, of=2)])
    assert [row["exclusive_ns"]["supply"] for row in report["budget"]] == [None] * 3
    supply = next(question for question in report["questions"] if question["id"] == "supply")
    assert supply["status"] == "refused"
    assert "no Python stacks" in supply["missing"][0]


def test_idle_under_a_sync_whose_work_was_not_recorded_is_unknown() -> None:
    events = [
        scope(decode(1), 0, 40 * US),
        *launched(GEMM, 10, 20, 100 * US, of=1),
        scope(decode(1), 1 * MS, 50 * MS),
        call("cudaStreamSynchronize", 2 * MS, 30 * MS),
        *launched(GEMM, 40 * MS, 41 * MS, 100 * US, of=2),
    ]
    _, budget = budget_of(to_store(events))
    assert budget.partition.parts["unknown", "truncated"].total_ns == 30 * MS
    assert budget.windows[1].exclusive_ns["unknown"] == 30 * MS + (1 * MS - 100 * US - 20)
    assert [r.code for r in budget.coverage.reasons] == ["truncated_window", "no_stacks"]
    assert budget.coverage.idle_claimable


# --- host lane

# name, account of its self time, account that it passes on to weak ranges inside, weak
HOST_KINDS: list[tuple[str, str, Account, Account, bool]] = [
    ("op", ATTENTION_OP, ("compute", "attention"), ("compute", "attention"), False),
    ("op", SWAP_OP, ("kv", "kv_copy"), ("kv", "kv_copy"), False),
    ("op", REDUCE_OP, ("comm", "collective"), ("comm", "collective"), False),
    ("op", BMM_OP, ("compute", "gemm"), ("compute", "gemm"), True),
    ("op", "custom::thing", ("unmatched", "unmatched"), ("unmatched", "unmatched"), True),
    ("frame", METADATA, ("host", "metadata"), ("host", "metadata"), False),
    ("frame", ACQUIRE, ("supply", "dequeue"), ("supply", "dequeue"), False),
    ("frame", "nn.Module: RMSNorm_0", ("host", "python"), ("compute", "norm"), False),
]


@st.composite
def nested(draw: st.DrawFn, start: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """(position in HOST_KINDS, start, end) of ranges inside [start, end), children shorter than their parent."""
    found: list[tuple[int, int, int]] = []
    at = start
    for _ in range(draw(st.integers(0, 3))):
        if at >= end - 1:
            break
        begin = draw(st.integers(at, end - 1))
        stop = draw(st.integers(begin + 1, end))
        if (begin, stop) == (start, end):
            stop -= 1
        if stop <= begin:
            break
        found.append((draw(st.integers(0, len(HOST_KINDS) - 1)), begin, stop))
        if depth:
            found += draw(nested(begin, stop, depth - 1))
        at = stop
    return found


def innermost_strong(ranges: Iterable[tuple[int, int, int]], t: int) -> Account | None:
    """Whose ns it is: the innermost range's, unless that is weak and stands in a strong one."""
    around = sorted(
        ((start, -end, HOST_KINDS[kind]) for kind, start, end in ranges if start <= t < end), key=lambda r: r[:2]
    )
    if not around:
        return None
    _, _, own, _, weak = around[-1][2]
    if weak:
        return next((passed for _, _, (_, _, _, passed, is_weak) in reversed(around) if not is_weak), own)
    return own


@settings(max_examples=150, deadline=None)
@given(ranges=nested(0, 120, 3), step=st.tuples(st.integers(0, 100), st.integers(1, 60)))
def test_each_ns_of_a_host_lane_is_the_innermost_ranges_that_decides(
    ranges: list[tuple[int, int, int]], step: tuple[int, int]
) -> None:
    events = [
        (op if HOST_KINDS[kind][0] == "op" else frame)(HOST_KINDS[kind][1], start, end - start)
        for kind, start, end in ranges
    ]
    begin, length = step
    store = to_store([*events, scope(decode(1), begin, length)])
    table, budget = budget_of(store)
    assert table.windows.lane == "host"
    hold_the_laws(table, budget, has_frames=has_worker_frames(store, table))
    first, last = budget.partition.span
    expected: list[Account] = []
    for t in range(first, last):
        account = innermost_strong(ranges, t)
        if account is None:
            account = ("host", "python") if begin <= t < begin + length else ("unknown", "no_evidence")
        expected.append(account)
    assert per_ns(budget.partition.parts, first, last) == [[account] for account in expected]


def test_python_of_a_step_is_host_and_python_of_nothing_is_idle() -> None:
    events = [
        frame("worker.py(1): loop", 0, 300),
        scope(decode(1), 100, 100),
        op("aten::mm", 110, 50),
        frame(ACQUIRE, 20, 30),
    ]
    _, budget = budget_of(to_store(events))
    assert budget.windows[0].exclusive_ns == {
        "supply": 30,
        "compute": 50,
        "kv": 0,
        "comm": 0,
        "host": 50,
        "idle": 70,
        "unmatched": 0,
        "unknown": 0,
    }


def test_a_peer_awaited_on_another_thread_is_communication() -> None:
    events = [
        scope(decode(1), 0, 100),
        op("aten::mm", 10, 20),
        scope("gloo:all_reduce", 40, 30, thread=2),
    ]
    _, budget = budget_of(to_store(events))
    assert budget.total.exclusive_ns["comm"] == 30
    assert budget.total.exclusive_ns["host"] == 50


def test_a_range_that_overruns_its_parent_is_cut_there() -> None:
    # as fixture 53: what the child has beyond its parent is nobody's, not counted twice
    events = [scope(decode(1), 0, 100), frame(METADATA, 0, 10), op(ATTENTION_OP, 2, 900), op(SWAP_OP, 20, 30)]
    _, budget = budget_of(to_store(events))
    budget.partition.check()
    assert budget.partition.parts["compute", "attention"].total_ns == 8
    assert budget.partition.parts["kv", "kv_copy"].total_ns == 30


# --- who knows what a kernel is


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (op(ATTENTION_OP, 90, 30), ("compute", "attention")),
        (op(SWAP_OP, 90, 30), ("kv", "kv_copy")),
        (frame("nn.Module: RMSNorm_0", 90, 30), ("compute", "norm")),
        (frame(METADATA, 90, 30), ("compute", "step_inputs")),
        (op(ATTENTION_OP, 10, 30), ("unmatched", "unmatched")),
        (op(ATTENTION_OP, 90, 30, thread=2), ("unmatched", "unmatched")),
        (frame(ELSEWHERE, 90, 30), ("unmatched", "unmatched")),
    ],
    ids=["op", "kv op", "layer", "preparation", "earlier op", "other thread", "frame that tells nothing"],
)
@pytest.mark.parametrize("name", ["kernel", "device_kernel"])
def test_a_kernel_called_kernel_is_placed_by_what_launched_it(name: str, host: Event, expected: Account) -> None:
    _, budget = budget_of(to_store([host, *launched(name, 100, 200, 50, of=1)]))
    assert {account: part.total_ns for account, part in budget.partition.parts.items()} == {expected: 50}


def test_a_copy_inside_a_kv_operation_is_kv_and_any_other_is_compute() -> None:
    events = [
        op(SWAP_OP, 90, 30),
        launch(100, 1),
        copy(200, 50, of=1),
        op("aten::copy_", 290, 30),
        launch(300, 2),
        copy(400, 7, of=2),
    ]
    _, budget = budget_of(to_store(events))
    assert (budget.total.exclusive_ns["kv"], budget.total.exclusive_ns["compute"]) == (50, 7)


def test_a_users_catalog_wins_over_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[rule]]\nfamily = "collective"\non = ["kernel"]\nmatch = "^ampere_sgemm|^mystery$"\n'
        'source = "a test"\nexample = "mystery"\n',
        encoding="utf-8",
    )
    store = to_store([kernel(GEMM, 0, 10), kernel(MYSTERY, 10, 5), kernel(NORM, 15, 1)])
    budget = compute_budget(store, find_steps(store), load_catalog([path]))
    assert (budget.total.exclusive_ns["comm"], budget.total.exclusive_ns["compute"]) == (15, 1)
    assert budget.coverage.matched_fraction == 1


def test_the_matched_fraction_is_placed_device_time_over_all() -> None:
    _, budget = budget_of(to_store([kernel(GEMM, 0, 30), kernel(MYSTERY, 100, 10)]))
    assert budget.coverage.matched_fraction == 0.75


# --- withheld


def test_without_stacks_a_wait_is_not_zero_but_unseen() -> None:
    events = [event for i in range(3) for event in (scope(decode(1), 100 * i, 20), op("aten::mm", 100 * i + 5, 10))]
    (bare, seen) = (budget_of(to_store(given))[1] for given in (events, [*events, frame(ACQUIRE, 30, 50)]))
    assert (bare.windows[1].exclusive_ns["supply"], bare.windows[1].exclusive_ns["idle"]) == (None, None)
    assert (bare.windows[1].exclusive_ns["unknown"], bare.windows[1].exclusive_ns["host"]) == (80, 10)
    assert (seen.windows[1].exclusive_ns["supply"], seen.windows[1].exclusive_ns["unknown"]) == (50, 30)


def test_what_is_withheld_is_none_and_its_time_is_unknown() -> None:
    healthy: list[Event] = []
    for i in range(6):
        healthy += [scope(decode(1), 1000 * i, 300), frame(ACQUIRE, 1000 * i + 310, 600)]
        healthy += launched(GEMM, 1000 * i + 50, 1000 * i + 100, 100, of=i + 1)
    orphans = [launch(1000 * i + 60, 100 + i) for i in range(3)]
    whole, cut = (budget_of(to_store(events))[1] for events in (healthy, [*healthy, *orphans]))
    assert whole.coverage.idle_claimable
    assert [reason.code for reason in cut.coverage.reasons if reason.withholds] == ["launches_without_kernels"]
    for before, after in zip((*whole.windows, whole.total), (*cut.windows, cut.total), strict=True):
        hidden = sum(before.exclusive_ns[name] or 0 for name in ("supply", "host", "idle", "unknown"))
        assert after.exclusive_ns == before.exclusive_ns | {
            "supply": None,
            "host": None,
            "idle": None,
            "unknown": hidden,
        }
        assert after.busy_ns == before.busy_ns | {"supply": None}


def test_every_category_of_the_partition_is_a_declared_one() -> None:
    account = to_account([scope(prefill(4), 0, 100), op(BMM_OP, 10, 20), frame(METADATA, 40, 10)])
    for category, _ in account.ranks[0].budget.partition.parts:
        assert category in CATEGORIES
    assert KINDS[SCOPE] == "scope"
