"""WidthModel: what a step costs by the context length that was configured, not by the one that is there.

t = fixed + width x W + live x K. W: the configured context length, K: the rows' mean kv_len, in tokens. A kernel whose
grid or buffers span W costs the same at any K. Fitted by least squares on relative errors, no coefficient negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.cost.least_squares import fit_linear
from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthPoint:
    """One measured step: configured and live length in tokens, and its time."""

    context_length: int
    kv_len: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthModel:
    """Seconds: a fixed part, per token of the configured length, per token that is there."""

    fixed_s: float
    width_s: float
    live_s: float

    def step_s(self, *, context_length: int, kv_len: float = 0.0) -> float:
        """Of a step."""
        return self.fixed_s + self.width_s * context_length + self.live_s * kv_len

    def width_fraction(self, *, context_length: int, kv_len: float = 0.0) -> float:
        """Share of a step that the configured length alone costs."""
        return self.width_s * context_length / self.step_s(context_length=context_length, kv_len=kv_len)


def fit_width(points: Sequence[WidthPoint]) -> WidthModel:
    """The model of measured steps; with one live length only, the live term is left out.

    Raises:
        BadInput: fewer than two configured lengths, or a time that is not above 0.
    """
    widths = {point.context_length for point in points}
    if len(widths) < 2:
        raise BadInput(f"steps of {len(widths)} configured context lengths were given: two or more are needed.")
    if any(point.step_s <= 0 for point in points):
        raise BadInput("a step of 0 s or less cannot be fitted: give measured times.")
    has_live = len({point.kv_len for point in points}) > 1
    columns = [[1.0, point.context_length, point.kv_len if has_live else 0.0] for point in points]
    found = fit_linear(np.asarray(columns), np.asarray([point.step_s for point in points]))
    return WidthModel(fixed_s=float(found[0]), width_s=float(found[1]), live_s=float(found[2]))
