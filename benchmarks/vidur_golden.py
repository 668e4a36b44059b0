"""Schedules of Vidur's Sarathi scheduler on an invented cost -> tests/simulate/vidur_sarathi.json.

Runs in Vidur's own Python, from its checkout's folder: its simulator, with a table of ours for its predictor. Lengths,
arrivals, rules and cost are made up; times are multiples of 2^-16 s, so that float64 holds them exactly. One behaviour
is changed: where Vidur preempts a request in the middle of its prompt, it takes the rest of the prompt for output; here
such a request computes its whole prompt again.

    python -P vidur_golden.py OUT.json
"""

from __future__ import annotations

import atexit
import json
import sys
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

UNIT_S, BIN = 2.0**-16, 16
NUM_RUNS, NUM_REQUESTS = 24, 16


class InventedTable:
    """What Vidur's predictor is asked for. `tests/simulate/test_sarathi.py` writes the same as a StepTime."""

    def __init__(self, **_: Any) -> None:
        pass

    def get_execution_time(self, batch: Any, _stage: int) -> SimpleNamespace:
        """Units of a batch, as seconds."""
        units = 100 + 12 * (batch.total_num_tokens // 8)
        decodes = [each.num_processed_tokens for each in batch.requests if each.is_prefill_complete]
        if decodes:
            units += 10 * len(decodes) + 7 * -(-(sum(decodes) // len(decodes)) // BIN)
        for each, tokens in zip(batch.requests, batch.num_tokens, strict=True):
            if not each.is_prefill_complete:
                units += 5 + each.num_processed_tokens + tokens
        return SimpleNamespace(total_time=units * UNIT_S, model_time=units * UNIT_S)


def restart_whole(restart: Any) -> Any:
    """Vidur's restart, of at least the whole prompt."""

    def patched(request: Any) -> None:
        request._num_processed_tokens = max(request._num_processed_tokens, request._num_prefill_tokens)
        restart(request)

    return patched


def run(seed: int, folder: str) -> dict[str, Any]:
    """One run: rules, requests and what became of them."""
    from vidur import config as c
    from vidur.entities import Batch, Replica, Request
    from vidur.events import RequestArrivalEvent
    from vidur.simulator import Simulator

    rng = Random(seed)
    rules = {
        "chunk_size": rng.choice([4, 16, 64]),
        "batch_size_cap": rng.choice([2, 4, 16]),
        "block_size": rng.choice([4, 16]),
        "watermark_blocks_fraction": rng.choice([0.0, 0.1]),
    }
    asked, now = [], 0
    for _ in range(NUM_REQUESTS):
        now += rng.choice([0, 0, 0, 50, 500, 3000])
        asked.append((now, rng.randint(1, rng.choice([8, 90])), rng.randint(1, rng.choice([3, 40]))))
    most = max(-(-(prompt + output) // rules["block_size"]) for _, prompt, output in asked)
    rules["num_blocks"] = int(most * rng.choice([1.1, 1.3, 1.8, 20])) + 2
    Replica._id = -1  # its scheduler of replicas counts on the first being 0
    simulator = Simulator(
        c.SimulationConfig(
            cluster_config=c.ClusterConfig(replica_scheduler_config=c.SarathiSchedulerConfig(**rules)),
            metrics_config=c.MetricsConfig(store_plots=False, enable_chrome_trace=False, output_dir=folder),
        )
    )
    atexit.unregister(simulator._write_output)
    simulator._event_queue.clear()
    requests = [Request(now * UNIT_S, prompt, output) for now, prompt, output in asked]
    for request in requests:
        simulator._add_event(RequestArrivalEvent(request.arrived_at, request))
    before = Batch._id
    simulator.run()
    return {
        "rules": rules,
        "requests": asked,  # arrival in units, prompt, output
        "num_steps": Batch._id - before,
        "times": [
            [request.prefill_completed_at / UNIT_S, request.completed_at / UNIT_S, request.num_restarts]
            for request in requests
        ],
    }


def main() -> None:
    """Make them all."""
    from vidur.entities import Request
    from vidur.scheduler.global_scheduler import base_global_scheduler

    base_global_scheduler.ExecutionTimePredictorRegistry.get = lambda *_, **options: InventedTable(**options)
    Request.restart = restart_whole(Request.restart)
    with tempfile.TemporaryDirectory() as folder:
        runs = [run(seed, folder) for seed in range(NUM_RUNS)]
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in runs)
    Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(
        sum(each["num_steps"] for each in runs), "steps,", sum(t[2] for each in runs for t in each["times"]), "restarts"
    )


main()
