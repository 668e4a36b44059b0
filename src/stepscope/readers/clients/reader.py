"""A client's result file -> ClientResults; which tool wrote it is seen from its content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput
from stepscope.readers.clients import aiperf, bench, guidellm, plain
from stepscope.readers.losses import LossLog

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.readers.clients.record import ClientResult

NAME = "client result"
_KNOWN = "vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM, or JSON lines with ttft and e2e"


def read_clients(path: Path) -> tuple[ClientResult, ...]:
    """Every run that the file holds.

    Raises:
        BadInput: it cannot be read, or is no result of a known tool.
    """
    try:
        content = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    losses = LossLog()
    whole = _load(content)
    results = _of_object(whole, str(path), losses) if isinstance(whole, dict) else None
    if results is None:
        rows = whole if isinstance(whole, list) else [_load(line) for line in content.splitlines() if line.strip()]
        results = _of_rows(rows, str(path), losses)
    if not results:
        raise BadInput(f"{path}: this is no result of a client that is known ({_KNOWN}). Pass the tool's own file.")
    return results


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _of_object(content: dict[str, Any], path: str, losses: LossLog) -> tuple[ClientResult, ...] | None:
    if guidellm.is_guidellm(content):
        return guidellm.read_guidellm(content, path, losses)
    if bench.is_bench(content):
        return (bench.read_bench(content, path, losses),)
    if aiperf.is_summary(content):
        return (aiperf.read_summary(content, path, losses),)
    return None


def _of_rows(rows: list[Any], path: str, losses: LossLog) -> tuple[ClientResult, ...]:
    """Lines: runs of a bench tool, or requests of AIPerf or a plain client; what fits neither is counted."""
    objects = [row for row in rows if isinstance(row, dict)]
    runs = [row for row in objects if bench.is_bench(row)]
    if runs:
        losses.add("client_record_unparsed", count=len(rows) - len(runs))
        return tuple(bench.read_bench(row, path, losses) for row in runs)
    for is_own, read in ((aiperf.is_record, aiperf.read_records), (plain.is_plain, plain.read_plain)):
        own = [row for row in objects if is_own(row)]
        if own:
            losses.add("client_record_unparsed", count=len(rows) - len(own))
            return (read(own, path, losses),)
    return ()
