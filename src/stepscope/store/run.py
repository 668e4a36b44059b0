"""A Run: one capture as a folder of Parquet tables and a manifest, opened again in milliseconds.

It is written beside its place and put there in one step, so a half-written one is never found (`store/swap.py`).
`manifest.json` is written last and holds the schema version; another version is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.errors import BadInput, InvariantBroken, UnreadableTrace
from stepscope.store.counter_table import counters_from_table, counters_to_table, describe_counters
from stepscope.store.events import EventCounts, Events, EventStore, Origin, Track
from stepscope.store.health import HealthRow
from stepscope.store.swap import make_aside, put_in_place

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SCHEMA = "stepscope.run/1"
MANIFEST = "manifest.json"
_STORE_FOLDER = re.compile(r"store-\d+")
_TABLE = re.compile(r"[a-z][a-z_]*")
_COLUMNS = ("start_ns", "duration_ns", "name_id", "kind", "track_id", "correlation_id")


def is_run(path: Path) -> bool:
    """Whether a folder is a Run."""
    return (path / MANIFEST).is_file()


def is_run_file(name: str) -> bool:
    """Whether a file of this name makes the folder that it lies in a Run."""
    return name == MANIFEST


def import_run(
    stores: Sequence[EventStore], folder: str | Path, *, tables: Mapping[str, pa.Table] | None = None
) -> Path:
    """Write a Run folder; `tables` are further tables to lay into it, by name.

    Raises:
        BadInput: the folder is there already and is no Run.
    """
    target = Path(folder)
    if target.exists() and not is_run(target):
        raise BadInput(f"{target}: is there already and is no run. Choose another folder, or remove it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = make_aside(target)
    try:
        inputs = [_write_store(store, aside / f"store-{i}") for i, store in enumerate(stores)]
        for name, table in (tables or {}).items():
            pq.write_table(table, aside / f"{name}.parquet", compression="zstd")
        manifest = {
            "schema": SCHEMA,
            "content": _content_hash(stores),
            "inputs": inputs,
            "tables": sorted(tables or {}),
        }
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, default=str) + "\n", encoding="utf-8")
        aside.chmod(0o755)
        put_in_place(aside, target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def _write_store(store: EventStore, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    events = pa.table({name: getattr(store.events, name) for name in _COLUMNS})
    pq.write_table(
        events, folder / "events.parquet", compression="zstd", use_dictionary=["name_id", "kind", "track_id"]
    )
    pq.write_table(pa.table({"name": pa.array(store.names, pa.string())}), folder / "names.parquet", compression="zstd")
    if store.counters is not None:
        pq.write_table(counters_to_table(store.counters), folder / "counters.parquet", compression="zstd")
    origin = store.origin
    return {
        "folder": folder.name,
        "path": origin.path,
        "reader": origin.reader,
        "rank": origin.rank,
        "rank_source": origin.rank_source,
        "world_size": origin.world_size,
        "parallel": dict(origin.parallel),
        "base_time_ns": origin.base_time_ns,
        "metadata": dict(origin.metadata),
        "counts": {
            "intact": store.counts.intact,
            "recovered": store.counts.recovered,
            "lost": store.counts.lost,
        },
        "tracks": [[t.process, t.thread, t.is_device, t.device, t.label] for t in store.tracks],
        "health": [[row.code, row.count, row.detail] for row in store.health],
        "counters": describe_counters(store.counters) if store.counters is not None else None,
    }


def _content_hash(stores: Sequence[EventStore]) -> str:
    """Of what was read, not of the files: a plain and a gzip copy of one capture have the same."""
    digest = hashlib.sha256()
    for store in stores:
        digest.update("\0".join(store.names).encode("utf-8", "surrogatepass"))
        for name in _COLUMNS:
            digest.update(getattr(store.events, name).tobytes())
        if store.counters is not None:
            digest.update(json.dumps(describe_counters(store.counters)).encode())
            for column in counters_to_table(store.counters).columns:
                digest.update(column.to_numpy().tobytes())
    return digest.hexdigest()


def content_of(folder: Path) -> str:
    """The hash of what a Run holds, from its manifest alone; empty where that cannot be read."""
    try:
        return str(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["content"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def open_run(folder: str | Path) -> tuple[EventStore, ...]:
    """The stores of a Run.

    Raises:
        UnreadableTrace: the manifest is broken, of another schema, or a table is missing.
    """
    path = Path(folder)
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        schema = manifest["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableTrace(
            str(path), f"the manifest cannot be read ({error})", "Import the capture again"
        ) from error
    if schema != SCHEMA:
        raise UnreadableTrace(
            str(path), f"this run has schema {schema!r}, this program reads {SCHEMA!r}", "Import the capture again"
        )
    try:
        stores = tuple(_read_store(path / _own_folder(row["folder"]), row) for row in manifest["inputs"])
        for store in stores:
            store.check()
    except (OSError, KeyError, TypeError, ValueError, IndexError, pa.ArrowException, InvariantBroken) as error:
        raise UnreadableTrace(str(path), f"a table of the run cannot be read ({error})", "Import it again") from error
    return stores


def read_further_tables(folder: str | Path, known: Collection[str]) -> dict[str, pa.Table]:
    """Tables that lie in a Run beside its stores and that nothing else gives: not those of the `known` names."""
    path = Path(folder).expanduser()
    if not is_run(path):
        return {}
    try:
        names = json.loads((path / MANIFEST).read_text(encoding="utf-8")).get("tables", [])
        return {
            name: pq.read_table(path / f"{name}.parquet")
            for name in names
            if name not in known and _TABLE.fullmatch(name)
        }
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise UnreadableTrace(str(path), f"a table of the run cannot be read ({error})", "Make it again") from error


def _own_folder(name: str) -> str:
    """A manifest comes from outside: it may name nothing but a folder that lies directly in the run."""
    if not _STORE_FOLDER.fullmatch(name):
        raise ValueError(f"{name!r} is no folder of a run")
    return name


def _read_store(folder: Path, row: Mapping[str, Any]) -> EventStore:
    events = pq.read_table(folder / "events.parquet", columns=list(_COLUMNS))
    columns = {name: events.column(name).to_numpy() for name in _COLUMNS}
    names = pq.read_table(folder / "names.parquet").column("name").to_pylist()
    described = row.get("counters")  # runs of before there were counters do not say
    return EventStore(
        origin=Origin(
            path=row["path"],
            reader=row["reader"],
            rank=row["rank"],
            rank_source=row["rank_source"],
            world_size=row["world_size"],
            parallel=row["parallel"],
            base_time_ns=row["base_time_ns"],
            metadata=row["metadata"],
        ),
        events=Events(**columns),
        names=tuple(names),
        tracks=tuple(
            Track(process=process, thread=thread, is_device=is_device, device=device, label=label)
            for process, thread, is_device, device, label in row["tracks"]
        ),
        counts=EventCounts(**row["counts"]),
        health=tuple(HealthRow(code=code, count=count, detail=detail) for code, count, detail in row["health"]),
        counters=counters_from_table(pq.read_table(folder / "counters.parquet"), described) if described else None,
    )
