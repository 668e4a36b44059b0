"""Compose a GLM-5.2 prefill case: two tensor-parallel ranks of a vLLM GPU engine, six steps, four of 78 layers.

    python examples/compose_glm52_prefill.py [--out examples/glm52-prefill]

Nothing here was recorded. Names are those of vLLM 0.32, DeepGEMM, FlashMLA and NCCL; every time is an integer in the
tables below, in microseconds, so that the budget of each step can be added up by hand (expected.json was). Same tables,
same bytes. L = a step of 16384 tokens: its kernels run without a gap. T = a tail of 256 tokens: the host is too slow.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

# --- The steps -------------------------------------------------------------------------------------------------------
ROWS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((16384, 24576),),  # 0 L  request A, first chunk: 8192 of its tokens were in the cache      (query, kv)
    ((16384, 40960),),  # 1 L  request A, second chunk
    ((256, 41216), (16128, 20224)),  # 2 L  A's tail, and B's first chunk with a prefix hit of 4096
    ((256, 20480),),  # 3 T  B's tail
    ((16384, 32768),),  # 4 L  request C, first chunk: a prefix hit of 16384
    ((256, 33024),),  # 5 T  C's tail
)
IS_TAIL = (False, False, False, True, False, True)
DEQUEUE_US = (0, 1_800_000, 400_000, 3_000, 250_000, 2_000)  # the wait before each step; none before the first
LATE_US = ((0, 0, 0, 0, 0, 0), (40, 40, 40, 40, 37_000, 40))  # rank 1 prepares its inputs for longer than rank 0

# --- The kernels -----------------------------------------------------------------------------------------------------
NUM_LAYERS = 4
MAIN, SIDE, LOAD = 7, 24, 28  # streams
CUDA, DRIVER, CLUSTER = "cudaLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernelExC"


def deep_gemm(n: int, k: int, experts: int = 1) -> str:
    """DeepGEMM's kernel for one weight shape; GemmType 1 is the grouped product over experts."""
    kind = 1 if experts > 1 else 0
    return (
        f"void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, {n}u, {k}u, {experts}u, 128u, 128u, 128u, "
        f"128u, 128u, 128u, 5u, 128u, 256u, 1u, true, 132u, (deep_gemm::GemmType){kind}, "
        "deep_gemm::epilogue::transform::EpilogueIdentity>(float*, int*, unsigned int, unsigned int, unsigned int, "
        "CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float*)"
    )


class Kernel(NamedTuple):
    """One row: duration per step (0: not launched), the runtime call, the layers, the op around the launch."""

    name: str
    us: tuple[int, int, int, int, int, int]
    call: str
    layers: str = "0123"
    op: str = ""


def shape(large: int, tail: int) -> tuple[int, int, int, int, int, int]:
    """Durations that depend on the scheduled tokens alone."""
    return (large, large, large, tail, large, tail)


NORM = "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*, float, int, int)"
ADD_NORM = (
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 const*, "
    "float, int, int)"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SPARSE_ATTENTION = (
    "void sm90::fwd::sparse_attn_fwd_kernel<sm90::fwd::KernelTemplate<576, false>, "
    "sm90::fwd::KernelTemplate<576, false>::TmaParams>(SparseAttnFwdParams, "
    "sm90::fwd::KernelTemplate<576, false>::TmaParams)"
)
EMBED = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
ARGMAX = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, "
    "long, 4, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>)"
)
DS_MLA_WRITE = (
    "void vllm::concat_and_cache_ds_mla_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>"
    "(__nv_bfloat16 const*, __nv_bfloat16 const*, unsigned char*, long const*, int, int, int, int, int, int, "
    "float const*)"
)
INDEXER_WRITE = (
    "void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>"
    "(__nv_bfloat16 const*, unsigned char*, long const*, int, int, int, int, bool)"
)
INDEXER_SCORES = (
    "void deep_gemm::sm90_fp8_mqa_logits<32u, 128u, false, 4u, 256u, 3u, 3u, 132u, 128u, 512u, float>(unsigned int, "
    "unsigned int, unsigned int, unsigned int*, unsigned int*, float*, CUtensorMap_st, CUtensorMap_st, "
    "CUtensorMap_st, CUtensorMap_st)"
)
TOPK = "void vllm::topKPerRowPrefill<512, true>(float const*, int const*, int const*, int*, int, int, int, int)"
UPCONVERT = (
    "vllm::cp_gather_and_upconvert_fp8_kv_cache(unsigned char const*, __nv_bfloat16*, int const*, int const*, "
    "int const*, int, int, long, long, long, long)"
)
ROUTING = (
    "void vllm::moe::grouped_topk_fused_small_expert_count_kernel<__nv_bfloat16, float, int, "
    "(vllm::moe::ScoringFunc)1, 256, true, 8>(__nv_bfloat16*, float*, int*, float const*, long, long, long, "
    "long, long, long, bool, double)"
)
MOE_SUM = "void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16 const*, int)"
LM_HEAD = "nvjet_tst_128x64_64x8_2x1_v_bz_TNT"

EMBED_ALL_REDUCE = Kernel(ALL_REDUCE, shape(300, 20), CLUSTER)  # as long as the late rank's; the early rank's is longer
SIDE_GATHER = Kernel(ALL_GATHER, shape(600, 0), CLUSTER)  # on SIDE, with the next kernel; the one after waits for both
ATTENTION = Kernel(SPARSE_ATTENTION, shape(6_000, 110), CLUSTER)
ATTENTION_ALL_REDUCE = Kernel(ALL_REDUCE, shape(700, 30), CLUSTER)

HEAD = (
    Kernel(EMBED, shape(100, 10), CUDA),
    EMBED_ALL_REDUCE,
    Kernel(NORM, shape(60, 6), CUDA, op="_C::rms_norm"),
)
LAYER = (
    Kernel(deep_gemm(2624, 6144), shape(1_200, 20), DRIVER),
    Kernel("_fused_norm_rope_kernel", shape(200, 12), DRIVER, layers="123"),
    Kernel(DS_MLA_WRITE, shape(150, 10), CUDA, layers="0", op="_C_cache_ops::concat_and_cache_mla"),
    Kernel(INDEXER_WRITE, shape(50, 8), CUDA, layers="0", op="_C_cache_ops::indexer_k_quant_and_cache"),
    Kernel("_fused_indexer_q_rope_quant_kernel", shape(100, 9), DRIVER),
    Kernel(INDEXER_SCORES, (3_000, 5_000, 2_500, 60, 4_000, 70), DRIVER),  # grows with Σ query x kv
    Kernel(TOPK, (900, 1_500, 800, 40, 1_200, 60), CUDA, op="_C::top_k_per_row_prefill"),
    SIDE_GATHER,
    Kernel(deep_gemm(8192, 2048), shape(450, 15), DRIVER),
    Kernel("sparse_mla_index_remap_kernel", shape(50, 6), DRIVER),
    Kernel(UPCONVERT, (300, 500, 750, 250, 400, 403), CUDA, op="_C_cache_ops::cp_gather_and_upconvert_fp8_kv_cache"),
    ATTENTION,
    Kernel(deep_gemm(6144, 8192), shape(900, 18), DRIVER),
    ATTENTION_ALL_REDUCE,
    Kernel(ADD_NORM, shape(80, 6), CUDA, op="_C::fused_add_rms_norm"),
    Kernel(ROUTING, shape(120, 9), CUDA, op="_moe_C::grouped_topk"),
    Kernel(deep_gemm(2048, 6144, experts=256), shape(5_000, 240), DRIVER),
    Kernel("_silu_mul_quant_fp8_packed_kernel", shape(300, 12), DRIVER),
    Kernel(deep_gemm(6144, 1024, experts=256), shape(2_500, 130), DRIVER),
    Kernel(MOE_SUM, shape(200, 8), CUDA, op="_moe_C::moe_sum"),
    Kernel(ALL_REDUCE, shape(700, 30), CLUSTER),
)
FINAL_NORM = Kernel(ADD_NORM, shape(60, 6), CUDA, op="_C::fused_add_rms_norm")  # the last kernel of the model's forward
LOGITS = (
    Kernel(LM_HEAD, shape(200, 100), CLUSTER),
    Kernel(ALL_GATHER, shape(50, 50), CLUSTER),
)
SAMPLE = Kernel(ARGMAX, shape(30, 10), CUDA)
# Prefix hits that lay on the host: one copy on LOAD, beside a kernel of layer 0 and what follows it.
LOADS: dict[int, tuple[Kernel, int]] = {0: (ATTENTION, 2_000), 2: (ATTENTION, 2_000), 4: (ATTENTION_ALL_REDUCE, 2_000)}

# --- The host --------------------------------------------------------------------------------------------------------
FIRST_RPC_US = 1_000  # after the profiler's start
FIRST_LAUNCH_US = 2_710  # after the RPC's start: annotation, _prepare_inputs, _build_attention_metadata
LEAD_US = 10  # a kernel on an idle stream starts this long after its launch
CALL_US = 6
PITCH_US = 8  # L: from launch to launch
GAP_US = 25  # T: the device idles this long before each kernel but the step's first
SYNC_BEFORE_LAYER = 3  # there the host waits for the stream
SYNC_WAKE_US, RELAUNCH_US = 30, 15  # it wakes after the stream's last kernel, and launches after it woke
EVENT_WAKE_US = 25
SAMPLE_LAUNCH_US = 600  # after the launch of the logits' all-gather

# --- The files -------------------------------------------------------------------------------------------------------
BASE_NS = 1_790_857_026_000_000_000
START_NS = 5_000_000_000_000_137  # when the profiler starts, after BASE_NS
PIDS = (4101, 4102)
SAVED_NS = (1_795_857_031_204_118_352, 1_795_857_031_226_940_771)
LOOP = "vllm/v1/executor/multiproc_executor.py"
QUEUE = "vllm/distributed/device_communicators/shm_broadcast.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
MODEL = "vllm/models/deepseek_v32/nvidia/model.py"


class Event(NamedTuple):
    """One complete event; times in us after the profiler's start."""

    category: str
    name: str
    start: int
    end: int
    pid: int
    tid: int
    args: dict[str, Any]


class Placed(NamedTuple):
    """A kernel of one step: when it is launched and when it runs."""

    kernel: Kernel
    layer: int | None
    launch: int
    start: int
    end: int
    stream: int


class Forward(NamedTuple):
    """What one step launches before it samples."""

    placed: list[Placed]
    sync: tuple[int, int]


class Rank:
    """Collects one rank's events."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = PIDS[rank]
        self.events: list[Event] = []
        self.correlation = 1000

    def host(self, category: str, name: str, start: int, end: int, **args: object) -> None:
        """A range on the worker's main thread."""
        self.events.append(Event(category, name, start, end, self.pid, self.pid, args))

    def frame(self, name: str, start: int, end: int) -> None:
        """A Python function, named as the profiler names it."""
        self.host("python_function", name, start, end)

    def call(self, name: str, start: int, end: int) -> int:
        """A call of the device's runtime; returns its correlation id."""
        self.correlation += 1
        category = "cuda_driver" if name == DRIVER else "cuda_runtime"
        self.host(category, name, start, end, **{"External id": self.correlation, "correlation": self.correlation})
        return self.correlation

    def launch(self, placed: Placed) -> None:
        """A kernel with its launch, and the op around it."""
        kernel, at = placed.kernel, placed.launch
        if kernel.op:
            self.host("cpu_op", kernel.op, at - 1, at + CALL_US + 1, **{"External id": self.correlation + 1})
        correlation = self.call(kernel.call, at, at + CALL_US)
        self.device("kernel", kernel.name, placed.start, placed.end, placed.stream, correlation)

    def device(self, category: str, name: str, start: int, end: int, stream: int, correlation: int) -> None:
        """Work on a stream; the rank's device has the rank's number."""
        args = {"External id": correlation, "device": self.rank, "context": 1, "stream": stream}
        self.events.append(Event(category, name, start, end, self.rank, stream, args | {"correlation": correlation}))


def kernels_of(step: int) -> list[tuple[Kernel, int | None]]:
    """The step's kernels up to the logits, each with its layer, in launch order."""
    layers = [(kernel, layer) for layer in range(NUM_LAYERS) for kernel in LAYER if str(layer) in kernel.layers]
    body: list[tuple[Kernel, int | None]] = [*((k, None) for k in HEAD), *layers]
    return [(k, layer) for k, layer in [*body, (FINAL_NORM, None), *((k, None) for k in LOGITS)] if k.us[step]]


def place(step: int, rank: int, first_launch: int) -> Forward:
    """Place the step's kernels: back to back (L) or each after a gap (T), with one wait for the stream."""
    placed: list[Placed] = []
    sync = (0, 0)
    cursor, segment, beside = first_launch + LEAD_US, first_launch, 0
    in_segment = 0
    for kernel, layer in kernels_of(step):
        start = cursor + GAP_US if IS_TAIL[step] and placed else cursor
        if layer == SYNC_BEFORE_LAYER and placed[-1].layer == layer - 1:
            sync = (placed[-1].launch + 10, cursor + SYNC_WAKE_US)
            segment, in_segment = sync[1] + RELAUNCH_US, 0
            start = segment + LEAD_US
        launch = start - LEAD_US if IS_TAIL[step] else segment + PITCH_US * in_segment
        assert launch + LEAD_US <= start
        early = max(LATE_US[1 - rank][step] - LATE_US[rank][step], 0) if kernel is EMBED_ALL_REDUCE else 0
        end = start + kernel.us[step] + early
        on_side = kernel is SIDE_GATHER
        placed.append(Placed(kernel, layer, launch, start, end, SIDE if on_side else MAIN))
        cursor, beside = (start, end) if on_side else (max(end, beside), 0)
        in_segment += 1
    return Forward(placed, sync)


def annotation(step: int) -> str:
    """VLLM's detailed step annotation: sums over the rows of query, kv, query^2 and query x kv."""
    rows = ROWS[step]
    q, k = sum(q for q, _ in rows), sum(k for _, k in rows)
    qq, qk = sum(q * q for q, _ in rows), sum(q * k for q, k in rows)
    return f"execute_{q}_context_{len(rows)}(sq{q}sk{k}sqsq{qq}sqsk{qk})_generation_0(sq0sk0sqsq0sqsk0)"


def dequeue(trace: Rank, start: int, end: int) -> None:
    """The worker waits for its next call: acquire_read stands inside dequeue."""
    trace.frame(f"{QUEUE}(961): dequeue", start, end)
    trace.frame(f"{QUEUE}(830): acquire_read", start + 10, end - 10)


def hand_output(trace: Rank, start: int, end: int) -> None:
    """The worker hands its result to the engine."""
    trace.frame(f"{LOOP}(1010): handle_output", start, end)
    trace.frame(f"{LOOP}(991): enqueue_output", start + 5, end - 5)
    trace.frame(f"{QUEUE}(893): enqueue", start + 10, end - 10)


def prepare(trace: Rank, step: int, rpc: int) -> int:
    """From the RPC's start to the first launch, whose time is returned."""
    late = LATE_US[trace.rank][step]
    trace.frame(f"{RUNNER}(2480): _prepare_inputs", rpc + 200, rpc + 1_000 + late)
    trace.frame(f"{RUNNER}(2760): _build_attention_metadata", rpc + 1_010 + late, rpc + 2_500 + late)
    return rpc + FIRST_LAUNCH_US + late


def load_prefix(trace: Rank, step: int, first_launch: int, placed: list[Placed]) -> None:
    """The copy of a prefix that lay on the host: enqueued before the forward, running beside it."""
    if step not in LOADS:
        return
    beside, us = LOADS[step]
    start = next(p.start for p in placed if p.kernel is beside)
    op = {"External id": trace.correlation + 1}
    trace.host("cpu_op", "_C_cache_ops::swap_blocks_batch", first_launch - 150, first_launch - 130, **op)
    correlation = trace.call("cudaMemcpyAsync", first_launch - 148, first_launch - 134)
    trace.device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, start + us, LOAD, correlation)


def forward(trace: Rank, step: int, rpc: int) -> Placed:
    """execute_model: prepare, launch all kernels with one wait among them; returns the last one launched."""
    first_launch = prepare(trace, step, rpc)
    placed, (sync_start, sync_end) = place(step, trace.rank, first_launch)
    load_prefix(trace, step, first_launch, placed)
    for each in placed:
        trace.launch(each)
    trace.frame("torch/cuda/streams.py(107): synchronize", sync_start - 1, sync_end + 1)
    trace.call("cudaStreamSynchronize", sync_start, sync_end)
    for layer in range(NUM_LAYERS):
        launches = [p.launch for p in placed if p.layer == layer]
        trace.frame(f"nn.Module: DeepseekV32DecoderLayer_{layer}", launches[0] - 1, launches[-1] + CALL_US + 1)
    last_of_model = next(p for p in placed if p.kernel is FINAL_NORM)
    # the registered architecture around the class that implements it: one forward, not three
    names = ("nn.Module: GlmMoeDsaForCausalLM_0", "nn.Module: DeepseekV32ForCausalLM_0", f"{MODEL}(1210): forward")
    for depth, name in enumerate(names):
        trace.frame(name, first_launch - 110 + depth, last_of_model.launch + PITCH_US)
    last = placed[-1]
    trace.frame(f"{RUNNER}(3940): execute_model", rpc + 110, last.launch + 30)
    trace.host("user_annotation", annotation(step), rpc + 100, last.launch + 40)
    trace.device("gpu_user_annotation", annotation(step), placed[0].start, last.end, MAIN, 0)
    trace.frame(f"{WORKER}(1300): execute_model", rpc + 20, last.launch + 50)
    trace.frame("vllm/v1/worker/worker_base.py(365): execute_model", rpc + 10, last.launch + 60)
    hand_output(trace, last.launch + 70, last.launch + 270)
    trace.frame(f"{LOOP}(1043): _execute_worker_rpc", rpc, last.launch + 280)
    return last


def sample(trace: Rank, step: int, last: Placed) -> int:
    """The second RPC of a step: sample_tokens, which waits for its kernel; returns when the host woke."""
    at = last.launch
    dequeue(trace, at + 290, at + 490)
    launch = at + SAMPLE_LAUNCH_US
    start = max(last.end, launch + LEAD_US)
    end = start + SAMPLE.us[step]
    trace.host("cpu_op", "aten::argmax", launch - 10, launch + 8, **{"External id": trace.correlation + 1})
    trace.launch(Placed(SAMPLE, None, launch, start, end, MAIN))
    woke = end + EVENT_WAKE_US
    trace.call("cudaEventSynchronize", launch + 10, woke)
    trace.frame(f"{RUNNER}(3600): _bookkeeping_sync", launch + 9, woke + 90)
    trace.frame(f"{RUNNER}(4303): sample_tokens", at + 520, woke + 100)
    trace.frame(f"{WORKER}(1293): sample_tokens", at + 510, woke + 110)
    hand_output(trace, woke + 120, woke + 420)
    trace.frame(f"{LOOP}(1043): _execute_worker_rpc", at + 500, woke + 430)
    return woke


def compose(rank: int) -> list[Event]:
    """All events of a rank, in time order."""
    trace = Rank(rank)
    rpc, woke = FIRST_RPC_US, 0
    for step in range(len(ROWS)):
        if step:
            dequeue(trace, woke + 440, woke + 440 + DEQUEUE_US[step])
            rpc = woke + 440 + DEQUEUE_US[step] + 10
        woke = sample(trace, step, forward(trace, step, rpc))
    end = woke + 1_000
    whole = ("<string>(1): <module>", f"{LOOP}(944): worker_main", f"{LOOP}(1041): worker_busy_loop")
    for depth, name in enumerate(whole):
        trace.frame(name, depth, end - depth)
    # the thread that watches the parent process; its id is not known to the profiler
    trace.events.append(Event("python_function", "multiprocessing/connection.py(390): _recv", 0, end, trace.pid, 0, {}))
    return sorted(trace.events, key=lambda e: (e.start, -e.end))


def number_frames(events: list[Event]) -> None:
    """Give each Python function its id and its parent's, as the profiler does."""
    open_frames: list[tuple[int, int, int]] = []  # (thread, end, id)
    for number, event in enumerate((e for e in events if e.category == "python_function"), start=1):
        open_frames = [f for f in open_frames if f[1] > event.start]
        parent = next((f[2] for f in reversed(open_frames) if f[0] == event.tid), None)
        event.args.update({"Python parent id": parent, "Python id": number, "Ev Idx": number})
        if event.name.startswith("nn.Module"):
            event.args["Python module id"] = int(event.name.rpartition("_")[2])
        open_frames.append((event.tid, event.end, number))


def time_us(us: int) -> float:
    """A time after the profiler's start as the file has it: microseconds with three decimals."""
    return (START_NS + us * 1_000) / 1_000


def labels(rank: int) -> list[dict[str, Any]]:
    """The rows that name processes, threads and streams."""
    pid, title = PIDS[rank], f"VLLM::Worker_TP{rank}"
    rows: list[tuple[str, int, int, dict[str, str]]] = [
        ("process_name", pid, 0, {"name": title}),
        ("process_labels", pid, 0, {"labels": "CPU"}),
        ("thread_name", pid, pid, {"name": f"thread {pid} ({title})"}),
        ("process_name", rank, 0, {"name": title}),
        ("process_labels", rank, 0, {"labels": f"GPU {rank}"}),
        *(("thread_name", rank, stream, {"name": f"stream {stream} "}) for stream in (MAIN, SIDE, LOAD)),
    ]
    return [{"ph": "M", "name": n, "ts": time_us(0), "pid": p, "tid": t, "args": a} for n, p, t, a in rows]


def document(rank: int) -> str:
    """The trace file's text, one event a line."""
    events = compose(rank)
    number_frames(events)
    info = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_count": 1}
    info["pg_config"] = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": i, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0} for i in (0, 1)],
        "with_stack": 1,
        "vllm_version_tuple": ["0", "32", "0"],
        "distributedInfo": info,
        "vllm_version": "0.32.0",
        "host_name": "host",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    rows: list[dict[str, Any]] = labels(rank)
    for e in events:
        when = {"ts": time_us(e.start), "dur": float(e.end - e.start)}
        rows.append({"ph": "X", "cat": e.category, "name": e.name, "pid": e.pid, "tid": e.tid, **when, "args": e.args})
    last = max(e.end for e in events)
    rows.append({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": time_us(last)})
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n], "traceName": "composed"}}\n'


def write(out: Path) -> list[Path]:
    """Write both files; the same bytes each time."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(len(PIDS)):
        path = out / f"dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}.{SAVED_NS[rank]}.pt.trace.json.gz"
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
            file.write(document(rank).encode())
        path.write_bytes(packed.getvalue())
        paths.append(path)
    return paths


def main() -> None:
    """Write the two traces and say how large they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("glm52-prefill"))
    for path in write(parser.parse_args().out):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
