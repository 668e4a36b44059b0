"""The program as its users meet it: arguments in; an exit code, standard output and standard error out."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from stepscope.cli.main import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "vllm-cpu-tp2"
ROBUST = ROOT / "tests" / "readers" / "robust"
GLM = ROOT / "examples" / "glm52-prefill"
WITHHELD = ROBUST / "57_graph_one_of_n_recorded.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call of the program ended."""

    code: int
    out: str
    err: str

    def assert_refused(self, *fragments: str) -> None:
        """Exit code 2, nothing on standard output, and one line that says these things."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("stepscope: ")
        assert self.err.endswith("\n")
        assert len(self.err.splitlines()) == 1, self.err
        for fragment in fragments:
            assert fragment in self.err


def run(*arguments: str | Path) -> Outcome:
    """Run the program in this process; an exception that it lets through comes through."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["stepscope", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Outcome(code=code, out=out.getvalue(), err=err.getvalue())


def done(*arguments: str | Path) -> str:
    """What a call that must succeed in silence writes to standard output."""
    outcome = run(*arguments)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome.out


def spawn(*arguments: str | Path, seed: int = 0) -> bytes:
    """Standard output of a new process with another order of hashes."""
    ended = subprocess.run(
        [sys.executable, "-m", "stepscope.cli.main", *map(str, arguments)],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, b""), ended
    return ended.stdout
