"""Run by the engine's interpreter: a tiny model, dummy weights, one of the workloads that the tests compare.

    python drive_engine.py dense|moe FOLDER

dense: two tensor-parallel workers, a prompt of three chunks, prefix hits, a profiled window. moe: experts, a batch too
big to list, a KV cache too small, so that requests are preempted. Traces go to FOLDER/traces.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

DENSE = {
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
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {
    **DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
PROFILER = {"profiler": "torch", "torch_profiler_with_stack": False, "torch_profiler_use_gzip": True}
# name, step before which it is added, prompt, how many tokens it shares with A, output
REQUESTS = [("A", 0, 1100, 0, 7), ("B", 3, 1124, 1060, 7), ("C", 5, 700, 0, 6), ('D"\\ \t', 6, 130, 128, 4)]


def tokens(seed: int, count: int) -> list[int]:
    return [3 + (seed * 7919 + i * 31 + i * i * 17) % 2000 for i in range(count)]


def make_engine(folder: Path, config: dict[str, Any], **more: Any) -> Any:
    from vllm import LLM  # noqa: PLC0415

    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(config))
    return LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=0,
        enforce_eager=True,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        max_num_batched_tokens=512,
        max_model_len=2048,
        profiler_config={**PROFILER, "torch_profiler_dir": str(folder / "traces")},
        **more,
    )


def serve(llm: Any, label: str, salt: int) -> None:
    from vllm import SamplingParams  # noqa: PLC0415

    engine, step, waiting = llm.llm_engine, 0, list(enumerate(REQUESTS))
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][1][1] <= step:
            seed, (name, _, length, shared, output) = waiting.pop(0)
            prompt = tokens(salt, shared) + tokens(salt + seed, length)[shared:]
            sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
            engine.add_request(f"{label}{name}", {"prompt_token_ids": prompt}, sampling)
        engine.step()
        step += 1


def run_dense(folder: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
    llm = make_engine(
        folder, DENSE, tensor_parallel_size=2, distributed_executor_backend="mp", block_size=128, max_num_seqs=8
    )
    serve(llm, "warm-", salt=100)
    llm.start_profile()
    serve(llm, "", salt=0)
    llm.stop_profile()
    serve(llm, "after-", salt=200)
    llm.llm_engine.engine_core.shutdown()


def run_moe(folder: Path) -> None:
    from vllm import SamplingParams  # noqa: PLC0415

    llm = make_engine(folder, MOE, max_num_seqs=64, block_size=32, num_gpu_blocks_override=90)
    prompts = [{"prompt_token_ids": tokens(seed, 20 + seed)} for seed in range(48)]
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)
    llm.start_profile()
    llm.generate(prompts, sampling, use_tqdm=False)
    llm.stop_profile()
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    workload, target = sys.argv[1], Path(sys.argv[2])
    {"dense": run_dense, "moe": run_moe}[workload](target)
