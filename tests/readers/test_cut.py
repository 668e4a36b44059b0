"""Cutting a capture: the steps of a cut are the cut of the steps, in plain and packed files, redacted or not."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import stepscope
from stepscope.batch import BatchShape
from stepscope.cli.main import app
from stepscope.errors import BadInput
from stepscope.steps.step import Step, StepTable, find_steps
from stepscope.store.events import EventStore
from stepscope.store.schema import DEVICE_SCOPE, LAST_DEVICE_KIND

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = {"vllm-cpu-tp2": 12, "glm52-prefill": 6}  # steps a rank
RANGES = {
    "vllm-cpu-tp2": ((0, 0), (4, 5), (3, 11), (0, 11)),
    "glm52-prefill": ((0, 0), (1, 1), (0, 2), (2, 4), (4, 5), (5, 5), (0, 5)),
}
ALL = [(case, first, last) for case, ranges in RANGES.items() for first, last in ranges]


def run_cut(source: Path | str, output: Path, *options: str) -> None:
    done = CliRunner().invoke(app, ["cut", str(source), "-o", str(output), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)
    return document


def facts(step: Step) -> dict[str, object]:
    """What a cut must not change, apart from the step's number and where its window begins."""
    return {
        "phase": step.phase,
        "shape": _without_ids(step.boundary.shape),
        "source": step.boundary.source,
        "host": (step.boundary.start_ns, step.boundary.end_ns),
        "window_end": step.window[1] if step.window else None,
        "graph_mode": step.graph_mode,
        "num_kernels": step.num_kernels,
        "device_busy_ns": step.device_busy_ns,
        "parts": step.parts,
    }


def _without_ids(shape: BatchShape) -> BatchShape:
    """Request ids are replaced in a redacted cut."""
    return shape if shape.rows is None else replace(shape, rows=tuple(replace(r, request_id=None) for r in shape.rows))


def kernels(store: EventStore, table: StepTable, steps: range) -> list[list[tuple[int, int, str, str]]]:
    """Each step's device work: when, how long, what, on which stream."""
    e, found = store.events, []
    for index in steps:
        rows = table.work.of_step(index).tolist()
        tracks = [store.tracks[int(e.track_id[r])] for r in rows]
        found.append(
            sorted(
                (int(e.start_ns[r]), int(e.duration_ns[r]), store.names[int(e.name_id[r])], f"{t.process}/{t.thread}")
                for r, t in zip(rows, tracks, strict=True)
            )
        )
    return found


def assert_same_steps(whole: EventStore, part: EventStore, first: int, last: int) -> None:
    before, after = find_steps(whole), find_steps(part)
    expected = before.steps[first : last + 1]
    assert [facts(step) for step in after.steps] == [facts(step) for step in expected]
    assert after.windows.lane == before.windows.lane
    starts = [(a.window[0], b.window[0]) for a, b in zip(after.steps, expected, strict=True) if a.window and b.window]
    is_host = after.windows.lane == "host"
    for place, (found, want) in enumerate(starts):
        assert found == want or (place == 0 and not is_host and found > want)
    assert kernels(part, after, range(len(after.steps))) == kernels(whole, before, range(first, last + 1))
    assert part.rank == whole.rank
    assert part.origin.base_time_ns == whole.origin.base_time_ns
    assert part.counts.lost == part.counts.recovered == 0


@pytest.mark.parametrize(
    ("case", "first", "last", "redact"),
    [(*given, False) for given in ALL] + [("vllm-cpu-tp2", 2, 3, True), ("glm52-prefill", 2, 4, True)],
)
def test_steps_of_a_cut_are_the_cut_of_the_steps(
    tmp_path: Path, case: str, first: int, last: int, redact: bool
) -> None:
    run_cut(EXAMPLES / case, tmp_path / "cut", "--steps", f"{first}-{last}", *(["--redact"] if redact else []))
    whole, part = stepscope.open_trace(EXAMPLES / case), stepscope.open_trace(tmp_path / "cut")
    assert part.ranks == whole.ranks
    for before, after in zip(whole.stores, part.stores, strict=True):
        assert_same_steps(before, after, first, last)


@pytest.mark.parametrize("case", CASES)
def test_all_steps_keep_all_device_work(tmp_path: Path, case: str) -> None:
    run_cut(EXAMPLES / case, tmp_path / "cut", "--steps", f"0-{CASES[case] - 1}")
    whole, part = stepscope.open_trace(EXAMPLES / case), stepscope.open_trace(tmp_path / "cut")
    for before, after in zip(whole.stores, part.stores, strict=True):
        assert int(before.device_work.sum()) == int(after.device_work.sum())
        assert find_steps(after).work.num_assigned == find_steps(before).work.num_assigned


@pytest.mark.parametrize("case", CASES)
def test_kept_events_keep_their_text(tmp_path: Path, case: str) -> None:
    source = sorted((EXAMPLES / case).glob("*.gz"))[0]
    run_cut(source, tmp_path / "cut.json", "--steps", "1-2")
    text = gzip.decompress(source.read_bytes())
    lines = (tmp_path / "cut.json").read_bytes()
    assert lines.endswith(b"\n]}\n")
    kept = [json.dumps(event, sort_keys=True) for event in load(tmp_path / "cut.json")["traceEvents"]]
    recorded = {json.dumps(event, sort_keys=True) for event in json.loads(text)["traceEvents"]}
    changed = [event for event in kept if event not in recorded]
    assert len(kept) > 100
    assert len(changed) < 0.05 * len(kept)  # those that cross the edge
    store = stepscope.open_trace(tmp_path / "cut.json").stores[0]
    edges = {int(store.events.start_ns.min()), int(store.events.end_ns.max())}
    for event in map(json.loads, changed):
        start = round(event["ts"] * 1000) if isinstance(event["ts"], float) else event["ts"] * 1000
        end = start + round(event["dur"] * 1000)
        assert event["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset")
        assert min(abs(at - edge) for at in (start, end) for edge in edges) <= 1000  # floats read to a microsecond


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_the_result_is_valid_json_packed_or_not(tmp_path: Path, name: str) -> None:
    source = sorted((EXAMPLES / "glm52-prefill").glob("*.gz"))[0]
    run_cut(source, tmp_path / name, "--steps", "2")
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b" if name.endswith("gz") else b"{")
    document = load(tmp_path / name)
    original = json.loads(gzip.decompress(source.read_bytes()))
    assert {key: document[key] for key in document if key != "traceEvents"} == {
        key: original[key] for key in original if key != "traceEvents"
    }
    assert [step.step_id for step in find_steps(stepscope.open_trace(tmp_path / name).stores[0]).steps] == [0]


def test_the_same_cut_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_cut(EXAMPLES / "glm52-prefill", tmp_path / name, "--steps", "1-3")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_cut_of_a_cut_is_the_cut(tmp_path: Path) -> None:
    run_cut(EXAMPLES / "glm52-prefill", tmp_path / "wide", "--steps", "1-4")
    run_cut(tmp_path / "wide", tmp_path / "narrow", "--steps", "1-2")
    whole, part = stepscope.open_trace(EXAMPLES / "glm52-prefill"), stepscope.open_trace(tmp_path / "narrow")
    for before, after in zip(whole.stores, part.stores, strict=True):
        assert_same_steps(before, after, 2, 3)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_gone", [False, True], ids=["capture there", "capture gone"])
def test_a_run_can_be_cut(tmp_path: Path, case: str, is_gone: bool) -> None:
    shutil.copytree(EXAMPLES / case, tmp_path / "capture")
    whole = stepscope.open_trace(tmp_path / "capture")
    stepscope.import_run(whole.stores, tmp_path / "run")
    if is_gone:
        shutil.rmtree(tmp_path / "capture")
    run_cut(tmp_path / "run", tmp_path / "cut", "--steps", "2-4")
    for before, path in zip(whole.stores, sorted((tmp_path / "cut").iterdir()), strict=True):
        load(path)
        assert_same_steps(before, stepscope.open_trace(path).stores[0], 2, 4)


@pytest.mark.parametrize("case", CASES)
def test_time_keeps_what_was_launched_and_what_ran_then(tmp_path: Path, case: str) -> None:
    source = sorted((EXAMPLES / case).glob("*.gz"))[0]
    whole = stepscope.open_trace(source).stores[0]
    table = find_steps(whole)
    origin = int(whole.events.start_ns[0])
    middle = table.steps[2]
    assert middle.window is not None
    start, end = middle.window
    run_cut(source, tmp_path / "rank0.json", "--time", f"{start - origin}ns-{end - origin}ns")
    part = stepscope.open_trace(tmp_path / "rank0.json").stores[0]
    assert middle.boundary.shape in [step.boundary.shape for step in find_steps(part).steps]
    host = part.events.take(part.events.kind > LAST_DEVICE_KIND)
    assert start <= int(host.start_ns.min())
    assert int(host.end_ns.max()) <= end
    work = whole.events.take(whole.device_work & (whole.events.start_ns >= start) & (whole.events.start_ns < end))
    assert sorted(part.events.start_ns[part.device_work].tolist()) == sorted(work.start_ns.tolist())
    units = (
        f"{(start - origin) / 1e6:.6f}ms:{(end - origin) / 1e3:.3f}us",
        f"{(start - origin) / 1e9:.9f}s-{end - origin}ns",
    )
    for place, text in enumerate(units):
        run_cut(source, tmp_path / f"rank0.{place}.json", "--time", text)
        assert (tmp_path / f"rank0.{place}.json").read_bytes() == (tmp_path / "rank0.json").read_bytes()


# text that must not get out; each stands somewhere in the trace below
SECRETS = (
    "node17.corp.example",
    "alice",
    "José",
    "John Smith",
    "/srv",
    "secret-model",
    "chatcmpl-7f3a9b",
    "req-00ff12",
    "550e8400-e29b-41d4-a716-446655440000",
    "0123456789abcdef0123456789abcdef",
    "A-a379c85b",
)


def _event(name: str, start: int, length: int, cat: str, tid: int = 1, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length, "args": args}


def _telling_trace() -> dict[str, object]:
    """Three steps with one kernel each, and every kind of secret in names, arguments and metadata."""
    annotation = "execute_8_context_1(sq8sk8sqsq64sqsk64)_generation_0(sq0sk0sqsq0sqsk0)"
    events: list[dict[str, object]] = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "tid": 0,
            "ts": 0,
            "args": {"name": "/home/alice/venv/bin/python"},
        },
        {
            "ph": "M",
            "name": "process_labels",
            "pid": 1,
            "tid": 0,
            "ts": 0,
            "args": {"labels": "on node17.corp.example"},
        },
    ]
    for i in range(3):
        at = 1000 * i
        events += [
            _event("/home/alice/vllm/gpu_worker.py(12): execute_model", at, 900, "python_function", cwd="/home/alice"),
            _event("/home/John Smith/a b/run.py(3): main", at + 1, 800, "python_function"),
            _event(f"vllm_step v=1 s={i} n=8 r=A-a379c85b:8:0:0:c", at + 5, 600, "user_annotation"),
            _event(annotation, at + 10, 500, "user_annotation", host_name="node17.corp.example", where="/srv/José/x"),
            _event("load /srv/secret-model/weights.bin\n/srv/José/y for chatcmpl-7f3a9b", at + 20, 50, "cpu_op"),
            _event(
                "req-00ff12 550e8400-e29b-41d4-a716-446655440000",
                at + 80,
                5,
                "cpu_op",
                rid="0123456789abcdef0123456789abcdef",
            ),
            _event(
                "cudaLaunchKernel", at + 100, 10, "cuda_runtime", correlation=i + 1, stack="a;/home/alice/b.py(1): f"
            ),
            _event("gemm_kernel", at + 200, 100, "kernel", 7, correlation=i + 1, stream=7, device=0),
        ]
    return {
        "schemaVersion": 1,
        "host_name": "node17.corp.example",
        "traceName": "/home/alice/traces/rank0.json",
        "distributedInfo": {"rank": 0, "world_size": 1},
        "user": "alice",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }


def _hidden(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text or json.dumps(secret)[1:-1] in text]


@pytest.mark.parametrize("ascii_only", [False, True], ids=["utf-8", "escaped"])
@pytest.mark.parametrize("from_run", [False, True], ids=["capture", "run"])
def test_redact_leaves_no_host_path_or_request(tmp_path: Path, ascii_only: bool, from_run: bool) -> None:
    source = tmp_path / "rank0.json"
    source.write_text(json.dumps(_telling_trace(), ensure_ascii=ascii_only), encoding="utf-8")
    whole = stepscope.open_trace(source).stores[0]
    assert _hidden(source.read_text(encoding="utf-8")) == list(SECRETS)
    opened: Path = source
    if from_run:
        opened = stepscope.import_run([whole], tmp_path / "run")
        source.unlink()
    run_cut(opened, tmp_path / "cut" / "rank0.json", "--steps", "0-2", "--redact")
    text = (tmp_path / "cut" / "rank0.json").read_text(encoding="utf-8")
    json.loads(text)
    assert _hidden(text) == []
    assert "gpu_worker.py(12): execute_model" in text
    part = stepscope.open_trace(tmp_path / "cut" / "rank0.json").stores[0]
    assert [step.boundary.source for step in find_steps(part).steps] == ["marker"] * 3
    ids = {row.request_id for step in find_steps(part).steps for row in step.boundary.shape.rows or ()}
    assert len(ids) == 1  # one request stays one
    assert_same_steps(whole, stepscope.open_trace(tmp_path / "cut" / "rank0.json").stores[0], 0, 2)


def test_without_redact_everything_stays(tmp_path: Path) -> None:
    source = tmp_path / "rank0.json"
    source.write_text(json.dumps(_telling_trace(), ensure_ascii=False), encoding="utf-8")
    run_cut(source, tmp_path / "cut.json", "--steps", "0-2")
    assert _hidden((tmp_path / "cut.json").read_text(encoding="utf-8")) == list(SECRETS)


def test_redact_keeps_what_an_installed_package_calls_its_file(tmp_path: Path) -> None:
    trace = _telling_trace()
    name = "/home/alice/venv/lib/python3.11/site-packages/vllm/v1/worker/gpu_worker.py(12): execute_model"
    trace["traceEvents"] = [_event(name, 10 * i, 5, "python_function") for i in range(3)]
    (tmp_path / "rank0.json").write_text(json.dumps(trace), encoding="utf-8")
    run_cut(tmp_path / "rank0.json", tmp_path / "cut.json", "--steps", "0-2", "--redact")
    names = {event["name"] for event in load(tmp_path / "cut.json")["traceEvents"]}
    assert names == {".../vllm/v1/worker/gpu_worker.py(12): execute_model"}


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "robust").iterdir()), ids=lambda path: path.name[:2])
@pytest.mark.parametrize("redact", [False, True], ids=["plain", "redacted"])
def test_a_cut_of_a_broken_file_is_valid_and_loses_no_event_that_was_read(
    tmp_path: Path, path: Path, redact: bool
) -> None:
    try:
        whole = stepscope.open_trace(path).stores[0]
    except BadInput:
        return
    options = ["--time", "0s-1000000s", *(["--redact"] if redact else [])]
    run_cut(path, tmp_path / path.name.removesuffix(".gz"), *options)
    load(tmp_path / path.name.removesuffix(".gz"))
    part = stepscope.open_trace(tmp_path / path.name.removesuffix(".gz")).stores[0]
    assert part.counts.lost == part.counts.recovered == 0
    e, f = whole.events, part.events
    kept = e.kind != DEVICE_SCOPE
    assert f.start_ns.tolist() == e.start_ns[kept].tolist()
    assert f.duration_ns.tolist() == e.duration_ns[kept].tolist()
    assert f.kind.tolist() == e.kind[kept].tolist()
