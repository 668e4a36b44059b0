"""SGLang's entry point (`sglang.srt.plugins`, 0.5.15 and newer): every run_batch call -> a step record.

Uses SGLang's own HookRegistry. `step_id` is the scheduler's forward_ct, which 0.5.23 also puts into its step annotation
(`forward_id=`) and its expert recorder (`forward_pass_id`); so no marker of ours is needed in the trace. Checked with
the source of 0.5.15 and 0.5.23; not run (it needs a GPU). Rows of speculative and split batches are not listed.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .channel import Channel
from .guard import Guard
from .ranks import hash_host
from .rows import MAX_LISTED_DECODES
from .settings import Settings
from .step_log import hash_id, sanitise_id

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_VERSION = (0, 5, 15)
LAST_VERSION = (0, 5, 23)
TARGET = "sglang.srt.managers.scheduler.Scheduler.run_batch"
_GUARD = Guard()
_RECORDER = "_stepscope_recorder"


class BatchRecorder:
    """One scheduler process's log."""

    def __init__(self, scheduler: Any, settings: Settings, engine_version: str) -> None:
        self._to_public = hash_id if settings.is_hashing else sanitise_id
        self._prefills: dict[str, tuple[int, int]] = {}  # hit and next chunk of each prompt that is not through yet
        arguments = getattr(scheduler, "server_args", None)
        header = {
            "role": "scheduler",
            "host": hash_host(),
            "engine": "sglang",
            "engine_version": engine_version,
            "tp_size": getattr(arguments, "tp_size", None),
            "pp_size": getattr(arguments, "pp_size", None),
            "dp_size": getattr(arguments, "dp_size", None),
            "rank": None,
            **{name: _number(scheduler, name) for name in ("dp_rank", "tp_rank", "pp_rank")},
        }
        self._channel = Channel.from_settings(settings, header)

    def log(self, scheduler: Any, batch: Any, before: dict[str, Any]) -> None:
        """Log a batch that was launched; `before` is what its rows were when it was."""
        if self._channel is not None and before:
            record = {
                "kind": "step",
                "step_id": getattr(batch, "forward_iter", None) or scheduler.forward_ct,
                "num_running": len(scheduler.running_batch.reqs),
                "num_waiting": len(scheduler.waiting_queue),
            }
            self._channel.offer({**record, **before})

    def rows_before(self, batch: Any) -> dict[str, Any]:
        """The rows of a batch that is about to run; empty where they cannot be told."""
        if self._channel is None:
            return {}
        mode, requests = batch.forward_mode, batch.reqs
        if mode.name in ("EXTEND", "MIXED"):
            decoding = {id(request) for request in batch.decoding_reqs or ()}
            pairs = list(zip(batch.extend_lens, batch.prefix_lens, strict=True))
            rows = [
                self._row(request, query, context, is_decode=id(request) in decoding)
                for request, (query, context) in zip(requests, pairs, strict=True)
            ]
        elif mode.name == "DECODE" and getattr(batch, "spec_info", None) is None:
            lengths = [int(kv) for kv in batch.seq_lens_cpu.tolist()]
            if len(lengths) > MAX_LISTED_DECODES:
                num, kv = len(lengths), sum(lengths)
                return {**_sizes(num, num), "rows": [], "decodes": [num, num, kv, num, kv, max(lengths)]}
            rows = [self._row(r, 1, kv - 1, is_decode=True) for r, kv in zip(requests, lengths, strict=True)]
        elif mode.name == "IDLE":
            rows = []
        else:
            return {}
        return {**_sizes(sum(row[1] for row in rows), len(rows)), "rows": rows}

    def _row(self, request: Any, query: int, context: int, *, is_decode: bool) -> list[Any]:
        name = request.rid
        hit = chunk = None
        if not is_decode:
            hit, chunk = self._prefills.get(name, (context, 0))
            self._prefills[name] = (hit, chunk + 1)
            if context + query >= len(request.origin_input_ids) + len(request.output_ids):
                del self._prefills[name]  # a later prefill of it is one after a retraction
        return [
            self._to_public(name),
            query,
            context + query,
            hit,
            "decode" if is_decode else "prefill",
            chunk,
            len(request.origin_input_ids),
            len(request.output_ids),
            0,
            request.retraction_count,
            None,
        ]


def _sizes(num_tokens: int, num_rows: int) -> dict[str, int]:
    return {"time_ns": time.time_ns(), "num_scheduled_tokens": num_tokens, "num_requests": num_rows}


def _number(scheduler: Any, name: str) -> int | None:
    for holder in (scheduler, getattr(scheduler, "ps", None)):
        value = getattr(holder, name, None)
        if isinstance(value, int):
            return value
    return None


def register() -> None:
    """Turn recording on in this process, if it is asked for. Never raises."""
    with _GUARD("starting to record"):
        settings = Settings.from_environment()
        if not settings.is_on or settings.folder is None:
            return
        version = str(getattr(sys.modules.get("sglang"), "__version__", "unknown"))
        if not settings.is_forced and not is_known(version):
            _GUARD.say(f"SGLang {version} was never checked (known: 0.5.15 to 0.5.23); nothing is recorded")
            return
        hooks: Any = import_module("sglang.srt.plugins.hook_registry")
        hooks.HookRegistry.register(TARGET, around(settings, version), hooks.HookType.AROUND)


def is_known(version: str) -> bool:
    """Whether the hook has been checked in this version.

    >>> is_known("0.5.23.post1"), is_known("0.5.9"), is_known("unknown")
    (True, False, False)
    """
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    return len(numbers) == 3 and FIRST_VERSION <= numbers <= LAST_VERSION


def around(settings: Settings, version: str) -> Callable[..., Any]:
    """The hook round run_batch."""

    def run_batch(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        before: dict[str, Any] = {}
        recorder = None
        if not _GUARD.is_off:
            with _GUARD("reading a batch"):
                recorder = scheduler.__dict__.get(_RECORDER)
                if recorder is None:
                    recorder = BatchRecorder(scheduler, settings, version)
                    scheduler.__dict__[_RECORDER] = recorder
                before = recorder.rows_before(batch)
        result = original(scheduler, batch, *args, **kwargs)
        if recorder is not None:
            with _GUARD("logging a batch"):
                recorder.log(scheduler, batch, before)
        return result

    return run_batch
