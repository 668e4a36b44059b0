"""StepRows: the rows of one step, or of many, and every sum over them that a formula needs.

A row has q = query_len tokens and c = context_len; its queries stand at t = c+1 .. c+q (t counts the query itself).
pairs: Σ_t t.  window W: Σ_t min(t, W).  closed windows of r tokens, at most `cap` of them: Σ_t min(cap, t // r).
Kernels see closed windows only, hence floor (vLLM: (positions + 1) // ratio; SGLang NPU: seq // ratio).
All sums are closed forms in int64, summed per step; for a single step they come out as Python ints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np

from stepscope.batch import BatchShape, PhaseSums, Row, RowPhase
from stepscope.errors import BadInput
from stepscope.operators.operator import Amount, Array

Phase = Literal["prefill", "decode"]
Formula = Callable[[Array, Array], Array]  # (query_len, context_len) of some rows -> one value per row
BLOCK_ROWS = 1 << 15  # of many steps, this many rows are worked out at once: their arrays stay in the cache


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PhaseRows:
    """Rows of one phase: query_len, context_len and the step of each, in step order. Sums are kept once made."""

    query_len: Array
    context_len: Array
    step_index: Array
    num_steps: int
    _sums: dict[tuple[str | int | None, ...], Amount] = field(default_factory=dict)

    def _sum(self, key: tuple[str | int | None, ...], values: Formula) -> Amount:
        """Per step, of what `values` gives per row; made at the first call with this key."""
        if key not in self._sums:
            self._sums[key] = self._sum_steps(values)
        return self._sums[key]

    def _sum_steps(self, values: Formula) -> Amount:
        if self.num_steps == 1:
            return int(values(self.query_len, self.context_len).sum())
        starts, result = self._starts, np.zeros(self.num_steps, dtype=np.int64)
        cuts = np.searchsorted(starts, np.arange(BLOCK_ROWS, len(self.query_len), BLOCK_ROWS))
        edges = np.unique(np.concatenate(([0], cuts, [self.num_steps])))
        for first, last in pairwise(edges):
            block = slice(starts[first], starts[last])
            running = np.concatenate(([0], np.cumsum(values(self.query_len[block], self.context_len[block]))))
            ends = starts[first : last + 1] - starts[first]
            result[first:last] = running[ends[1:]] - running[ends[:-1]]
        return result

    @property
    def _starts(self) -> Array:
        """Where each step's rows start; one more entry for the end."""
        key = ("starts",)
        if key not in self._sums:
            self._sums[key] = np.searchsorted(self.step_index, np.arange(self.num_steps + 1))
        return np.asarray(self._sums[key])

    @property
    def kv_len(self) -> Array:
        """Tokens that the last query of each row attends to."""
        result: Array = self.context_len + self.query_len
        return result

    @property
    def num_rows(self) -> Amount:
        """Requests."""
        return self._sum(("rows",), lambda q, _: np.ones_like(q))

    @property
    def num_tokens(self) -> Amount:
        """Σ q."""
        return self._sum(("tokens",), lambda q, _: q)

    @property
    def num_kv(self) -> Amount:
        """Σ (c + q): history rows, each once."""
        return self._sum(("kv",), np.add)

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
        if longest < 1 or not self.query_len.size:
            return self._only(slice(0, 0)), self  # itself, with the sums it has
        is_short = np.asarray(self.max_kv_len).reshape(-1)[self.step_index] <= longest
        return self._only(is_short), self._only(~is_short)

    def _only(self, mask: Array | slice) -> PhaseRows:
        return PhaseRows(
            query_len=self.query_len[mask],
            context_len=self.context_len[mask],
            step_index=self.step_index[mask],
            num_steps=self.num_steps,
        )

    def pairs(self, window: int | None = None) -> Amount:
        """Σ over queries of the rows each attends to, at most `window`."""
        return self._sum(("pairs", window), lambda q, c: _ramp_rows(q, c, window))

    def window_rows(self, window: int) -> Amount:
        """Distinct history rows that the queries of each row see through a window."""
        return self._sum(("window", window), lambda q, c: np.minimum(c + q, window + q - 1))

    def selected_rows(self, topk: int) -> Amount:
        """Distinct rows at least touched when each query takes `topk`: no more than there are."""
        return self._sum(("selected", topk), lambda q, c: np.minimum(_ramp_rows(q, c, topk), c + q))

    def closed_pairs(self, ratio: int, cap: int | None = None) -> Amount:
        """Σ over queries of the closed windows each attends to, at most `cap`."""
        return self._sum(("closed pairs", ratio, cap), lambda q, c: _closed(q, c, ratio, cap))

    def closed_rows(self, ratio: int, cap: int | None = None) -> Amount:
        """Distinct compressed rows read; with `cap`, no more than the queries pick."""
        if cap is None:
            return self._sum(("closed rows", ratio), lambda q, c: (c + q) // ratio)
        picked = ("picked rows", ratio, cap)
        return self._sum(picked, lambda q, c: np.minimum((c + q) // ratio, _closed(q, c, ratio, cap)))

    def new_windows(self, ratio: int) -> Amount:
        """Windows that this step closes."""
        return self._sum(("new", ratio), lambda q, c: (c + q) // ratio - c // ratio)

    def pending_rows(self, ratio: int, overlap: int) -> Amount:
        """State rows of earlier steps that closing a window reads, in whole rows (rounded up per request).

        Without overlap the c mod r pending tokens; with it half rows of those and of the window before them.
        """
        return self._sum(("pending", ratio, overlap), lambda q, c: _pending(q, c, ratio, overlap))

    def state_rows(self, ring: int) -> Amount:
        """State rows left behind: no more than the ring holds."""
        return self._sum(("state", ring), lambda q, _: np.minimum(q, ring))

    def padded_tokens(self, chunk_len: int) -> Amount:
        """Σ q rounded up to whole chunks."""
        return self._sum(("padded", chunk_len), lambda q, _: -(-q // chunk_len) * chunk_len)


def _ramp_rows(q: Array, c: Array, cap: int | None) -> Array:
    return _as_array(_ramp(c + q, cap) - _ramp(c, cap))


def _closed(q: Array, c: Array, ratio: int, cap: int | None) -> Array:
    return _as_array(_stairs(c + q, ratio, cap) - _stairs(c, ratio, cap))


def _pending(q: Array, c: Array, ratio: int, overlap: int) -> Array:
    before = c // ratio
    pending = c - before * ratio
    if overlap == 2:
        pending = (pending + np.minimum(c - pending, ratio) + 1) // 2
    return np.where((c + q) // ratio > before, pending, 0)


def _ramp(x: Array, cap: int | None) -> Array:
    """Σ_{t=1..x} min(t, cap)."""
    if cap is None:
        return _as_array(x * (x + 1) // 2)
    low = np.minimum(x, cap)
    return _as_array(low * (low + 1) // 2 + (x - low) * cap)


def _stairs(x: Array, ratio: int, cap: int | None) -> Array:
    """Σ_{t=1..x} min(t // ratio, cap)."""
    low = x if cap is None else np.minimum(x, cap * ratio)
    stairs = low // ratio
    total = ratio * stairs * (stairs - 1) // 2 + stairs * (low - stairs * ratio + 1)
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
        prefill_rows: Array | slice = ~decode
        decode_rows: Array | slice = decode
        if decode.all() or not decode.any():  # nothing to pick: no copies
            everyone, nobody = slice(None), slice(0, 0)
            prefill_rows, decode_rows = (nobody, everyone) if decode.any() else (everyone, nobody)
        parts = [
            PhaseRows(query_len=q[rows], context_len=c[rows], step_index=steps[rows], num_steps=num_steps)
            for rows in (prefill_rows, decode_rows)
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
