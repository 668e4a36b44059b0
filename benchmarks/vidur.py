"""Vidur and stepscope on one workload and one cost: the same steps and times? And what does a simulation cost in CPU?

Llama-2-7b on an A100, Sarathi scheduler (chunk 512, 128 seats), Poisson 3 requests/s, Azure's conversation lengths up
to 4096 tokens; Vidur's plots and chrome trace are off, its forest grid is reduced (`vidur_peer.py`). The cost is what
Vidur's predictor holds, as a StepTime of bins. Vidur: CPU s of its event loop alone, with its metrics store. Stepscope:
from requests to percentiles of TTFT, TPOT and E2EL, checks included; once with a record for every request, once with
columns, as a sweep would. Rounds are interleaved, figures are medians.

    python benchmarks/vidur.py --vidur CHECKOUT --python ITS_PYTHON --mlp CSV --attention CSV [--runs N] [--write]
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from stepscope.latency import spread
from stepscope.simulate.clock import TICKS_PER_S
from stepscope.simulate.compressed import CompressedRun, RequestColumns, run_columns
from stepscope.simulate.engine import Options, check_workload, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.sarathi import SarathiRules
from stepscope.simulate.step_time import DecodeBins, PrefillBins, StepTime

HERE = Path(__file__).parent
RESULT_FILE = HERE / "results" / "vidur.md"
COMMIT, BIN, CHUNK, CAP, LONGEST = "7d47513", 64, 512, 128, 4096
Arrays = dict[str, np.ndarray[Any, Any]]


def run_vidur(asked: argparse.Namespace, num_requests: int, *, with_tables: bool) -> tuple[dict[str, Any], Arrays]:
    """One run in a process of its own: figures and arrays."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run.npz"
        command = [asked.python, "-P", HERE / "vidur_peer.py", out, "--requests", str(num_requests)]
        command += ["--mlp", asked.mlp.resolve(), "--attention", asked.attention.resolve()]
        command += ["--work", asked.work.resolve(), *(["--tables"] if with_tables else [])]
        environment = {"PYTHONPATH": str(asked.vidur.resolve()), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=asked.vidur,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"Vidur did not run:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1]), dict(np.load(out))


def make_cost(tables: Arrays) -> StepTime:
    """Vidur's tables in ticks."""

    def to_rows(seconds: np.ndarray[Any, Any]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(row) for row in np.rint(seconds * TICKS_PER_S).astype(np.int64).tolist())

    by_tokens = to_rows(tables["by_tokens_s"][None])[0]
    sides = np.pad(tables["prefill_s"], ((0, 0), (1, 0)))  # side 0: no prefill
    return StepTime(
        by_tokens=by_tokens,
        decode=DecodeBins(bin_len=BIN, ticks=to_rows(tables["decode_s"])),
        prefill=PrefillBins(bin_len=BIN, ticks=to_rows(sides)),
    )


def make_requests(arrays: Arrays) -> list[Request]:
    """Vidur's requests."""
    columns = zip(*(arrays[name].tolist() for name in ("arrival_s", "prompt_len", "output_len")), strict=True)
    return [
        Request(request_id=str(place), arrival_s=arrival, prompt_len=prompt, output_len=output)
        for place, (arrival, prompt, output) in enumerate(columns)
    ]


def with_records(requests: list[Request], rules: SarathiRules, cost: StepTime, *, compiled: bool) -> Any:
    """A whole simulation by `simulate`: a record for each request, and the percentiles of those."""
    found = simulate(requests, rules, cost, Options(steps="none", compiled=compiled))
    times = [each.times for each in found.requests]
    return found, [
        spread(each.ttft_s for each in times),
        spread(each.tpot_s for each in times),
        spread(each.e2el_s for each in times),
    ]


def with_columns(requests: list[Request], rules: SarathiRules, cost: StepTime, *, compiled: bool) -> Any:
    """The same in columns."""
    check_workload(requests, rules)
    outcome = run_columns(RequestColumns(requests), rules, cost, compiled=compiled)
    assert isinstance(outcome, CompressedRun), outcome
    return outcome, list(outcome.spreads().values())


WAYS: dict[str, tuple[Callable[..., Any], bool]] = {
    "stepscope, Python, records": (with_records, False),
    "stepscope, Python, columns": (with_columns, False),
    "stepscope, numba, records": (with_records, True),
    "stepscope, numba, columns": (with_columns, True),
}


def measure(asked: argparse.Namespace, num_requests: int) -> tuple[list[str], str]:
    """Rows of the table for one size, and a sentence on parity."""
    figures, arrays = run_vidur(asked, num_requests, with_tables=True)  # trains, or fills the cache
    cost, requests = make_cost(arrays), make_requests(arrays)
    rules = SarathiRules(
        chunk_size=CHUNK, batch_size_cap=CAP, num_blocks=int(figures["num_blocks"]), max_model_len=LONGEST
    )
    parity = compare(figures, arrays, with_records(requests, rules, cost, compiled=False)[0])
    for way, compiled in WAYS.values():
        way(requests, rules, cost, compiled=compiled)  # loads what is loaded once
    taken: dict[str, list[float]] = {name: [] for name in ("Vidur, event loop", *WAYS)}
    for _ in range(asked.runs):
        taken["Vidur, event loop"].append(run_vidur(asked, num_requests, with_tables=False)[0]["cpu_s"])
        for name, (way, compiled) in WAYS.items():
            gc.collect()  # nobody pays for the rubbish of the one before
            begin = time.process_time()
            way(requests, rules, cost, compiled=compiled)
            taken[name].append(time.process_time() - begin)
    base = median(taken["Vidur, event loop"])
    rows = []
    for name, values in taken.items():
        low, mid, high = min(values), median(values), max(values)
        ms = f"{mid * 1e3:,.1f} ({low * 1e3:,.1f} to {high * 1e3:,.1f})"
        rows.append(f"| {num_requests:,} | {name} | {ms} | {base / mid:,.0f} | {num_requests / mid:,.0f} |")
    return rows, parity


def compare(figures: dict[str, Any], arrays: Arrays, found: Any) -> str:
    """A sentence on steps and times; exits where they differ."""
    last = np.array([each.times.last_token_s for each in found.requests])
    first = np.array([each.times.first_token_s for each in found.requests])
    apart_s = max(np.abs(last - arrays["last_s"]).max(), np.abs(first - arrays["first_s"]).max())
    if found.num_steps != figures["num_steps"] or apart_s > 1e-9:
        raise SystemExit(f"{found.num_steps} steps against Vidur's {figures['num_steps']}, {apart_s:.1e} s apart")
    return (
        f"{len(last):,} requests: {found.num_steps:,} steps in both; first and last tokens are at most {apart_s:.1e} s "
        f"apart, over {found.end_s:,.0f} s. {figures['num_restarts']} preemptions."
    )


def describe(asked: argparse.Namespace) -> list[str]:
    """Date, machine and versions."""
    probe = "import sys,numpy,sklearn;print(sys.version.split()[0],numpy.__version__,sklearn.__version__)"
    told = subprocess.run([asked.python, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    try:
        numba = version("numba")
    except PackageNotFoundError:
        numba = "not installed"
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return [
        f"Date: {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}. Machine: {cpu}, shared, Linux. Runs: {asked.runs}, interleaved.",
        f"Vidur {COMMIT}: Python {told[0]}, numpy {told[1]}, scikit-learn {told[2]}.",
        f"Stepscope {version('stepscope')}: Python {platform.python_version()}, numpy {np.__version__}, numba {numba}.",
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--vidur", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--mlp", type=Path, required=True)
    parser.add_argument("--attention", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=HERE / "work" / "vidur")
    parser.add_argument("--requests", default="1000,10000")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    sizes = [measure(asked, int(size)) for size in asked.requests.split(",")]
    lines = [
        "# One simulation, beside Vidur",
        "",
        *describe(asked),
        "",
        *(__doc__ or "").split("\n\n")[1].splitlines(),
        "",
        "| requests | | CPU ms | Vidur ÷ it | requests per CPU s |",
        "|---:|---|---:|---:|---:|",
        *(row for rows, _ in sizes for row in rows),
        "",
        *(f"- {parity}" for _, parity in sizes),
    ]
    print("\n".join(lines))
    if asked.write:
        RESULT_FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
