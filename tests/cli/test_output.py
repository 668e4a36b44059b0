"""Results appear whole or not at all: failures in the middle, a closed pipe, a full disk, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import stepscope.cli.options
from stepscope.readers.kineto import cut
from tests.cli.program import GLM, WITHHELD, done, run

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = ("steps", str(GLM), "-f", "parquet")
REPORT = ("explain", str(GLM), "-f", "json")


def raising(error: BaseException) -> Callable[..., Any]:
    def stop(*_: object, **__: object) -> Any:
        raise error

    return stop


def test_a_result_replaces_an_old_one(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old", encoding="utf-8")
    assert done(*REPORT, "-o", target) == ""
    assert target.read_text(encoding="utf-8") == done(*REPORT)
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("format_", ["json", "csv", "md"])
@pytest.mark.parametrize(
    "command",
    [("compare", GLM, GLM), ("steps", GLM), ("explain", GLM), ("gemm", "64x64", "--m", "1,16")],
    ids=["compare", "steps", "explain", "gemm"],
)
def test_the_ending_of_the_output_names_its_format_unless_one_is_given(
    command: tuple[str | Path, ...], format_: str, tmp_path: Path
) -> None:
    target = tmp_path / f"result.{format_}"
    done(*command, "-o", target)
    assert target.read_text(encoding="utf-8") == done(*command, "-f", format_)
    done(*command, "-o", target, "-f", "text")
    assert target.read_text(encoding="utf-8") == done(*command, "-f", "text")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
@pytest.mark.parametrize("has_old", [False, True], ids=["new", "old one there"])
@pytest.mark.parametrize("command", [TABLE, REPORT], ids=["parquet", "json"])
def test_a_failure_while_writing_leaves_what_was_there(
    command: tuple[str, ...], has_old: bool, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "result"
    if has_old:
        target.write_text("old", encoding="utf-8")
    monkeypatch.setattr(pq, "write_table", raising(error))
    monkeypatch.setattr(Path, "write_text", raising(error))
    outcome = run(*command, "-o", target)
    monkeypatch.undo()
    assert outcome.code == (2 if isinstance(error, OSError) else 130)
    assert len(outcome.err.splitlines()) == 1
    assert outcome.err.startswith("stepscope: ")
    assert [path.name for path in tmp_path.iterdir()] == (["result"] if has_old else [])
    assert not has_old or target.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_an_interrupted_cut_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = next(GLM.glob("*_rank0.*"))
    monkeypatch.setattr(cut, "_redacted", raising(error))
    outcome = run("cut", source, "-o", tmp_path / "cut.json", "--steps", "1", "--redact")
    assert outcome.code == (2 if isinstance(error, OSError) else 130)
    assert len(outcome.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_import_leaves_the_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done("import", GLM, "-o", tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(pq, "write_table", raising(KeyboardInterrupt()))
    outcome = run("import", WITHHELD, "-o", tmp_path / "run")
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err == "stepscope: interrupted; nothing was left half-written\n"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_ctrl_c_while_reading_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepscope.cli.options, "open_trace", raising(KeyboardInterrupt()))
    outcome = run("explain", GLM)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err == "stepscope: interrupted; nothing was left half-written\n"


def test_a_real_signal_is_one_line(tmp_path: Path) -> None:
    program = (
        "import signal, time, stepscope.cli.options as options\n"
        # a shell's background jobs ignore the signal, and so would their children
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from stepscope.cli.main import main\n"
        "def wait(*_, **__):\n    print('reading', flush=True)\n    time.sleep(60)\n"
        "options.open_trace = wait\n"
        "main()\n"
    )
    arguments = [sys.executable, "-c", program, "explain", str(GLM), "-o", str(tmp_path / "report")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert err == b"stepscope: interrupted; nothing was left half-written\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [REPORT, ("steps", str(WITHHELD))], ids=["more than a pipe holds", "a short table"]
)
def test_a_reader_that_leaves_is_no_error(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "stepscope.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything is written, as `| true` does
        assert process.stderr.read() == b""
        process.wait(timeout=30)


def test_head_gets_its_line_and_no_noise() -> None:
    command = [sys.executable, "-m", "stepscope.cli.main", *REPORT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"{\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=30)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a Linux device")
def test_a_full_terminal_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "stepscope.cli.main", "explain", str(GLM)]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"stepscope: standard output: cannot be written")
    assert len(ended.stderr.splitlines()) == 1
