"""jundot/omlx#2689: the clock, not the code. 81.9 ms a cycle rested, 132.7 to 140.1 soaked; acceptance 81.2 -> 72.0 %.

Stated: a uniform slowdown of all kernels asks for clock telemetry, and names no kernel; the clock's effect and that of
acceptance are told apart.
"""

from __future__ import annotations

import pytest

from stepscope.answers.compare import compare
from tests.answers.test_compare import Load, compose
from tests.traces import ALL_REDUCE, GEMM, MS, NORM, US, to_account

RESTED_MS, SOAKED_MS = 81.9, 136.4  # the middle of 132.7 and 140.1
RATIO = SOAKED_MS / RESTED_MS
ATTENTION = "void flash::flash_fwd_splitkv_kernel<Traits>(flash::Flash_fwd_params)"
KERNELS = ((NORM, 5 * MS), (ATTENTION, 30 * MS), (GEMM, 40 * MS), (ALL_REDUCE, round(5.9 * MS)))


def cycle(ratio: float) -> Load:
    return Load(kernels=tuple((name, round(ns * ratio)) for name, ns in KERNELS), gap=1 * MS)


def test_a_uniform_slowdown_names_no_cause_and_asks_for_the_clock() -> None:
    compared = compare(to_account(compose(cycle(1.0))), to_account(compose(cycle(RATIO))))
    assert compared.causes.named == ()
    (work,) = (w for w in compared.workloads if len(w.workload.pairs) > 1)
    assert work.uniform is not None
    assert work.uniform.ratio == pytest.approx(RATIO, rel=0.01)
    said = " ".join(str(sentence) for sentence in work.conclusion.sentences)
    assert "one cause for all of them, such as clock, power or another card" in said
    assert "clocks.sm" in said


def test_a_family_that_grew_beyond_the_clock_is_still_named() -> None:
    slower = cycle(RATIO)
    grown = tuple((name, ns + (8 * MS if name == ATTENTION else 0)) for name, ns in slower.kernels)
    (first,) = compare(
        to_account(compose(cycle(1.0))), to_account(compose(Load(kernels=grown, gap=slower.gap)))
    ).causes.named
    assert first.family == "attention"
    assert first.delta_ns == pytest.approx(8 * MS, abs=100 * US)


def test_the_clock_and_the_acceptance_are_two_effects() -> None:
    """k = 1 as an example: tokens of a cycle are 1 + acceptance, so time per token is cycle / (1 + acceptance)."""
    whole = (SOAKED_MS / 1.720) / (RESTED_MS / 1.812)
    acceptance = 1.812 / 1.720
    assert whole == pytest.approx(RATIO * acceptance)
    assert pytest.approx(1.665, abs=0.001) == RATIO
    assert acceptance == pytest.approx(1.053, abs=0.001)
