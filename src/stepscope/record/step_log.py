r"""The step log's format: records of engine steps <-> length-framed JSON lines. log_writer writes the files.

A frame is `LLLLLLLL CCCCCCCC {json}\n`: the length of the JSON in bytes and its CRC-32, both as 8 hex digits. JSON is
ASCII without line breaks, so a reader that meets damage goes on behind the next line break. Every record but header,
drops and close has `seq`, its number in its stream, counted where records are offered: what is missing is a gap.
A stream is one process of the engine (its scheduler or one worker); its files are `{role}-{stream_id}-{index}.steplog`,
each starting with a header. Law: number offered = written + dropped + removed by rotation.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT = "stepscope-step-log"
VERSION = 1
SUFFIX = ".steplog"

# What each record kind holds: field -> meaning. A field that is unknown is null or absent, never 0 or -1.
HEADER_FIELDS = {
    "kind": "`header`",
    "format": f"`{FORMAT}`",
    "version": "of the format",
    "role": "`scheduler` (one per engine core) or `worker` (one per rank)",
    "stream_id": "the stream; the same in all its files",
    "file_index": "0-based number of this file in its stream",
    "first_seq": "`seq` from which on records can be in this file",
    "num_removed_files": "older files of the stream that rotation has removed",
    "pid": "process id of the engine's process",
    "host": "hash of the host's name",
    "engine": "`vllm` or `sglang`",
    "engine_version": "as the engine says",
    "dp_rank": "data-parallel rank of the engine core",
    "rank": "global rank of a worker",
    "tp_rank": "tensor-parallel rank of a worker",
    "pp_rank": "pipeline-parallel rank of a worker",
    "tp_size": "tensor-parallel size",
    "pp_size": "pipeline-parallel size",
    "dp_size": "data-parallel size",
    "model": "hash of the model's name",
    "token_budget": "most tokens of a step (max_num_batched_tokens)",
    "max_num_seqs": "most rows of a step",
    "block_size": "tokens of a KV block",
    "num_blocks": "KV blocks of the engine",
    "time_ns": "wall clock when the file was opened",
    "monotonic_ns": "monotonic clock at the same time",
}
# A worker writes a step record too where no scheduler stamped the step; its queue and KV fields are null then.
STEP_FIELDS = {
    "seq": "number in the stream",
    "kind": "`step`",
    "step_id": "0-based number of the schedule() call in its engine core; the marker's `s`",
    "time_ns": "wall clock when schedule() returned",
    "schedule_ns": "how long schedule() took",
    "num_scheduled_tokens": "sum of query_len over all rows",
    "num_requests": "rows of the step",
    "num_running": "running requests after schedule()",
    "num_waiting": "waiting requests after schedule(), deferred ones included",
    "num_waiting_before": "the same before schedule()",
    "waiting_request_ns": "integral of num_waiting over time since the stream began (monotonic clock)",
    "running_request_ns": "integral of num_running over time since the stream began",
    "stream_ns": "time since the stream began, the integrals' denominator",
    "kv_usage_fraction": "used KV blocks / all blocks after schedule()",
    "num_free_blocks": "free KV blocks after schedule()",
    "preempted": "requests that lost their blocks in this step",
    "finished": "requests that ended since the step before",
    "rows": "one list per row, in the order of ROW_FIELDS: prefill rows always, decode rows unless `decodes` sums them",
    "decodes": "sums over the decode rows, in the order of DECODE_FIELDS, where the batch is too big to list them",
}
ROW_FIELDS = {
    "request_id": "sanitised: as the engine has it where it is plain, else `h` and 16 hex digits of its hash",
    "query_len": "tokens computed in this step",
    "kv_len": "context_len + query_len",
    "prefix_hit_tokens": "prompt tokens found in the cache at the (last) admission",
    "phase": "`prefill` or `decode`",
    "chunk_index": "0-based chunk since the (last) admission; null for a decode row",
    "prompt_len": "tokens of the prompt",
    "num_output_tokens": "output tokens known when the step was scheduled (placeholders of async scheduling included)",
    "num_draft_tokens": "draft tokens among query_len",
    "num_preemptions": "times this request was resumed after a preemption",
    "external_hit_tokens": "of prefix_hit_tokens, those from a KV connector; null where not known",
}
DECODE_FIELDS = {
    "num_requests": "decode rows",
    "query_sum": "sum of query_len",
    "kv_sum": "sum of kv_len",
    "query_sq_sum": "sum of query_len^2",
    "query_kv_sum": "sum of query_len * kv_len",
    "kv_max": "largest kv_len",
}
FORWARD_FIELDS = {
    "seq": "number in the stream",
    "kind": "`forward`",
    "step_id": "the scheduler's, else this worker's own count",
    "is_stamped": "whether step_id is the scheduler's",
    "time_ns": "wall clock when the worker began execute_model",
    "host_ns": "how long execute_model took on the host (without sampling)",
    "num_scheduled_tokens": "as the worker got it",
    "num_requests": "as the worker got it",
    "is_profiled": "whether the step carries a marker in a profiler trace",
}
EXPERTS_FIELDS = {
    "seq": "number in the stream",
    "kind": "`experts`",
    "step_id": "as in forward",
    "is_stamped": "as in forward",
    "num_tokens": "tokens of the step that this rank's routers saw, padding left out",
    "top_k": "experts of a token",
    "num_experts": "logical routed experts of a layer",
    "layers": "layer indices, in the order of the counts",
    "rows_per_expert": "token copies per layer and expert: base64 of little-endian int32, layers x experts",
}
REQUEST_FIELDS = {
    "seq": "number in the stream",
    "kind": "`request`",
    "event": "`added` to the scheduler's queue or `finished`",
    "request_id": "as in the rows",
    "time_ns": "wall clock of the event",
    "arrival_ns": "wall clock at which the front end took the request",
    "prompt_len": "tokens of the prompt",
    "num_output_tokens": "output tokens at the event",
    "num_preemptions": "preemptions so far",
    "finish_reason": "the engine's word for it; null unless finished",
}
DROPS_FIELDS = {
    "kind": "`drops`",
    "reason": "`queue_full` (the engine did not wait), `write_failed` (disk), `writer_restarted` (it was killed)",
    "first_seq": "first record that is not in the log",
    "last_seq": "last one; all between are missing too",
    "num_dropped": "last_seq - first_seq + 1",
    "detail": "the system's words for a failed write",
    "time_ns": "wall clock when the drops were written down",
}
CLOSE_FIELDS = {
    "kind": "`close`",
    "reason": "`closed`, or `engine_gone` where the engine ended without a word",
    "next_seq": "records offered to the stream",
    "num_written": "records that this writer has written",
    "num_dropped": "records that this writer knows to be missing",
    "time_ns": "wall clock",
}
RECORD_FIELDS: dict[str, dict[str, str]] = {
    "header": HEADER_FIELDS,
    "step": STEP_FIELDS,
    "forward": FORWARD_FIELDS,
    "experts": EXPERTS_FIELDS,
    "request": REQUEST_FIELDS,
    "drops": DROPS_FIELDS,
    "close": CLOSE_FIELDS,
}

_PREFIX = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ")
_PREFIX_BYTES = 18
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def sanitise_id(request_id: str) -> str:
    """A request id as markers and logs carry it: itself where it is plain, else `h` and a hash of it.

    >>> sanitise_id("cmpl-1-0"), sanitise_id('a"b')
    ('cmpl-1-0', 'h0b492ef07b646b2b')
    """
    return request_id if _PLAIN_ID.fullmatch(request_id) else hash_id(request_id)


def hash_id(text: str) -> str:
    """`h` and 16 hex digits."""
    return "h" + hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def encode(record: Mapping[str, Any]) -> bytes:
    """One frame. `seq`, where there is one, must come first in the record."""
    return frame(json.dumps(record, separators=(",", ":")).encode("ascii"))


def frame(body: bytes) -> bytes:
    """The frame round a record's JSON."""
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def is_step_log(head: bytes) -> bool:
    """Whether a file that starts with these bytes (64 will do) is a step log."""
    return bool(_PREFIX.match(head)) and head[_PREFIX_BYTES:].startswith(
        b'{"kind":"header","format":"' + FORMAT.encode()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes of a log that hold no whole frame."""

    offset: int
    num_bytes: int


def split_frames(data: bytes) -> Iterator[bytes | Damage]:
    """The JSON of each whole frame, and each stretch of bytes that is none; together they cover `data`."""
    at = bad = 0
    while at < len(data):
        end = _frame_end(data, at)
        if end is None:
            line_break = data.find(b"\n", at)
            at = len(data) if line_break < 0 else line_break + 1
            continue
        if bad < at:
            yield Damage(offset=bad, num_bytes=at - bad)
        yield data[at + _PREFIX_BYTES : end - 1]
        at = bad = end
    if bad < at:
        yield Damage(offset=bad, num_bytes=at - bad)


def _frame_end(data: bytes, at: int) -> int | None:
    match = _PREFIX.match(data, at)
    if not match:
        return None
    start = at + _PREFIX_BYTES
    end = start + int(match[1], 16)
    if data[end : end + 1] != b"\n" or zlib.crc32(data[start:end]) != int(match[2], 16):
        return None
    return end + 1


def read_records(data: bytes) -> Iterator[dict[str, Any] | Damage]:
    """The records of a log in order, and its damaged stretches."""
    for item in split_frames(data):
        yield item if isinstance(item, Damage) else json.loads(item)
