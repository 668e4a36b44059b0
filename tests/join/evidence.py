"""Tiny side files as values: step logs, lines and scrapes -> Sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepscope.join.sources import Paths, Sources, read_sources
from stepscope.record.step_log import ROW_FIELDS, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stepscope.steps.step import StepTable
    from stepscope.store.events import EventStore

MS = 1_000_000
START_NS = 1_767_225_600_000_000_000  # 2026-01-01


def row(request_id: str, query_len: int, kv_len: int, phase: str = "prefill", **more: Any) -> list[Any]:
    """A row of a step log."""
    named = {"request_id": request_id, "query_len": query_len, "kv_len": kv_len, "phase": phase}
    return list((dict.fromkeys(ROW_FIELDS) | named | more).values())


def step(step_id: int, rows: Sequence[list[Any]], **more: Any) -> dict[str, Any]:
    """A step record at 10 ms a step."""
    return {
        "seq": step_id,
        "kind": "step",
        "step_id": step_id,
        "time_ns": START_NS + step_id * 10 * MS,
        "schedule_ns": 1 * MS,
        "num_scheduled_tokens": sum(r[1] for r in rows),
        "num_requests": len(rows),
        "rows": list(rows),
        "decodes": None,
        "preempted": [],
        "finished": [],
    } | more


def write_step_log(folder: Path, records: Iterable[dict[str, Any]], *, dp_rank: int = 0) -> Path:
    """One scheduler's log; records are numbered in order."""
    header = {
        "kind": "header",
        "format": "stepscope-step-log",
        "version": 1,
        "role": "scheduler",
        "stream_id": f"s{dp_rank}",
        "file_index": 0,
        "first_seq": 0,
        "num_removed_files": 0,
        "dp_rank": dp_rank,
    }
    numbered = [record | {"seq": i} for i, record in enumerate(records)]
    folder.mkdir(exist_ok=True)
    file = folder / f"scheduler-s{dp_rank}-0.steplog"
    file.write_bytes(b"".join(encode({"seq": r.pop("seq")} | r if "seq" in r else r) for r in (header, *numbered)))
    return folder


def sources(
    folder: Path,
    *,
    log: Sequence[str] = (),
    scrapes: dict[str, str] | None = None,
    steps: Iterable[dict[str, Any]] = (),
    client: Sequence[dict[str, Any]] = (),
    ranks: Sequence[tuple[EventStore, StepTable]] = (),
) -> Sources:
    """Write the files and read them."""
    logs: list[Path] = []
    if log:
        logs.append(folder / "server.log")
        logs[0].write_text("\n".join(log) + "\n", encoding="utf-8")
    metrics = folder / "metrics" if scrapes else None
    for name, text in (scrapes or {}).items():
        (folder / "metrics").mkdir(exist_ok=True)
        (folder / "metrics" / f"{name}.prom").write_text(text, encoding="utf-8")
    records = list(steps)
    step_log = write_step_log(folder / "steps", records) if records else None
    clients: list[Path] = []
    if client:
        clients.append(folder / "client.json")
        clients[0].write_text("\n".join(json.dumps(one) for one in client), encoding="utf-8")
    paths = Paths(logs=tuple(logs), metrics=metrics, step_log=step_log, clients=tuple(clients))
    return read_sources(paths, ranks)


def interval(text: str, seconds: int = 0) -> str:
    """A vLLM interval line."""
    return f"(APIServer pid=1) INFO 01-01 00:00:{seconds:02} [loggers.py:335] Engine 000: {text}"


def iteration(
    number: int, prefill: tuple[int, int], decode: tuple[int, int], seconds: float = 0, ms: float = 10
) -> str:
    """A vLLM iteration line: requests and tokens of both phases."""
    return interval(
        f"Iteration({number}): {prefill[0]} context requests, {prefill[1]} context tokens, {decode[0]} generation "
        f"requests, {decode[1]} generation tokens, iteration elapsed time: {ms:.2f} ms, GPU KV cache usage: 1.0%",
        int(seconds),
    )
