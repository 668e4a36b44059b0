"""A running server -> its capture: start, wait for some steps, stop, by the recipe's own calls."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recipes import Recipe

_POLL_S = 0.25
_STOP_S = 600.0  # an engine can take minutes to write a big trace
_COUNTS = {"vllm": "vllm:iteration_tokens_total_count", "sglang": "sglang:cuda_graph_passes_total"}
_VERSION_PATHS = {"vllm": ("/version",), "sglang": ("/server_info", "/get_server_info")}


class NoCapture(Exception):
    """The server did not do what the capture needs; the text says what to do."""


def call(
    server: str, path: str, body: dict[str, Any] | None = None, *, post: bool = True, timeout_s: float = 30
) -> str:
    """One HTTP call; the answer's text.

    Raises:
        NoCapture: no answer, or an error status.
    """
    if not server.startswith(("http://", "https://")):
        raise NoCapture(f"{server}: is no address. Write http://HOST:PORT.")
    data = json.dumps(body or {}).encode() if post else None
    request = urllib.request.Request(server.rstrip("/") + path, data, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # http only, checked above
            return str(answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read().decode("utf-8", "replace")[:200]
        if error.code == 404 and "profile" in path:
            raise NoCapture(
                f"{server}{path}: there is no such route. The server was started without a profiler: start it as "
                "`stepscope capture` without --from prints."
            ) from error
        raise NoCapture(f"{server}{path}: status {error.code}. {said}") from error
    except (OSError, ValueError) as error:
        raise NoCapture(f"{server}{path}: no answer ({error}). Is the server up, and is this its address?") from error


def read_version(engine: str, server: str) -> str | None:
    """The engine's version, as the server says; None where it does not."""
    for path in _VERSION_PATHS[engine]:
        try:
            version = json.loads(call(server, path, post=False)).get("version")
        except (NoCapture, ValueError, AttributeError):
            continue
        if isinstance(version, str):
            return version
    return None


def count_steps(engine: str, server: str) -> int | None:
    """Steps that the server has counted so far, of its metrics; None where they do not say."""
    try:
        text = call(server, "/metrics", post=False)
    except NoCapture:
        return None
    found = re.findall(rf"^{re.escape(_COUNTS[engine])}(?:\{{[^}}]*\}})? ([\d.e+]+)", text, re.MULTILINE)
    return round(sum(map(float, found))) if found else None


def take(recipe: Recipe, server: str, steps: int, *, timeout_s: float) -> list[Path]:
    """Capture `steps` steps; the trace files that are new, where the server's folder is on this machine.

    Raises:
        NoCapture: the server refused, or the steps were not made in time.
    """
    folder = Path(recipe.trace)
    before = set(_files(folder))
    for path in recipe.before:
        call(server, path)
    first = count_steps(recipe.engine, server)
    call(server, recipe.start["path"], recipe.start.get("body"))
    end = time.monotonic() + timeout_s
    is_done = False
    try:
        while not is_done and time.monotonic() < end:
            now = count_steps(recipe.engine, server)
            is_done = first is not None and now is not None and now - first >= steps
            is_done = is_done or bool(set(_files(folder)) - before)  # it ended by itself and has written
            time.sleep(_POLL_S)
    finally:
        _stop(recipe, server)
        for path in recipe.after:
            call(server, path, timeout_s=_STOP_S)
    if not is_done:
        raise NoCapture(f"{server}: {steps} steps were not made in time. Send it load, or ask for fewer (--steps).")
    return [path for path in _files(folder) if path not in before]


def _stop(recipe: Recipe, server: str) -> None:
    try:
        call(server, recipe.stop["path"], timeout_s=_STOP_S)
    except NoCapture:
        if not recipe.ends_by_itself:
            raise  # a capture that ends by itself may have ended before


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_file() and "trace" in path.name)
