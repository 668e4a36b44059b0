"""What many ranks and large traces cost: CPU time and peak memory of each process of `stepscope`, as one table.

    python benchmarks/scale.py --traces DIR [--work DIR] [--only ranks,run] [--write]

DIR holds two rank traces of one engine (`rank*.json.gz`). From them it makes 8 ranks of 100 MB and one trace of 2 GB
(of uncompressed JSON) in the work folder, once; that takes minutes. Linux: memory is VmHWM of /proc, by polling.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from make_inputs import InputError, Place, make_input
from reading import describe_machine

HERE = Path(__file__).parent
RESULT_FILE = HERE / "results" / "scale.md"
RANKS, RANK_MB, BIG_MB = 8, 100, 2000
PROGRAM = (sys.executable, "-m", "stepscope.cli.main")
OPEN_RUN = (
    "import sys, time; from stepscope.store.run import open_run; open_run(sys.argv[1]); "
    "t = time.process_time(); open_run(sys.argv[1]); print(f'{1e3 * (time.process_time() - t):.0f} ms of CPU time')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One command's CPU time, children's included, and the peak memory of it and of its largest child."""

    cpu_s: float
    wall_s: float
    main_mib: float
    child_mib: float
    printed: str


def measure(*command: str) -> Cost:
    """Run a command to its end; raises `InputError` where it fails."""
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        peaks: dict[int, float] = {}
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(process.pid, peaks, ended))
        watch.start()
        printed = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watch.join()
    if process.returncode:
        raise InputError(f"{' '.join(command)} failed: {printed[-500:]}")
    children = [mib for pid, mib in peaks.items() if pid != process.pid]
    return Cost(
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=time.monotonic() - begin,
        main_mib=peaks.get(process.pid, 0.0),
        child_mib=max(children, default=0.0),
        printed=printed,
    )


def _watch(pid: int, peaks: dict[int, float], ended: threading.Event) -> None:
    while not ended.wait(0.02):
        for one in (pid, *_children(pid)):
            peaks[one] = max(peaks.get(one, 0.0), _peak_mib(one))


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _peak_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def make_ranks(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Eight ranks of 100 MB, once."""
    paths = [folder / f"rank{rank}.json.gz" for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        if not path.exists():
            place = Place(rank=rank, world_size=RANKS, backend="gloo")
            make_input(path, [sources[rank % len(sources)]], RANK_MB, place)
    return paths


def make_big(sources: Sequence[Path], path: Path) -> Path:
    """One trace of 2 GB, once."""
    if not path.exists():
        make_input(path, [sources[0]], BIG_MB, Place(backend="gloo"))
    return path


def row(what: str, cost: Cost, remark: str = "") -> str:
    """One line of the table."""
    child = f"{cost.child_mib:.0f}" if cost.child_mib else "–"
    return f"| {what} | {cost.cpu_s:.1f} | {cost.wall_s:.0f} | {cost.main_mib:.0f} | {child} | {remark} |"


def measure_ranks(sources: Sequence[Path], work: Path) -> list[str]:
    """Eight ranks: one command for each, one for all in one process, one for all in several."""
    paths = make_ranks(sources, work / "ranks8")
    single = [measure(*PROGRAM, "explain", str(path), "-o", str(work / "out.txt")) for path in paths]
    total = sum(cost.cpu_s for cost in single)
    wall_s, peak_mib = sum(cost.wall_s for cost in single), max(cost.main_mib for cost in single)
    lines = [f"| explain, rank by rank ({RANKS} commands) | {total:.1f} | {wall_s:.0f} | {peak_mib:.0f} | – | |"]
    for name, options in (("one process", ("--workers", "1")), ("as many processes as pay", ())):
        cost = measure(*PROGRAM, "explain", str(paths[0].parent), *options, "-o", str(work / "out.txt"))
        lines.append(
            row(f"explain, the directory, {name}", cost, f"{cost.cpu_s / total:.2f} x the CPU time of the first")
        )
    return lines


def measure_big(sources: Sequence[Path], work: Path) -> list[str]:
    """The 2 GB trace: a window of it, and all of it."""
    path = make_big(sources, work / "big2g.json.gz")
    window = measure(*PROGRAM, "explain", str(path), "--steps", "500:519", "-o", str(work / "out.txt"))
    whole = measure(*PROGRAM, "explain", str(path), "-o", str(work / "out.txt"))
    return [row("explain --steps 500:519 of 2 GB", window), row("explain all of 2 GB", whole)]


def measure_run(sources: Sequence[Path], work: Path) -> list[str]:
    """A run folder of one rank: made, opened, explained, explained again from its kept answer."""
    (path, *_), run = make_ranks(sources, work / "ranks8"), work / "run"
    made = measure(*PROGRAM, "import", str(path), "-o", str(run))
    size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    opened = measure(sys.executable, "-c", OPEN_RUN, str(run))
    first, again = (measure(*PROGRAM, "explain", str(run), "-o", str(work / "out.txt")) for _ in range(2))
    return [
        row("import one rank", made, f"{size / 1e6:.1f} MB of {path.stat().st_size / 1e6:.1f} MB gzip"),
        row("open the run (with Python's start)", opened, opened.printed.strip()),
        row("explain the run", first),
        row("explain it again", again, "the kept answer"),
    ]


PARTS = {"ranks": measure_ranks, "big": measure_big, "run": measure_run}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and, when asked, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the folder of two rank traces")
    parser.add_argument("--work", type=Path, default=HERE / ".work", help="holds the inputs")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {','.join(PARTS)}")
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results/scale.md")
    options = parser.parse_args(argv)
    unknown = set(options.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only has no part {', '.join(sorted(unknown))}; it has {', '.join(PARTS)}")
    sources = sorted(options.traces.glob("rank*.json.gz"))
    if not sources:
        parser.error(f"--traces {options.traces}: no rank*.json.gz there")
    try:
        lines = [line for name in options.only.split(",") for line in PARTS[name](sources, options.work)]
    except (InputError, OSError) as error:
        print(f"scale: {error}", file=sys.stderr)
        return 2
    report = "\n".join(
        (
            "# Many ranks and large traces",
            "",
            f"Date: {dt.datetime.now(dt.UTC):%Y-%m-%d}. Machine: {describe_machine()}. One run each.",
            f"Inputs: {RANKS} ranks of {RANK_MB} MB, {BIG_MB} MB in one trace; JSON, repeated from a recorded engine.",
            "",
            "| what | CPU s | wall s | peak MiB | largest child MiB | |",
            "|---|---:|---:|---:|---:|---|",
            *lines,
            "",
            "CPU time is of the command and its children together. On a shared machine read no wall time.",
            "",
        )
    )
    print(report, end="")
    if options.write:
        RESULT_FILE.write_text(report, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
