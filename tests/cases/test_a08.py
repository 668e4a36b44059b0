"""A08, falling out of the captured batch sizes: an L40 at 32 requests/s, graphs up to 32 rows, admission up to 4096.

Stated: the running batch sits at median 67, p95 96 (23 and 45 with graphs up to 128); ITL goes from 3.0 to 12.6 ms;
the queue stays 0; 19 of 20 runs slide with 32, none of 9 with 128. Little's law at 23 rows, 32 requests/s and 3.0 ms
gives 240 outputs a request, and 97 rows at 12.6 ms: the stated p95.
"""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from stepscope.latency import percentile
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.engine import Simulation, simulate
from stepscope.simulate.graphs import padded_time, sglang_grid, sglang_max_bs, stable_batches
from stepscope.simulate.sglang import SglangRules
from stepscope.simulate.step_time import StepTime
from stepscope.simulate.synthetic import Lengths, poisson_arrivals, single_requests

RATE_PER_S, REPLAY_S, EAGER_S, OUTPUTS, SEATS = 32.0, 0.0030, 0.0126, 240, 4096
RULES = SglangRules(
    max_total_tokens=400_000, max_running_requests=SEATS, context_length=8192, chunked_prefill_size=4096
)
REPLAYED = StepTime(by_tokens=(to_ticks(REPLAY_S),) * (SEATS + 1))


def engine(cuda_graph_max_bs: int) -> StepTime:
    grid = sglang_grid(cuda_graph_max_bs=cuda_graph_max_bs, max_running_requests=SEATS)
    return padded_time(REPLAYED, grid, {"none": EAGER_S - REPLAY_S}, max_decode=SEATS)


@cache
def run(cuda_graph_max_bs: int, seed: int = 1) -> Simulation:
    """30 s of arrivals, short prompts: decode is what this case is about."""
    rng = Random(seed)
    arrivals = poisson_arrivals(rng, rate_per_s=RATE_PER_S, count=int(30 * RATE_PER_S))
    lengths = Lengths(median=OUTPUTS, sigma=0.3, most=4 * OUTPUTS)
    load = single_requests(rng, arrivals, question=Lengths(median=1), answer=lengths)
    return simulate(load.requests, RULES, engine(cuda_graph_max_bs))


def running(found: Simulation, *, begin_s: float = 2.0, end_s: float = 30.0) -> list[int]:
    """Rows of the decode steps between ramp and end, ascending."""
    steps = (step for step in found.steps if begin_s < step.start_s < end_s)
    return sorted(step.shape.decode.num_requests or 0 for step in steps if step.shape.decode.num_requests)


def test_the_default_of_this_device_is_32() -> None:
    assert sglang_max_bs(device_bytes=46_068 << 20) == 32


def test_littles_law_names_the_stable_batches() -> None:
    def stable(cuda_graph_max_bs: int) -> tuple[int, ...]:
        time = engine(cuda_graph_max_bs)
        return stable_batches(time, rate_per_s=RATE_PER_S, steps_per_request=OUTPUTS, most=SEATS)

    low, high = stable(32)
    assert low == pytest.approx(23, abs=1)
    assert high == pytest.approx(96, abs=1)
    assert stable(128) == (low,)


def test_the_batch_slides_off_the_grid_and_stays_there() -> None:
    late = running(run(32), begin_s=12.0)
    assert percentile(late, 0.05) > 32
    assert percentile(late, 0.5) > 67
    assert percentile(late, 0.95) < 130


def test_graphs_up_to_128_keep_it_at_the_smaller_batch() -> None:
    rows = running(run(128))
    assert percentile(rows, 0.5) == pytest.approx(23, abs=5)
    assert percentile(rows, 0.95) <= 45


def test_the_gap_between_tokens_is_that_of_the_mode() -> None:
    def tpot(cap: int) -> float:
        known = sorted(r.times.tpot_s for r in run(cap).requests if r.times.tpot_s is not None)
        return float(percentile(known, 0.5))

    assert tpot(128) == pytest.approx(0.0030, rel=0.2)
    assert tpot(32) == pytest.approx(0.0126, rel=0.2)


@pytest.mark.parametrize("cap", [32, 128])
def test_the_queue_stays_empty_all_the_same(cap: int) -> None:
    assert {step.num_waiting for step in run(cap).steps} == {0}
