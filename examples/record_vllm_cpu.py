"""Record a short profiler window of the real vLLM CPU engine: two tensor-parallel workers, a tiny model, dummy weights.

    sh examples/install_engine.sh VENV_DIR
    VENV_DIR/bin/python examples/record_vllm_cpu.py --out examples/vllm-cpu-tp2

Writes the two rank traces (named as vLLM names them), truth.jsonl (what the scheduler scheduled, step by step),
meta.json and README.md, then checks the traces against truth.jsonl and prints the table. No model is downloaded. Needs
two cores, a C++ compiler (torch.compile uses it for one small function) and about one minute.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import gzip
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

TOKEN_BUDGET = 512
BLOCK_SIZE = 128
MIN_PYTHON_US = 10.0
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROFILER = {
    "profiler": "torch",
    "torch_profiler_with_stack": True,
    "torch_profiler_record_shapes": False,
    "torch_profiler_with_memory": False,
    "torch_profiler_use_gzip": True,
    "detailed_trace_annotation": True,
}
ENGINE = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "dtype": "bfloat16",
    "seed": 0,
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
    "enforce_eager": True,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "block_size": BLOCK_SIZE,
    "max_num_batched_tokens": TOKEN_BUDGET,
    "max_num_seqs": 8,
    "max_model_len": 4096,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CUSTOM_SCOPES_FOR_PROFILING": "1",
    # The scheduler runs in this process, where it can be wrapped.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
# Requests of the window. `arrives` is the step before which the request is added, `shared` how many of its first tokens
# are those of request A, `cached` the prefix hit this must give (full blocks only).
REQUESTS: list[dict[str, Any]] = [
    {"name": "A", "arrives": 0, "prompt": 1100, "shared": 0, "cached": 0, "output": 7},
    {"name": "B", "arrives": 3, "prompt": 1124, "shared": 1060, "cached": 1024, "output": 7},
    {"name": "C", "arrives": 5, "prompt": 700, "shared": 0, "cached": 0, "output": 6},
]
DURATION = re.compile(r'"dur": ([\d.]+)')
ANNOTATION = re.compile(
    r"execute_(?P<total>\d+)_context_(?P<n_ctx>\d+)\(sq(?P<ctx_q>\d+)sk(?P<ctx_k>\d+)sqsq\d+sqsk\d+\)"
    r"_generation_(?P<n_gen>\d+)\(sq(?P<gen_q>\d+)sk(?P<gen_k>\d+)sqsq\d+sqsk\d+\)$"
)


class Truth:
    """One record per Scheduler.schedule() call, while `recording` is on."""

    def __init__(self) -> None:
        """Start empty and off."""
        self.recording = False
        self.steps: list[dict[str, Any]] = []

    def wrap(self) -> None:
        """Replace Scheduler.schedule by one that also records."""
        from vllm.v1.core.sched.scheduler import Scheduler

        schedule = Scheduler.schedule

        def recorded(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            output = schedule(scheduler, *args, **kwargs)
            if self.recording:
                self.steps.append(self.record(scheduler, output))
            return output

        Scheduler.schedule = recorded

    def record(self, scheduler: Any, output: Any) -> dict[str, Any]:
        """What one schedule() call decided."""
        computed = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        new = set(computed)
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return {
            "step": len(self.steps),
            "t_ns": time.time_ns(),
            "total": output.total_num_scheduled_tokens,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_usage": round(scheduler.kv_cache_manager.usage, 6),
            "preempted": sorted(output.preempted_req_ids or ()),
            "reqs": [
                {
                    "id": name,
                    "q": q,
                    "computed": computed[name],
                    "k": computed[name] + q,
                    "new": name in new,
                    "prompt": scheduler.requests[name].num_prompt_tokens,
                    "n_out": len(scheduler.requests[name].output_token_ids),
                }
                for name, q in output.num_scheduled_tokens.items()
            ],
        }


def prompt_tokens(request: dict[str, Any], salt: int) -> list[int]:
    """Token ids of one prompt: the first `shared` ones belong to A, the others to the request itself."""

    def ids(seed: int, count: int) -> list[int]:
        return [3 + (seed * 7919 + i * 31 + i * i * 17) % 2000 for i in range(count)]

    seeds = {"A": 1, "B": 2, "C": 3}
    shared = request["shared"]
    return ids(salt + seeds["A"], shared) + ids(salt + seeds[request["name"]], request["prompt"])[shared:]


def serve(llm: Any, label: str, salt: int) -> None:
    """Run the requests to their end, each added before its step."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    waiting = list(REQUESTS)
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0]["arrives"] <= step:
            request = waiting.pop(0)
            engine.add_request(
                f"{label}{request['name']}",
                {"prompt_token_ids": prompt_tokens(request, salt)},
                SamplingParams(temperature=0.0, max_tokens=request["output"], ignore_eos=True, detokenize=False),
            )
        engine.step()
        step += 1


def record(folder: Path) -> list[dict[str, Any]]:
    """Start the engine in `folder`, profile one window, and return the truth of its steps."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed, one per worker")
    os.environ.update(ENVIRONMENT, VLLM_CPU_OMP_THREADS_BIND=f"{cores[0]}|{cores[1]}")
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))

    from vllm import LLM

    truth = Truth()
    truth.wrap()
    llm = LLM(
        model=str(model),
        profiler_config={**PROFILER, "torch_profiler_dir": str(folder / "traces")},
        **ENGINE,
    )
    # The same requests with other tokens, so that every batch shape of the window has been compiled and run before.
    for i in (1, 2):
        serve(llm, f"warm{i}-", salt=100 * i)
    llm.reset_prefix_cache()
    llm.start_profile()
    truth.recording = True
    serve(llm, "", salt=0)
    truth.recording = False
    llm.stop_profile()
    llm.llm_engine.engine_core.shutdown()
    return truth.steps


def thin(lines: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """Leave out the shortest Python events. No event that stays loses its parent, since a parent is never shorter."""
    event: list[str] = []
    for line in lines:
        if line == "  {\n":
            event = [line]
        elif event:
            event.append(line)
            if line.startswith("  }"):
                text = "".join(event)
                event = []
                counts["recorded"] += 1
                duration = DURATION.search(text) if '"cat": "python_function"' in text else None
                if duration and float(duration[1]) < MIN_PYTHON_US:
                    continue
                counts["kept"] += 1
                yield text
        else:
            yield line


def scrub(lines: Iterable[str], roots: list[str]) -> Iterator[str]:
    """Take the machine out of a trace: its host name, and the folders of the recording environment."""
    host = re.compile(r'("host_name":\s*)"[^"]*"')
    folders = sorted({root.rstrip("/") + "/" for root in roots if len(root) > 1}, key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, folders)))
    temporary = re.compile(r'/tmp/(?:[^/"\s]+/)*')
    for line in lines:
        yield temporary.sub(".../", known.sub(".../", host.sub(r'\1"host"', line)))


def write_trace(source: Path, target: Path, roots: list[str]) -> dict[str, int]:
    """Copy one trace, thinned and scrubbed, into a gzip file that is the same for the same content."""
    counts: Counter[str] = Counter()
    with (
        gzip.open(source, "rt", encoding="utf-8") as lines,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
    ):
        for text in scrub(thin(lines, counts), roots):
            packed.write(text.encode())
    return dict(counts)


def sums(step: dict[str, Any]) -> tuple[int, ...]:
    """A step's count, Σq and Σk, of prefill (no output yet) and of decode."""
    out: list[int] = []
    for prefill in (True, False):
        requests = [r for r in step["reqs"] if (r["n_out"] == 0) == prefill]
        out += [len(requests), sum(r["q"] for r in requests), sum(r["k"] for r in requests)]
    return tuple(out)


def step_annotations(data: dict[str, Any]) -> list[tuple[float, tuple[int, ...]]]:
    """Wall clock (ns) and the counts of every non-empty step annotation of a trace, in order of time."""
    steps = []
    for event in data["traceEvents"]:
        match = ANNOTATION.match(event["name"]) if event.get("cat") == "user_annotation" else None
        if match and match["total"] != "0":
            counts = tuple(int(match[g]) for g in ("n_ctx", "ctx_q", "ctx_k", "n_gen", "gen_q", "gen_k"))
            steps.append((data["baseTimeNanoseconds"] + float(event["ts"]) * 1000, counts))
    return sorted(steps)


def check(out: Path) -> list[str]:
    """Compare the traces of a recording with its truth.jsonl, print the table, and return what does not fit."""
    truth = [json.loads(line) for line in (out / "truth.jsonl").read_text().splitlines()]
    meta = json.loads((out / "meta.json").read_text())
    truth = [step for step in truth if step["total"]]
    traces = sorted(out.glob("*.pt.trace.json.gz"))
    wrong = [] if len(traces) == 2 else [f"{len(traces)} traces instead of 2"]
    for trace in traces:
        with gzip.open(trace, "rt", encoding="utf-8") as file:
            data = json.load(file)
        names = {event["name"] for event in data["traceEvents"]}
        seen = step_annotations(data)
        if [counts for _, counts in seen] != [sums(step) for step in truth]:
            wrong.append(f"{trace.name}: annotations differ from truth.jsonl")
        if any(t < step["t_ns"] for (t, _), step in zip(seen, truth, strict=False)):
            wrong.append(f"{trace.name}: a step started before it was scheduled")
        if any(name.startswith("/") for name in names) or data["host_name"] != "host":
            wrong.append(f"{trace.name}: holds a path or a host name")
        if any("entire_frame_compile" in name for name in names):
            wrong.append(f"{trace.name}: something was compiled inside the window")
        needed = ("shm_broadcast.py", ": dequeue", ": acquire_read", "gpu_model_runner: forward")
        wrong += [f"{trace.name}: no {text} event" for text in needed if not any(text in name for name in names)]
    hits = [r["computed"] for step in truth for r in step["reqs"] if r["new"]]
    if hits != [request["cached"] for request in meta["requests"]]:
        wrong.append(f"prefix hits are {hits}")
    print(f"{'step':>4} {'total':>5} | {'prefill':>7} {'q':>5} {'k':>5} | {'decode':>6} {'q':>5} {'k':>5}")
    for step in truth:
        n, q, k, n_gen, q_gen, k_gen = sums(step)
        print(f"{step['step']:>4} {step['total']:>5} | {n:>7} {q:>5} {k:>5} | {n_gen:>6} {q_gen:>5} {k_gen:>5}")
    return wrong


def readme(meta: dict[str, Any], truth: list[dict[str, Any]], traces: list[Path]) -> str:
    """The recording's README."""
    kinds = [(bool(s[0]), bool(s[3])) for s in map(sums, truth)]
    prefill, mixed, decode = (kinds.count(kind) for kind in ((True, False), (True, True), (False, True)))
    b = meta["requests"][1]
    requests = "\n".join(
        f"| {r['name']} | {r['arrives']} | {r['prompt']} | {r['cached']} | {r['output']} |" for r in meta["requests"]
    )
    files = "\n".join(
        f"- `{t.name}` ({t.stat().st_size:,} bytes; {meta['events'][t.name]['kept']:,} of"
        f" {meta['events'][t.name]['recorded']:,} events)"
        for t in traces
    )
    return f"""# A real vLLM trace: CPU engine, two tensor-parallel workers

A window of {len(truth)} scheduler steps of vLLM {meta["engine_version"]} (package `vllm-cpu`) with torch
{meta["torch_version"]} and Python {meta["python_version"]}, recorded on {meta["recorded"]}.

The engine, its scheduler, its workers and the profiler are the real ones. The model is a tiny Qwen3 (2 layers) with
dummy weights, so the tokens mean nothing, and it ran on two shared CPU cores, so durations are noisy: read the
structure, not the speed.

Steps: {prefill} prefill, {mixed} mixed, {decode} decode. At most {TOKEN_BUDGET} tokens a step,
KV blocks of {BLOCK_SIZE} tokens.

| request | added before step | prompt tokens | prefix hit | output tokens |
|---|---|---|---|---|
{requests}

A is prefilled in three chunks with a small tail. B shares its first {b["shared"]} tokens with A and hits
the {b["cached"]} that fill whole blocks. C is prefilled in two chunks beside the decodes of A and B.

## Files

{files}
- `truth.jsonl`: one line per `Scheduler.schedule()` call of the window, written in the scheduler's own process: `t_ns`
  (wall clock when the call returned), scheduled tokens, running and waiting requests, KV usage, and per request `q`
  (tokens of this step), `computed` (tokens before it; on a line where `new` is true this is the prefix hit) and
  `k = computed + q`.
- `meta.json`: versions, arguments, environment variables, model config, requests.

## How it was recorded

    sh examples/install_engine.sh VENV_DIR
    VENV_DIR/bin/python examples/record_vllm_cpu.py --out DIR

The same requests, with other tokens, ran twice before the window, so nothing is compiled inside it. Profiler: Python
stacks on, shapes and memory off, `detailed_trace_annotation` on, vLLM's custom scopes on.

One thing differs from a default run: the scheduler runs in the client's process
(`VLLM_ENABLE_V1_MULTIPROCESSING=0`), so that its calls can be logged.

What was changed in the traces afterwards, to keep them small and to take the machine out:

- Python events (`python_function`) shorter than {MIN_PYTHON_US:g} µs are left out. Many of them are turns of the loop
  in which a worker spins on its empty queue; `dequeue` and `acquire_read` are there with their full durations. No event
  lost its parent by this, since a parent is never shorter. All other events are there, and no timestamp or duration was
  touched.
- The host name is replaced by `host`, and folders of the recording machine by `...`.

Recorded by this project; it may be used under the project's licence (Apache-2.0).
"""


def write_recording(folder: Path, out: Path, truth: list[dict[str, Any]]) -> None:
    """Write the files of the recording from what the engine left in `folder`."""
    roots = [sys.prefix, sys.base_prefix, str(folder), str(Path(__file__).resolve().parent), str(Path.home())]
    roots += [str(Path(root).resolve()) for root in roots]
    out.mkdir(parents=True, exist_ok=True)
    traces, events = [], {}
    for source in sorted((folder / "traces").glob("*.pt.trace.json.gz")):
        traces.append(out / source.name)
        events[source.name] = write_trace(source, traces[-1], roots)
    meta = {
        "engine": "vllm-cpu",
        "engine_version": version("vllm-cpu"),
        "torch_version": version("torch"),
        "python_version": platform.python_version(),
        "recorded": dt.datetime.now(dt.UTC).date().isoformat(),
        "arguments": ENGINE,
        "profiler_config": PROFILER,
        "environment": ENVIRONMENT,
        "cores": "one per worker (VLLM_CPU_OMP_THREADS_BIND)",
        "min_python_us": MIN_PYTHON_US,
        "events": events,
        "model_config": MODEL,
        "requests": REQUESTS,
    }
    (out / "truth.jsonl").write_text("".join(json.dumps(step) + "\n" for step in truth))
    (out / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    (out / "README.md").write_text(readme(meta, truth, traces))


def main() -> int:
    """Record, write, check."""
    parser = argparse.ArgumentParser(description="Record a short vLLM CPU profile with its ground truth.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the recording")
    parser.add_argument("--keep-tmp", action="store_true", help="keep the temporary folder with the raw traces")
    args = parser.parse_args()
    if any(args.out.glob("*.pt.trace.json.gz")):
        parser.error(f"{args.out} holds traces already")
    folder = Path(tempfile.mkdtemp(prefix="stepscope-record-"))
    try:
        truth = record(folder)
        write_recording(folder, args.out, truth)
    finally:
        if args.keep_tmp:
            print(f"kept {folder}")
        else:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
    wrong = check(args.out)
    for text in wrong:
        print(f"WRONG: {text}")
    for path in sorted(args.out.iterdir()):
        print(f"{path.stat().st_size:>9,} {path.name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
