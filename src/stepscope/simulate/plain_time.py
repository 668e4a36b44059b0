"""Plain time: a Calibration with cost "none", counts times seconds, as the StepTime that a simulator jumps along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.cost.calibration import bend_of
from stepscope.errors import BadInput
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime

if TYPE_CHECKING:
    from stepscope.cost.calibration import Calibration

_FAR = 1 << 20  # a kv_len that the straight line is drawn through; it goes on beyond


def plain_step_time(calibration: Calibration, max_num_batched_tokens: int) -> StepTime:
    """For steps of up to that many tokens.

    Raises:
        BadInput: the calibration scales modelled families, which take a model.
    """
    if calibration.cost != "none":
        raise BadInput(
            f"calibration {calibration.name} scales the seconds of a model (cost '{calibration.cost}'): its fixed part "
            "alone is no step's time. Give its model and hardware too."
        )
    seconds = {name: factor.value for name, factor in calibration.fixed.items()}
    tokens = range(max_num_batched_tokens + 1)
    row = seconds.get("request_s", 0.0)
    return StepTime(
        by_tokens=tuple(to_ticks(_of_tokens(seconds, count)) if count else 0 for count in tokens),
        decode=_decode(seconds.get("decode_request_s", 0.0) + row, seconds.get("decode_kv_s", 0.0)),
        prefill=PrefillTicks(
            step=to_ticks(seconds.get("prefill_step_s", 0.0)),
            row=to_ticks(seconds.get("prefill_request_s", 0.0) + row),
            query=to_ticks(seconds.get("prefill_token_s", 0.0)),
            kv=to_ticks(seconds.get("prefill_kv_s", 0.0)),
            query_kv=to_ticks(seconds.get("prefill_query_kv_s", 0.0)),
        ),
    )


def _of_tokens(seconds: dict[str, float], count: int) -> float:
    """A step's own seconds and its tokens': `token_s` up to the first bend, each bend's from there to the next."""
    bends = sorted(bend for name in seconds if (bend := bend_of(name)) is not None)
    slopes = [seconds.get("token_s", 0.0), *(seconds[f"token_s_from_{bend}"] for bend in bends)]
    found = seconds.get("step_s", 0.0)
    for slope, start, end in zip(slopes, [0, *bends], [*bends, count], strict=True):
        found += slope * max(min(count, end) - start, 0)
    return found


def _decode(row_s: float, kv_s: float) -> DecodeGrid:
    """B rows of mean kv_len k: B x (row + k x kv), which is straight in both."""
    ticks = tuple((to_ticks(rows * row_s), to_ticks(rows * (row_s + _FAR * kv_s))) for rows in (1, 2))
    return DecodeGrid(rows=(1, 2), kv_lens=(0, _FAR), ticks=ticks)
