"""Prefix first, then chunk: what recorded step shapes say about prefix hits and chunk sizes.

q = query_len. A large chunk has at least half of the largest prefill q of the capture, a tail at most a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import BatchShape
    from stepscope.steps.step import Step

_LARGE = 1 / 2
_TAIL = 1 / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHits:
    """Requests whose rows are known: how many, how many hit the cache, and with how many tokens."""

    num_requests: int
    num_hit: int
    hit_tokens: int


def prefix_hits(steps: Sequence[Step]) -> PrefixHits | None:
    """From rows that carry their prefix hit; None if no step has such rows."""
    hits: dict[str, int] = {}
    for step in steps:
        for row in step.boundary.shape.rows or ():
            if row.request_id is not None and row.prefix_hit_tokens is not None:
                hits.setdefault(row.request_id, row.prefix_hit_tokens)
    if not hits:
        return None
    return PrefixHits(
        num_requests=len(hits), num_hit=sum(tokens > 0 for tokens in hits.values()), hit_tokens=sum(hits.values())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Prompt tokens of the requests whose first chunk was seen: found in the cache, and computed.

    `again_tokens`: of the computed ones, those that the capture had seen computed before.
    """

    num_requests: int
    hit_tokens: int
    computed_tokens: int
    again_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Found or computed, each once."""
        return self.hit_tokens + self.computed_tokens - self.again_tokens


def count_prompts(steps: Sequence[Step]) -> PromptTokens | None:
    """From rows that carry their prefix hit; None if no request's first chunk has such a row."""
    hits: dict[str, int] = {}
    reached: dict[str, int] = {}  # kv_len up to which a request has been computed
    computed = again = 0
    for step in steps:
        for row in step.boundary.shape.rows or ():
            name = row.request_id
            if name is None or row.prefix_hit_tokens is None:
                continue
            if row.phase == "prefill" and name not in hits and row.context_len == row.prefix_hit_tokens:
                hits[name] = row.prefix_hit_tokens
            if row.phase == "prefill" and name in hits:
                computed += row.query_len
                again += max(min(reached.get(name, 0), row.kv_len) - row.context_len, 0)
            reached[name] = max(reached.get(name, 0), row.kv_len)
    if not hits:
        return None
    return PromptTokens(
        num_requests=len(hits), hit_tokens=sum(hits.values()), computed_tokens=computed, again_tokens=again
    )


def is_tail(tokens: int, largest: int) -> bool:
    """Whether a chunk is a tail beside the largest one."""
    return tokens <= _TAIL * largest


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSizes:
    """Prefill tokens per step (per row where rows are known), tails and large chunks apart."""

    sizes: tuple[int, ...]
    are_rows: bool
    num_large: int
    num_middle: int
    num_tails: int

    @property
    def sentence(self) -> Message:
        """In words."""
        largest, median = self.sizes[-1], int(np.quantile(self.sizes, 0.5, method="inverted_cdf"))
        rows, sums = say("chunks"), say("prefill parts of steps (rows are not recorded)")
        return say(
            "{count} {what} of {least} to {largest} tokens, median {median}: {large} large (at least {half}), {middle} "
            "between, {tails} tails (at most {quarter}).",
            count=len(self.sizes),
            what=rows if self.are_rows else sums,
            least=self.sizes[0],
            largest=largest,
            median=median,
            large=self.num_large,
            half=-(-largest // 2),
            middle=self.num_middle,
            tails=self.num_tails,
            quarter=largest // 4,
        )


def chunk_sizes(steps: Sequence[Step]) -> ChunkSizes | None:
    """The distribution of prefill query_len; None where no step records prefill tokens."""
    shapes = [s.boundary.shape for s in steps if s.boundary.shape.prefill.query_sum]
    rows = [_prefill_rows(shape) for shape in shapes]
    are_rows = bool(rows) and None not in rows
    known = [q for of_step in rows for q in of_step or ()] if are_rows else [s.prefill.query_sum or 0 for s in shapes]
    sizes = sorted(known)
    if not sizes:
        return None
    large = sum(size >= _LARGE * sizes[-1] for size in sizes)
    tails = sum(is_tail(size, sizes[-1]) for size in sizes)
    return ChunkSizes(
        sizes=tuple(sizes),
        are_rows=are_rows,
        num_large=large,
        num_middle=len(sizes) - large - tails,
        num_tails=tails,
    )


def _prefill_rows(shape: BatchShape) -> tuple[int, ...] | None:
    if shape.rows is not None:
        return tuple(row.query_len for row in shape.rows if row.phase == "prefill")
    return shape.prefill.query_lens()
