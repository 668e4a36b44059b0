"""A18, one long prompt stops decoding: a request that decodes at 59.4 tokens/s meets a prompt of 200,019 tokens.

Stated: 58 prefill steps in a row, of 3456 tokens and 1.35 s each, 77 s; the victim falls to 7.7 tokens/s, with 78.6 s
of added latency (695 outputs: 11.7 s alone, 90.3 s here).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.batch import BatchShape
from stepscope.join.limits import StepSpan, find_starvation
from stepscope.simulate.engine import Options, Simulation, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.sglang import SglangRules

CHUNK, PROMPT, CHUNK_S, DECODE_S = 3456, 200_019, 1.35, 1 / 59.4
RULES = SglangRules(
    max_total_tokens=300_000,
    max_running_requests=8,
    context_length=262_144,
    chunked_prefill_size=CHUNK,
    disable_overlap_schedule=True,
)
REQUESTS = (
    Request(request_id="victim", arrival_s=0.0, prompt_len=100, output_len=695),
    Request(request_id="long", arrival_s=3.0, prompt_len=PROMPT, output_len=4),
)


def cost(shape: BatchShape) -> float:
    """A full chunk 1.35 s, a decode step one token's time at 59.4 tokens/s."""
    return CHUNK_S * (shape.prefill.query_sum or 0) / CHUNK + (DECODE_S if shape.decode.num_requests else 0.0)


def run(rules: SglangRules = RULES) -> Simulation:
    return simulate(REQUESTS, rules, cost, Options(with_gaps=True))


def longest_gap(found: Simulation) -> float:
    return max(found.requests[0].times.gaps_s or ())


def starvation(found: Simulation) -> tuple[int, float]:
    spans = []
    for step in found.steps:
        begun = step.start_s > 3.0
        phase = "prefill" if step.shape.prefill.num_requests else "decode"
        duration = round((step.end_s - step.start_s) * 1e9)
        spans.append(StepSpan(phase=phase, duration_ns=duration, num_running_decodes=int(begun)))
    worst = find_starvation(spans)
    return (0, 0.0) if worst is None else (worst.num_steps, worst.duration_ns / 1e9)


def test_the_victim_waits_for_all_chunks_of_the_prompt() -> None:
    steps, waited_s = starvation(run())
    assert steps == 58
    assert 77 <= waited_s <= 78.6
    assert longest_gap(run()) == pytest.approx(waited_s + DECODE_S, abs=1e-6)


def test_its_rate_falls_as_stated() -> None:
    times = run().requests[0].times
    assert times.e2el_s is not None
    assert 695 / times.e2el_s == pytest.approx(7.7, rel=0.01)
    alone = simulate(REQUESTS[:1], RULES, cost).requests[0].times.e2el_s
    assert alone is not None
    assert times.e2el_s - alone == pytest.approx(78.6, rel=0.01)


@pytest.mark.parametrize("chunks", [1, 4, 8])
def test_one_decode_step_per_n_chunks_bounds_the_gap(chunks: int) -> None:
    found = run(replace(RULES, max_consecutive_prefill_batches=chunks))
    assert longest_gap(found) == pytest.approx(chunks * CHUNK_S + DECODE_S, rel=1e-6)
    late = found.requests[1].times.ttft_s
    assert late is not None
    delay = -(-58 // chunks) * DECODE_S  # what it costs the long prompt
    assert late == pytest.approx(run().requests[1].times.ttft_s, abs=delay + 2 * DECODE_S)


def test_the_interval_of_0_5_23_is_one_decode_step_per_chunk() -> None:
    assert longest_gap(run(replace(RULES, prefill_decode_interval=1))) == pytest.approx(CHUNK_S + DECODE_S, rel=1e-6)


def test_decode_rows_in_the_chunks_do_not_starve() -> None:
    found = run(replace(RULES, enable_mixed_chunk=True))
    assert starvation(found)[0] <= 58
    assert longest_gap(found) < 2 * (CHUNK_S + DECODE_S)
