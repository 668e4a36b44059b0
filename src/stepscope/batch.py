"""BatchShape: the rows of one engine step, or their sums where only sums were recorded.

A row is one request's share of a step: q = `query_len` tokens computed now, c = `context_len` tokens whose KV is
already there, k = `kv_len` = c + q. Sums per phase are Σq, Σk, Σq², Σqk (what vLLM and SGLang annotations give).
None means not recorded. The trace wing observes a shape, the model wing prices it, the simulator produces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal

from stepscope.errors import InvariantBroken

RowPhase = Literal["prefill", "decode"]
StepPhase = Literal["prefill", "decode", "mixed", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request in one step; lengths in tokens. `prefix_hit_tokens`: found in the cache at admission."""

    query_len: int
    context_len: int
    phase: RowPhase
    request_id: str | None = None
    prefix_hit_tokens: int | None = None

    @property
    def kv_len(self) -> int:
        """Tokens that a query attends to at the end of the step."""
        return self.context_len + self.query_len


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSums:
    """Sums over the rows of one phase; None where not recorded."""

    num_requests: int | None = None
    query_sum: int | None = None
    kv_sum: int | None = None
    query_sq_sum: int | None = None
    query_kv_sum: int | None = None

    @classmethod
    def from_rows(cls, rows: tuple[Row, ...]) -> PhaseSums:
        """Exact sums of known rows."""
        return cls(
            num_requests=len(rows),
            query_sum=sum(r.query_len for r in rows),
            kv_sum=sum(r.kv_len for r in rows),
            query_sq_sum=sum(r.query_len**2 for r in rows),
            query_kv_sum=sum(r.query_len * r.kv_len for r in rows),
        )

    def query_lens(self) -> tuple[int, ...] | None:
        """Each row's query_len where the sums fix them: one row, or two rows by Σq and Σq². Longest first.

        >>> PhaseSums(num_requests=2, query_sum=16384, query_sq_sum=260177920).query_lens()
        (16128, 256)
        """
        if self.num_requests == 0:
            return ()
        if self.query_sum is None or self.num_requests is None:
            return None
        if self.num_requests == 1:
            return (self.query_sum,)
        if self.num_requests == 2 and self.query_sq_sum is not None:
            difference = isqrt(max(2 * self.query_sq_sum - self.query_sum**2, 0))
            longer, odd = divmod(self.query_sum + difference, 2)
            pair = (longer, self.query_sum - longer)
            return None if odd or pair[0] ** 2 + pair[1] ** 2 != self.query_sq_sum else pair
        return None


NO_ROWS = PhaseSums(num_requests=0, query_sum=0, kv_sum=0, query_sq_sum=0, query_kv_sum=0)
UNKNOWN_ROWS = PhaseSums()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """What one step computed. `rows` is None where only sums are known, `named_phase` what the recording calls it."""

    prefill: PhaseSums = UNKNOWN_ROWS
    decode: PhaseSums = UNKNOWN_ROWS
    num_scheduled_tokens: int | None = None
    num_requests: int | None = None
    rows: tuple[Row, ...] | None = None
    named_phase: StepPhase | None = None

    @classmethod
    def from_sums(cls, prefill: PhaseSums, decode: PhaseSums) -> BatchShape:
        """A shape from both phases' sums; the totals are known where both parts are."""
        return cls(
            prefill=prefill,
            decode=decode,
            num_scheduled_tokens=_add(prefill.query_sum, decode.query_sum),
            num_requests=_add(prefill.num_requests, decode.num_requests),
        )

    @classmethod
    def from_rows(cls, rows: tuple[Row, ...]) -> BatchShape:
        """A shape whose rows are all known.

        >>> BatchShape.from_rows((Row(query_len=512, context_len=1024, phase="prefill"),)).prefill.query_kv_sum
        786432
        """
        sums = cls.from_sums(
            PhaseSums.from_rows(tuple(r for r in rows if r.phase == "prefill")),
            PhaseSums.from_rows(tuple(r for r in rows if r.phase == "decode")),
        )
        return cls(
            prefill=sums.prefill,
            decode=sums.decode,
            num_scheduled_tokens=sums.num_scheduled_tokens,
            num_requests=sums.num_requests,
            rows=rows,
        )

    @property
    def phase(self) -> StepPhase | None:
        """The step's phase; None where the recording does not tell."""
        has_prefill, has_decode = _any(self.prefill), _any(self.decode)
        if has_prefill is None or has_decode is None:
            return "empty" if self.num_scheduled_tokens == 0 else self.named_phase
        if has_prefill and has_decode:
            return "mixed"
        return "prefill" if has_prefill else "decode" if has_decode else "empty"

    def check(self) -> None:
        """Σ query_len = scheduled tokens, wherever both sides are known."""
        parts = _add(self.prefill.query_sum, self.decode.query_sum)
        if parts is not None and self.num_scheduled_tokens is not None and parts != self.num_scheduled_tokens:
            raise InvariantBroken(f"sum of query_len is {parts}, scheduled tokens are {self.num_scheduled_tokens}")


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _any(sums: PhaseSums) -> bool | None:
    known = sums.num_requests if sums.num_requests is not None else sums.query_sum
    return None if known is None else known > 0
