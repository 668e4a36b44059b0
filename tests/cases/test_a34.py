"""vllm-project/vllm#18619: attention's share after an upgrade. 7 runs each, median 62.79 -> 57.80 req/s.

Stated: -7.9 % (the thread says 8.6 %); attention went from 14.2 % to 38.8 % of the time. The comparison names attention
as what changed, and no cause beyond it.
"""

from __future__ import annotations

import pytest

from stepscope.answers.compare import compare
from tests.answers.test_compare import Load, compose
from tests.traces import ALL_REDUCE, GEMM, MS, NORM, US, to_account

ATTENTION = "void flash::flash_fwd_splitkv_kernel<Traits>(flash::Flash_fwd_params)"


def test_the_change_is_recomputed() -> None:
    assert pytest.approx(-0.079, abs=0.0005) == 57.80 / 62.79 - 1
    assert pytest.approx(-0.086, abs=0.005) != 57.80 / 62.79 - 1


def upgraded(attention_ns: int) -> Load:
    return Load(kernels=((NORM, MS), (ATTENTION, attention_ns), (GEMM, 6 * MS), (ALL_REDUCE, 500 * US)), gap=500 * US)


def test_attention_is_named_with_its_shares_and_without_a_cause_of_its_own() -> None:
    # the rest of a step is 8 ms: shares of 14.2 % and 38.8 % give the two times of attention
    before, after = (round(8 * MS * share / (1 - share)) for share in (0.142, 0.388))
    compared = compare(to_account(compose(upgraded(before))), to_account(compose(upgraded(after))))
    (work,) = (w for w in compared.workloads if len(w.workload.pairs) > 1)
    family = work.families["compute", "attention"]
    assert family.a_ns / work.wall.a_ns == pytest.approx(0.142, abs=0.001)
    assert family.b_ns / work.wall.b_ns == pytest.approx(0.388, abs=0.001)
    (first,) = compared.causes.named
    assert (first.category, first.family) == ("compute", "attention")
    assert first.delta_ns == pytest.approx(after - before, abs=US)
    assert str(first.not_shown).startswith("why: look at what changed")
