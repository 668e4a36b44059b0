"""A vLLM SchedulerOutput -> the rows of its step, and the step's marker.

The output says of a running request only what changed, so the tracker remembers each request from its admission to its
end; it must therefore see every step, also those that nobody profiles. A row is prefill while context_len is below what
was known at the (last) admission: the prompt, after a preemption also the request's own output. Decode rows of a big
batch are only summed, with C-level loops: their cost must not grow with the batch's Python objects.
q = query_len, k = kv_len.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .step_log import hash_id, sanitise_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A row in the order of step_log.ROW_FIELDS.
ID, QUERY, KV, HIT, PHASE, CHUNK, PROMPT, OUTPUT, DRAFTS, PREEMPTIONS, EXTERNAL = range(11)
MAX_LISTED_DECODES = 16
MAX_MARKED_PREFILLS = 256
_FEW = 16


@dataclass(slots=True)
class _Request:
    """What is known of a request since its (last) admission; lengths in tokens."""

    public_id: str
    prompt_len: int | None
    known_len: int
    hit: int
    chunks: int = 0
    preemptions: int = 0
    external_hit: int | None = None


@dataclass(slots=True)
class Step:
    """One step. `decodes` is in the order of step_log.DECODE_FIELDS; None where all decode rows are in `rows`."""

    num_scheduled_tokens: int
    num_requests: int
    rows: list[list[Any]] = field(default_factory=list)
    decodes: list[int] | None = None
    finished: list[str] = field(default_factory=list)


def rows_of(step: Step) -> dict[str, Any]:
    """The fields of a step record that hold its rows."""
    return {"rows": step.rows} if step.decodes is None else {"rows": step.rows, "decodes": step.decodes}


class RowTracker:
    """Turns one scheduler's outputs, in order, into steps."""

    def __init__(self, *, max_listed_decodes: int = MAX_LISTED_DECODES, is_hashing: bool = False) -> None:
        self._max_listed = max_listed_decodes
        self._to_public = hash_id if is_hashing else sanitise_id
        self._requests: dict[str, _Request] = {}
        self._prefilling: set[str] = set()

    def public_id(self, request_id: str) -> str:
        """The id as log and marker carry it."""
        known = self._requests.get(request_id)
        return known.public_id if known else self._to_public(request_id)

    def observe(self, output: Any, external_hits: dict[str, int] | None = None) -> Step:
        """The next output of the scheduler."""
        counts: dict[str, int] = output.num_scheduled_tokens
        step = Step(output.total_num_scheduled_tokens, len(counts))
        self._forget(output.finished_req_ids, step)
        cached = output.scheduled_cached_reqs
        computed: dict[str, int] = {}
        outputs: dict[str, int] = {}
        for data in output.scheduled_new_reqs:
            prompt, known = _lengths(data)
            self._admit(data.req_id, prompt, known, data.num_computed_tokens)
            computed[data.req_id] = data.num_computed_tokens
            outputs[data.req_id] = known - prompt
        new = set(computed)
        is_listing = len(counts) - len(new) <= self._max_listed
        if is_listing:
            wanted: Iterable[str] = cached.req_ids
        else:
            wanted = [r for r in {*self._prefilling, *cached.resumed_req_ids} if r in counts and r not in computed]
        listed = counts if is_listing else [*computed, *wanted]
        _look_up(cached, wanted, computed, outputs)
        for request_id in cached.resumed_req_ids:
            if request_id in computed:
                self._resume(request_id, computed[request_id], outputs[request_id])
        for request_id, hit in (external_hits or {}).items():
            if request_id in self._requests:
                self._requests[request_id].external_hit = hit
        drafts = output.scheduled_spec_decode_tokens
        rows = {r: self._row(r, counts[r], computed, outputs, drafts) for r in listed}
        prefill = {r for r, row in rows.items() if row[PHASE] == "prefill"}
        step.rows = [row for r, row in rows.items() if is_listing or r in prefill]
        if not is_listing and len(prefill) < len(counts):
            context = [computed[r] for r in prefill - new]
            step.decodes = _sum_decodes(step, counts, cached, prefill, context)
        return step

    def _forget(self, finished: Iterable[str], step: Step) -> None:
        for request_id in finished:
            step.finished.append(self.public_id(request_id))
            self._requests.pop(request_id, None)
            self._prefilling.discard(request_id)

    def _admit(self, request_id: str, prompt_len: int, known_len: int, hit: int) -> None:
        before = self._requests.get(request_id)  # the V2 runner gets a resumed request as a new one
        self._requests[request_id] = _Request(
            public_id=before.public_id if before else self._to_public(request_id),
            prompt_len=prompt_len,
            known_len=known_len,
            hit=hit,
            preemptions=before.preemptions + 1 if before else 0,
        )
        self._prefilling.add(request_id)

    def _resume(self, request_id: str, hit: int, num_outputs: int) -> None:
        request = self._requests.get(request_id)
        if request is None or request.prompt_len is None:
            return
        request.known_len = request.prompt_len + num_outputs
        request.hit, request.chunks, request.external_hit = hit, 0, None
        request.preemptions += 1
        self._prefilling.add(request_id)

    def _row(
        self,
        request_id: str,
        query_len: int,
        computed: dict[str, int],
        outputs: dict[str, int],
        drafts: dict[str, list[int]],
    ) -> list[Any]:
        context_len = computed.get(request_id, 0)
        num_outputs = outputs.get(request_id, 0)
        request = self._requests.get(request_id)
        if request is None:  # admitted before this tracker looked: only the engine's own word for the phase is left
            request = _Request(self._to_public(request_id), None, 0 if num_outputs else context_len + 1, 0)
            self._requests[request_id] = request
        chunk = None
        is_prefill = context_len < request.known_len
        if is_prefill:
            chunk = request.chunks
            request.chunks += 1
        if context_len + query_len >= request.known_len:
            self._prefilling.discard(request_id)
        return [
            request.public_id,
            query_len,
            context_len + query_len,
            request.hit if request.prompt_len is not None else None,
            "prefill" if is_prefill else "decode",
            chunk,
            request.prompt_len,
            num_outputs,
            len(drafts[request_id]) if request_id in drafts else 0,
            request.preemptions,
            request.external_hit,
        ]


def _lengths(data: Any) -> tuple[int, int]:
    """A new request's prompt, and what is known of it: after a preemption (V2 runner) also its output."""
    if data.prompt_token_ids is not None:
        prompt = len(data.prompt_token_ids)
    else:
        prompt = int(data.prompt_embeds.shape[0]) if getattr(data, "prompt_embeds", None) is not None else 0
    prefill = getattr(data, "prefill_token_ids", None)
    return prompt, max(len(prefill), prompt) if prefill is not None else prompt


def _look_up(cached: Any, wanted: Iterable[str], computed: dict[str, int], outputs: dict[str, int]) -> None:
    """Fill in what the output says of the wanted running requests."""
    ids = cached.req_ids
    wanted = list(wanted)
    if len(wanted) <= _FEW and len(ids) > _FEW:
        for request_id in wanted:
            index = ids.index(request_id)
            computed[request_id] = cached.num_computed_tokens[index]
            outputs[request_id] = cached.num_output_tokens[index]
        return
    computed.update(zip(ids, cached.num_computed_tokens, strict=False))
    outputs.update(zip(ids, cached.num_output_tokens, strict=False))


def _sum_decodes(
    step: Step, counts: dict[str, int], cached: Any, prefill: set[str], prefill_context: list[int]
) -> list[int]:
    """The sums over the rows that are not prefill. `prefill_context`: that of running prefill rows."""
    num = len(counts) - len(prefill)
    query = step.num_scheduled_tokens - sum(row[QUERY] for row in step.rows)
    lengths: list[int] = cached.num_computed_tokens
    largest = max(lengths)
    is_whole = len(lengths) == num + len(prefill_context) and largest > max(prefill_context, default=-1)
    if query == num and is_whole:  # one token a row: no loop in Python
        kv = sum(lengths) - sum(prefill_context) + num
        return [num, query, kv, num, kv, largest + 1]
    pairs = [
        (counts[request_id], context + counts[request_id])
        for request_id, context in zip(cached.req_ids, lengths, strict=False)
        if request_id not in prefill and request_id in counts
    ]
    return [
        len(pairs),
        query,
        sum(k for _, k in pairs),
        sum(q * q for q, _ in pairs),
        sum(q * k for q, k in pairs),
        max(k for _, k in pairs),
    ]


def render_marker(step_id: int, step: Step) -> str | None:
    """The name of the step's range: plain ASCII, no quotes, no backslashes. None where a row is not fully known.

    `r=` lists rows as id:q:k:hit:c|g; `c=` and `g=` sum the prefill and decode rows that are not listed, as
    n:Σq:Σk:Σq²:Σqk.
    """
    rows: Sequence[list[Any]] = step.rows
    parts = [f"vllm_step v=1 s={step_id} n={step.num_scheduled_tokens}"]
    if len(rows) > MAX_MARKED_PREFILLS:
        prefill = [row for row in rows if row[PHASE] == "prefill"]
        rows = [row for row in rows if row[PHASE] != "prefill"]
        sums = (
            len(prefill),
            sum(row[QUERY] for row in prefill),
            sum(row[KV] for row in prefill),
            sum(row[QUERY] ** 2 for row in prefill),
            sum(row[QUERY] * row[KV] for row in prefill),
        )
        parts.append("c=" + ":".join(map(str, sums)))
    if step.decodes:
        parts.append("g=" + ":".join(map(str, step.decodes[:5])))
    if any(row[HIT] is None for row in rows):
        return None
    if rows:
        listed = ",".join(
            f"{row[ID]}:{row[QUERY]}:{row[KV]}:{row[HIT]}:{'c' if row[PHASE] == 'prefill' else 'g'}" for row in rows
        )
        parts.insert(1, "r=" + listed)
    return " ".join(parts)
