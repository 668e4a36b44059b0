"""A step log -> each request's way: prompt, hit, effective tokens, chunks and what shared their steps, and its stages.

Prefix first, then chunk. effective = prompt - hit at the first admission. A preempted request loses its blocks: what it
then finds in the cache are mostly its own old blocks (recovered, no reuse), and what it computes again is recomputed.
Stages, in ns: front = arrival to queue, queue = to first schedule, prefill = to the end of the step that computes the
last prompt token, decode = to the end. A step's end is when the next schedule() began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from stepscope.errors import InvariantBroken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.step_log import LoggedRow, RequestRecord, StepRecord, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChunk:
    """One prefill row, and what else its step held. `recomputed_tokens`: those computed before."""

    step_id: int
    chunk_index: int
    query_len: int
    kv_len: int
    recomputed_tokens: int
    num_other_prefills: int
    other_prefill_tokens: int
    num_decodes: int
    decode_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStages:
    """Times of one request; None where the log has no such event."""

    arrival_ns: int | None = None
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None

    def spans(self) -> dict[str, int | None]:
        """front, queue, prefill, decode."""
        points = (self.arrival_ns, self.queued_ns, self.scheduled_ns, self.first_token_ns, self.end_ns)
        names = ("front", "queue", "prefill", "decode")
        return {
            name: None if a is None or b is None else b - a
            for name, (a, b) in zip(names, pairwise(points), strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAccount:
    """One request of one engine core. A request that began before the log has no `prefix_hit_tokens`."""

    request_id: str
    prompt_len: int | None
    prefix_hit_tokens: int | None
    external_hit_tokens: int | None
    recovered_tokens: int
    recomputed_tokens: int
    num_preemptions: int
    num_output_tokens: int | None
    chunks: tuple[RequestChunk, ...]
    stages: RequestStages
    began_before: bool

    @property
    def effective_prefill_tokens(self) -> int | None:
        """Prompt tokens that no hit spared at the first admission."""
        if self.prompt_len is None or self.prefix_hit_tokens is None:
            return None
        return self.prompt_len - self.prefix_hit_tokens

    def check(self) -> None:
        """First-time chunk tokens + hit = prompt, for a request whose prefill is in the log and was not preempted."""
        if self.began_before or self.num_preemptions or self.prompt_len is None or self.prefix_hit_tokens is None:
            return
        computed = sum(c.query_len for c in self.chunks)
        if self.chunks and self.chunks[-1].kv_len == self.prompt_len != computed + self.prefix_hit_tokens:
            raise InvariantBroken(
                f"{self.request_id}: chunks of {computed} and a hit of {self.prefix_hit_tokens} tokens, "
                f"the prompt has {self.prompt_len}"
            )


def account_requests(stream: Stream) -> tuple[RequestAccount, ...]:
    """Every request that the scheduler's log names, in order of its first row or event."""
    ways: dict[str, _Way] = {}
    for event in stream.requests:
        ways.setdefault(event.request_id, _Way()).take_event(event)
    for step, after in zip(stream.steps, [*stream.steps[1:], None], strict=True):
        end_ns = None if after is None else after.time_ns - (after.schedule_ns or 0)
        for request_id in step.preempted:
            ways.setdefault(request_id, _Way()).was_preempted = True
        for row in step.rows:
            ways.setdefault(row.request_id, _Way()).take_row(row, step, end_ns)
        for request_id in step.finished:
            way = ways.get(request_id)
            if way is not None and way.end_ns is None:
                way.end_ns = step.time_ns - (step.schedule_ns or 0)
    return tuple(way.close(request_id) for request_id, way in ways.items())


@dataclass(slots=True)
class _Way:
    """A request while the log is read."""

    arrival_ns: int | None = None
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    prompt_len: int | None = None
    hit: int | None = None
    external: int | None = None
    num_output: int | None = None
    num_preemptions: int = 0
    computed: int = 0
    recovered: int = 0
    admissions_seen: set[int] = field(default_factory=set)
    chunks: list[RequestChunk] = field(default_factory=list)
    began_before: bool = False
    was_preempted: bool = False

    def take_event(self, event: RequestRecord) -> None:
        self.arrival_ns = event.arrival_ns if event.arrival_ns is not None else self.arrival_ns
        self.prompt_len = event.prompt_len if event.prompt_len is not None else self.prompt_len
        if event.event == "added":
            self.queued_ns = event.time_ns
        elif event.event == "finished":
            self.end_ns = event.time_ns
            self.num_output = event.num_output_tokens
        self.num_preemptions = max(self.num_preemptions, event.num_preemptions or 0)

    def take_row(self, row: LoggedRow, step: StepRecord, end_ns: int | None) -> None:
        admission = row.num_preemptions or 0
        context = row.kv_len - row.query_len
        self.num_preemptions = max(self.num_preemptions, admission)
        self.prompt_len = row.prompt_len if row.prompt_len is not None else self.prompt_len
        if admission not in self.admissions_seen:
            self._admit(row, step, admission)
        if row.phase == "prefill":
            again = max(min(self.computed, row.kv_len) - context, 0)
            self.chunks.append(_chunk(row, step, len(self.chunks), again))
        self.computed = max(self.computed, row.kv_len)
        done = self.prompt_len is not None and row.kv_len >= self.prompt_len
        if done and self.first_token_ns is None and not self.began_before:
            self.first_token_ns = end_ns

    def _admit(self, row: LoggedRow, step: StepRecord, admission: int) -> None:
        context = row.kv_len - row.query_len
        first = not self.admissions_seen
        self.admissions_seen.add(admission)
        if first and (admission or row.phase == "decode" or (row.chunk_index or 0) > 0):
            self.began_before = True
            self.computed = context
        elif first:
            self.scheduled_ns = step.time_ns
            self.hit = row.prefix_hit_tokens
            self.external = row.external_hit_tokens
            self.computed = context
        else:
            self.recovered += row.prefix_hit_tokens or 0
            if self.prompt_len is not None and row.num_output_tokens:
                # decodes that a big step summed are in no row; the last output was never an input
                self.computed = max(self.computed, self.prompt_len + row.num_output_tokens - 1)

    def close(self, request_id: str) -> RequestAccount:
        return RequestAccount(
            request_id=request_id,
            prompt_len=self.prompt_len,
            prefix_hit_tokens=self.hit,
            external_hit_tokens=self.external,
            recovered_tokens=self.recovered,
            recomputed_tokens=sum(chunk.recomputed_tokens for chunk in self.chunks),
            num_preemptions=max(self.num_preemptions, int(self.was_preempted)),
            num_output_tokens=self.num_output,
            chunks=tuple(self.chunks),
            stages=RequestStages(
                arrival_ns=self.arrival_ns,
                queued_ns=self.queued_ns,
                scheduled_ns=self.scheduled_ns,
                first_token_ns=self.first_token_ns,
                end_ns=self.end_ns,
            ),
            began_before=self.began_before,
        )


def _chunk(row: LoggedRow, step: StepRecord, index: int, again: int) -> RequestChunk:
    shape = step.shape
    return RequestChunk(
        step_id=step.step_id,
        chunk_index=index,
        query_len=row.query_len,
        kv_len=row.kv_len,
        recomputed_tokens=again,
        num_other_prefills=(shape.prefill.num_requests or 0) - 1,
        other_prefill_tokens=(shape.prefill.query_sum or 0) - row.query_len,
        num_decodes=shape.decode.num_requests or 0,
        decode_tokens=shape.decode.query_sum or 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTotals:
    """Over the requests whose first admission is in the log: prompt = hit + effective; and what was done twice."""

    num_requests: int
    prompt_tokens: int
    local_hit_tokens: int
    external_hit_tokens: int | None
    effective_tokens: int
    recomputed_tokens: int
    recovered_tokens: int
    num_preemptions: int


def total_prefill(requests: Sequence[RequestAccount]) -> PrefillTotals | None:
    """Sums, or None where no request's admission is in the log."""
    known = [r for r in requests if r.effective_prefill_tokens is not None]
    if not known:
        return None
    external = [r.external_hit_tokens for r in known]
    outside = None if None in external else sum(n or 0 for n in external)
    hits = sum(r.prefix_hit_tokens or 0 for r in known)
    return PrefillTotals(
        num_requests=len(known),
        prompt_tokens=sum(r.prompt_len or 0 for r in known),
        local_hit_tokens=hits - (outside or 0),
        external_hit_tokens=outside,
        effective_tokens=sum(r.effective_prefill_tokens or 0 for r in known),
        recomputed_tokens=sum(r.recomputed_tokens for r in requests),
        recovered_tokens=sum(r.recovered_tokens for r in requests),
        num_preemptions=sum(r.num_preemptions for r in requests),
    )


def add_totals(parts: Sequence[PrefillTotals]) -> PrefillTotals:
    """Over several engine cores."""
    external = [part.external_hit_tokens for part in parts]
    return PrefillTotals(
        num_requests=sum(part.num_requests for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        local_hit_tokens=sum(part.local_hit_tokens for part in parts),
        external_hit_tokens=None if None in external else sum(n or 0 for n in external),
        effective_tokens=sum(part.effective_tokens for part in parts),
        recomputed_tokens=sum(part.recomputed_tokens for part in parts),
        recovered_tokens=sum(part.recovered_tokens for part in parts),
        num_preemptions=sum(part.num_preemptions for part in parts),
    )
