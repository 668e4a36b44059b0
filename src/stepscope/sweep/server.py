"""Driver of a running OpenAI-compatible server: streamed completions by HTTP, as many at once as the cell says.

A client sees tokens, not steps: the step's time and all inside it are unknown. Prompts are random token ids, new ones
for each request, so that a prefix cache finds nothing; where the server says how many tokens it found, that is checked.
"""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from stepscope.errors import BadInput
from stepscope.sweep.figure import ASCEND_FIGURES, FAMILY_FIGURES, FIGURES, Figure, Measured, known, unknown

if TYPE_CHECKING:
    from stepscope.sweep.plan import Cell, Plan

_TIMEOUT_S = 600.0
_TOKENS = range(1000, 2000)  # ids that any vocabulary has, behind the special ones
_NO_STEPS = "a server's client sees tokens, not steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """One request: when it was sent, when each chunk of its output came, and what the server says of it."""

    sent_s: float
    chunk_s: tuple[float, ...]
    num_outputs: int | None
    cached_tokens: int | None

    @property
    def tpot_s(self) -> float | None:
        """Between first and last token, per token."""
        count = (self.num_outputs or len(self.chunk_s)) - 1
        return (self.chunk_s[-1] - self.chunk_s[0]) / count if count > 0 and len(self.chunk_s) > 1 else None


class ServerDriver:
    """Whatever answers at the plan's url."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._url = (plan.url or "").rstrip("/")
        self._random = random.Random(1)  # noqa: S311  # texts, no secret
        self.conditions()

    def conditions(self) -> dict[str, Any]:
        """What the server tells of itself; the rest is what the plan says, unknown here."""
        models = [each.get("id") for each in self._get("/v1/models").get("data", [])]
        try:
            version = self._get("/version").get("version")
        except BadInput:
            version = None
        return {"checkpoint": ", ".join(map(str, models)), "engine": version, "device": self._url}

    def measure(self, cell: Cell) -> Measured:
        """Send the cell's requests together, and time their tokens."""
        if cell.kind == "prefill":
            rounds = self._plan.window.warmup_steps + self._plan.window.prefill_repeats
            found = [self._round(1, cell.tokens, 1)[0] for _ in range(rounds)][self._plan.window.warmup_steps :]
        else:
            found = self._round(cell.batch, cell.context_len, self._plan.output_len(cell))
        problems = []
        hits = [each.cached_tokens for each in found if each.cached_tokens is not None]
        if any(hits):
            problems.append(f"{sum(hits)} prompt tokens came from the prefix cache, 0 were expected")
        figures: dict[str, Figure] = {name: unknown(_NO_STEPS) for name in FIGURES}
        figures |= {name: unknown(_NO_STEPS) for name in (*FAMILY_FIGURES, *ASCEND_FIGURES)}
        figures["dense_m"] = known(cell.tokens, "inferred")
        samples = _first_tokens(found) if cell.kind == "prefill" else _gaps(found)
        figures |= _rates(cell, found)
        notes = [] if hits else ["the server does not say how many prompt tokens it found in a cache"]
        kind = "ttft_s" if cell.kind == "prefill" else "gap_s"
        details = {kind: float(np.median(samples)) if samples else None, "requests": len(found)}
        return Measured(figures=figures, problems=tuple(problems), notes=tuple(notes), details=details)

    def _round(self, count: int, prompt_len: int, output_len: int) -> list[Streamed]:
        prompts = [[self._random.choice(_TOKENS) for _ in range(prompt_len)] for _ in range(count)]
        together = Barrier(count)
        with ThreadPoolExecutor(count) as pool:
            sent = [pool.submit(self._stream, prompt, output_len, together) for prompt in prompts]
            return [each.result() for each in sent]

    def _stream(self, prompt: list[int], output_len: int, together: Barrier) -> Streamed:
        body = {
            "model": self._plan.model,
            "prompt": prompt,
            "max_tokens": output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        together.wait(_TIMEOUT_S)
        sent = time.perf_counter()
        times: list[float] = []
        usage: dict[str, Any] = {}
        try:
            with urlopen(self._request("/v1/completions", body), timeout=_TIMEOUT_S) as answer:  # noqa: S310  # http
                for line in answer:
                    event = _event(line)
                    usage = (event or {}).get("usage") or usage
                    if event and event.get("choices"):
                        times.append(time.perf_counter())
        except (OSError, ValueError) as error:
            _close(error)
            raise BadInput(
                f"{self._url}: a completion failed ({error}). Does the server know {self._plan.model}?"
            ) from error
        if not times:
            raise BadInput(f"{self._url}: a completion had no output.")
        details = usage.get("prompt_tokens_details") or {}
        return Streamed(
            sent_s=sent,
            chunk_s=tuple(times),
            num_outputs=usage.get("completion_tokens"),
            cached_tokens=details.get("cached_tokens"),
        )

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urlopen(self._request(path), timeout=_TIMEOUT_S) as answer:  # noqa: S310  # http
                found = json.loads(answer.read())
        except (OSError, ValueError) as error:
            _close(error)
            reason = error.reason if isinstance(error, URLError) else error
            raise BadInput(f"{self._url}{path}: no answer ({reason}). Is the server running there?") from error
        return found if isinstance(found, dict) else {}

    def _request(self, path: str, body: dict[str, Any] | None = None) -> Request:
        if not self._url.startswith(("http://", "https://")):
            raise BadInput(f"url {self._url}: http:// or https:// was expected.")
        data = None if body is None else json.dumps(body).encode()
        return Request(self._url + path, data=data, headers={"Content-Type": "application/json"})  # noqa: S310

    def close(self) -> None:
        """Nothing is held."""


def _close(error: Exception) -> None:
    """An answer that says no is held open by its error."""
    if isinstance(error, HTTPError):
        error.close()


def _event(line: bytes) -> dict[str, Any] | None:
    """A server-sent event's content; None for any other line."""
    text = line.strip()
    if not text.startswith(b"data:") or text.endswith(b"[DONE]"):
        return None
    found = json.loads(text[len(b"data:") :])
    return found if isinstance(found, dict) else None


def _first_tokens(found: list[Streamed]) -> tuple[float, ...]:
    return tuple(each.chunk_s[0] - each.sent_s for each in found)


def _gaps(found: list[Streamed]) -> tuple[float, ...]:
    """Between chunks, from when all requests had begun until the first one ended."""
    begin, end = max(each.chunk_s[0] for each in found), min(each.chunk_s[-1] for each in found)
    return tuple(
        after - before
        for each in found
        for before, after in zip(each.chunk_s, each.chunk_s[1:], strict=False)
        if before >= begin and after <= end
    )


def _rates(cell: Cell, found: list[Streamed]) -> dict[str, Figure]:
    if cell.kind == "prefill":
        first = float(np.median(_first_tokens(found)))
        rate = known(cell.tokens / first, "derived")  # by TTFT: the server's front end is in it
        return {"tpot_s": unknown("one token was asked for"), "tokens_per_s": rate}
    gaps = _gaps(found)
    if not gaps:
        why = unknown("the requests did not decode at the same time: raise decode_steps")
        return {"tpot_s": why, "tokens_per_s": why}
    tpot = float(np.median(gaps))
    return {"tpot_s": known(tpot, "derived"), "tokens_per_s": known(cell.batch / tpot, "derived")}
