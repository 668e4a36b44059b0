"""Run by the engine's interpreter: the same load again and again in one process, each time with one thing made slower.

    python drive_injections.py 1|2 FOLDER [NAME ...]

An injected function takes the file and name of the one that it wraps, so that a capture shows it as if the cost stood
in that function. 1: one rank, all injections into it. 2: two
tensor-parallel ranks. Captures go to FOLDER/traces/NAME; `reference` and `unchanged` have nothing injected.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "moe_intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],  # one layer with a dense MLP, one with experts
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# step before which it is added, prompt, how many tokens it shares with the first, output
REQUESTS = [(0, 500, 0, 50), (2, 500, 384, 48), (4, 300, 256, 46), (6, 200, 128, 44)]
PAUSE_S = 0.005
NAP_S = 0.0005
CALM, TRIES = 0.35, 5  # how far the time of a capture's steps may differ before it is taken again


def tokens(seed: int, count: int) -> list[int]:
    return [3 + (seed * 7919 + i * 31 + i * i * 17) % 2000 for i in range(count)]


def disguised(function: Any, owner: Any, name: str) -> Any:
    """A copy of a function that a profiler takes for owner.name."""
    module = sys.modules[owner.__module__] if isinstance(owner, type) else owner
    code = function.__code__.replace(co_filename=module.__file__, co_name=name)
    return FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)


@contextmanager
def wrapped(owner: Any, name: str, extra: Callable[..., None]) -> Iterator[None]:
    """`extra` runs inside owner.name, with its arguments, before its own work."""
    original, inside = getattr(owner, name), disguised(extra, owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        inside(original, *args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, disguised(wrapper, owner, name))
    try:
        yield
    finally:
        setattr(owner, name, original)


def pause(_original: Any, *_args: Any, **_kwargs: Any) -> None:
    time.sleep(PAUSE_S)


def again(times: int) -> Callable[..., None]:
    """The same work more often, as an implementation that costs several times as much."""

    def run(original: Any, *args: Any, **kwargs: Any) -> None:
        for _ in range(times):
            original(*args, **kwargs)

    return run


def extra_product(_original: Any, _self: Any, *_args: Any, **_kwargs: Any) -> None:
    import torch  # noqa: PLC0415

    torch.mm(*OPERANDS)


def sort_logits(_original: Any, _self: Any, logits: Any, *_args: Any, **_kwargs: Any) -> None:
    for _ in range(8):
        logits.float().sort(-1)


@contextmanager
def no_prefix_hits() -> Iterator[None]:
    """As with enable_prefix_caching off."""
    for each in MANAGERS:
        each.enable_caching = False
    try:
        yield
    finally:
        for each in MANAGERS:
            each.enable_caching = True


MANAGERS: list[Any] = []
OPERANDS: list[Any] = []


def injections() -> dict[str, Callable[[], Any]]:
    from vllm import _custom_ops as ops  # noqa: PLC0415
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe  # noqa: PLC0415
    from vllm.model_executor.layers.layernorm import RMSNorm  # noqa: PLC0415
    from vllm.model_executor.models.qwen3_moe import Qwen3MoeMLP  # noqa: PLC0415
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415
    from vllm.v1.sample.sampler import Sampler  # noqa: PLC0415
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as Runner  # noqa: PLC0415

    return {
        "schedule": lambda: wrapped(Scheduler, "schedule", pause),
        "kv_write": lambda: wrapped(ops, "cpu_attn_reshape_and_cache", again(300)),
        "attention": lambda: wrapped(ops, "cpu_attention_with_kv_cache", again(30)),
        "sampling": lambda: wrapped(Sampler, "forward", sort_logits),
        "outputs": lambda: wrapped(Scheduler, "update_from_output", pause),
        "inputs": lambda: wrapped(Runner, "_prepare_inputs", pause),
        "metadata": lambda: wrapped(Runner, "_build_attention_metadata", pause),
        "experts": lambda: wrapped(cpu_moe, "cpu_fused_moe", again(40)),
        "mlp": lambda: wrapped(Qwen3MoeMLP, "forward", extra_product),
        "norm": lambda: wrapped(RMSNorm, "forward_native", again(12)),
        "prefix": no_prefix_hits,
    }


def serve(llm: Any, label: str) -> float:
    """Serve the load; how far its steps differ: from the fastest tenth to the slowest fifth, over the former."""
    from vllm import SamplingParams  # noqa: PLC0415

    engine, step, waiting = llm.llm_engine, 0, list(enumerate(REQUESTS))
    took: list[float] = []
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][1][0] <= step:
            seed, (_, length, shared, output) = waiting.pop(0)
            prompt = tokens(0, shared) + tokens(seed, length)[shared:]
            sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
            engine.add_request(f"{label}{seed}", {"prompt_token_ids": prompt}, sampling)
        start = time.perf_counter()
        engine.step()
        took.append(time.perf_counter() - start)
        step += 1
    llm.reset_prefix_cache()
    tenths = statistics.quantiles(took, n=10)
    return (tenths[7] - tenths[0]) / tenths[0]


def capture(llm: Any, folder: Path, name: str) -> None:
    """One capture of the load; again where the machine stalled meanwhile, and the calmest is kept."""
    best = float("inf")
    for attempt in range(TRIES):
        llm.start_profile()
        llm.llm_engine.engine_core.engine_core.model_executor.collective_rpc(without_tables)
        spread = serve(llm, f"{name}-{attempt}-")
        llm.stop_profile()
        target = folder / name
        target.mkdir(exist_ok=True)
        for path in folder.glob("*.pt.trace.json*"):
            if spread < best:
                for old in target.glob(f"{path.name.split('.')[0]}.*"):
                    old.unlink()
                path.rename(target / path.name)
            else:
                path.unlink()
        best = min(best, spread)
        if best < CALM:
            break


def without_tables(worker: Any) -> None:
    """The profiler's own summaries take longer than the capture."""
    worker.profiler.dump_cpu_time_total = False


def make_engine(folder: Path, num_ranks: int) -> Any:
    from vllm import LLM  # noqa: PLC0415

    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    return LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=0,
        enforce_eager=True,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        block_size=32,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        max_model_len=2048,
        profiler_config={
            "profiler": "torch",
            "torch_profiler_dir": str(folder / "traces"),
            "torch_profiler_with_stack": True,
            "torch_profiler_use_gzip": False,
        },
        **({} if num_ranks == 1 else {"tensor_parallel_size": num_ranks, "distributed_executor_backend": "mp"}),
    )


def run_one_rank(folder: Path, names: list[str]) -> None:
    """All injections into one process that is engine and worker."""
    llm = make_engine(folder, 1)
    import torch  # noqa: PLC0415

    core = llm.llm_engine.engine_core.engine_core
    MANAGERS.append(core.scheduler.kv_cache_manager)
    OPERANDS.extend(torch.ones(shape) for shape in ((256, 768), (768, 1024)))
    known = injections()
    serve(llm, "first-")
    capture(llm, folder / "traces", "warm")
    for name in names or ["reference", *known, "unchanged"]:
        with known[name]() if name in known else nullcontext():
            capture(llm, folder / "traces", name)
    llm.llm_engine.engine_core.shutdown()


def run_two_ranks(folder: Path, names: list[str]) -> None:
    """A rank that is late before each of its collectives, and an engine that keeps both waiting for work."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions are sent to the workers
    llm = make_engine(folder, 2)
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    executor.collective_rpc(nap)
    serve(llm, "first-")
    for name in names or ["warm", "reference", "late", "starved", "unchanged"]:
        if name == "late":
            executor.collective_rpc(late_rank)
        with starved() if name == "starved" else nullcontext():
            capture(llm, folder / "traces", name)
        if name == "late":
            executor.collective_rpc(in_time)
    llm.llm_engine.engine_core.shutdown()


def nap(_worker: Any) -> None:
    """A worker that waits for work naps: else each turn of its busy wait is five events of the capture."""
    from vllm.distributed.device_communicators import shm_broadcast  # noqa: PLC0415

    def sched_yield() -> None:
        time.sleep(NAP_S)

    shm_broadcast.sched_yield = disguised(sched_yield, shm_broadcast, "sched_yield")


def late_rank(worker: Any) -> None:
    """Rank 1 pauses in the row-parallel layers, before their all-reduce."""
    from vllm.model_executor.layers.linear import RowParallelLinear  # noqa: PLC0415

    if worker.rank == 1:
        RowParallelLinear.injected = wrapped(RowParallelLinear, "forward", pause)
        RowParallelLinear.injected.__enter__()


def in_time(worker: Any) -> None:
    """Take the pause out again."""
    from vllm.model_executor.layers.linear import RowParallelLinear  # noqa: PLC0415

    if worker.rank == 1:
        RowParallelLinear.injected.__exit__(None, None, None)


def starved() -> Any:
    """The engine takes longer over each step's output."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

    return wrapped(Scheduler, "update_from_output", pause)


if __name__ == "__main__":
    num_ranks, target, *wanted = sys.argv[1:]
    {"1": run_one_rank, "2": run_two_ranks}[num_ranks](Path(target), wanted)
