"""Run by the engine's interpreter: the real vLLM CPU engine, given workloads one after the other; what it did and when.

    python same_time_engine.py < lines of JSON

The first line says which engine (`model`: a config.json, `engine`: arguments), each further one is a run: `clock`,
`chunk` (most tokens of a step, what the engine's option max_num_scheduled_tokens sets when it starts) and `requests`
with arrival_s, seed, shared_seed, shared_len, prompt_len, output_len. The answer to the first is the rules that the
engine came up with, the answer to a run is its requests' times and its steps.

Clock "wall" waits for arrivals. Clock "busy" counts the engine thread's CPU seconds alone, and jumps to the next
arrival where the engine has nothing to do: the same engine on a machine that nobody else uses.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in this thread, whose clock is read
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
FIRST_TOKEN = 3  # of the vocabulary, after the special ones


class Clock:
    """Seconds since the run began."""

    def __init__(self, kind: str) -> None:
        self._read = time.thread_time if kind == "busy" else time.perf_counter
        self._is_busy = kind == "busy"
        self._zero = self._read()

    def now(self) -> float:
        """Seconds."""
        return self._read() - self._zero

    def wait_until(self, when: float) -> None:
        """Sleep, or jump."""
        left = when - self.now()
        if left <= 0:
            return
        if self._is_busy:
            self._zero -= left
        else:
            time.sleep(left)


class Schedule:
    """What Scheduler.schedule() decided last."""

    def __init__(self) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler

        self.rows: list[tuple[str, int, int, bool]] = []
        schedule = Scheduler.schedule

        def recorded(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            output = schedule(scheduler, *args, **kwargs)
            computed = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
            cached = output.scheduled_cached_reqs
            computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            self.rows = [
                (name, q, computed[name], computed[name] < scheduler.requests[name].num_prompt_tokens)
                for name, q in output.num_scheduled_tokens.items()
            ]
            return output

        Scheduler.schedule = recorded


def tokens(seed: int, count: int, vocabulary: int) -> list[int]:
    """The same for the same seed; a longer text begins with the shorter one."""
    state, found = seed * 2654435761 % (1 << 32), []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % (1 << 32)
        found.append(FIRST_TOKEN + (state >> 8) % (vocabulary - FIRST_TOKEN))
    return found


def prompt(request: dict[str, Any], vocabulary: int) -> list[int]:
    shared = tokens(request["shared_seed"], request["shared_len"], vocabulary)
    return shared + tokens(request["seed"], request["prompt_len"] - len(shared), vocabulary)


def start(asked: dict[str, Any], folder: Path) -> Any:
    """The engine."""
    import torch
    from vllm import LLM

    torch.set_num_threads(1)
    (folder / "config.json").write_text(json.dumps(asked["model"]))
    return LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=0,
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=True,
        **asked["engine"],
    )


def rules_of(llm: Any) -> dict[str, Any]:
    """The scheduling rules as the engine has them after it started."""
    from importlib.metadata import version

    config = llm.llm_engine.vllm_config
    return {
        "engine_version": version("vllm-cpu"),
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_model_len": config.model_config.max_model_len,
        "long_prefill_token_threshold": config.scheduler_config.long_prefill_token_threshold,
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "num_blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
        "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
    }


def serve(llm: Any, schedule: Schedule, run: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """One run, to its end, on an empty prefix cache."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    llm.reset_prefix_cache()
    engine.engine_core.engine_core.scheduler.max_num_scheduled_tokens = run["chunk"]
    coming = sorted(run["requests"], key=lambda r: float(r["arrival_s"]))[::-1]
    prompts = {r["request_id"]: {"prompt_token_ids": prompt(r, vocabulary)} for r in coming}
    times: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    steps = []
    clock = Clock(run["clock"])
    while coming or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            clock.wait_until(coming[-1]["arrival_s"])
        begun = clock.now()
        while coming and coming[-1]["arrival_s"] <= clock.now():
            request = coming.pop()
            name = request["request_id"]
            sampling = SamplingParams(
                temperature=0.0, max_tokens=request["output_len"], ignore_eos=True, detokenize=False
            )
            names[name] = engine.add_request(name, prompts[name], sampling) or name
            times[name] = {"request_id": name, "arrival_s": request["arrival_s"], "output_len": 0}
        start_s = clock.now()
        outputs = engine.step()
        end_s = clock.now()
        for output in outputs:
            seen, count = times[output.request_id], len(output.outputs[0].token_ids)
            if count and not seen["output_len"]:
                seen["first_token_s"] = end_s
            seen["output_len"], seen["last_token_s"] = count, end_s
        steps.append({"begun_s": begun, "start_s": start_s, "end_s": end_s, "rows": schedule.rows})
    return {"requests": list(times.values()), "steps": steps, "names": names}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine's own words go to stderr
    os.environ.update(ENVIRONMENT)
    asked = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        schedule = Schedule()
        llm = start(asked, Path(folder))
        print(json.dumps(rules_of(llm)), file=answers, flush=True)
        for line in sys.stdin:
            print(
                json.dumps(serve(llm, schedule, json.loads(line), asked["model"]["vocab_size"])),
                file=answers,
                flush=True,
            )
        llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
