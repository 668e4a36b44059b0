"""Run by an interpreter that can import SGLang: workloads as JSON lines in, its own scheduler's schedule of each out.

    python drive_sglang.py WORKLOADS.jsonl SCHEDULES.jsonl

The engine's Scheduler, SchedulePolicy, PrefillAdder, ScheduleBatch, radix cache, slot allocators and result processor
run as they are, on the CPU; the model, the processes around it and the metrics do not exist. A line in is {"rules",
"requests"} with the fields of SglangRules and Request, a line out {"steps", "seconds"}: tests/simulate/sglang_load.py.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import json
import sys
import time
import types
from array import array
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


class _Nothing(type):
    """A class of which every attribute is a class that does nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class Absent(metaclass=_Nothing):
    """Stands for whatever a module that is not installed would define."""


class _AbsentModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class _Absentees(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that need a GPU or nothing of which is used here; asked last, so that an installed one is taken."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name.partition(".")[0] in ("torchvision", "sgl_kernel"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _AbsentModule(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__, module.__version__ = [], "99.0"


sys.meta_path.append(_Absentees())

import torch  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch  # noqa: E402
from sglang.srt.managers.schedule_policy import SchedulePolicy  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor  # noqa: E402
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker  # noqa: E402
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel, get_schedule  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

VOCABULARY = 2**40
OF_THE_COMMAND_LINE = (
    "schedule_policy",
    "schedule_conservativeness",
    "prefill_max_requests",
    "prefill_decode_interval",
    "prefill_decode_interval_min_bs",
    "page_size",
)


def tokens_of(text: list[dict[str, int]]) -> list[int]:
    """Equal tokens where source and place are equal, and nowhere else."""
    return [part["source"] * 100_000 + part["start"] + i for part in text for i in range(part["length"])]


def make_scheduler(rules: dict[str, Any]) -> Scheduler:
    """The engine's class with what one turn of its loop reads, at one rank."""
    made = Scheduler.__new__(Scheduler)
    slots, page = rules["max_total_tokens"], rules["page_size"]
    seats = min(rules["max_running_requests"], slots // 2)
    longest = min(rules["context_length"], slots) - 1
    pool = ReqToTokenPool(seats, rules["context_length"] + 8, "cpu", enable_memory_saver=False)
    if page == 1:
        allocator = TokenToKVPoolAllocator(slots, torch.float16, "cpu", MagicMock(), need_sort=False)
    else:
        allocator = PagedTokenToKVPoolAllocator(slots, page, torch.float16, "cpu", MagicMock(), need_sort=False)
    tree = UnifiedRadixCache(
        CacheInitParams(
            disable=rules["disable_radix_cache"],
            req_to_token_pool=pool,
            token_to_kv_pool_allocator=allocator,
            page_size=page,
            tree_components=(ComponentType.FULL,),
        )
    )
    off = (
        "enable_priority_scheduling enable_priority_preemption enable_hierarchical_cache enable_hisparse enable_lora "
        "enable_unified_cache_external_linker enable_lmcache enable_hicache_storage require_mlp_sync is_hybrid_swa "
        "enable_overlap_mlx schedule_low_priority_values_first abort_on_priority_when_disabled enable_kv_cache_events"
    )
    none = (
        "_pending_chunked_abort_req dllm_config chunked_req min_free_slots_delayer dynamic_chunk_sizer prefill_delayer "
        "truncation_align_size hisparse_coordinator decode_offload_manager scheduler_stage_metrics last_batch "
        "max_new_tokens_limit sliding_window_size max_queued_requests"
    )
    chunk = rules["chunked_prefill_size"]
    vars(made).update(
        dict.fromkeys(off.split(), False),
        **dict.fromkeys(none.split()),
        rules=rules,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=allocator,
        tree_cache=tree,
        disaggregation_mode=DisaggregationMode.NULL,
        dp_attn_adapter=SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=False: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        ),
        ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda batch, chunked_req: batch),
        grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False),
        beam_coordinator=MagicMock(pending_member_rows=lambda batch: 0, commit_decode=lambda batch: set()),
        policy=SchedulePolicy(rules["schedule_policy"], tree, False, False, False),
        new_token_ratio_tracker=NewTokenRatioTracker.from_config(),
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)),
        model_config=SimpleNamespace(
            is_encoder_decoder=False, vocab_size=VOCABULARY, self_opened_think_start_ids=None, think_end_ids=None
        ),
        spec_algorithm=SpeculativeAlgorithm.NONE,
        load_inquirer=SimpleNamespace(_get_num_pending_tokens=lambda chunk_deduct: 0),
        metrics_reporter=MagicMock(enable_metrics=False, num_generated_tokens=0, forward_ct_decode=0),
        processed_tokens_counter=0,
        forward_ct=0,
        max_prefill_bs=0,
        priority_scheduling_preemption_threshold=10,
        page_size=page,
        max_prefill_tokens=rules["max_prefill_tokens"],
        max_running_requests=seats,
        max_total_num_tokens=slots,
        max_req_len=longest,
        kv_shard_widening=1,
        chunked_prefill_size=chunk if chunk > 0 else None,
        is_mixed_chunk=chunk > 0 and rules["enable_mixed_chunk"],
        prefill_decode_interval=rules["prefill_decode_interval"],
        prefill_decode_interval_min_bs=rules["prefill_decode_interval_min_bs"],
        _prefill_decode_interval_remaining=0,
        enable_overlap=not rules["disable_overlap_schedule"],
        enable_skip_finishing_decode=not rules["disable_overlap_schedule"],
        waiting_queue=[],
        running_batch=ScheduleBatch(reqs=[], batch_is_full=False),
        result_queue=deque(),
    )
    get_parallel().override_permanently(pp_max_micro_batch_size=seats)
    fields = {field.name for field in dataclasses.fields(SchedulerBatchResultProcessor)}
    known = {name: getattr(made, name) for name in fields if name in vars(made)}
    rest: dict[str, Any] = {name: MagicMock() for name in fields - set(known)}
    rest |= {"is_generation": True, "draft_worker": None, "model_worker": None}
    made.batch_result_processor = SchedulerBatchResultProcessor(**(known | rest))
    return made


class Result:
    """What a step gave; it knows nothing that it was not told."""

    def __init__(self, reqs: list[Req]) -> None:
        self.reqs = reqs

    def __getattr__(self, name: str) -> Any:
        return None

    def get_num_generated_tokens(self, batch_size: int) -> int:
        return batch_size


class Driven:
    """One workload in the engine's loop; the overlap loop processes a step's result one turn later."""

    def __init__(self, load: dict[str, Any]) -> None:
        self.rules = load["rules"]
        self.scheduler = make_scheduler(self.rules)
        self.todo = deque(load["requests"])
        self.outputs: dict[str, list[int]] = {}
        self.everyone: list[Req] = []
        self.steps: list[list[Any]] = []

    def run(self) -> None:
        made, delay = self.scheduler, self.scheduler.enable_overlap
        last = None
        is_idle = False
        while self.todo or not is_idle:
            while self.todo and self.todo[0]["arrival_s"] <= len(self.steps):
                self.add(self.todo.popleft())
            retracted = {req.rid: req.retraction_count for req in self.everyone}
            plan = made.get_next_batch_to_run(running_batch=made.running_batch, last_batch=made.last_batch)
            made.running_batch, batch = plan.running_batch, plan.batch_to_run
            rows = rows_of(batch) if batch else []
            lost = sorted(req.rid for req in self.everyone if req.retraction_count != retracted[req.rid])
            after = [made.token_to_kv_pool_allocator.available_size(), f"{made.new_token_ratio_tracker.current:.9f}"]
            if batch:
                made.result_queue.append((batch.copy(), self.sample(batch)))
            ended = [] if delay and not last else self.process()
            is_idle = batch is None and not (delay and last) and all(req.finished() for req in self.everyone)
            if is_idle:
                made.new_token_ratio_tracker.reset()
                after[1] = f"{made.new_token_ratio_tracker.current:.9f}"
            made.last_batch = last = batch
            free, idle = made.token_to_kv_pool_allocator.available_size(), made.tree_cache.evictable_size()
            self.steps.append([rows, lost, *after, free, idle, ended])

    def add(self, told: dict[str, Any]) -> None:
        tokens = tokens_of(told["text"])
        prompt, outputs = tokens[: told["prompt_len"]], tokens[told["prompt_len"] :]
        wanted = told["max_tokens"] or told["output_len"]
        # its last output ends it, which the scheduler cannot foresee where it was told of more
        stop = [outputs[told["output_len"] - 1]]
        ignores = self.rules["ignore_eos"]
        sampling = SamplingParams(max_new_tokens=wanted, stop_token_ids=stop, ignore_eos=ignores, temperature=0.0)
        sampling.normalize(None)
        req = Req(told["request_id"], "", array("q", prompt), sampling, vocab_size=VOCABULARY)
        self.scheduler.init_req_max_new_tokens(req)
        self.scheduler._add_request_to_queue(req)
        self.outputs[req.rid] = outputs
        self.everyone.append(req)

    def sample(self, batch: ScheduleBatch) -> Result:
        """A result that is filled in when it is processed: until then nobody knows the tokens."""
        return Result(list(batch.reqs))

    def process(self) -> list[str]:
        """Deliver the oldest step."""
        if not self.scheduler.result_queue:
            return []
        batch, result = self.scheduler.result_queue.popleft()
        before = {req.rid for req in result.reqs if req.finished()}
        tokens = []
        for req in result.reqs:
            known, place = self.outputs[req.rid], len(req.output_ids)
            tokens.append(known[place] if place < len(known) else 0)
        result.next_token_ids = torch.tensor(tokens, dtype=torch.int64)
        processor = self.scheduler.batch_result_processor
        if batch.forward_mode.is_decode():
            processor.process_batch_result_decode(batch, result)
        else:
            processor.process_batch_result_prefill(batch, result)
        return sorted(req.rid for req in result.reqs if req.finished() and req.rid not in before)


def rows_of(batch: ScheduleBatch) -> list[list[Any]]:
    if batch.forward_mode.is_decode():
        return [[req.rid, 1, length - 1] for req, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True)]
    lens = zip(batch.reqs, batch.extend_lens, batch.prefix_lens, strict=True)
    return [[req.rid, query, context] for req, query, context in lens]


def main() -> None:
    workloads, schedules = Path(sys.argv[1]), Path(sys.argv[2])
    get_context().override_server_args(attention_backend="torch_native").install()
    with schedules.open("w") as out:
        for line in workloads.read_text().splitlines():
            load = json.loads(line)
            with get_schedule().override(**{name: load["rules"][name] for name in OF_THE_COMMAND_LINE}):
                driven = Driven(load)
                began = time.perf_counter()
                driven.run()
                seconds = time.perf_counter() - began
            out.write(json.dumps({"steps": driven.steps, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
