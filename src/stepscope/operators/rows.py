"""StepRows: the rows of one step, or of many, and every sum over them that a formula needs.

A row has q = query_len tokens and c = context_len; its queries stand at t = c+1 .. c+q (t counts the query itself).
pairs: Σ_t t.  window W: Σ_t min(t, W).  closed windows of r tokens, at most `cap` of them: Σ_t min(cap, t // r).
Kernels see closed windows only, hence floor (vLLM: (positions + 1) // ratio; SGLang NPU: seq // ratio).
All sums are closed forms in int64, summed per step; for a single step they come out as Python ints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np

from stepscope.batch import BatchShape, PhaseSums, Row, RowPhase
from stepscope.errors import BadInput
from stepscope.operators.operator import Amount, Array

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PhaseRows:
    """Rows of one phase: query_len, context_len and the step of each, in step order. Sums are kept once made."""

    query_len: Array
    context_len: Array
    step_index: Array
    num_steps: int
    _sums: dict[tuple[str | int | None, ...], Amount] = field(default_factory=dict)

    def _sum(self, key: tuple[str | int | None, ...], values: Callable[[], Array]) -> Amount:
        """Per step, of what `values` gives per row; made at the first call with this key."""
        if key not in self._sums:
            self._sums[key] = self._sum_steps(values())
        return self._sums[key]

    def _sum_steps(self, values: Array) -> Amount:
        if self.num_steps == 1:
            return int(values.sum())
        starts = np.searchsorted(self.step_index, np.arange(self.num_steps + 1))
        running = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
        result: Array = running[starts[1:]] - running[starts[:-1]]
        return result

    @property
    def kv_len(self) -> Array:
        """Tokens that the last query of each row attends to."""
        result: Array = self.context_len + self.query_len
        return result

    @property
    def num_rows(self) -> Amount:
        """Requests."""
        return self._sum(("rows",), lambda: np.ones_like(self.query_len))

    @property
    def num_tokens(self) -> Amount:
        """Σ q."""
        return self._sum(("tokens",), lambda: self.query_len)

    @property
    def num_kv(self) -> Amount:
        """Σ (c + q): history rows, each once."""
        return self._sum(("kv",), lambda: self.kv_len)

    @property
    def max_kv_len(self) -> Amount:
        """The longest kv_len of the step; 0 without rows."""
        if self.num_steps == 1:
            return int(self.kv_len.max(initial=0))
        longest = np.zeros(self.num_steps, dtype=np.int64)
        np.maximum.at(longest, self.step_index, self.kv_len)
        return longest

    def split_by_length(self, longest: int) -> tuple[PhaseRows, PhaseRows]:
        """The rows of the steps in which no history is longer, and those of the other steps."""
        is_short = np.asarray(self.max_kv_len).reshape(-1)[self.step_index] <= longest
        return self._only(is_short), self._only(~is_short)

    def _only(self, mask: Array) -> PhaseRows:
        return PhaseRows(
            query_len=self.query_len[mask],
            context_len=self.context_len[mask],
            step_index=self.step_index[mask],
            num_steps=self.num_steps,
        )

    def pairs(self, window: int | None = None) -> Amount:
        """Σ over queries of the rows each attends to, at most `window`."""
        return self._sum(("pairs", window), lambda: self._ramp_rows(window))

    def window_rows(self, window: int) -> Amount:
        """Distinct history rows that the queries of each row see through a window."""
        return self._sum(("window", window), lambda: np.minimum(self.kv_len, window + self.query_len - 1))

    def selected_rows(self, topk: int) -> Amount:
        """Distinct rows at least touched when each query takes `topk`: no more than there are."""
        return self._sum(("selected", topk), lambda: np.minimum(self._ramp_rows(topk), self.kv_len))

    def closed_pairs(self, ratio: int, cap: int | None = None) -> Amount:
        """Σ over queries of the closed windows each attends to, at most `cap`."""
        return self._sum(("closed pairs", ratio, cap), lambda: self._closed(ratio, cap))

    def closed_rows(self, ratio: int, cap: int | None = None) -> Amount:
        """Distinct compressed rows read; with `cap`, no more than the queries pick."""
        if cap is None:
            return self._sum(("closed rows", ratio), lambda: self.kv_len // ratio)
        picked = ("picked rows", ratio, cap)
        return self._sum(picked, lambda: np.minimum(self.kv_len // ratio, self._closed(ratio, cap)))

    def new_windows(self, ratio: int) -> Amount:
        """Windows that this step closes."""
        return self._sum(("new", ratio), lambda: self.kv_len // ratio - self.context_len // ratio)

    def pending_rows(self, ratio: int, overlap: int) -> Amount:
        """State rows of earlier steps that closing a window reads, in whole rows (rounded up per request).

        Without overlap the c mod r pending tokens; with it half rows of those and of the window before them.
        """
        return self._sum(("pending", ratio, overlap), lambda: self._pending(ratio, overlap))

    def state_rows(self, ring: int) -> Amount:
        """State rows left behind: no more than the ring holds."""
        return self._sum(("state", ring), lambda: np.minimum(self.query_len, ring))

    def padded_tokens(self, chunk_len: int) -> Amount:
        """Σ q rounded up to whole chunks."""
        return self._sum(("padded", chunk_len), lambda: -(-self.query_len // chunk_len) * chunk_len)

    def _ramp_rows(self, cap: int | None) -> Array:
        return _as_array(_ramp(self.kv_len, cap) - _ramp(self.context_len, cap))

    def _closed(self, ratio: int, cap: int | None) -> Array:
        return _as_array(_stairs(self.kv_len, ratio, cap) - _stairs(self.context_len, ratio, cap))

    def _pending(self, ratio: int, overlap: int) -> Array:
        closes = (self.kv_len // ratio) > (self.context_len // ratio)
        pending = self.context_len % ratio
        if overlap == 2:
            pending = -(-(pending + np.minimum(self.context_len - pending, ratio)) // 2)
        return np.where(closes, pending, 0)


def _ramp(x: Array, cap: int | None) -> Array:
    """Σ_{t=1..x} min(t, cap)."""
    if cap is None:
        return _as_array(x * (x + 1) // 2)
    low = np.minimum(x, cap)
    return _as_array(low * (low + 1) // 2 + (x - low) * cap)


def _stairs(x: Array, ratio: int, cap: int | None) -> Array:
    """Σ_{t=1..x} min(t // ratio, cap)."""
    low = x if cap is None else np.minimum(x, cap * ratio)
    stairs, rest = low // ratio, low % ratio
    total = ratio * stairs * (stairs - 1) // 2 + stairs * (rest + 1)
    return _as_array(total if cap is None else total + (x - low) * cap)


def _as_array(x: Any) -> Array:
    result: Array = np.asarray(x)
    return result


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepRows:
    """Both phases of `num_steps` steps."""

    prefill: PhaseRows
    decode: PhaseRows
    num_steps: int

    @classmethod
    def from_arrays(cls, *, query_len: Array, context_len: Array, is_decode: Array, step_index: Array) -> StepRows:
        """From one entry per row; `step_index` (0-based) has to be sorted. The last index gives the number of steps.

        Raises:
            BadInput: lengths below what a row has.
        """
        q, c = np.asarray(query_len, dtype=np.int64), np.asarray(context_len, dtype=np.int64)
        if q.size and (q.min() < 1 or c.min() < 0):
            raise BadInput("a row computes at least 1 token on a context of at least 0: query_len and context_len.")
        decode, steps = np.asarray(is_decode, dtype=bool), np.asarray(step_index, dtype=np.int64)
        num_steps = int(steps[-1]) + 1 if steps.size else 1
        parts = [
            PhaseRows(query_len=q[mask], context_len=c[mask], step_index=steps[mask], num_steps=num_steps)
            for mask in (~decode, decode)
        ]
        return cls(prefill=parts[0], decode=parts[1], num_steps=num_steps)

    @classmethod
    def from_shapes(cls, shapes: Sequence[BatchShape]) -> StepRows:
        """From shapes whose rows are known, or whose sums allow equal rows in their place (see `equal_rows`)."""
        rows = [shape.rows if shape.rows is not None else equal_rows(shape) for shape in shapes]
        flat = list(chain.from_iterable(rows))
        lengths = np.fromiter((len(r) for r in rows), dtype=np.int64, count=len(rows))
        built = cls.from_arrays(
            query_len=np.fromiter((r.query_len for r in flat), dtype=np.int64, count=len(flat)),
            context_len=np.fromiter((r.context_len for r in flat), dtype=np.int64, count=len(flat)),
            is_decode=np.fromiter((r.phase == "decode" for r in flat), dtype=bool, count=len(flat)),
            step_index=np.repeat(np.arange(len(rows)), lengths),
        )
        return built if built.num_steps == len(rows) else built.with_steps(len(rows))

    def with_steps(self, num_steps: int) -> StepRows:
        """The same rows, counting empty steps at the end too."""
        parts = [
            PhaseRows(query_len=p.query_len, context_len=p.context_len, step_index=p.step_index, num_steps=num_steps)
            for p in (self.prefill, self.decode)
        ]
        return StepRows(prefill=parts[0], decode=parts[1], num_steps=num_steps)

    def with_decode_len(self, query_len: int) -> StepRows:
        """The decode rows alone, each computing `query_len` tokens."""
        decode, everyone = self.decode, slice(None)
        nobody = slice(0, 0)
        parts = [
            PhaseRows(
                query_len=np.full_like(decode.query_len[part], query_len),
                context_len=decode.context_len[part],
                step_index=decode.step_index[part],
                num_steps=self.num_steps,
            )
            for part in (nobody, everyone)
        ]
        return StepRows(prefill=parts[0], decode=parts[1], num_steps=self.num_steps)

    @property
    def num_tokens(self) -> Amount:
        """Scheduled tokens."""
        return self.prefill.num_tokens + self.decode.num_tokens

    @property
    def num_logits(self) -> Amount:
        """Rows that need logits: the last token of each prefill row, every token of a decode row (verification)."""
        return self.prefill.num_rows + self.decode.num_tokens

    @property
    def max_kv_len(self) -> int:
        """The longest kv_len of all."""
        return max(int(p.kv_len.max(initial=0)) for p in (self.prefill, self.decode))


def equal_rows(shape: BatchShape) -> tuple[Row, ...]:
    """Rows in place of a shape's sums: as many as there were, their lengths equal to within one token.

    Σq and Σk hold exactly; sums that are not linear (windows, top-k, causal pairs) are then those of an even batch.

    Raises:
        BadInput: even the counts and sums are not known.
    """
    return _equal_phase_rows(shape.prefill, "prefill") + _equal_phase_rows(shape.decode, "decode")


def _equal_phase_rows(sums: PhaseSums, phase: RowPhase) -> tuple[Row, ...]:
    if sums.num_requests == 0 or sums.query_sum == 0:
        return ()
    if sums.num_requests is None or sums.query_sum is None or sums.kv_sum is None:
        raise BadInput(
            f"the step's {phase} rows are unknown, and so are their number or Σq or Σk. Record them with the step log."
        )
    n, context = sums.num_requests, sums.kv_sum - sums.query_sum
    return tuple(
        Row(
            query_len=sums.query_sum // n + (i < sums.query_sum % n),
            context_len=context // n + (i < context % n),
            phase=phase,
        )
        for i in range(n)
    )
