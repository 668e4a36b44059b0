"""Compose a DeepSeek-V4-Flash decode profile on Ascend 910C: SGLang, one rank, three steps, six of 43 layers.

    python examples/compose_ascend_dsv4_decode.py [--out examples/ascend-dsv4-decode] [--form text|database]

Nothing here was recorded. Names are those of CANN, op-plugin and sgl-kernel-npu; every time is an integer of us in the
tables below, so that each step can be added up by hand (expected.json was). Same tables, same bytes. Layers have the
compress_ratios of the public configuration: two with a sliding window, then C4 and C128 in turn.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

# --- The steps -------------------------------------------------------------------------------------------------------
REQUESTS = 64
KV_LEN = (8_192, 8_193, 131_072)  # of each request; the third step is of another batch, with long contexts
BRANCHES = ("SWA", "SWA", "C4", "C128", "C4", "C128")
RECEIVE_US, PREPARE_US, PROCESS_US, SYNC_US = 200, 300, 100, 10  # on the host, around a step's device work
GAP_US = 6  # the device waits this long for the launch of each layer's first kernel
LAUNCH_LEAD_US, LAUNCH_US = 5, 4
MAIN, SIDE, COPY = 2, 3, 4  # streams


class Ratios(NamedTuple):
    """Pipe ratios; None: the exporter wrote N/A. Cube core: mac, scalar, mte2. Vector core: vec, scalar, mte2."""

    cube: tuple[float | None, float | None, float | None] | None = None
    vector: tuple[float | None, float | None, float | None] | None = None


NO_RATIOS = Ratios()


class Kernel(NamedTuple):
    """One row of the tables: duration per step."""

    name: str
    type: str
    core: str
    us: tuple[int, int, int]
    ratios: Ratios = NO_RATIOS
    stream: int = MAIN


def named(operator: str, *us: int, api: str = "", core: str = "AI_VECTOR_CORE", ratios: Ratios = NO_RATIOS) -> Kernel:
    """A kernel that is named after its type alone, or <API>_<L0 operator>_<type>."""
    name = f"{api}_{operator}_{operator}" if api else operator
    return Kernel(name, operator, core, (us[0], us[0], us[-1]), ratios)


def cube(mac: float, scalar: float, mte2: float) -> Ratios:
    return Ratios(cube=(mac, scalar, mte2))


def vector(vec: float | None, scalar: float | None, mte2: float | None) -> Ratios:
    return Ratios(vector=(vec, scalar, mte2))


def matmul(us: int, ratios: Ratios, stream: int = MAIN) -> Kernel:
    name = "aclnnMatmulWeightNz_MatMulCommon_MatMulV2"
    return Kernel(name, "MatMulV2", "AI_CORE", (us, us, us), ratios, stream)


NORM = named("RmsNorm", 5, api="aclnnRmsNorm", ratios=vector(0.188, 0.499, 0.184))
EMBED = named("GatherV3", 3, api="aclnnEmbedding", ratios=vector(0.004, 0.42, 0.201))
GROUPED = "aclnnGroupedMatmulV5"
MIXED_GEMM = Ratios(cube=(0.12, 0.11, 0.66), vector=(0.05, 0.2, None))  # the vector core's mte2_ratio is missing

BEFORE = (
    named("HcPre", 6, ratios=vector(0.31, 0.24, 0.28)),
    NORM,
    matmul(19, cube(0.138, 0.21, 0.902)),
    named("InplacePartialRotaryMul", 4, ratios=vector(0.21, 0.18, 0.42)),
    named("ScatterPaKvCache", 3, api="aclnnScatterPaKvCache", ratios=vector(0.0, 0.62, 0.3)),
)
# both cores have neither mac nor vec cycles: no quotient, and the scalar pipe is what runs
COMPRESSOR = Ratios(cube=(0.0, 0.2, 0.1), vector=(0.0, 0.999, 0.05))
INDEXER = Ratios(cube=(0.4, 0.15, 0.6), vector=(0.3, 0.2, 0.45))
ATTENTION = Ratios(cube=(0.12, 0.18, 0.48), vector=(0.4, 0.3, 0.2))
SELECT: dict[str, tuple[Kernel, ...]] = {
    "SWA": (),
    "C4": (
        named("Compressor", 12, core="MIX_AIC", ratios=COMPRESSOR),
        named("KvCompressEpilog", 4, ratios=vector(0.2, 0.3, 0.5)),
        named("QuantLightningIndexer", 45, 180, core="MIX_AIC", ratios=INDEXER),  # grows with L / 4
    ),
    "C128": (
        named("Compressor", 10, core="MIX_AIC", ratios=COMPRESSOR),
        named("KvCompressEpilog", 4, ratios=vector(0.2, 0.3, 0.5)),
    ),
}
ATTEND: dict[str, Kernel] = {
    "SWA": named("SparseAttnSharedkv", 14, core="MIX_AIC", ratios=ATTENTION),
    "C4": named("SparseAttnSharedkv", 30, core="MIX_AIC", ratios=ATTENTION),  # 512 of them, whatever L
    "C128": named("SparseAttnSharedkv", 26, 38, core="MIX_AIC", ratios=ATTENTION),  # grows with L / 128
}
DISPATCH = named("MoeDistributeDispatchV2", 40, api="aclnnMoeDistributeDispatchV2", ratios=vector(0.02, 0.7, 0.14))
SHARED_EXPERT = matmul(16, cube(0.16, 0.2, 0.8), SIDE)  # beside the dispatch
EVENT_WAIT = Kernel("EVENT_WAIT", "", "EVENT_WAIT_SQE", (2, 2, 2))
AFTER: tuple[Kernel, ...] = (
    matmul(15, cube(0.125, 0.2, 0.85)),
    named("HcPost", 5, ratios=vector(0.3, 0.24, 0.27)),
    named("MoeGatingTopK", 7, api="aclnnMoeGatingTopK", ratios=vector(0.25, 0.6, 0.1)),
    SHARED_EXPERT,
    DISPATCH,
    named("GroupedMatmul", 36, api=GROUPED, core="MIX_AIC", ratios=MIXED_GEMM),
    named("DequantSwigluQuant", 4, api="aclnnDequantSwigluQuant", ratios=vector(0.35, 0.2, 0.3)),
    named("GroupedMatmul", 22, api=GROUPED, core="MIX_AIC", ratios=MIXED_GEMM),
    EVENT_WAIT,
    named("MoeDistributeCombineV2", 28, api="aclnnMoeDistributeCombineV2", ratios=vector(0.05, 0.68, 0.2)),
)
LAST: tuple[Kernel, ...] = (
    NORM,
    matmul(60, cube(0.118, 0.1, 0.995)),
    Kernel("hcom_allGather__868_0_1", "hcom_allGather_", "COMMUNICATION", (20, 20, 20)),
    named("ArgMaxV2", 12, api="aclnnArgMax", ratios=vector(0.5, 0.3, 0.4)),
    Kernel("MEMCPY_ASYNC", "", "PCIE_DMA_SQE", (3, 3, 3), stream=COPY),
)

# --- The files -------------------------------------------------------------------------------------------------------
BASE_US = 1_790_000_000_000_000
PID, QUEUE_THREAD = 5001, 5002
CANN_PID, HARDWARE_PID, COMMUNICATION_PID = ((PID << 10) + place for place in (224, 416, 448))
NOT_TABLED = ("EVENT_WAIT_SQE", "PCIE_DMA_SQE")
SCHEDULER = "sglang/srt/managers/scheduler.py"
SHAPES = ["Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats"]
CUBE_PIPES, VECTOR_PIPES = ("mac", "scalar", "mte1", "mte2", "fixpipe"), ("vec", "scalar", "mte2", "mte3")


def pipe_columns(core: str, pipes: tuple[str, ...]) -> list[str]:
    return [f"{core}_{pipe}_{what}" for pipe in pipes for what in ("time(us)", "ratio")]


HEADER = [
    *["Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core"],
    *["Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Num", "Mix Block Num", "HF32 Eligible", *SHAPES],
    *["Context ID", "aicore_time(us)", "aic_total_cycles", *pipe_columns("aic", CUBE_PIPES), "aic_icache_miss_rate"],
    *["aiv_time(us)", "aiv_total_cycles", *pipe_columns("aiv", VECTOR_PIPES), "aiv_icache_miss_rate"],
    "cube_utilization(%)",
]
CYCLES_PER_US = 1_800


class Task(NamedTuple):
    """A kernel of one step; times in us after BASE_US."""

    kernel: Kernel
    start: int
    end: int
    launch: int
    connection: int


class Range(NamedTuple):
    """A range on a host thread."""

    name: str
    category: str
    start: int
    end: int
    thread: int = PID
    connection: int | None = None


def layer(branch: str) -> list[Kernel]:
    return [*BEFORE, *SELECT[branch], ATTEND[branch], *AFTER]


def place(step: int, first: int, connection: int) -> list[Task]:
    """One step's device work: back to back, but for a gap before each layer; the shared expert beside the dispatch."""
    tasks: list[Task] = []
    now = first
    rows = [(EMBED, False)]
    for branch in BRANCHES:
        rows += [(kernel, i == 0) for i, kernel in enumerate(layer(branch))]
    rows += [(kernel, False) for kernel in LAST]
    for kernel, is_first in rows:
        start = now + GAP_US if is_first else now
        end = start + kernel.us[step]
        tasks.append(Task(kernel, start, end, start - LAUNCH_LEAD_US, connection + len(tasks)))
        now = start if kernel.stream == SIDE else end
    return tasks


def compose() -> tuple[list[Task], list[Range]]:
    """All device work and host ranges."""
    tasks: list[Task] = []
    ranges: list[Range] = []
    now = 1_000
    for step, kv_len in enumerate(KV_LEN):
        ranges.append(Range(f"{SCHEDULER}(1200): recv_requests", "python_function", now, now + RECEIVE_US))
        begin = now + RECEIVE_US
        own = place(step, begin + PREPARE_US, 1_000 * (step + 1))
        last = max(task.end for task in own)
        sums = f"g_sq={REQUESTS} g_sqsq={REQUESTS} g_sqsk={REQUESTS * kv_len} g_sk={REQUESTS * kv_len}"
        ranges.append(Range(f"step[DECODE bs={REQUESTS} {sums}]", "cpu_op", begin, last + SYNC_US))
        ranges.append(Range(f"{SCHEDULER}(2300): run_batch", "python_function", begin, last + SYNC_US))
        ranges.append(Range("aclrtSynchronizeStream", "acl", own[-1].start, last + SYNC_US, PID, 100 + step))
        ranges += [launch_of(task) for task in own]
        done = last + SYNC_US
        ranges.append(Range(f"{SCHEDULER}(2600): process_batch_result", "python_function", done, done + PROCESS_US))
        tasks += own
        now = done + PROCESS_US
    ranges.append(Range(f"{SCHEDULER}(1100): event_loop_overlap", "python_function", 990, now + 10))
    return tasks, sorted(ranges, key=lambda r: (r.start, -r.end, r.name))


def launch_of(task: Task) -> Range:
    call, level = ("launch", "node")
    if task.kernel.core == "EVENT_WAIT_SQE":
        call, level = ("aclrtStreamWaitEvent", "acl")
    elif task.kernel.core == "PCIE_DMA_SQE":
        call, level = ("aclrtMemcpyAsync", "acl")
    return Range(call, level, task.launch, task.launch + LAUNCH_US, QUEUE_THREAD, task.connection)


# --- The text export -------------------------------------------------------------------------------------------------
def stamp(us: int) -> str:
    return f"{BASE_US + us}.000"


def cells(ratio: float | None, total: float) -> list[str]:
    return ["N/A", "N/A"] if ratio is None else [f"{ratio * total:.3f}", str(ratio)]


def core_cells(ratios: tuple[float | None, ...] | None, us: int, *, is_cube: bool) -> list[str]:
    """One core's columns; a core that did not run is all zeros, as the exporter writes it."""
    if ratios is None:
        return ["0.0", "0", *["0.0"] * (11 if is_cube else 9)]
    compute, scalar, mte2 = ratios
    total = us * 0.9
    rest = (
        [cells(0.1, total), cells(mte2, total), cells(0.05, total)]
        if is_cube
        else [cells(mte2, total), cells(0.1, total)]
    )
    pipes = [cells(compute, total), cells(scalar, total), *rest]
    return [f"{total:.3f}", str(us * CYCLES_PER_US), *(cell for pipe in pipes for cell in pipe), "0.01"]


def table_row(task: Task, step: int, wait: int) -> list[str]:
    kernel = task.kernel
    is_comm = kernel.core == "COMMUNICATION"
    number, stream = ("N/A", "N/A") if is_comm else (str(task.connection), str(kernel.stream))
    shape = ["N/A"] * 6 if is_comm else ['"64,4096"', "DT_BF16", "ND", '"64,4096"', "DT_BF16", "ND"]
    us = kernel.us[step]
    counters = [*core_cells(kernel.ratios.cube, us, is_cube=True), *core_cells(kernel.ratios.vector, us, is_cube=False)]
    counters.append("90.0" if kernel.ratios.cube else "0")
    return [
        *["0", "4294967295", number, stream, kernel.name, kernel.type, "N/A" if is_comm else "dynamic", kernel.core],
        *[stamp(task.start) + "\t", f"{us}.000", f"{wait}.000", "0" if is_comm else "24", "0", "NO"],
        *shape,
        "N/A",
        *(["N/A"] * 25 if is_comm else counters),
    ]


def steps_of(tasks: list[Task]) -> list[int]:
    return [task.connection // 1_000 - 1 for task in tasks]


def write_table(path: Path, tasks: list[Task]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(HEADER)
    previous = tasks[0].start
    for task, step in zip(tasks, steps_of(tasks), strict=True):
        if task.kernel.core not in NOT_TABLED:
            writer.writerow(table_row(task, step, max(0, task.start - previous)))
            previous = task.end
    path.write_bytes(out.getvalue().encode())


def process(pid: int, name: str, label: str) -> list[dict[str, Any]]:
    common = {"pid": pid, "tid": 0, "ph": "M"}
    return [
        {"name": "process_name", **common, "args": {"name": name}},
        {"name": "process_labels", **common, "args": {"labels": label}},
    ]


def write_timeline(path: Path, tasks: list[Task], ranges: list[Range]) -> None:
    events = [
        *process(PID, "Python", "CPU"),
        *process(CANN_PID, "CANN", "CPU"),
        *process(HARDWARE_PID, "Ascend Hardware", "NPU 0"),
        *process(COMMUNICATION_PID, "Communication", "NPU 0"),
        {
            "name": "thread_name",
            "pid": COMMUNICATION_PID,
            "tid": 0,
            "args": {"name": "Group 0 Communication"},
            "ph": "M",
        },
    ]
    layers = {"acl": "AscendCL", "node": "Node"}
    for r in ranges:
        timed = {"ts": stamp(r.start), "dur": r.end - r.start, "ph": "X"}
        if r.category in layers:
            args: dict[str, Any] = {"level": r.category, "connection_id": r.connection}
            events.append(
                {"name": f"{layers[r.category]}@{r.name}", "pid": CANN_PID, "tid": r.thread, **timed, "args": args}
            )
        else:
            events.append({"name": r.name, "pid": PID, "tid": r.thread, **timed, "cat": r.category, "args": {}})
    for task in tasks:
        is_comm = task.kernel.core == "COMMUNICATION"
        args = {"connection_id": task.connection}
        if not is_comm:  # the timeline says AI_CORE of vector kernels too
            kind = task.kernel.core if task.kernel.core in (*NOT_TABLED, "MIX_AIC") else "AI_CORE"
            args = {"Task Type": kind, "Physic Stream Id": task.kernel.stream, **args}
        pid, tid = (COMMUNICATION_PID, 0) if is_comm else (HARDWARE_PID, task.kernel.stream)
        timed = {"ts": stamp(task.start), "dur": task.end - task.start, "ph": "X"}
        events.append({"name": task.kernel.name, "pid": pid, "tid": tid, **timed, "args": args})
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    path.write_text(f"[{lines}]\n", encoding="utf-8")


def union_us(spans: list[tuple[int, int]]) -> int:
    total, reach = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def write_step_times(path: Path, tasks: list[Task]) -> None:
    """The exporter's own account: dispatch and combine are Computing, waits and copies are in no lane."""
    spans = [(t.start, t.end) for t in tasks if t.kernel.core not in NOT_TABLED]
    computing = union_us([(t.start, t.end) for t in tasks if t.kernel.core not in (*NOT_TABLED, "COMMUNICATION")])
    communication = union_us([(t.start, t.end) for t in tasks if t.kernel.core == "COMMUNICATION"])
    stage = max(end for _, end in spans) - min(start for start, _ in spans)
    free = stage - computing - communication
    names = "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    names += "Communication(Not Overlapped and Exclude Receive),Preparing"
    row = ["0", "", computing, communication, 0, communication, free, stage, 0, communication, 0]
    path.write_bytes(f"{names}\r\n{','.join(str(cell) for cell in row)}\r\n".encode())


def settings(form: str) -> dict[str, Any]:
    return {
        "config": {
            "common_config": {"activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"], "with_stack": True},
            "experimental_config": {
                "_profiler_level": "Level1",
                "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION",
                "_data_simplification": False,
                "_export_type": form,
            },
        },
        "rank_id": 0,
    }


# --- The database export ---------------------------------------------------------------------------------------------
TABLES = """
CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE ENUM_API_TYPE (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,
 globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER);
CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockNum INTEGER, mixBlockNum INTEGER,
 taskType INTEGER, opType INTEGER);
CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER,
 opId INTEGER PRIMARY KEY, opType INTEGER, deviceId INTEGER);
CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,
 connectionId INTEGER PRIMARY KEY, name INTEGER);
CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER,
 type INTEGER);
CREATE TABLE TASK_PMU_INFO (globalTaskId INTEGER, name INTEGER, value NUMERIC);
CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER);
INSERT INTO RANK_DEVICE_MAP VALUES (0, 0);
"""
LEVELS = {"acl": 20_000, "node": 10_000}
TORCH_TYPES = {"cpu_op": 50_001, "python_function": 50_003}


class Strings:
    """Numbers of strings."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))


def ns(us: int) -> int:
    return (BASE_US + us) * 1000


def pmu_rows(number: int, kernel: Kernel, us: int, text: Strings) -> list[tuple[int, int, float | None]]:
    rows: list[tuple[int, int, float | None]] = []
    for core, compute, ratios in (("aic", "mac", kernel.ratios.cube), ("aiv", "vec", kernel.ratios.vector)):
        rows.append((number, text(f"{core}_total_cycles"), us * CYCLES_PER_US if ratios else 0))
        for pipe, ratio in zip((compute, "scalar", "mte2"), ratios or (0, 0, 0), strict=True):
            rows.append((number, text(f"{core}_{pipe}_ratio"), ratio))
    return rows


def write_database(path: Path, tasks: list[Task], ranges: list[Range]) -> None:
    path.unlink(missing_ok=True)
    connection, text = sqlite3.connect(path), Strings()
    connection.executescript(TABLES)
    connection.executemany("INSERT INTO ENUM_API_TYPE VALUES (?, ?)", [(n, name) for name, n in LEVELS.items()])
    for number, (task, step) in enumerate(zip(tasks, steps_of(tasks), strict=True)):
        kernel, span = task.kernel, (ns(task.start), ns(task.end))
        if kernel.core == "COMMUNICATION":
            row = (text(kernel.name), *span, task.connection, text("868"), number, text(kernel.type), 0)
            connection.execute("INSERT INTO COMMUNICATION_OP VALUES (?,?,?,?,?,?,?,?)", row)
            continue
        kind = {"EVENT_WAIT_SQE": "EVENT_WAIT", "PCIE_DMA_SQE": "MEMCPY_ASYNC"}.get(kernel.core, "KERNEL_AICORE")
        row = (*span, 0, task.connection, number, PID, text(kind), 0, kernel.stream, number, 0)
        connection.execute("INSERT INTO TASK VALUES (?,?,?,?,?,?,?,?,?,?,?)", row)
        if kernel.core not in NOT_TABLED:
            row = (text(kernel.name), number, 24, 0, text(kernel.core), text(kernel.type))
            connection.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (?,?,?,?,?,?)", row)
            rows = pmu_rows(number, kernel, kernel.us[step], text)
            connection.executemany("INSERT INTO TASK_PMU_INFO VALUES (?,?,?)", rows)
    for i, r in enumerate(ranges):
        thread, span = (PID << 32) + r.thread, (ns(r.start), ns(r.end))
        if r.category in LEVELS:
            number = r.connection if r.connection is not None else -i
            row = (*span, LEVELS[r.category], thread, number, text(r.name))
            connection.execute("INSERT INTO CANN_API VALUES (?,?,?,?,?,?)", row)
        else:
            times = (str(span[0]), str(span[1]))
            row = (*times, thread, None, text(r.name), TORCH_TYPES[r.category])
            connection.execute("INSERT INTO PYTORCH_API VALUES (?,?,?,?,?,?)", row)
    connection.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", [(n, value) for value, n in text.ids.items()])
    connection.commit()
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "ascend-dsv4-decode")
    parser.add_argument("--form", choices=("text", "database"), default="text")
    options = parser.parse_args()
    profile = options.out / "rank0_ascend_pt"
    output = profile / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    tasks, ranges = compose()
    info = json.dumps(settings("text" if options.form == "text" else "db"), indent=1)
    (profile / "profiler_info_0.json").write_text(info + "\n", encoding="utf-8")
    if options.form == "database":
        write_database(output / "ascend_pytorch_profiler_0.db", tasks, ranges)
        return
    write_table(output / "kernel_details.csv", tasks)
    write_timeline(output / "trace_view.json", tasks, ranges)
    write_step_times(output / "step_trace_time.csv", tasks)


if __name__ == "__main__":
    main()
