"""vllm-project/vllm#23752: R1 with DP 8 on 8 x B200, TPOT about 120 ms at concurrency 1 to 7, 41 ms at 8, 45 ms at 9.

One mechanism that gives this shape (vllm-ascend PR 15347): a rank without work runs an eager dummy, and all run as the
slowest mode among them. The test shows that the figures are consistent with it; what the report's ranks really ran is
not known without each one's graph mode.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from stepscope.simulate.balancer import LeastLoaded
from stepscope.simulate.lockstep import GroupFunction, simulate_ranks
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.synthetic import closed_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import BatchShape

DP = 8
RULES = SchedulerRules(max_num_batched_tokens=8192, max_num_seqs=64, max_model_len=4096, num_blocks=4000)
EAGER_S, GRAPH_S, SECOND_ROW_S = 0.120, 0.041, 0.004


def eager_beside_a_dummy(shapes: Sequence[BatchShape | None]) -> float:
    if None in shapes:
        return EAGER_S
    return GRAPH_S + SECOND_ROW_S * (max((shape and shape.num_requests) or 0 for shape in shapes) - 1)


def tpot_s(concurrency: int) -> float:
    asked = [Request(request_id=f"r{n}", arrival_s=0.0, prompt_len=64, output_len=200) for n in range(concurrency)]
    load = closed_loop(asked, clients=concurrency).requests
    found = simulate_ranks(load, RULES, GroupFunction(eager_beside_a_dummy), DP, LeastLoaded())
    return fmean(each.times.tpot_s or 0.0 for each in found.requests)


def test_tpot_steps_down_where_no_rank_is_empty() -> None:
    found = {concurrency: tpot_s(concurrency) for concurrency in range(1, 11)}
    assert all(found[few] == pytest.approx(0.120, abs=1e-4) for few in range(1, DP))
    assert found[DP] == pytest.approx(0.041, abs=1e-4)
    assert found[9] == pytest.approx(0.045, abs=1e-4)
