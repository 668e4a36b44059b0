"""Kineto traces -> one table: what reading them costs here, in stepscope and in other readers.

CPU s is user + system time of the reader's process (and of children that it waited for); peak RSS is the largest
resident size of any one of those processes. Both are the operating system's account of a finished child
(`os.wait4`), from start-up to exit. Rounds are interleaved (A B C, A B C, ...), and figures are medians.

    python benchmarks/reading.py [--inputs big,kern,small | PATH...] [--runs N] [--work DIR] [--only NAME,...] [--write]
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO

from contestants import HERE, CannotRunError, Peers, Reader, describe_versions, list_preparations
from make_inputs import RECIPES, InputError, make_from_recipe

BASELINE = "perfetto"
RESULT_FILE = HERE / "results" / "reading.md"
RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
NOTES = """\
Each reader runs in a process of its own; figures run from its start to its exit, with decompression. CPU s: user +
system, median (lowest to highest). ÷ P: divided by the Perfetto row of the same input. Events: what the reader says it
holds; each counts in its own way. Input `small` shows the start-up that is part of every figure: compiling the
WebAssembly, importing pandas. Perfetto runs as WebAssembly under Node; a native build was not measured, and no ratio to
one is claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one run of one reader cost."""

    cpu_s: float
    wall_s: float
    rss_bytes: int
    num_events: int | None  # None: the reader does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One trace file, and its size once inflated."""

    path: Path
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One reader's runs on one input; `failure` says in words why there are none."""

    trace: Input
    label: str
    name: str
    samples: tuple[Sample, ...]
    failure: str | None


def run_measured(command: list[str], timeout_s: float, folder: Path) -> Sample:
    """Run `command` in `folder` and return its cost; raises `CannotRunError` when it fails or takes too long."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started_s = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=folder)
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - started_s
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            reason = last_line(errors) if wall_s < timeout_s else f"stopped after {timeout_s:.0f} s"
            raise CannotRunError(f"exit {process.returncode}: {reason}")
        answer = last_line(output)
    return Sample(
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=wall_s,
        rss_bytes=usage.ru_maxrss * RSS_UNIT_BYTES,
        num_events=int(answer) if answer.isdecimal() else None,
    )


def last_line(stream: IO[bytes]) -> str:
    """The last line of a finished child's stream, or ''."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - 4096))
    lines = stream.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def measure_input(trace: Input, prepared: dict[str, Reader | str], options: argparse.Namespace) -> list[Row]:
    """Run every reader on one input, in rounds; a reader that fails once is not run again on it."""
    samples: dict[str, list[Sample]] = {name: [] for name in prepared}
    failures = {name: f"not run: {reader}" for name, reader in prepared.items() if isinstance(reader, str)}
    for number in range(1, options.runs + 1):
        for name, reader in prepared.items():
            if isinstance(reader, str) or name in failures:
                continue
            try:
                sample = run_measured(reader.make_command(trace.path), options.timeout, options.work)
            except CannotRunError as error:
                failures[name] = f"failed: {error}"
                print(f"{trace.path.name} {name}: {failures[name]}", file=sys.stderr)
                continue
            samples[name].append(sample)
            cost = f"{sample.cpu_s:.2f} CPU s, {sample.rss_bytes / 2**20:.0f} MiB, {sample.wall_s:.2f} s"
            print(f"{trace.path.name} round {number}/{options.runs} {name}: {cost}", file=sys.stderr)
    return [
        Row(
            trace=trace,
            name=name,
            label=name if isinstance(reader, str) else reader.label,
            samples=() if name in failures else tuple(samples[name]),
            failure=failures.get(name),
        )
        for name, reader in prepared.items()
    ]


def prepare_readers(peers: Peers, names: Sequence[str]) -> dict[str, Reader | str]:
    """For each name, the reader, or in words why it cannot run here."""
    prepared: dict[str, Reader | str] = {}
    for name, prepare in list_preparations(peers).items():
        if name not in names:
            continue
        try:
            prepared[name] = prepare()
        except CannotRunError as error:
            prepared[name] = str(error)
    return prepared


def find_input(path: Path) -> Input:
    """One input and its inflated size; reading it here also brings the file into the page cache."""
    num_bytes = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
        while piece := source.read(1 << 20):
            num_bytes += len(piece)
    return Input(path=path, num_bytes=num_bytes)


def find_named_input(name: str, work: Path) -> Path:
    """The input called `name` in the work folder, made from STEPSCOPE_TRACES when it is not there."""
    if name not in RECIPES:
        raise InputError(f"--inputs has no input '{name}'; it has {', '.join(RECIPES)}. Pass other traces as paths.")
    path = work / f"{name}.json.gz"
    if path.exists():
        return path
    traces = os.environ.get("STEPSCOPE_TRACES")
    if traces is None:
        raise InputError(
            f"input '{name}' is not made yet, and STEPSCOPE_TRACES does not say where its source traces are. "
            "Set it, or pass Kineto traces of your own as paths (benchmarks/README.md)."
        )
    return make_from_recipe(name, Path(traces), work)


def divide(value: float, baseline: float | None) -> str:
    """A ratio for the table; '–' without a baseline."""
    return f"{value / baseline:.2f}" if baseline else "–"


def format_row(row: Row, baseline: Row | None) -> str:
    """One line of the table."""
    head = f"| {row.trace.path.name} | {row.label} |"
    if row.failure is not None:
        return f"{head} {row.failure.replace('|', '/')[:120]} | | | | | |"
    cpu_s = [sample.cpu_s for sample in row.samples]
    wall_s = median(sample.wall_s for sample in row.samples)
    rss_bytes = median(sample.rss_bytes for sample in row.samples)
    num_events = row.samples[-1].num_events
    peers_cpu_s = median(sample.cpu_s for sample in baseline.samples) if baseline else None
    peers_rss_bytes = median(sample.rss_bytes for sample in baseline.samples) if baseline else None
    cells = (
        f"{median(cpu_s):.2f} ({min(cpu_s):.2f} to {max(cpu_s):.2f})",
        divide(median(cpu_s), peers_cpu_s),
        f"{rss_bytes / 2**20:.0f}",
        divide(rss_bytes, peers_rss_bytes),
        f"{wall_s:.1f}",
        "–" if num_events is None else f"{num_events:,}",
    )
    return f"{head} {' | '.join(cells)} |"


def format_report(rows: Sequence[Row], machine: str, versions: str, num_runs: int) -> str:
    """The whole result as Markdown."""
    traces = {row.trace.path: row.trace for row in rows}.values()
    sizes = "; ".join(
        f"{t.path.name} {t.num_bytes / 1e6:.0f} MB of JSON, {t.path.stat().st_size / 1e6:.1f} MB on disk"
        for t in traces
    )
    baselines = {row.trace.path: row for row in rows if row.name == BASELINE and row.samples}
    return "\n".join(
        (
            "# Reading a Kineto trace",
            "",
            f"Date: {dt.datetime.now(dt.UTC):%Y-%m-%d}. Machine: {machine}. Runs: {num_runs}, interleaved.",
            f"Versions: {versions}.",
            f"Inputs: {sizes}.",
            "",
            "| input | reader | CPU s | ÷ P | peak RSS, MiB | ÷ P | wall s | events |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
            *(format_row(row, baselines.get(row.trace.path)) for row in rows),
            "",
            NOTES,
            "",
        )
    )


def describe_machine() -> str:
    """The processor's name, and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {cores} cores, {platform.system()}"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; unknown names are errors."""
    known = list(list_preparations(Peers(Path())))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="Kineto traces, .json or .json.gz")
    parser.add_argument("--inputs", help=f"named inputs, from {','.join(RECIPES)}; all of them when no PATH is given")
    parser.add_argument("--runs", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--work", type=Path, default=HERE / ".work", help="holds the inputs and the peers' environment")
    parser.add_argument("--only", default=",".join(known), help=f"readers, from {','.join(known)}")
    parser.add_argument("--timeout", type=float, default=900, help="seconds allowed to one run (default: 900)")
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results/reading.md")
    options = parser.parse_args(argv)
    unknown = set(options.only.split(",")) - set(known)
    if unknown:
        parser.error(f"--only has no reader {', '.join(sorted(unknown))}; it has {', '.join(known)}")
    if options.runs < 1:
        parser.error("--runs counts rounds; it must be at least 1")
    options.work = options.work.resolve()
    return options


def list_inputs(options: argparse.Namespace) -> list[Input]:
    """The inputs that the command line asks for; raises `InputError` or `OSError`."""
    names = options.inputs or ("" if options.paths else ",".join(RECIPES))
    named = [find_named_input(name, options.work) for name in names.split(",") if name]
    return [find_input(path) for path in (*named, *(path.resolve() for path in options.paths))]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and, when asked, write it."""
    options = parse_arguments(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        traces = list_inputs(options)
    except (InputError, OSError) as error:
        print(f"reading: {error}", file=sys.stderr)
        return 2
    peers = Peers(options.work / "venv")
    prepared = prepare_readers(peers, options.only.split(","))
    rows = [row for trace in traces for row in measure_input(trace, prepared, options)]
    report = format_report(rows, describe_machine(), describe_versions(peers), options.runs)
    print(report, end="")
    if options.write:
        RESULT_FILE.parent.mkdir(parents=True, exist_ok=True)
        RESULT_FILE.write_text(report, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
