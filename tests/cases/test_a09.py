"""A09, the last bucket is not captured: vLLM with a limit of 100 requests and captured sizes in multiples of 8.

Stated: 95 and 96 rows replay a full graph, 97 to 100 run piecewise, where the server stays at overload.
"""

from __future__ import annotations

import pytest

from stepscope.simulate.graphs import vllm_grid

BEFORE = vllm_grid(max_num_seqs=100, max_num_batched_tokens=8192, has_last_decode=False)
FIXED = vllm_grid(max_num_seqs=100, max_num_batched_tokens=8192)


@pytest.mark.parametrize(
    ("rows", "mode", "size"), [(95, "full", 96), (96, "full", 96), (97, "piecewise", 104), (100, "piecewise", 104)]
)
def test_mode_by_batch(rows: int, mode: str, size: int) -> None:
    assert (BEFORE.mode(rows), BEFORE.padded(rows)) == (mode, size)


def test_the_uncovered_batches_follow_from_the_configuration_alone() -> None:
    assert BEFORE.uncovered(100) == (97, 98, 99, 100)


def test_with_the_limit_as_a_size_of_its_own_nothing_is_uncovered() -> None:
    assert FIXED.uncovered(100) == ()
    assert FIXED.padded(97) == 100
