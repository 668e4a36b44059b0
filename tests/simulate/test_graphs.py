from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.graphs import (
    GraphGrid,
    padded_time,
    sglang_grid,
    sglang_max_bs,
    stable_batches,
    vllm_grid,
)
from stepscope.simulate.step_time import DecodeGrid, StepTime

FLAT = StepTime(by_tokens=tuple(to_ticks(0.001 + 1e-5 * tokens) for tokens in range(257)))


def test_vllm_captures_up_to_twice_the_seats() -> None:
    grid = vllm_grid(max_num_seqs=32, max_num_batched_tokens=8192)
    assert grid.other_sizes == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert grid.decode_sizes == (1, 2, 4, 8, 16, 24, 32)
    assert [grid.mode(rows) for rows in (3, 32, 33, 64, 65)] == ["full", "full", "piecewise", "piecewise", "none"]
    assert grid.mode(17, is_uniform_decode=False) == "piecewise"
    assert grid.padded(65) == 65


def test_vllm_captures_512_at_most_by_16_above_256_and_no_more_than_the_budget() -> None:
    sizes = vllm_grid(max_num_seqs=1000, max_num_batched_tokens=8192).other_sizes
    assert sizes[-17:] == tuple(range(256, 513, 16))
    assert vllm_grid(max_num_seqs=64, max_num_batched_tokens=100).other_sizes[-2:] == (96, 100)


def test_sglang_captures_rows_of_decode_alone() -> None:
    grid = sglang_grid(cuda_graph_max_bs=32, max_running_requests=4096)
    assert grid.decode_sizes == (1, 2, 4, 8, 12, 16, 24, 32)
    assert [grid.mode(rows) for rows in (1, 32, 33)] == ["full", "full", "none"]
    assert grid.mode(20, is_uniform_decode=False) == "none"
    assert grid.uncovered(34) == (33, 34)


def test_sglang_captures_the_last_batch_that_can_run() -> None:
    assert sglang_grid(cuda_graph_max_bs=256, max_running_requests=100).uncovered(100) == ()
    assert sglang_grid(cuda_graph_max_bs=50, max_running_requests=100).decode_sizes[-2:] == (48, 50)


@pytest.mark.parametrize(
    ("gib", "tp_size", "largest"),
    [(16, 1, 8), (24, 1, 48), (48, 1, 32), (48, 4, 160), (80, 1, 256), (141, 8, 512), (192, 1, 512)],
)
def test_sglang_sizes_by_memory(gib: int, tp_size: int, largest: int) -> None:
    assert sglang_max_bs(device_bytes=gib << 30, tp_size=tp_size) == largest
    assert sglang_max_bs(device_bytes=gib << 30, tp_size=tp_size, max_running_requests=6) == 6


@given(st.integers(1, 600), st.integers(1, 1200), st.booleans())
def test_a_padded_size_is_captured_and_never_smaller(seats: int, tokens: int, is_decode: bool) -> None:
    grid = vllm_grid(max_num_seqs=seats, max_num_batched_tokens=8192)
    size, mode = grid.padded(tokens, is_uniform_decode=is_decode), grid.mode(tokens, is_uniform_decode=is_decode)
    assert size >= tokens
    assert (size == tokens and mode == "none") or size in grid.other_sizes
    assert set(grid.uncovered(seats)) == {rows for rows in range(1, seats + 1) if grid.mode(rows) != "full"}


def test_a_step_costs_what_its_padded_size_costs_and_its_mode_adds() -> None:
    grid = sglang_grid(cuda_graph_max_bs=32, max_running_requests=256)
    time = padded_time(FLAT, grid, {"none": 0.005}, max_decode=256)
    assert time.by_tokens[17] == FLAT.by_tokens[24]
    assert time.by_tokens[33] == FLAT.by_tokens[33] + to_ticks(0.005)
    assert time.by_tokens[0] == FLAT.by_tokens[0]


def test_a_longer_step_is_no_decode_step() -> None:
    grid = vllm_grid(max_num_seqs=16, max_num_batched_tokens=8192)
    time = padded_time(FLAT, grid, {"piecewise": 0.002, "none": 0.005}, max_decode=16)
    assert time.by_tokens[16] == FLAT.by_tokens[16]
    assert time.by_tokens[17] == FLAT.by_tokens[24] + to_ticks(0.002)
    assert time.by_tokens[33] == FLAT.by_tokens[33] + to_ticks(0.005)


def test_a_table_that_ends_before_the_padded_size_is_refused() -> None:
    grid = GraphGrid(decode_sizes=(8, 512))
    with pytest.raises(BadInput, match="padded to 512"):
        padded_time(FLAT, grid, {}, max_decode=256)


@pytest.mark.parametrize("sizes", [(0, 1), (4, 2), (3, 3)])
def test_sizes_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="captured sizes"):
        GraphGrid(decode_sizes=sizes)


def test_a_stable_batch_is_rate_times_residency() -> None:
    level = StepTime(by_tokens=(to_ticks(0.01),) * 300)
    assert stable_batches(level, rate_per_s=10.0, steps_per_request=100, most=200) == (10,)
    assert stable_batches(level, rate_per_s=10.0, steps_per_request=5000, most=200) == ()


def test_the_mean_context_counts() -> None:
    grown = DecodeGrid(rows=(1, 100), kv_lens=(0, 1000), ticks=((0, to_ticks(0.01)), (0, to_ticks(0.01))))
    time = StepTime(by_tokens=(to_ticks(0.01),) * 300, decode=grown)
    assert stable_batches(time, rate_per_s=10.0, steps_per_request=100, kv_len=1000, most=200) == (20,)
