"""The demo sweep on the real vLLM CPU engine: its table and its three crossovers, as benchmarks/results/demo_sweep.md.

    python benchmarks/demo_sweep.py --engine-python .venv-engine/bin/python [--hardware MACHINE.toml] [--folder DIR]

The engine and the model are made for a CPU: a tiny mixture of experts with random weights, one thread, and times in CPU
seconds of that thread, for the machine may be shared. A folder that is kept goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "demo_sweep.md"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
HEAD = """# The demo sweep

`python benchmarks/demo_sweep.py`, part of `make check-long`: the grid `demo` on vLLM's CPU engine, the model `demo`
(two layers, 16 experts, 4 a token, random weights), one thread. Step times are CPU seconds of the engine's thread;
those by family are wall time of a profiled step, which a shared machine stretches. What columns and crossovers mean:
[docs/sweep.md](../../docs/sweep.md).

"""


def stepscope(*arguments: str) -> str:
    """The program's output."""
    command = [sys.executable, "-m", "stepscope.cli.main", *arguments]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode > 1:  # 1: a cell is invalid, which the table says
        sys.exit(done.returncode)
    return done.stdout


def main() -> None:
    """Plan, run, write the table."""
    parser = argparse.ArgumentParser(description="Run the demo sweep on the real engine.")
    parser.add_argument("--engine-python", type=Path, required=True, help="the interpreter that has vLLM")
    parser.add_argument("--hardware", help="a file of `stepscope probe` (bf16), to predict on beside it")
    parser.add_argument("--folder", type=Path, help="keep the sweep here")
    parser.add_argument("--grid", default="demo")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        folder = args.folder or Path(aside) / "sweep"
        plan = Path(aside) / "plan.yaml"
        hardware = ("--hardware", args.hardware, "--cost", "bound") if args.hardware else ()
        chosen = ("--grid", args.grid, "--engine", "vllm", "--model", "demo", "--clock", "busy", *hardware)
        stepscope("sweep", "plan", *chosen, "--output", str(plan))
        began = time.monotonic()
        told = stepscope("sweep", "run", str(plan), "-o", str(folder), "--engine-python", str(args.engine_python))
        print(f"{told}{time.monotonic() - began:.0f} s")
        table = stepscope("sweep", "report", str(folder), "--format", "md")
    args.output.write_text(HEAD + table, encoding="utf-8")
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
