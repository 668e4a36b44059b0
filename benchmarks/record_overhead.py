"""What recording costs an engine: thread CPU time per step of the recorder's own calls, without an engine.

    python benchmarks/record_overhead.py

`log`: the scheduler's side (rows, JSON, write to the pipe). `marker`: the worker's side (rows, the range's name, its
record); torch's record_function adds what docs/record.md says. Target: under 1 % of a 10 ms step, that is 100 us each.
"""

from __future__ import annotations

import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.record.outputs import Cached, New, Output

from stepscope.record.scheduler_hook import SchedulerRecorder
from stepscope.record.settings import Settings
from stepscope.record.worker_hook import WorkerRecorder

STEPS = 400


class Range:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class Profiler:
    should_annotate = True

    def annotate_context_manager(self, _name: str) -> Range:
        return Range()


Profiler.__module__ = "vllm.profiler.wrapper"


def outputs(decodes: int, prefills: int) -> list[Output]:
    """A step that admits everything, then steps of `decodes` decodes and `prefills` prompt chunks."""
    names = [f"cmpl-{i:016x}-0-{i:08x}" for i in range(decodes)]
    first = Output(dict.fromkeys(names, 100), [New(n, [0] * 100, 0) for n in names])
    steps = [first]
    for step in range(STEPS):
        new = [f"new-{step}-{i}" for i in range(prefills)]
        steps.append(
            Output(
                {**dict.fromkeys(names, 1), **dict.fromkeys(new, 256)},
                [New(n, [0] * 256, 0) for n in new],
                Cached(list(names), set(), [100 + step] * decodes, [1 + step] * decodes),
                finished_req_ids={f"new-{step - 1}-{i}" for i in range(prefills)} if step else set(),
            )
        )
    return steps


def measure(call: Any, steps: list[Output]) -> list[float]:
    times = []
    for output in steps[1:]:
        time.sleep(0.0005)  # as an engine does between its steps: the writer takes what is in the pipe
        start = time.thread_time_ns()
        call(output)
        times.append((time.thread_time_ns() - start) / 1e3)
    return times


def quantiles(times: list[float]) -> tuple[float, ...]:
    """The 10th, 50th and 99th percentile."""
    ordered = sorted(times)
    return tuple(ordered[int(len(ordered) * part)] for part in (0.1, 0.5, 0.99))


def main() -> None:
    pool = types.SimpleNamespace(get_num_free_blocks=lambda: 1)
    scheduler = types.SimpleNamespace(
        vllm_config=types.SimpleNamespace(),
        requests={},
        get_request_counts=lambda: (1, 2),
        kv_cache_manager=types.SimpleNamespace(usage=0.5, block_pool=pool),
    )
    worker = types.SimpleNamespace(vllm_config=scheduler.vllm_config, rank=0, profiler=Profiler())
    names = f"{'rows':>5} {'prefill':>7} | {'log p10':>7} {'median':>7} {'p99':>7}"
    print(f"{names} | {'marker p10':>10} {'median':>7} {'p99':>7}")
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(is_on=True, folder=Path(folder))
        for decodes, prefills in ((1, 0), (8, 1), (32, 2), (64, 2), (256, 2), (256, 0), (1024, 2), (1024, 0)):
            steps = outputs(decodes, prefills)
            log = SchedulerRecorder(scheduler, settings, "0.32.0")
            log.after_schedule(scheduler, steps[0], 1000, 2)
            mark = WorkerRecorder(worker, settings, "0.32.0")
            with mark.scope(worker, steps[0], Range()):
                pass

            def run(output: Output, mark: WorkerRecorder = mark) -> None:
                with mark.scope(worker, output, Range()):
                    pass

            def write(output: Output, log: SchedulerRecorder = log) -> None:
                log.after_schedule(scheduler, output, 1000, 2)

            a, b = measure(write, steps), measure(run, steps)
            (a10, a50, a99), (b10, b50, b99) = map(quantiles, (a, b))
            print(
                f"{decodes + prefills:>5} {prefills:>7} | {a10:>7.1f} {a50:>7.1f} {a99:>7.1f} | "
                f"{b10:>10.1f} {b50:>7.1f} {b99:>7.1f}"
            )
        time.sleep(0.5)


if __name__ == "__main__":
    main()
