"""sgl-project/sglang#5031, #4773: first-use compilation, not prefill.

Stated: an idle server and one prompt of 8009 new tokens; 90 s until the first decode line, then a steady 52.2 tok/s.
The log has DeepGEMM JIT lines. So the cold step is flagged and kept out of statistics, and 90 s is about two orders of
magnitude more than 8009 tokens take.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.batch import BatchShape, Row
from stepscope.calibrate.measured import MeasuredStep
from stepscope.calibrate.sorting import FIRST, PAUSED, sort_steps
from stepscope.cost.hardware import load_hardware

PROMPT, PREFILL_S, DECODE_S = 8009, 90.0, 1 / 52.2
NUM_DECODES = 40
ACTIVE_PARAMETERS = 37e9  # DeepSeek-V3 and R1: config.json of the model card


def prefill() -> MeasuredStep:
    shape = BatchShape.from_rows((Row(query_len=PROMPT, context_len=0, phase="prefill"),))
    return MeasuredStep(shape=shape, start_s=0.0, seconds=PREFILL_S)


def decodes() -> list[MeasuredStep]:
    return [
        MeasuredStep(
            shape=BatchShape.from_rows((Row(query_len=1, context_len=PROMPT + i, phase="decode"),)),
            start_s=PREFILL_S + i * DECODE_S,
            seconds=DECODE_S,
        )
        for i in range(NUM_DECODES)
    ]


def test_the_first_step_of_its_size_is_named_and_left_out() -> None:
    found = sort_steps([prefill(), *decodes()])
    assert found.left_out == {FIRST: 2}  # the prompt, and the first decode
    assert float(found.seconds.mean()) == pytest.approx(DECODE_S)  # 52.2 tok/s, without the 90 s


def test_a_step_that_the_log_says_compiled_is_left_out_as_that() -> None:
    earlier = replace(prefill(), start_s=-10.0, seconds=0.5)  # the size was met before: the JIT lines tell
    found = sort_steps([earlier, prefill(), *decodes()], [(1.0, 85.0)])
    assert found.left_out == {FIRST: 2, PAUSED: 1}
    assert all(step.seconds == DECODE_S for step in found.steps)


def test_90_seconds_are_two_orders_more_than_the_tokens_take() -> None:
    hardware = load_hardware("h200")
    flop = 2 * ACTIVE_PARAMETERS * PROMPT
    on_eight = flop / (8 * hardware.flop_per_s("bf16"))
    assert 100 < PREFILL_S / on_eight < 3000
