"""lightseekorg/tokenspeed#1355: 36 steps, 33 at 20,200 tok/s (CV 1.1 %), 3 at about 12,900; each slow one +0.92 s.

Stated: two modes with a constant added time, and no cause: medians are unchanged, nothing failed, no log line.
"""

from __future__ import annotations

import random

from stepscope.answers.findings import find_findings
from stepscope.answers.modes import find_modes
from tests.traces import EXECUTE, MS, Event, frame, op, scope, to_account

TOKENS = 32_768
FAST_MS = 1000 * TOKENS / 20_200
ADDED_MS = 920
SLOW = (7, 19, 30)


def steps(slow: tuple[int, ...]) -> list[Event]:
    noise, events, now = random.Random(3), [], 0
    for i in range(36):
        work = round(FAST_MS * (1 + 0.011 * max(-2.0, min(2.0, noise.gauss(0, 1)))) * MS)
        wait = ADDED_MS * MS if i in slow else 0
        label = f"execute_context_4({TOKENS})_generation_0(0)"
        events += [
            scope(label, now, wait + work),
            frame(EXECUTE, now, wait + work),
            op("aten::mm", now + wait, work),
        ]
        now += wait + work
    return events


def test_two_modes_with_a_constant_added_time_are_told_apart() -> None:
    (modes,) = find_modes(to_account(steps(SLOW)).ranks[0])
    assert (modes.num_fast, modes.slow_steps) == (33, SLOW)
    assert abs(modes.added_ns / MS - ADDED_MS) < 0.04 * FAST_MS
    assert modes.account == (
        "host",
        "python",
    )  # before the work of the step: admission and prefill side, not the device


def test_the_finding_names_no_cause() -> None:
    (finding,) = [f for f in find_findings(to_account(steps(SLOW))) if f.id == "two_modes"]
    assert "3 of 36 prefill steps of 32768 tokens take" in str(finding.text)
    assert "a neighbour, a collection, another clock" in str(finding.not_shown)


def test_steps_of_one_mode_are_no_finding() -> None:
    assert find_modes(to_account(steps(())).ranks[0]) == []
