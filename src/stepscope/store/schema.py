"""Every table, declared once: column, type, unit, what null means, one line.

The reference page is generated from here, and the Parquet files and SQL views have these columns. Times are int64 ns;
with `base_time_ns` (in the manifest) added they are wall-clock time since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["int64", "int32", "float64", "string", "bool"]

# What an event is. A kind is stored as its position in this list.
KINDS: tuple[str, ...] = (
    "kernel",
    "memcpy",
    "memset",
    "runtime",
    "op",
    "scope",
    "frame",
    "device_scope",
    "overhead",
    "other",
)
KIND_MEANING: dict[str, str] = {
    "kernel": "one device execution",
    "memcpy": "a copy on the device's timeline",
    "memset": "a fill on the device's timeline",
    "runtime": "a call of the device's runtime or driver (launch, copy, synchronise)",
    "op": "a framework operation (aten::mm, _C::...)",
    "scope": "a named host range (record_function, NVTX)",
    "frame": "a Python function",
    "device_scope": "a host range mirrored onto the device's timeline: no work of its own",
    "overhead": "the profiler's own work",
    "other": "an event of a category that the reader does not know",
}
KERNEL, MEMCPY, MEMSET, RUNTIME, OP, SCOPE, FRAME, DEVICE_SCOPE, OVERHEAD, OTHER = range(len(KINDS))
LAST_DEVICE_KIND = MEMSET  # kernel, memcpy and memset are device work

# The exclusive categories of a step's window, in the order in which they are shown.
CATEGORIES: tuple[str, ...] = ("supply", "compute", "kv", "comm", "host", "idle", "unmatched", "unknown")
CATEGORY_MEANING: dict[str, str] = {
    "supply": "the worker waits for its next work",
    "compute": "model forward: GEMM, attention core, experts, norm, activation, sampling",
    "kv": "KV data path: cache write, gather, upconvert, copy, layout, index selection, transfer",
    "comm": "exposed communication: collectives, dispatch and combine, waiting on a peer, stream or event",
    "host": "the device idles while the host still prepares or launches this step",
    "idle": "the device idles and the host is known to do none of the above",
    "unmatched": "device work that no catalog rule places",
    "unknown": "no evidence either way, and whatever was withheld",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. `null` says what a missing value means; empty: never null."""

    name: str
    dtype: Dtype
    unit: str
    doc: str
    null: str = ""


def _column(name: str, dtype: Dtype, unit: str, doc: str, null: str = "") -> Column:
    return Column(name=name, dtype=dtype, unit=unit, doc=doc, null=null)


_RANK = _column("rank", "int64", "", "the rank in its engine", "the capture does not say")
_NOT_RECORDED = "not recorded"

EVENTS = (
    _RANK,
    _column("start_ns", "int64", "ns", "when it starts"),
    _column("duration_ns", "int64", "ns", "how long it lasts"),
    _column("kind", "string", "", "one of the event kinds below"),
    _column("name", "string", "", "as recorded"),
    _column("track_id", "int32", "", "the row of `tracks`: a host thread or a device stream"),
    _column("correlation_id", "int64", "", "joins a launch with its device work", "none was recorded"),
)

TRACKS = (
    _RANK,
    _column("track_id", "int32", "", "0-based"),
    _column("process", "string", "", "process id or device, as recorded"),
    _column("thread", "string", "", "thread id or stream, as recorded"),
    _column("is_device", "bool", "", "a device stream, not a host thread"),
    _column("device", "string", "", "device index", "a host thread"),
    _column("label", "string", "", "the name that the trace gives it", "it gives none"),
)

STEPS = (
    _column("step_id", "int64", "", "0-based within its rank, in time order; empty steps have one too"),
    _RANK,
    _column("source", "string", "", "what marked the step"),
    _column("grade", "string", "", "how far the boundary can be trusted"),
    _column("phase", "string", "", "prefill, decode, mixed or empty", "the marker does not tell"),
    _column("start_ns", "int64", "ns", "start of the step's window", "an empty step has no window"),
    _column("window_ns", "int64", "ns", "from the end of the previous step's last work to its own", "an empty step"),
    _column("host_start_ns", "int64", "ns", "start of the step's host range", "no host range was recorded"),
    _column("host_duration_ns", "int64", "ns", "length of the step's host range", "no host range was recorded"),
    _column("num_prefill_requests", "int64", "rows", "rows in prefill", _NOT_RECORDED),
    _column("num_decode_requests", "int64", "rows", "rows in decode", _NOT_RECORDED),
    _column("num_scheduled_tokens", "int64", "tokens", "sum of query_len over all rows", _NOT_RECORDED),
    _column("prefill_query_sum", "int64", "tokens", "sum of query_len over prefill rows", _NOT_RECORDED),
    _column("prefill_kv_sum", "int64", "tokens", "sum of kv_len over prefill rows", _NOT_RECORDED),
    _column("prefill_query_sq_sum", "int64", "tokens^2", "sum of query_len^2 over prefill rows", _NOT_RECORDED),
    _column("prefill_query_kv_sum", "int64", "tokens^2", "sum of query_len*kv_len, prefill rows", _NOT_RECORDED),
    _column("decode_query_sum", "int64", "tokens", "sum of query_len over decode rows", _NOT_RECORDED),
    _column("decode_kv_sum", "int64", "tokens", "sum of kv_len over decode rows", _NOT_RECORDED),
    _column("decode_query_sq_sum", "int64", "tokens^2", "sum of query_len^2 over decode rows", _NOT_RECORDED),
    _column("decode_query_kv_sum", "int64", "tokens^2", "sum of query_len*kv_len, decode rows", _NOT_RECORDED),
    _column("graph_mode", "string", "", "eager, piecewise or full", "no device lane, or launches not recorded"),
    _column("num_padded_tokens", "int64", "tokens", "tokens added to reach a captured size", _NOT_RECORDED),
    _column("num_kernels", "int64", "", "device events launched by the step", "no device lane"),
    _column("device_busy_ns", "int64", "ns", "union of the step's own device work", "no device lane"),
    *(
        _column(f"exclusive_{category}_ns", "int64", "ns", CATEGORY_MEANING[category], "withheld, or an empty step")
        for category in CATEGORIES
    ),
)

PARTS = (
    _column("step_id", "int64", "", "the step"),
    _RANK,
    _column("part", "string", "", "the engine's own name of a sub-range (preprocess, forward, sample, ...)"),
    _column("start_ns", "int64", "ns", "when it starts"),
    _column("duration_ns", "int64", "ns", "host time"),
)

BUDGET = (
    _RANK,
    _column("step_id", "int64", "", "the step", "the whole span of the rank"),
    _column("start_ns", "int64", "ns", "start of the window"),
    _column("window_ns", "int64", "ns", "length of the window"),
    *(
        _column(f"exclusive_{category}_ns", "int64", "ns", CATEGORY_MEANING[category], "withheld")
        for category in CATEGORIES
    ),
    *(
        _column(f"busy_{category}_ns", "int64", "ns", f"union of {category} work; may overlap others", "withheld")
        for category in ("supply", "compute", "kv", "comm", "unmatched")
    ),
)

FAMILIES = (
    _RANK,
    _column("category", "string", "", "the budget's category"),
    _column("family", "string", "", "the catalog's family"),
    _column("count", "int64", "", "events"),
    _column("exclusive_ns", "int64", "ns", "time given to this family alone, over the rank's span"),
    _column("sum_ns", "int64", "ns", "sum of durations: overlaps counted twice"),
)

KERNELS = (
    _RANK,
    _column("step_id", "int64", "", "the step that launched it", "launched by no step"),
    _column("start_ns", "int64", "ns", "when it starts"),
    _column("duration_ns", "int64", "ns", "how long it lasts"),
    _column("name", "string", "", "as recorded"),
    _column("category", "string", "", "where the budget puts it"),
    _column("family", "string", "", "the catalog's family", "no rule places it"),
)

SIGNALS = (
    _RANK,
    _column("signal", "string", "", "what was recorded"),
    _column("layer", "string", "", "supply, compute, kv or comm: the layer that it belongs to"),
    _column("count", "int64", "", "how many"),
    _column("total_ns", "int64", "ns", "union of its ranges; nested ones are not added up"),
    _column("median_ns", "int64", "ns", "of one"),
    _column("p90_ns", "int64", "ns", "of one"),
    _column("share", "float64", "fraction", "of the rank's span", "an envelope, or shares are withheld"),
)

HEALTH = (
    _RANK,
    _column("path", "string", "", "the file"),
    _column("code", "string", "", "one of the health codes"),
    _column("severity", "string", "", "info, doubt or loss"),
    _column("count", "int64", "", "how often"),
    _column("detail", "string", "", "an example"),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "events": EVENTS,
    "tracks": TRACKS,
    "steps": STEPS,
    "parts": PARTS,
    "budget": BUDGET,
    "families": FAMILIES,
    "kernels": KERNELS,
    "signals": SIGNALS,
    "health": HEALTH,
}
TABLE_MEANING: dict[str, str] = {
    "events": "everything that was read, one row an event",
    "tracks": "host threads and device streams",
    "steps": "engine steps: shape and time",
    "parts": "sub-ranges of steps that the engine names",
    "budget": "each window's time, exclusive and busy",
    "families": "time per catalog family",
    "kernels": "device work with its step, category and family",
    "signals": "the recorded signals of the four layers",
    "health": "losses and doubts of the import",
}
