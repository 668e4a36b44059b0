"""How far simulated requests are off real vLLM runs: fitted to the first half of a log, scored on the other half.

    python benchmarks/vllm_runs.py [FOLDER] [--by-queue] [--write]

FOLDER holds one folder a run, as LLMServingSim's `bench` writes them: requests.jsonl and meta.json. Default:
measured/vllm-runs below the folder that STEPSCOPE_DATA names, or below `shared/data` beside the checkout. `--by-queue`
lets requests arrive when the engine saw them, as LLMServingSim's figures do. `--write` also writes
benchmarks/results/vllm_runs.md. Exit 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.calibrate.request_log import LoggedRequest, read_request_log
from stepscope.calibrate.requests import EngineSetup, Latencies, RequestFit, fit_requests, predict_requests
from stepscope.calibrate.step_form import TERMS
from stepscope.errors import BadInput
from stepscope.simulate.balancer import LeastLoaded
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.simulation import Options

Array = np.ndarray[Any, np.dtype[Any]]
ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "vllm_runs.md"
SEEDS = (0, 1, 2)
TARGETS = {"TTFT": 0.10, "E2E": 0.05}  # medians on the requests that were not fitted
# num_experts / top_k by model; other models have no experts
SATURATION = {"Qwen/Qwen3-30B-A3B-Instruct-2507": 128 / 8}
# 96 GB hold all tokens that 128 requests of these runs can have, so no request waits for blocks or loses them
NUM_BLOCKS = 60_000
# bench/examples/RTXPRO6000/*/validation/summary.txt of casys-kaist/LLMServingSim: error of the mean over all requests
PUBLISHED = {
    "meta-llama/Llama-3.1-8B": "TTFT -4.0, TPOT -1.0, E2E -1.8",
    "Qwen/Qwen3-32B": "TTFT +1.3, TPOT +0.8, E2E +1.0",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "TTFT -13.6, TPOT -1.7, E2E -2.2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A log, and how its engine was set up."""

    model: str
    log: tuple[LoggedRequest, ...]
    setup: EngineSetup

    @property
    def num_fitted(self) -> int:
        """The first half."""
        return len(self.log) // 2


def default_folder() -> Path:
    """Where the runs lie unless they are named."""
    folder = Path(os.environ.get("STEPSCOPE_DATA") or ROOT.parent / "shared" / "data")
    return folder / "measured" / "vllm-runs"


def read_run(folder: Path, *, by_queue: bool = False) -> Run:
    """vLLM 0.19: async scheduling; data-parallel ranks step together where experts are parallel."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    told = meta["engine_kwargs"]
    rules = SchedulerRules(
        max_num_batched_tokens=told["max_num_batched_tokens"],
        max_num_seqs=told["max_num_seqs"],
        max_model_len=told["max_model_len"] or 1 << 17,
        num_blocks=NUM_BLOCKS,
        enable_prefix_caching=False,  # the log does not tell which prompts share a beginning
        async_scheduling=True,
    )
    setup = EngineSetup(
        rules=rules,
        num_ranks=told["data_parallel_size"],
        router=LeastLoaded(formula="waiting_x4"),
        saturation=SATURATION.get(meta["model"]),
        options=Options(dp_sync_interval=32),
    )
    path = folder / "requests.jsonl"
    log = read_request_log(path, num_fitted=meta["num_requests"] // 2, by_queue=by_queue)
    return Run(model=meta["model"], log=log, setup=setup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One fit's relative errors on the requests that it was not fitted to, and of the means over all requests."""

    fit: RequestFit
    errors: dict[str, Array]
    mean_errors: dict[str, float]
    cpu_s: float

    def median(self, name: str) -> float:
        """Of the absolute errors."""
        return float(np.median(np.abs(self.errors[name])))


def score(run: Run, seed: int) -> Score:
    """Fit, predict, compare."""
    start = time.process_time()
    rng = np.random.default_rng(seed)
    fit = fit_requests(run.log, run.setup, run.num_fitted, rng)
    predicted = _named(predict_requests(run.log, run.setup, fit.form, rng), run)
    measured = _named(Latencies.of(run.log), run)
    return Score(
        fit=fit,
        errors={name: (predicted[name] / measured[name] - 1)[run.num_fitted :] for name in measured},
        mean_errors={name: float(predicted[name].mean() / measured[name].mean() - 1) for name in measured},
        cpu_s=time.process_time() - start,
    )


def _named(latencies: Latencies, run: Run) -> dict[str, Array]:
    gaps = np.array([max((each.times.output_len or 1) - 1, 1) for each in run.log])
    return {"TTFT": latencies.ttft_s, "TPOT": latencies.decode_s / gaps, "E2E": latencies.e2el_s}


def rows_of(run: Run, scores: list[Score]) -> Iterator[str]:
    """One line a seed: held-out medians and p90, means over all, and what they took."""
    for number, each in enumerate(scores):
        held_out = [
            f"{100 * each.median(name):.1f} / {100 * np.percentile(np.abs(errors), 90):.1f}"
            for name, errors in each.errors.items()
        ]
        means = ", ".join(f"{name} {100 * value:+.1f}" for name, value in each.mean_errors.items())
        cells = [*held_out, means, PUBLISHED.get(run.model, "-"), str(each.fit.num_simulations), f"{each.cpu_s:.1f}"]
        yield f"| {run.model} ({number}) | " + " | ".join(cells) + " |"


def report(folder: Path, *, by_queue: bool) -> tuple[list[str], bool]:
    """The tables, and whether every target is met by every seed."""
    lines = [
        "# Requests of real vLLM runs that were not fitted",
        "",
        "Fitted to the first half of each log through the simulator (no step was timed), scored on the second half of",
        "the same run; absolute relative errors in percent, median / p90, one line a seed. Second halves share the",
        "engine's state with the first: another load level was not tested. Means: error of the mean over all requests,",
        "fitted ones included, in percent. LLMServingSim 2.0's are as published in its repository: its step times come",
        "from its own kernel profile of that device and from no request of the run. Its TTFT counts from when the",
        f"engine saw a request; here it counts from {'then too' if by_queue else 'when the client sent it'}.",
        "",
        "| run (seed) | TTFT | TPOT | E2E | means, all requests | LLMServingSim, means | simulations | CPU s |",
        "|---|---:|---:|---:|---|---|---:|---:|",
    ]
    is_met = True
    forms = []
    for path in sorted(path.parent for path in folder.glob("*/meta.json")):
        run = read_run(path, by_queue=by_queue)
        scores = [score(run, seed) for seed in SEEDS]
        lines += rows_of(run, scores)
        is_met &= all(each.median(name) <= most for each in scores for name, most in TARGETS.items())
        form = scores[0].fit.form
        told = ", ".join(
            f"{name} {1e6 * value:.3g}" for name, value in zip(TERMS, form.coefficients, strict=True) if value
        )
        forms.append(f"- {run.model}: {told}")
    return [*lines, "", "Coefficients of seed 0, microseconds per unit:", "", *forms], is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=default_folder())
    parser.add_argument("--by-queue", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"also write {RESULT.relative_to(ROOT)}")
    options = parser.parse_args()
    if not any(options.folder.glob("*/meta.json")):
        print(f"{options.folder} holds no run: name a folder of runs, or set STEPSCOPE_DATA.", file=sys.stderr)
        return 2
    try:
        lines, is_met = report(options.folder, by_queue=options.by_queue)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(lines))
    if options.write:
        RESULT.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
