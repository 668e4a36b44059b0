"""A million requests through the simulator: CPU seconds and peak memory, in Python and compiled.

Poisson arrivals, log-normal lengths like those of Azure's conversations, vLLM's rules, an affine cost in which one
engine is busy and keeps up. Each line runs in a process of its own; the last has answers four times as long, at a
quarter of the rate: four times the steps, and memory should not know it.

    python benchmarks/million_requests.py [--count N] [--write]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.compressed import CompressedRun, RequestColumns, run_columns
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.step_time import DecodeGrid, PrefillTicks, StepTime
from stepscope.simulate.synthetic import Lengths, poisson_arrivals, single_requests

RESULT_FILE = Path(__file__).parent / "results" / "million_requests.md"
RULES = SchedulerRules(max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=32768, num_blocks=40_000)
WAYS = {"Python": (False, 1), "numba": (True, 1), "numba, answers x 4": (True, 4)}


def make_cost() -> StepTime:
    """6 ms a step, 25 us a token, 20 ns a token of history; in ticks."""
    us = TICKS_PER_S // 1_000_000
    history = tuple(rows * 4096 * us // 50 for rows in (1, 256))
    return StepTime(
        by_tokens=tuple((6000 + 25 * tokens) * us for tokens in range(RULES.max_num_batched_tokens + 1)),
        decode=DecodeGrid(rows=(1, 256), kv_lens=(0, 4096), ticks=tuple((0, ticks) for ticks in history)),
        prefill=PrefillTicks(kv=us // 50),
    )


def make_requests(count: int, stretch: int) -> tuple[Request, ...]:
    """The workload."""
    rng = Random(1)
    arrivals = poisson_arrivals(rng, rate_per_s=10.0 / stretch, count=count)
    question = Lengths(median=900, sigma=0.9, most=8000)
    return single_requests(rng, arrivals, question=question, answer=Lengths(median=130 * stretch, sigma=0.7)).requests


def run(name: str, count: int) -> None:
    """One line's figures as JSON."""
    compiled, stretch = WAYS[name]
    requests, cost = make_requests(count, stretch), make_cost()
    if compiled:
        run_columns(RequestColumns(requests[:10]), RULES, cost, compiled=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    outcome = run_columns(RequestColumns(requests), RULES, cost, compiled=compiled)
    assert isinstance(outcome, CompressedRun), outcome
    outcome.spreads()
    told = {
        "cpu_s": time.process_time() - begin,
        "requests_bytes": before * 1024,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "num_steps": outcome.num_steps,
        "end_s": outcome.end / TICKS_PER_S,
    }
    print(json.dumps(told))


def main() -> None:
    """Run each line, print and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", choices=WAYS)
    asked = parser.parse_args()
    if asked.only:
        run(asked.only, asked.count)
        return
    lines = [
        f"# {asked.count:,} requests in one simulation",
        "",
        f"Date: {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}. Python {platform.python_version()}, Linux, one core.",
        "",
        *(__doc__ or "").split("\n\n")[1].splitlines(),
        "",
        "| loop | steps | simulated h | CPU s | requests per CPU s | peak RSS, MB | of it the requests, MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in WAYS:
        command = [sys.executable, __file__, "--only", name, "--count", str(asked.count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        cpu_s, mb, mb_before = told["cpu_s"], told["peak_bytes"] / 1e6, told["requests_bytes"] / 1e6
        steps, hours = told["num_steps"], told["end_s"] / 3600
        speed = asked.count / cpu_s
        lines.append(
            f"| {name} | {steps:,} | {hours:,.1f} | {cpu_s:.2f} | {speed:,.0f} | {mb:,.0f} | {mb_before:,.0f} |"
        )
    print("\n".join(lines))
    if asked.write:
        RESULT_FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
