"""A run folder: what comes back is what was put in; broken, foreign and half-written ones are told apart."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepscope
from stepscope.errors import BadInput, UnreadableTrace
from stepscope.store import swap
from stepscope.store.events import NO_ID, EventCounts, Events, EventStore, Origin, Track
from stepscope.store.health import HEALTH_CODES, HealthRow
from stepscope.store.run import MANIFEST, SCHEMA, import_run, is_run, open_run
from stepscope.store.schema import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "examples" / name for name in ("vllm-cpu-tp2", "glm52-prefill")]
ROBUST = ROOT / "tests" / "readers" / "robust"
COLUMNS = ("start_ns", "duration_ns", "name_id", "kind", "track_id", "correlation_id")


def assert_same(before: EventStore, after: EventStore) -> None:
    """Every column with its type, and everything beside the columns."""
    for column in COLUMNS:
        a, b = getattr(before.events, column), getattr(after.events, column)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    assert after.names == before.names
    assert after.tracks == before.tracks
    assert after.counts == before.counts
    assert after.health == before.health
    assert after.origin == before.origin


def small_store(*names: str, rank: int | None = 0) -> EventStore:
    """One event a name, one thread, and one of everything that may be missing."""
    count = len(names)
    return EventStore(
        origin=Origin(path="trace.json", reader="kineto", rank=rank, rank_source="distributedInfo"),
        events=Events(
            start_ns=np.arange(count, dtype=np.int64) * 10,
            duration_ns=np.full(count, 5, np.int64),
            name_id=np.arange(count, dtype=np.int32),
            kind=(np.arange(count) % len(KINDS)).astype(np.int8),
            track_id=np.zeros(count, np.int32),
            correlation_id=np.where(np.arange(count) % 2, np.int64(7), np.int64(NO_ID)),
        ),
        names=names,
        tracks=(Track(process="1", thread="1", is_device=False, device=None, label="main"),),
        counts=EventCounts(intact=count, recovered=0, lost=0),
        health=(HealthRow(code=next(iter(HEALTH_CODES)), count=2, detail="an example"),),
    )


@pytest.mark.parametrize("source", [*EXAMPLES, *sorted(ROBUST.glob("[1-6]*"))], ids=lambda path: path.name[:12])
def test_what_comes_back_is_what_was_put_in(source: Path, tmp_path: Path) -> None:
    try:
        stores = stepscope.open_trace(source).stores
    except BadInput:
        return
    assert import_run(stores, tmp_path / "run") == tmp_path / "run"
    assert is_run(tmp_path / "run")
    found = open_run(tmp_path / "run")
    for before, after in zip(stores, found, strict=True):
        after.check()
        assert_same(before, after)
    assert stepscope.open_trace(tmp_path / "run").stores[0].names == stores[0].names


def test_unknown_stays_unknown(tmp_path: Path) -> None:
    store = small_store("a", "b", rank=None)
    (found,) = open_run(import_run([store], tmp_path / "run"))
    assert_same(store, found)
    assert found.rank is None
    assert found.origin.base_time_ns is None
    assert found.events.correlation_id.tolist() == [NO_ID, 7]
    assert found.tracks[0].device is None


def test_a_store_without_events_and_a_run_without_stores_come_back(tmp_path: Path) -> None:
    (found,) = open_run(import_run([small_store()], tmp_path / "empty"))
    assert_same(small_store(), found)
    assert open_run(import_run([], tmp_path / "none")) == ()


@settings(max_examples=40, deadline=None)
@given(
    names=st.lists(st.text(), max_size=5),
    label=st.text() | st.none(),
    detail=st.text(),
    metadata=st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()), max_size=4
    ),
)
def test_odd_names_come_back(names: list[str], label: str | None, detail: str, metadata: dict[str, object]) -> None:
    store = small_store(*names)
    store = replace(
        store,
        origin=replace(store.origin, path="/odd\n\"'\0中😀", metadata=metadata),
        tracks=(replace(store.tracks[0], label=label),),
        health=(replace(store.health[0], detail=detail),),
    )
    with tempfile.TemporaryDirectory() as folder:
        (found,) = open_run(import_run([store], Path(folder) / "run"))
    assert_same(store, found)


def test_the_content_hash_is_of_what_was_read(tmp_path: Path) -> None:
    def content(name: str, *stores: EventStore) -> object:
        manifest = json.loads((import_run(stores, tmp_path / name) / MANIFEST).read_text(encoding="utf-8"))
        return manifest["content"]

    store = small_store("a", "b")
    moved = replace(store, origin=replace(store.origin, path="elsewhere.json.gz"))
    assert content("a", store) == content("b", moved)
    assert content("a", store) != content("c", small_store("a", "c"))
    assert content("a", store) != content("d", store, store)


@pytest.mark.parametrize("schema", ["stepscope.run/0", "stepscope.run/2", "other/1", None, 1])
def test_another_schema_is_refused_by_name(schema: object, tmp_path: Path) -> None:
    import_run([small_store("a")], tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["schema"] == SCHEMA
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(manifest | {"schema": schema}), encoding="utf-8")
    with pytest.raises(UnreadableTrace) as refused:
        open_run(tmp_path / "run")
    assert refused.value.path == str(tmp_path / "run")
    for part in (repr(schema), repr(SCHEMA), "Import the capture again"):
        assert part in str(refused.value)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garble(path: Path) -> None:
    path.write_bytes(b"not what you think")


@pytest.mark.parametrize(
    "harm", [Path.unlink, _truncate, _empty, _garble], ids=["missing", "truncated", "empty", "other"]
)
@pytest.mark.parametrize("name", ["events.parquet", "names.parquet"])
def test_a_broken_table_is_an_unreadable_run(name: str, harm: Callable[[Path], None], tmp_path: Path) -> None:
    import_run([small_store("a", "b"), small_store("c")], tmp_path / "run")
    harm(tmp_path / "run" / "store-1" / name)
    with pytest.raises(UnreadableTrace) as refused:
        stepscope.open_trace(tmp_path / "run")
    assert refused.value.path == str(tmp_path / "run")
    assert "Import it again" in str(refused.value)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_table_without_a_column_is_an_unreadable_run(column: str, tmp_path: Path) -> None:
    path = import_run([small_store("a", "b")], tmp_path / "run") / "store-0" / "events.parquet"
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    with pytest.raises(UnreadableTrace):
        open_run(tmp_path / "run")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", json.dumps({"schema": SCHEMA}), json.dumps({"schema": SCHEMA, "inputs": [{}]})]
)
def test_a_broken_manifest_is_an_unreadable_run(text: str, tmp_path: Path) -> None:
    import_run([small_store("a")], tmp_path / "run")
    (tmp_path / "run" / MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableTrace, match="Import"):
        stepscope.open_trace(tmp_path / "run")


@pytest.mark.parametrize("folder", ["../other/store-0", "/other/store-0", "store-0/../../other/store-0", "..", 7])
def test_a_manifest_names_no_folder_outside_its_run(folder: object, tmp_path: Path) -> None:
    import_run([small_store("a")], tmp_path / "run")
    import_run([small_store("secret")], tmp_path / "other")
    path = tmp_path / "run" / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["inputs"][0]["folder"] = folder
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UnreadableTrace, match="Import it again"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("has_file", [False, True], ids=["empty folder", "folder with a file"])
def test_a_folder_that_is_no_run_is_left_alone(has_file: bool, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    if has_file:
        (tmp_path / "mine" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BadInput, match="is no run"):
        import_run([small_store("a")], tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"] * has_file
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


class _Killed(BaseException):
    """What no `except Exception` catches."""


def _fail_at(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            raise _Killed
        return function(*args, **kwargs)

    return failing


def _kill(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Stop the next import at one of its writes."""
    kind, _, count = where.partition(" ")
    if kind == "table":
        monkeypatch.setattr(pq, "write_table", _fail_at(int(count), pq.write_table))
    elif kind == "manifest":
        monkeypatch.setattr(Path, "write_text", _fail_at(1, Path.write_text))
    else:
        monkeypatch.setattr(Path, "rename", _fail_at(int(count), Path.rename))


@pytest.mark.parametrize("where", ["table 1", "table 2", "table 3", "table 5", "manifest", "rename 1", "rename 2"])
@pytest.mark.parametrize("has_old", [False, True], ids=["nothing there", "old run there"])
def test_a_kill_in_the_middle_leaves_the_old_run_or_nothing(
    where: str, has_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "rename 2" and not has_old:
        return  # a first run needs one rename only
    old, new = small_store("old"), small_store("new", "one")
    if has_old:
        import_run([old], tmp_path / "run")
    tables = {"steps": pa.table({"a": [1]})}
    monkeypatch.setattr(swap, "_exchange", lambda *_: False)  # two renames, where a system cannot exchange
    _kill(monkeypatch, where)
    with pytest.raises(_Killed):
        import_run([new, new], tmp_path / "run", tables=tables)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["run"] * has_old
    if has_old:
        (found,) = open_run(tmp_path / "run")
        assert_same(old, found)
    import_run([new, new], tmp_path / "run", tables=tables)
    assert [store.names for store in open_run(tmp_path / "run")] == [new.names, new.names]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="no exchange of names on this system")
def test_an_old_run_is_exchanged_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_run([small_store("old")], tmp_path / "run")
    monkeypatch.setattr(swap, "_rename_twice", _fail_at(1, swap._rename_twice))
    import_run([small_store("new")], tmp_path / "run")
    assert open_run(tmp_path / "run")[0].names == ("new",)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# imports two runs in turn for ever, and says so before each of its writes
IMPORTER = """
import itertools, sys
from pathlib import Path
import pyarrow.parquet as pq
from stepscope.store import run, swap
from tests.store.test_run import small_store

def said(function):
    def saying(*args, **kwargs):
        print(flush=True)
        return function(*args, **kwargs)
    return saying

pq.write_table = said(pq.write_table)
Path.write_text = said(Path.write_text)
run.put_in_place = said(run.put_in_place)
swap.shutil.rmtree = said(swap.shutil.rmtree)
for name in itertools.cycle(("a", "b")):
    run.import_run([small_store(name, name + "2")] * 2, sys.argv[1])
"""


def kill_importers(folder: Path, trials: int, seed: int) -> list[str]:
    """What a run is called after each of several imports that were killed at some write: never nothing, never half."""
    generator, found = random.Random(seed), []
    import_run([small_store("first", "second")], folder)
    for _ in range(trials):
        with subprocess.Popen(
            [sys.executable, "-c", IMPORTER, str(folder)], stdout=subprocess.PIPE, cwd=ROOT
        ) as importer:
            assert importer.stdout is not None
            for _ in range(generator.randrange(1, 40)):
                assert importer.stdout.readline()
            importer.kill()
        stores = open_run(folder)
        for store in stores:
            store.check()
        found.append(stores[0].names[0])
    return found


def test_an_import_that_is_killed_leaves_the_old_run_or_the_new_one(tmp_path: Path) -> None:
    found = kill_importers(tmp_path / "run", trials=6, seed=1)
    assert set(found) <= {"first", "a", "b"}
    import_run([small_store("last")], tmp_path / "run")  # and what the killed ones left is removed
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_50_killed_imports_leave_the_old_run_or_the_new_one(tmp_path: Path) -> None:
    assert set(kill_importers(tmp_path / "run", trials=50, seed=2)) <= {"first", "a", "b"}


def test_further_tables_lie_in_the_folder(tmp_path: Path) -> None:
    table = pa.table({"step_id": [0, 1]})
    folder = import_run([small_store("a")], tmp_path / "deep" / "run", tables={"steps": table})
    assert pq.read_table(folder / "steps.parquet").equals(table)
    assert json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["tables"] == ["steps"]
    shutil.move(folder, tmp_path / "moved")  # a run may be moved: nothing in it is a path to itself
    assert open_run(tmp_path / "moved")[0].names == ("a",)
