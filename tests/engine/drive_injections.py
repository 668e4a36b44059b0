"""Run by the engine's interpreter: the same load again and again in one process, each time with one thing made slower.

    python drive_injections.py FOLDER [NAME ...]

An injected function takes the file and name of the one that it wraps, so that a capture shows it as if the cost stood
in that function. Captures go to FOLDER/traces/NAME; `reference` and `unchanged` have nothing injected.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
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
REQUESTS = [(0, 500, 0, 24), (2, 500, 384, 22), (4, 300, 256, 20), (6, 200, 128, 18)]
PAUSE_S = 0.004
Before = "Callable[..., None]"


def tokens(seed: int, count: int) -> list[int]:
    return [3 + (seed * 7919 + i * 31 + i * i * 17) % 2000 for i in range(count)]


def disguised(wrapper: Any, original: Any) -> Any:
    code = original.__code__
    wrapper.__code__ = wrapper.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_firstlineno=code.co_firstlineno
    )
    return wrapper


@contextmanager
def wrapped(owner: Any, name: str, extra: Callable[..., None]) -> Iterator[None]:
    """`extra` runs inside owner.name, with its arguments, before its own work."""
    original = getattr(owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        extra(original, *args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, disguised(wrapper, original))
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


def sort_logits(_original: Any, _self: Any, logits: Any, *_args: Any, **_kwargs: Any) -> None:
    for _ in range(8):
        logits.float().sort(-1)


@contextmanager
def no_prefix_hits() -> Iterator[None]:
    from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: PLC0415

    original = KVCacheManager.__init__
    found = [each for each in MANAGERS if each.enable_caching]
    for each in found:
        each.enable_caching = False
    try:
        yield
    finally:
        for each in found:
            each.enable_caching = True
        KVCacheManager.__init__ = original


MANAGERS: list[Any] = []


def injections() -> dict[str, Callable[[], Any]]:
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts  # noqa: PLC0415
    from vllm.model_executor.layers.layernorm import RMSNorm  # noqa: PLC0415
    from vllm.model_executor.models.qwen3_moe import Qwen3MoeMLP  # noqa: PLC0415
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl as Attention  # noqa: PLC0415
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415
    from vllm.v1.sample.sampler import Sampler  # noqa: PLC0415
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as Runner  # noqa: PLC0415

    return {
        "schedule": lambda: wrapped(Scheduler, "schedule", pause),
        "kv_write": lambda: wrapped(Attention, "do_kv_cache_update", again(20)),
        "attention": lambda: wrapped(Attention, "forward", again(10)),
        "sampling": lambda: wrapped(Sampler, "forward", sort_logits),
        "outputs": lambda: wrapped(Scheduler, "update_from_output", pause),
        "inputs": lambda: wrapped(Runner, "_prepare_inputs", pause),
        "metadata": lambda: wrapped(Runner, "_build_attention_metadata", pause),
        "experts": lambda: wrapped(CPUUnquantizedExperts, "apply", again(6)),
        "mlp": lambda: wrapped(Qwen3MoeMLP, "forward", again(6)),
        "norm": lambda: wrapped(RMSNorm, "forward_native", again(6)),
        "prefix": no_prefix_hits,
    }


def serve(llm: Any, label: str) -> None:
    from vllm import SamplingParams  # noqa: PLC0415

    engine, step, waiting = llm.llm_engine, 0, list(enumerate(REQUESTS))
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][1][0] <= step:
            seed, (_, length, shared, output) = waiting.pop(0)
            prompt = tokens(0, shared) + tokens(seed, length)[shared:]
            sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
            engine.add_request(f"{label}{seed}", {"prompt_token_ids": prompt}, sampling)
        engine.step()
        step += 1
    llm.reset_prefix_cache()


def capture(llm: Any, target: Path, label: str) -> None:
    import torch  # noqa: PLC0415

    target.mkdir(parents=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
        serve(llm, label)
    profiler.export_chrome_trace(str(target / "rank0.pt.trace.json"))


def main(folder: Path, names: list[str]) -> None:
    from vllm import LLM  # noqa: PLC0415

    t0 = time.time()
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    llm = LLM(
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
    )
    print("load", time.time() - t0)
    core = llm.llm_engine.engine_core.engine_core
    MANAGERS.append(core.scheduler.kv_cache_manager)
    print(type(core.scheduler), type(core.model_executor))
    known = injections()
    serve(llm, "warm-")
    capture(llm, folder / "traces" / "warm", "warm2-")
    for name in names or ["reference", *known, "unchanged"]:
        t0 = time.time()
        if name in known:
            with known[name]():
                capture(llm, folder / "traces" / name, f"{name}-")
        else:
            capture(llm, folder / "traces" / name, f"{name}-")
        print(name, time.time() - t0, flush=True)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
