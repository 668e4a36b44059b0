"""A second vLLM plugin, for tests: writes down what the scheduler and the routers did, on its own.

It shares no code with the recorder. One JSONL file per process in STEPSCOPE_TRUTH: `schedule` (one a schedule() call),
`count` (waiting requests whenever they can have changed), `execute` (a worker starts a step), `route` (a layer's ids).
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

_file: Any = None


def _write(**event: Any) -> None:
    global _file  # noqa: PLW0603
    if _file is None:
        folder = Path(os.environ["STEPSCOPE_TRUTH"])
        folder.mkdir(parents=True, exist_ok=True)
        _file = (folder / f"truth-{os.getpid()}.jsonl").open("a")
    _file.write(json.dumps({"t_ns": time.monotonic_ns(), **event}) + "\n")
    _file.flush()


def _waiting(scheduler: Any) -> int:
    others = ("skipped_waiting", "kv_holding_waiting")
    return len(scheduler.waiting) + sum(len(getattr(scheduler, name, ())) for name in others)


def _scheduled(scheduler: Any, output: Any) -> dict[str, Any]:
    computed = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    new = sorted(computed)
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return {
        "total": output.total_num_scheduled_tokens,
        "running": len(scheduler.running),
        "waiting": _waiting(scheduler),
        "kv_usage": scheduler.kv_cache_manager.usage,
        "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "preempted": sorted(output.preempted_req_ids or ()),
        "finished": sorted(output.finished_req_ids),
        "new": new,
        "resumed": sorted(cached.resumed_req_ids),
        "reqs": [
            {
                "id": name,
                "q": q,
                "computed": computed[name],
                "prompt": scheduler.requests[name].num_prompt_tokens,
                "n_out": scheduler.requests[name].num_output_tokens,
                "preemptions": scheduler.requests[name].num_preemptions,
            }
            for name, q in output.num_scheduled_tokens.items()
        ],
    }


def register() -> None:
    """Wrap the scheduler, the worker and the router of this process."""
    from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter  # noqa: PLC0415
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415
    from vllm.v1.worker.gpu_worker import Worker  # noqa: PLC0415

    def after(cls: Any, name: str, log: Any) -> None:
        original = getattr(cls, name)

        @functools.wraps(original)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            log(self, result)
            return result

        setattr(cls, name, wrapped)

    def scheduled(scheduler: Any, output: Any) -> None:
        _write(event="schedule", **_scheduled(scheduler, output))

    def counted(scheduler: Any, _result: Any) -> None:
        _write(event="count", waiting=_waiting(scheduler), running=len(scheduler.running))

    def routed(_router: Any, result: Any) -> None:
        ids = result[1]
        _write(event="route", rows=ids.shape[0], counts=dict(Counter(ids.flatten().tolist())))

    after(Scheduler, "schedule", scheduled)
    for name in ("add_request", "finish_requests", "update_from_output"):
        after(Scheduler, name, counted)
    after(BaseRouter, "_select_experts" if hasattr(BaseRouter, "_select_experts") else "select_experts", routed)
    execute = Worker.execute_model

    @functools.wraps(execute)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        _write(event="execute", rank=self.rank, total=scheduler_output.total_num_scheduled_tokens)
        return execute(self, scheduler_output, *args, **kwargs)

    Worker.execute_model = execute_model
