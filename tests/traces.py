"""Tiny traces as values: events with times in whole ns -> a Kineto file -> a store, an account or the report.

A test writes 5 to 30 of them inline. Names that the catalog knows stand here once, each with what it is.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.answers.account import explain
from stepscope.budget.catalog import load_catalog
from stepscope.readers.kineto import reader
from stepscope.report.document import to_document
from stepscope.store.events import EventStore
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.answers.account import Account
    from stepscope.budget.catalog import Catalog

Event = dict[str, Any]

US = 1_000
MS = 1_000_000
BASE_NS = 1_767_225_600_000_000_000  # 2026-01-01, as baseTimeNanoseconds

# kernels and copies
GEMM = "ampere_sgemm_128x64_nn"  # compute
NORM = "void vllm::rms_norm_kernel<float>(float*)"  # compute
ZERO_KV = "_zero_kv_blocks_kernel"  # kv
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"  # comm
MYSTERY = "mystery"  # no rule places it
COPY = "Memcpy DtoD (Device -> Device)"  # compute, unless its launcher knows better
# host
ACQUIRE = "vllm/distributed/device_communicators/shm_broadcast.py(830): acquire_read"  # supply
EXECUTE = "vllm/v1/worker/gpu_worker.py(1300): execute_model"
SAMPLE = "vllm/v1/worker/gpu_worker.py(1250): sample_tokens"
METADATA = "vllm/v1/worker/gpu_model_runner.py(2100): _build_attention_metadata"  # host
ATTENTION_OP = "vllm::unified_attention_with_output"  # compute, strong
SWAP_OP = "_C_cache_ops::swap_blocks"  # kv, strong
REDUCE_OP = "_C::shm_allreduce"  # comm, strong
BMM_OP = "aten::bmm"  # compute, weak
SCHEDULE = "vllm/v1/core/sched/scheduler.py(300): schedule"
OUTPUTS = "vllm/v1/engine/output_processor.py(420): process_outputs"
ELSEWHERE = "tools/elsewhere.py(1): rest"  # a frame that no rule places


def decode(rows: int) -> str:
    """vLLM's annotation of a decode step of that many rows."""
    return f"execute_context_0(0)_generation_{rows}({rows})"


def prefill(tokens: int) -> str:
    """vLLM's annotation of a prefill step of one row."""
    return f"execute_context_1({tokens})_generation_0(0)"


EMPTY = "execute_context_0(0)_generation_0(0)"


def _event(cat: str, name: str, start: int, duration: int, pid: int, tid: int | str, **args: object) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start / 1000,
        "dur": duration / 1000,
        "args": args,
    }


def kernel(name: str, start: int, duration: int, *, of: int | None = None, stream: int = 7) -> Event:
    """Device work; `of` is the correlation id of its launch."""
    return _event("kernel", name, start, duration, 0, stream, device=0, stream=stream, **_id(of))


def copy(start: int, duration: int, *, of: int | None = None, name: str = COPY, stream: int = 7) -> Event:
    """A copy on the device."""
    return _event("gpu_memcpy", name, start, duration, 0, stream, device=0, stream=stream, **_id(of))


def launch(start: int, of: int, *, duration: int = 1, name: str = "cudaLaunchKernel", thread: int = 1) -> Event:
    """The host call with correlation id `of`."""
    return _event("cuda_runtime", name, start, duration, 1, thread, **_id(of))


def call(name: str, start: int, duration: int, *, thread: int = 1) -> Event:
    """A call of the device runtime that launches nothing."""
    return _event("cuda_runtime", name, start, duration, 1, thread)


def op(name: str, start: int, duration: int, *, thread: int = 1) -> Event:
    """A framework operation."""
    return _event("cpu_op", name, start, duration, 1, thread)


def frame(name: str, start: int, duration: int, *, thread: int = 1) -> Event:
    """A Python function."""
    return _event("python_function", name, start, duration, 1, thread)


def scope(name: str, start: int, duration: int, *, thread: int = 1) -> Event:
    """A named host range: a step annotation, a marker."""
    return _event("user_annotation", name, start, duration, 1, thread)


def device_scope(name: str, start: int, duration: int) -> Event:
    """A host range mirrored onto the device."""
    return _event("gpu_user_annotation", name, start, duration, 0, 7)


def launched(name: str, called: int, start: int, duration: int, *, of: int, stream: int = 7) -> list[Event]:
    """A kernel with its launch."""
    return [launch(called, of), kernel(name, start, duration, of=of, stream=stream)]


def _id(of: int | None) -> dict[str, object]:
    return {} if of is None else {"correlation": of}


def to_store(
    events: Iterable[Event],
    *,
    rank: int | None = 0,
    world_size: int = 1,
    base_time_ns: int | None = BASE_NS,
    name: str = "trace.json",
) -> EventStore:
    """Write these events as a file, read it, and hold the store to its laws."""
    document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": list(events)}
    if rank is not None:
        # as recorded: device work comes with a device's collectives, a CPU backend with gloo's
        on_device = any(event.get("cat") in ("kernel", "gpu_memcpy", "cuda_runtime") for event in events)
        backend = "nccl" if on_device else "gloo"
        document["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world_size}
    if base_time_ns is not None:
        document["baseTimeNanoseconds"] = base_time_ns
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(json.dumps(document), encoding="utf-8")
        store = reader.read(path)
    store.check()
    return store


@cache
def catalog() -> Catalog:
    """The shipped catalog, read once."""
    return load_catalog()


def to_account(*stores: EventStore | Sequence[Event]) -> Account:
    """Account for stores, or for lists of events (ranks 0, 1, ...)."""
    read = [
        given if isinstance(given, EventStore) else to_store(given, rank=i, world_size=len(stores))
        for i, given in enumerate(stores)
    ]
    return explain(Trace(source="inline", stores=tuple(read)), catalog=catalog())


def to_report(*stores: EventStore | Sequence[Event]) -> dict[str, Any]:
    """The report on them."""
    report: dict[str, Any] = to_document(to_account(*stores))
    return report


def walk(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every leaf of a document with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, (*path, str(key)))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from walk(inner, (*path, str(i)))
    else:
        yield path, value
