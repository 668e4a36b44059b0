"""Calibrations meet their targets on measured points and requests that they were not fitted on.

The data lie below STEPSCOPE_DATA, or `shared/data` beside the checkout; skipped where neither is there.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import serving_points, vllm_runs
from benchmarks.vllm_runs import TARGETS

pytestmark = pytest.mark.shared

RUNS = ("rtxpro6000-Llama-3.1-8B", "rtxpro6000-Qwen3-30B-A3B-Instruct-2507")


def test_tpot_of_deployments_leave_one_out() -> None:
    path = serving_points.default_path()
    if not path.is_file():
        pytest.skip("the measured points are not here: set STEPSCOPE_DATA to the folder that holds measured/")
    deployments = [points for points in serving_points.read_deployments(path).values() if len(points) >= 8]
    ours = serving_points.held_out(deployments)
    errors = np.array([abs(ours[each.row_id] / each.measured.tpot_s - 1) for points in deployments for each in points])
    assert len(errors) > 2000
    median, p90, _ = serving_points.summary(errors)
    assert median <= serving_points.TARGET[0]
    assert p90 <= serving_points.TARGET[1]


@pytest.mark.parametrize("name", RUNS)
def test_requests_of_the_second_half(name: str) -> None:
    folder = vllm_runs.default_folder() / name
    if not folder.is_dir():
        pytest.skip("the measured runs are not here: set STEPSCOPE_DATA to the folder that holds measured/")
    found = vllm_runs.score(vllm_runs.read_run(folder), seed=0)
    for metric, most in TARGETS.items():
        assert found.median(metric) <= most, metric
