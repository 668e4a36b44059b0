"""StepTime: what one engine step takes, in whole ticks, as tables and straight lines that a simulator can jump along.

ticks(shape) = by_tokens[T] + decode(B, Σk) + prefill(P, Σq, Σk, Σqk). T: scheduled tokens, padded as the engine pads.
decode: at fixed B a piecewise straight line in Σk, so a stretch of equal decode steps adds up in closed form, exactly.
prefill: one straight term for each sum. Tables by bins (`DecodeBins`, `PrefillBins`) hold what a predictor that rounds
lengths gives. Every number is an integer number of ticks: `clock` says why.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, TypeAlias

from stepscope.errors import BadInput
from stepscope.simulate.clock import to_seconds, to_ticks
from stepscope.simulate.compiled import to_arrays
from stepscope.simulate.event_loop import Times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.batch import BatchShape, PhaseSums, Row

    CostFunction: TypeAlias = Callable[[BatchShape], float]

# of one B, in order: (Σk at which the piece starts, ticks there, ticks per further token of Σk)
DecodeLine: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTicks:
    """Ticks that prefill rows add beyond their tokens: per step that has any, per row, and per unit of each sum."""

    step: int = 0
    row: int = 0
    query: int = 0
    kv: int = 0
    query_kv: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGrid:
    """Decode attention at B rows of mean kv_len k, bilinear between grid points and straight on beyond the last.

    `rows` and `kv_lens` ascend, `rows` from 1 and `kv_lens` from 0 or 1 on; `ticks[i][j]` is the whole step's at
    rows[i] and kv_lens[j].
    """

    rows: tuple[int, ...]
    kv_lens: tuple[int, ...]
    ticks: tuple[tuple[int, ...], ...]

    def line(self, num_rows: int) -> DecodeLine:
        """The line of one B; its pieces begin at B x each kv_len."""
        values = [_between(self.rows, [row[j] for row in self.ticks], num_rows) for j in range(len(self.kv_lens))]
        pieces: list[tuple[int, int, int]] = []
        ticks = round(values[0])
        for j, kv_len in enumerate(self.kv_lens):
            start = num_rows * kv_len
            if j + 1 < len(self.kv_lens):
                run = num_rows * (self.kv_lens[j + 1] - kv_len)
                slope = round((values[j + 1] - values[j]) / run)
            else:
                run, slope = 0, pieces[-1][2] if pieces else 0
            pieces.append((start, ticks, slope))
            ticks += slope * run  # the next piece begins where this one ends, to the tick
        return tuple(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBins:
    """Decode attention by a look-up: `ticks[B - 1][b]`, b the bin of the rows' mean kv_len, cut to whole tokens.

    Bin b ends with b x bin_len tokens, bin 0 with 0; beyond the last bin its ticks stay.
    """

    bin_len: int
    ticks: tuple[tuple[int, ...], ...]

    def line(self, num_rows: int) -> DecodeLine:
        """The line of one B: flat pieces, one a bin.

        Raises:
            BadInput: more rows than the table holds.
        """
        if num_rows > len(self.ticks):
            raise BadInput(f"{num_rows} decode rows have no time: the table ends at {len(self.ticks)}.")
        starts = (num_rows * max((b - 1) * self.bin_len + 1, 0) for b in range(len(self.ticks[num_rows - 1])))
        return tuple((start, ticks, 0) for start, ticks in zip(starts, self.ticks[num_rows - 1], strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBins:
    """Prefill attention by a look-up: `ticks[c][x]`.

    c: Σ over the rows of their context_len's bin, x: the nearest whole number to the root of Σ query_len².
    """

    bin_len: int
    ticks: tuple[tuple[int, ...], ...]

    def of(self, rows: Sequence[Row]) -> int:
        """Ticks of a step's prefill rows.

        Raises:
            BadInput: more tokens than the table holds.
        """
        bins = sum(-(-row.context_len // self.bin_len) for row in rows)
        side = nearest_root(sum(row.query_len * row.query_len for row in rows))
        if bins >= len(self.ticks) or side >= len(self.ticks[bins]):
            raise BadInput(f"prefill of {side} tokens on {bins} bins of {self.bin_len} has no time in the table.")
        return self.ticks[bins][side]


def nearest_root(number: int) -> int:
    """The whole number nearest to a square root.

    >>> [nearest_root(number) for number in (0, 6, 7, 12, 13)]
    [0, 2, 3, 3, 4]
    """
    root = isqrt(number)
    return root + (number - root * root > root)


def _between(grid: Sequence[int], values: Sequence[int], at: int) -> float:
    if len(grid) == 1:
        return float(values[0])
    right = min(max(bisect_right(grid, at), 1), len(grid) - 1)
    low, high = grid[right - 1], grid[right]
    return values[right - 1] + (values[right] - values[right - 1]) * (at - low) / (high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Ticks of a step. `by_tokens[T]` reaches to the largest step that the rules allow; [0] is a step without rows.

    Lines of `decode` are made when a B is first asked for, columns when a run first needs them.
    """

    by_tokens: tuple[int, ...]
    decode: DecodeGrid | DecodeBins | None = None
    prefill: PrefillTicks | PrefillBins = PrefillTicks()
    _lines: dict[int, DecodeLine] = field(default_factory=dict, compare=False, repr=False)
    _columns: dict[tuple[int, bool], Times] = field(default_factory=dict, compare=False, repr=False)

    @property
    def needs_rows(self) -> bool:
        """Whether sums do not tell a step's ticks."""
        return isinstance(self.prefill, PrefillBins)

    def decode_line(self, num_rows: int) -> DecodeLine:
        """Of `num_rows` decode rows, over their Σk."""
        line = self._lines.get(num_rows)
        if line is None:
            line = ((0, 0, 0),) if self.decode is None else self.decode.line(num_rows)
            self._lines[num_rows] = line
        return line

    def columns(self, most_rows: int, *, are_arrays: bool = False) -> Times:
        """Tables and lines laid out for the event loop: of up to `most_rows` decode rows, if the cost has as many."""
        key = most_rows, are_arrays
        kept = self._columns.get(key)
        if kept is None:
            kept = to_arrays(self.columns(most_rows)) if are_arrays else self._lay_out(most_rows)
            self._columns[key] = kept
        return kept

    def ticks(self, shape: BatchShape) -> int:
        """Of one step.

        Raises:
            BadInput: more tokens than the table holds, or sums that are not known.
        """
        tokens = shape.num_scheduled_tokens
        if tokens is None or tokens >= len(self.by_tokens):
            raise BadInput(f"a step of {tokens} tokens has no time: the table ends at {len(self.by_tokens) - 1}.")
        return self.by_tokens[tokens] + self._decode(shape.decode) + self._prefill(shape)

    def __call__(self, shape: BatchShape) -> float:
        """Seconds of one step."""
        return to_seconds(self.ticks(shape))

    def _decode(self, sums: PhaseSums) -> int:
        if not sums.num_requests:
            return 0
        assert sums.kv_sum is not None
        line = self.decode_line(sums.num_requests)
        piece = line[max(bisect_right(line, (sums.kv_sum, 1 << 62, 0)) - 1, 0)]
        return piece[1] + piece[2] * (sums.kv_sum - piece[0])

    def _prefill(self, shape: BatchShape) -> int:
        sums, per = shape.prefill, self.prefill
        if not sums.num_requests:
            return 0
        if isinstance(per, PrefillBins):
            if shape.rows is None:
                raise BadInput('a table of prefill by bins needs the rows of a step: simulate with steps="rows".')
            return per.of([row for row in shape.rows if row.phase == "prefill"])
        assert sums.query_sum is not None
        assert sums.kv_sum is not None
        assert sums.query_kv_sum is not None
        return (
            per.step
            + per.row * sums.num_requests
            + per.query * sums.query_sum
            + per.kv * sums.kv_sum
            + per.query_kv * sums.query_kv_sum
        )

    def _lay_out(self, most_rows: int) -> Times:
        if isinstance(self.decode, DecodeBins):
            most_rows = min(most_rows, len(self.decode.ticks))
        lines = [(), *(self.decode_line(num_rows) for num_rows in range(1, most_rows + 1))]
        pieces = [piece for line in lines for piece in line]
        bins = self.prefill if isinstance(self.prefill, PrefillBins) else None
        bin_ticks = [ticks for row in bins.ticks for ticks in row] if bins else []
        terms = self.prefill if isinstance(self.prefill, PrefillTicks) else PrefillTicks()
        return Times(
            by_tokens=self.by_tokens,
            begin=[0, *accumulate(len(line) for line in lines)],
            start=[piece[0] for piece in pieces],
            ticks=[piece[1] for piece in pieces],
            slope=[piece[2] for piece in pieces],
            per_step=terms.step,
            per_row=terms.row,
            per_query=terms.query,
            per_kv=terms.kv,
            per_query_kv=terms.query_kv,
            bin_len=bins.bin_len if bins else 0,
            bins=bin_ticks,
            num_sides=len(bins.ticks[0]) if bins else 0,
            most_ticks=sum(
                max(map(abs, column), default=0)
                for column in (self.by_tokens, [terms.step], [piece[1] for piece in pieces], bin_ticks)
            ),
            most_slope=max((abs(piece[2]) for piece in pieces), default=0),
        )


def price(cost: CostFunction, shape: BatchShape) -> int:
    """Ticks of a step by any cost function.

    Raises:
        BadInput: it gives no number of 0 or more.
    """
    if isinstance(cost, StepTime):
        return cost.ticks(shape)
    return checked_ticks(cost(shape), shape)


def checked_ticks(seconds: float, shape: object) -> int:
    """Ticks of what a cost function gave for a shape.

    Raises:
        BadInput: no number of 0 or more.
    """
    try:
        return to_ticks(seconds)
    except BadInput as error:
        raise BadInput(f"the cost function gives {seconds} s for {shape}: it must give 0 or more seconds.") from error
