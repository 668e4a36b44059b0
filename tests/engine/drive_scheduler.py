"""Run by the engine's interpreter: workloads as JSON lines in, the real scheduler's schedule of each out.

    python drive_scheduler.py WORKLOADS.jsonl SCHEDULES.jsonl

No model runs: each step's output is made up from the workload's own text. A line in is {"rules", "requests"} with the
fields of SchedulerRules and Request, and with drafts "accepted": of each request how many it accepts after each number
of outputs, and with KV beyond the device "external": of which requests how many blocks lie there, and how many steps
their load lasts; a line out is {"steps", "free", "seconds"}: see tests/simulate/random_load.py for
a step, "free" is a checksum of the free list after each step where the workload asks for it with "is_deep".
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

STOP = 2**31 - 1
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}


def tokens_of(text: list[dict[str, int]]) -> list[int]:
    """Equal tokens where source and place are equal, and nowhere else."""
    return [part["source"] * 100_000 + part["start"] + i for part in text for i in range(part["length"])]


def speculative_config(num_drafts: int, drafts: dict[str, Any], model_config: Any) -> Any:
    """No drafter is loaded: the scheduler only asks how the method drafts."""
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=num_drafts,
        prompt_lookup_max=2,
        prompt_lookup_min=1,
        target_model_config=model_config,
        target_parallel_config=ParallelConfig(),
    )
    for name in ("method", "parallel_drafting", "disable_eagle_block_drop"):
        object.__setattr__(config, name, drafts[name])
    return config


def make_scheduler(rules: dict[str, Any], model: str) -> tuple[Any, Any]:
    rules = dict(rules)
    blocks, size = rules.pop("num_blocks"), rules.pop("block_size")
    caching, is_async = rules.pop("enable_prefix_caching"), rules.pop("async_scheduling")
    stages = rules.pop("pipeline_parallel_size")
    num_drafts, drafts = rules.pop("num_speculative_tokens"), rules.pop("drafts")
    model_config = ModelConfig(
        model=model,
        tokenizer=model,
        skip_tokenizer_init=True,
        dtype="float32",
        seed=0,
        max_model_len=rules["max_model_len"],
    )
    config = VllmConfig(
        model_config=model_config,
        cache_config=CacheConfig(block_size=size, enable_prefix_caching=caching, gpu_memory_utilization=0.9),
        scheduler_config=SchedulerConfig(
            is_encoder_decoder=False, async_scheduling=is_async and not num_drafts, **rules
        ),
        device_config=DeviceConfig("cpu"),
        parallel_config=ParallelConfig(),
        speculative_config=speculative_config(num_drafts, drafts, model_config) if num_drafts else None,
    )
    config.scheduler_config.async_scheduling = is_async  # the CPU platform switches it off
    assert config.cache_config.block_size == size
    assert config.cache_config.enable_prefix_caching == caching
    config.cache_config.num_gpu_blocks = blocks
    config.parallel_config.pipeline_parallel_size = stages  # set afterwards: no device is there to be counted
    spec = FullAttentionSpec(block_size=size, num_kv_heads=4, head_size=16, dtype=torch.float32)
    scheduler = (AsyncScheduler if is_async else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        hash_block_size=size,
        log_stats=False,
    )
    scheduler.use_v2_model_runner = stages > 1 and is_async  # a GPU's default, and what makes decodes take turns
    hash_of = get_hash_fn_by_name("sha256")
    init_none_hash(hash_of)
    return scheduler, get_request_block_hasher(size, hash_of) if caching else None


def make_request(told: dict[str, Any], hasher: Any) -> tuple[Any, list[int]]:
    """The engine's request, and the tokens that it will put out."""
    tokens = tokens_of(told["text"])
    prompt, outputs = tokens[: told["prompt_len"]], tokens[told["prompt_len"] :]
    sampling = SamplingParams(max_tokens=told["output_len"], ignore_eos=True)
    if told["max_tokens"] is not None:  # an end that the scheduler cannot foresee
        sampling = SamplingParams(max_tokens=told["max_tokens"], stop_token_ids=[STOP])
        outputs[told["output_len"] - 1] = STOP
    request = Request(
        request_id=told["request_id"],
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=None,
        block_hasher=hasher,
        arrival_time=told["arrival_s"],
    )
    return request, outputs


class ToldConnector:
    """Stands for a KV connector: asynchronous loads of told blocks, each for a told number of steps."""

    supports_divergent_local_hybrid_hits = False

    def __init__(self, external: dict[str, list[int]], block_size: int) -> None:
        self.external, self.block_size = external, block_size
        self.step = 0
        self.under_way: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_local: int) -> tuple[int, bool]:
        blocks = self.external.get(request.request_id, [0])[0]
        blocks = min(blocks, (request.num_tokens - 1) // self.block_size)
        more = max(blocks * self.block_size - num_local, 0)
        return more, more > 0

    def update_state_after_alloc(self, request: Any, _blocks: Any, num_external: int) -> None:
        if num_external:
            self.under_way[request.request_id] = self.step + self.external[request.request_id][1]

    def take_finished(self) -> set[str]:
        done = {name for name, step in self.under_way.items() if step <= self.step}
        for name in done:
            del self.under_way[name]
        return done

    def get_loaded_kv_cache_group_ids(self, _request: Any) -> tuple[int, ...]:
        return ()

    def has_pending_block_frees(self) -> bool:
        return False

    def has_pending_push_work(self) -> bool:
        return False

    def request_finished(self, *_: Any) -> tuple[bool, None]:
        return False, None

    def __getattr__(self, _name: str) -> Any:
        """What the scheduler tells a connector, or asks it for its statistics."""
        return lambda *_: None


class Driven:
    """One workload in the loop of the engine's core; as many steps in flight as stages; async, one more."""

    def __init__(self, load: dict[str, Any], model: str) -> None:
        self.scheduler, hasher = make_scheduler(load["rules"], model)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.connector = None
        if load.get("external"):
            self.connector = ToldConnector(load["external"], load["rules"]["block_size"])
            self.scheduler.connector = self.connector
        self.depth = load["rules"]["pipeline_parallel_size"] + load["rules"]["async_scheduling"]
        made = [make_request(told, hasher) for told in load["requests"]]
        self.todo = deque(request for request, _ in made)
        self.outputs = {request.request_id: tokens for request, tokens in made}
        self.emitted = dict.fromkeys(self.outputs, 0)
        self.accepted = load.get("accepted", {})
        self.num_drafts = load["rules"]["num_speculative_tokens"]
        self.in_flight: deque[tuple[Any, dict[str, bool], set[str]]] = deque()
        self.is_deep = load["is_deep"]
        self.steps: list[list[Any]] = []
        self.free: list[int] = []

    def run(self) -> None:
        while self.todo or self.scheduler.has_unfinished_requests() or self.in_flight:
            while self.todo and self.todo[0].arrival_time <= len(self.steps):
                self.scheduler.add_request(self.todo.popleft())
            rows, preempted = self.schedule() if self.scheduler.has_requests() else ([], [])
            free, ended = self.pool.get_num_free_blocks(), []
            is_full = len(self.in_flight) == self.depth
            if self.in_flight and (is_full or not (rows or self.scheduler.has_requests())):
                ended = self.update()
            self.steps.append([rows, preempted, free, self.pool.get_num_free_blocks(), ended])
            if self.is_deep:
                blocks = self.pool.free_block_queue.get_all_free_blocks()
                self.free.append(zlib.crc32(repr([block.block_id for block in blocks]).encode()))

    def schedule(self) -> tuple[list[Any], list[str]]:
        requests = self.scheduler.requests
        before = {name: request.num_preemptions for name, request in requests.items()}
        if self.connector:
            self.connector.step = len(self.steps)
        output = self.scheduler.schedule()
        counts = output.num_scheduled_tokens
        # schedule() has advanced num_computed_tokens already
        rows = [[name, count, requests[name].num_computed_tokens - count] for name, count in counts.items()]
        admitted = {each.req_id for each in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids
        self.in_flight.append((output, {name: not requests[name].is_prefill_chunk for name in counts}, admitted))
        return rows, sorted(name for name, count in before.items() if requests[name].num_preemptions != count)

    def update(self) -> list[str]:
        output, sampled, admitted = self.in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        tokens: list[list[int]] = []
        for name in names:
            place, known = self.emitted[name], self.outputs[name]
            count = 0
            if sampled[name]:
                count = 1
                drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
                if drafts and name not in admitted and place < len(known):  # drafts of an admission only pad it
                    count += min(drafts, self.accepted[name][place])
            self.emitted[name] += count
            # a step that was scheduled for a request that has ended still needs a token, which is dropped
            made = known[place : place + count]
            tokens.append(made + [0] * (count - len(made)))
        index = {name: i for i, name in enumerate(names)}
        result_of_model = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=tokens)
        if self.connector:
            result_of_model.kv_connector_output = KVConnectorOutput(finished_recving=self.connector.take_finished())
        result = self.scheduler.update_from_output(output, result_of_model)
        if self.num_drafts and self.depth == 1:  # with a step in flight the drafts stay on the device
            fresh = [name for name in names if sampled[name]]
            self.scheduler.update_draft_token_ids(DraftTokenIds(fresh, [[7] * self.num_drafts for _ in fresh]))
        made_outputs = result[0].outputs if 0 in result else ()
        return sorted(each.request_id for each in made_outputs if each.finish_reason is not None)


def main() -> None:
    workloads, schedules = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text(json.dumps(CONFIG))
        with schedules.open("w") as out:
            for line in workloads.read_text().splitlines():
                driven = Driven(json.loads(line), model)
                began = time.perf_counter()
                driven.run()
                seconds = time.perf_counter() - began
                out.write(json.dumps({"steps": driven.steps, "free": driven.free, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
