"""StepForm: the few terms of a step's time that a log of requests can tell apart; terms x coefficients = seconds.

One engine: t = step + mixed·[any prefill] + row·B + decode_kv·Σk + query_kv·Σqk + token·T + Σ past·max(0, T - knee),
and with experts·(1 - exp(-T/τ)), τ = num_experts / top_k, the share of their weights that T tokens reach. B: decode
rows, Σk: their kv_len, Σqk: of prefill rows, T: scheduled tokens. The knees are there since reading the weights hides
the tokens' arithmetic up to the ridge, a few hundred tokens in bf16.
Ranks in lockstep: each pads to the longest rank's tokens, so T is the longest rank's; experts see the tokens of all, so
1 - exp(-ΣT/τ), and shared·(ΣT - T); B, Σk and Σqk are those of the rank that they keep busy longest. A dummy has one
token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import BatchShape

KNEES = (256, 512)
TERMS = ("step", "mixed", "row", "decode_kv", "query_kv", "token", "past_256", "past_512", "experts", "shared")
NUM_TERMS = len(TERMS)
_NOTHING = (0.0, 0.0, 0.0)
_FAR = 1 << 20  # rows at the far end of a grid that is straight all the way


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForm:
    """Coefficients in seconds per unit of each of TERMS, 0 or more. `saturation`: τ; None: no experts."""

    coefficients: tuple[float, ...]
    saturation: float | None = None

    def __post_init__(self) -> None:
        if len(self.coefficients) != NUM_TERMS or not all(value >= 0 for value in self.coefficients):
            raise BadInput(f"{self.coefficients}: give {NUM_TERMS} coefficients of 0 or more, of {', '.join(TERMS)}.")

    def step_time(self, max_tokens: int) -> StepTime:
        """As the table that the simulator of one engine jumps along, up to `max_tokens` scheduled tokens."""
        step, mixed, row, decode_kv, query_kv = (value * TICKS_PER_S for value in self.coefficients[:5])
        by_tokens = [
            step + sum(map(float.__mul__, self._of(n, n), self.coefficients[5:])) * TICKS_PER_S
            for n in range(max_tokens + 1)
        ]
        slope = round(decode_kv)
        grid = DecodeGrid(
            rows=(1, _FAR),
            kv_lens=(0, 1),
            ticks=tuple((round(row * n), round(row * n) + slope * n) for n in (1, _FAR)),
        )
        return StepTime(
            by_tokens=tuple(round(ticks) for ticks in by_tokens),
            decode=grid,
            prefill=PrefillTicks(step=round(mixed), query_kv=round(query_kv)),
        )

    def group_ticks(self, shapes: Sequence[BatchShape | None]) -> int:
        """Of one step of ranks in lockstep (simulate_ranks)."""
        return round(sum(map(float.__mul__, self.terms(shapes), self.coefficients)) * TICKS_PER_S)

    def terms(self, shapes: Sequence[BatchShape | None]) -> tuple[float, ...]:
        """What each coefficient is multiplied by, of all ranks' shapes in one step; None: a dummy."""
        row, decode_kv, query_kv = self.coefficients[2:5]
        tokens = [1 if shape is None else shape.num_scheduled_tokens or 0 for shape in shapes]
        own = [
            (
                float(shape.decode.num_requests or 0),
                float(shape.decode.kv_sum or 0),
                float(shape.prefill.query_kv_sum or 0),
            )
            for shape in shapes
            if shape is not None
        ]
        busiest = max(own, key=lambda each: row * each[0] + decode_kv * each[1] + query_kv * each[2], default=_NOTHING)
        mixed = any(shape is not None and shape.prefill.num_requests for shape in shapes)
        return 1.0, float(mixed), *busiest, *self._of(max(tokens), sum(tokens))

    def _of(self, longest: int, total: int) -> tuple[float, ...]:
        """The terms of tokens: of the longest rank, and of all."""
        reached = 0.0 if self.saturation is None else 1 - exp(-total / self.saturation)
        past = (float(max(0, longest - knee)) for knee in KNEES)
        return float(longest), *past, reached, float(total - longest)
