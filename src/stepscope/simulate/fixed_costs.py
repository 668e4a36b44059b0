"""Fixed costs: the seconds of a calibration that no operator explains, added to a step time, or a step time alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.cost.calibration import bend_of
from stepscope.errors import BadInput
from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.cost.calibration import Calibration

_FAR = 1 << 20  # a kv_len that the straight line is drawn through; it goes on beyond
_NOTHING = DecodeGrid(rows=(1, 2), kv_lens=(0, _FAR), ticks=((0, 0), (0, 0)))


def plain_step_time(
    calibration: Calibration, max_num_batched_tokens: int, end: Literal["value", "low", "high"] = "value"
) -> StepTime:
    """Of a calibration with cost "none", counts times seconds, for steps of up to that many tokens.

    Raises:
        BadInput: the calibration scales modelled families, which take a model.
    """
    if calibration.cost != "none":
        raise BadInput(
            f"calibration {calibration.name} scales the seconds of a model (cost '{calibration.cost}'): its fixed part "
            "alone is no step's time. Give its model and hardware too."
        )
    nothing = StepTime(by_tokens=(0,) * (max_num_batched_tokens + 1), decode=_NOTHING)
    return with_fixed(nothing, {name: getattr(factor, end) for name, factor in calibration.fixed.items()})


def with_fixed(step_time: StepTime, fixed: Mapping[str, float]) -> StepTime:
    """A step time and a calibration's fixed seconds (`cost.calibration.FIXED`, and bends of the token's)."""

    def ticks(name: str) -> float:
        return fixed.get(name, 0.0) * TICKS_PER_S

    tokens = np.arange(len(step_time.by_tokens))
    bends = sorted((bend, ticks(name)) for name in fixed if (bend := bend_of(name)) is not None)
    added = ticks("step_s") * (tokens > 0)
    edges = [(0, ticks("token_s")), *bends]
    for (start, per_token), (end, _) in pairwise([*edges, (len(tokens), 0.0)]):
        added = added + per_token * np.clip(tokens - start, 0, max(end - start, 0))
    per = step_time.prefill
    grid = step_time.decode
    if not (isinstance(per, PrefillTicks) and isinstance(grid, DecodeGrid)):
        raise BadInput("fixed costs are added to straight terms and a grid, not to bins. Tabulate the model again.")
    return StepTime(
        by_tokens=tuple(old + round(float(new)) for old, new in zip(step_time.by_tokens, added, strict=True)),
        decode=replace(
            grid,
            ticks=tuple(
                tuple(
                    old + round(rows * (ticks("request_s") + ticks("decode_request_s") + kv * ticks("decode_kv_s")))
                    for kv, old in zip(grid.kv_lens, row, strict=True)
                )
                for rows, row in zip(grid.rows, grid.ticks, strict=True)
            ),
        ),
        prefill=PrefillTicks(
            step=per.step + round(ticks("prefill_step_s")),
            row=per.row + round(ticks("request_s") + ticks("prefill_request_s")),
            query=per.query + round(ticks("prefill_token_s")),
            kv=per.kv + round(ticks("prefill_kv_s")),
            query_kv=per.query_kv + round(ticks("prefill_query_kv_s")),
        ),
    )
