"""StepForm: the few terms of a step's time that a log of requests can tell apart; terms x coefficients = seconds.

One engine: t = step + mixed·[any prefill] + row·B + token·T + decode_kv·Σk + query_kv·Σqk, and where experts are told
experts·(1 - exp(-T/τ)), τ = num_experts / top_k: the share of expert weights that T tokens reach. B: decode rows, T:
scheduled tokens; Σk over decode rows, Σqk over prefill rows.
Ranks in lockstep: each pads to the longest rank's tokens, so T is the longest rank's; experts see the tokens of all, so
1 - exp(-ΣT/τ); B, Σk and Σqk are those of the rank that they keep busy longest. A dummy has one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import BatchShape

TERMS = ("step", "mixed", "row", "token", "decode_kv", "query_kv", "experts")
NUM_TERMS = len(TERMS)
_FAR = 1 << 20  # rows and kv_len at the far end of a grid that is straight all the way


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForm:
    """Coefficients in seconds per unit of each of TERMS, 0 or more. `saturation`: τ; None: no experts."""

    coefficients: tuple[float, ...]
    saturation: float | None = None

    def step_time(self, max_tokens: int) -> StepTime:
        """As the table that the simulator of one engine jumps along; up to `max_tokens` scheduled tokens."""
        step, mixed, row, token, decode_kv, query_kv, experts = (value * TICKS_PER_S for value in self.coefficients)
        slope = round(decode_kv)
        by_tokens = tuple(round(step + token * n + experts * self._reached(n)) for n in range(max_tokens + 1))
        grid = DecodeGrid(
            rows=(1, _FAR),
            kv_lens=(0, 1),
            ticks=tuple((round(row * n), round(row * n) + slope * n) for n in (1, _FAR)),
        )
        return StepTime(
            by_tokens=by_tokens, decode=grid, prefill=PrefillTicks(step=round(mixed), query_kv=round(query_kv))
        )

    def group_ticks(self, shapes: Sequence[BatchShape | None]) -> int:
        """Of one step of ranks in lockstep (simulate_ranks)."""
        terms = self.terms(shapes)
        return round(sum(map(float.__mul__, terms, self.coefficients)) * TICKS_PER_S)

    def terms(self, shapes: Sequence[BatchShape | None]) -> tuple[float, ...]:
        """What each coefficient is multiplied by, of all ranks' shapes in one step; None: a dummy."""
        _, _, row, _, decode_kv, query_kv, _ = self.coefficients
        longest, busiest, slowest = 1, (0.0, 0.0, 0.0), -1.0
        total, mixed = 0, 0.0
        for shape in shapes:
            if shape is None:
                total += 1
                continue
            tokens = shape.num_scheduled_tokens or 0
            total += tokens
            longest = max(longest, tokens)
            prefill, decode = shape.prefill, shape.decode
            if prefill.num_requests:
                mixed = 1.0
            own = (float(decode.num_requests or 0), float(decode.kv_sum or 0), float(prefill.query_kv_sum or 0))
            time = row * own[0] + decode_kv * own[1] + query_kv * own[2]
            if time > slowest:
                busiest, slowest = own, time
        return 1.0, mixed, busiest[0], float(longest), busiest[1], busiest[2], self._reached(total)

    def _reached(self, tokens: int) -> float:
        return 0.0 if self.saturation is None else 1 - exp(-tokens / self.saturation)
