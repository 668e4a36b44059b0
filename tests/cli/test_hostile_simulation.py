"""The simulation commands under hostile input: one line that says what is wrong, exit code 2, nothing half-written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import EXAMPLE, ROBUST, ROOT, Outcome, run

LOAD = ("--rate", "4", "--requests", "8", "--prompt-len", "200:0.5", "--output-len", "10:0.3")
BASE = ("simulate", "qwen3-8b", "--hardware", "h200", *LOAD)
GRID = ("search", "qwen3-8b", "--hardware", "h200", *LOAD, "--workers", "1", "--over", "chunk=512")
HEAD = "arrival_s,prompt_len,output_len"
MOONCAKE = '{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}'


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=refuse_constant)


def assert_accounted(outcome: Outcome) -> None:
    """Done, or refused in one line."""
    assert outcome.code in (0, 1, 2), outcome
    assert "Traceback" not in outcome.err
    if outcome.code:
        assert outcome.err.startswith("stepscope: ")
        assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--block-size 1000000000 --num-blocks 10", "65,536 at most"),
        ("--num-blocks 1000000000000", "50,000,000 blocks"),
        ("--dp 100000000 --num-blocks 100", "10,000 engines"),
        ("--dp 9000 --num-blocks 1000000", "50,000,000 blocks"),
        ("--prefill-engines 1000000 --decode-engines 1 --num-blocks 100", "10,000 engines"),
        ("--cp 1000000", "50,000,000 blocks"),
        ("--max-num-seqs 1000000000 --chunk 1000000000 --num-blocks 100", "at most"),
        ("--speculative-tokens 1000000000 --acceptance 0.8", "does not hold one row"),
        ("--acceptance 2", "0 to 1"),
        ("--acceptance -1", "0 to 1"),
        ("--speculative-tokens 2 --acceptance 1.5/0.2", "0 to 1"),
        ("--set acceptance=7", "0 to 1"),
        ("--host-s 1e300", "at most 1e+12"),
        ("--host-s nan", "host_s is nan"),
        ("--ttft inf", "--ttft inf"),
        ("--tpot inf", "--tpot inf"),
        ("--rate 1e-300", "at most 1e+12"),
        ("--rate nan", "arrival rate is nan"),
        ("--set rate=x1e-300", "at most 1e+12"),
        ("--requests 1000000000", "at most 5,000,000"),
        ("--prompt-len 500:1e300", "max_model_len"),
        ("--prompt-len 0", "--prompt-len 0: MEDIAN"),
        ("--output-len 20:nan", "--output-len 20:nan: MEDIAN"),
        ("--workload gamma:1e-300", "0.001 to 100"),
        ("--workload gamma:1e300", "0.001 to 100"),
        ("--workload poisson:5", "give the rate once"),
        ("--workload closed:4", "Leave --rate out"),
        ("--hardware h2000", "unknown hardware 'h2000'"),
        ("--tp 3", "not divisible by tp 3"),
        ("--kv nonsense", "unknown KV layout"),
        ("--utilisation nan", "utilisation is nan"),
        ("--max-num-seqs 0", "max_num_seqs is 0"),
        ("--chunk 1", "below max_num_seqs"),
        ("--set tp=2=3", "a whole number"),
        ("--set nonsense=1 --set tp=2", "unknown setting 'nonsense'"),
        ("--compare nowhere", "nowhere: no such file or folder"),
        ("--calibration nowhere.toml", "nowhere.toml: cannot be read"),
    ],
)
def test_an_impossible_setup_is_refused(options: str, said: str) -> None:
    run(*BASE, *options.split()).assert_refused(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no trace of requests"),
        (f"{HEAD}\n", "no request is in it"),
        ("arrival_s,prompt_len\n0,1\n", "no column output_len"),
        ("arrival_s,prompt_len,output_len,prompt_len\n0,1,2,3\n", "two columns of one name"),
        (f"{HEAD}\n0,-5,5\n", "line 2: request '0' has prompt -5"),
        (f"{HEAD}\n0,5,1000000000000000\n0,1.5,2\n", "line 3: prompt_len is '1.5'"),
        (f"{HEAD}\n0,1000000000000,5\n", "max_model_len"),
        (f"{HEAD}\n0,1{'0' * 5000},5\n", "line 2: prompt_len is '1000"),
        (f"{HEAD}\n0,{'1' * 200_000},5\n", "after line 1: field larger"),
        (f"{HEAD}\n0,5\n", "line 2: 3 values"),
        (f"{HEAD}\n0,5,100,5\n", "line 2: 3 values"),  # decimal commas
        (f"{HEAD}\nnan,5,5\n", "line 2: request '0' arrives at nan"),
        (f"{HEAD}\n1e300,5,5\n", "at most 1e+12"),
        (f"{HEAD}\n-1,5,5\n", "line 2: request '0' arrives at -1.0"),
        (f"request_id,{HEAD}\na,0,5,5\na,1,5,5\n", "2 requests have 1 names"),
        (f"request_id,after,{HEAD}\na,b,0,5,5\nb,a,0,5,5\n", "in a circle"),
        (f"request_id,after,{HEAD}\na,z,0,5,5\n", "not in the workload"),
        (f"{HEAD}\n0,5,5\n1,\udcff,5\n", "no trace of requests"),
        (f"{MOONCAKE}\n{MOONCAKE[:40]}", "line 2: JSONDecodeError"),
        (MOONCAKE.replace("100", "Infinity"), "line 1: OverflowError"),
        (MOONCAKE.replace("[1]", "[-1]"), "line 1: a hash_id below 0"),
        (MOONCAKE.replace("[1]", f"[1{'0' * 300}]"), "line 1: a hash_id below 0 or above"),
        (MOONCAKE.replace("[1]", "[1, 2]"), "line 1: 2 hash_ids"),
        (f"{MOONCAKE}\n[1, 2]\n", "line 2: TypeError"),
        ('{"hash_ids": ' + "[" * 100_000, "no trace of requests"),
        (f'{MOONCAKE}\n{{"hash_ids": {"[" * 100_000}\n', "line 2: RecursionError"),
    ],
    ids=range(26),
)
def test_a_broken_workload_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "load"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    run("simulate", "qwen3-8b", "--hardware", "h200", "--workload", path).assert_refused(said)


@pytest.mark.parametrize("begin", ["\ufeff", ""])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_marks_and_line_ends_of_other_systems_change_nothing(begin: str, end: str, tmp_path: Path) -> None:
    for name, lines in (("load.csv", (HEAD, "0,100,5", "1,100,5")), ("load.jsonl", (MOONCAKE, MOONCAKE))):
        path = tmp_path / name
        path.write_bytes((begin + end.join(lines) + end).encode())
        found = run("simulate", "qwen3-8b", "--hardware", "h200", "--workload", path, "-f", "json")
        assert (found.code, found.err) == (0, "")
        assert strict(found.out)["load"]["requests"] == 2


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    fifo, ledger = tmp_path / "pipe", ("--ledger", tmp_path / "pipe")
    os.mkfifo(fifo)
    run(*BASE, "--calibration", fifo).assert_refused("no file")
    run(*BASE, "--compare", fifo).assert_refused(str(fifo))
    run(*BASE[:4], "--workload", fifo).assert_refused("no such file")
    run(*BASE, "-o", fifo).assert_refused("is no run")
    run(*GRID, "--keep", fifo).assert_refused("is no file")
    run("hypotheses", *ledger).assert_refused("is no file")
    run("retime", EXAMPLE, "--catalog", fifo).assert_refused("is no file")
    for command in ("whatif", "retime", "hypotheses"):
        run(command, fifo).assert_refused(str(fifo))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    assert run("simulate", "qwen3-8b", "--hardware", "h200", "--rate", "4", "--requests", "20", "-o", folder).code == 0
    return folder


@pytest.fixture(scope="module", params=["none", "model"])
def calibration(request: pytest.FixtureRequest, simulated: Path) -> Path:
    path = simulated.parent / f"{request.param}.toml"
    served = ("--model", "qwen3-8b", "--hardware", "h200") if request.param == "model" else ()
    assert run("calibrate", simulated, "-o", path, *served).code == 0
    return path


def broken(text: str, how: str) -> str:
    whole = text[: text.index("[draws]")]
    numbers = re.compile(r"(value|low|high) = [\d.e+-]+")
    if how.startswith("all "):
        return numbers.sub(rf"\1 = {how[4:]}", whole)
    if how in ("nan", "inf", "-1", "1" + "0" * 400):
        return numbers.sub(rf"\1 = {how}", text, count=3)
    first = re.search(r'\n"fixed[^\n]*\n', text[text.index("[draws]") :])
    assert first is not None
    name, _, _ = first[0].partition(" = ")
    changes = {
        "unequal draws": (first[0], f"{name} = [0.1]\n"),
        "no draws": (first[0], f"{name} = []\n"),
        "unknown draws": (first[0], '\n"fixed.nonsense" = [0.1]\n'),
        "huge draws": (first[0], f"{name} = [{', '.join(['1e290'] * 50)}]\n"),
        "unknown key": ("format =", "nonsense = 1\nformat ="),
        "missing key": ("host_s =", "# "),
        "version": ("version = 1", "version = 2"),
        "plan": ("tp = 1", "tp = 0"),
        "tied": ("tied = [", 'tied = [["nonsense"], '),
        "half": (text[len(text) // 2 :], ""),
        "deep": (text, "a = " + "[" * 100_000),
        "binary": (text, "\x00\x01"),
    }
    return text.replace(*changes[how], 1)


@pytest.mark.parametrize(
    "how",
    [
        *("nan", "inf", "-1", "1" + "0" * 400, "all 0", "all 1e300", "all 1e20", "unequal draws", "no draws"),
        *("unknown draws", "huge draws", "unknown key", "missing key", "version", "plan", "tied", "half", "deep"),
        "binary",
    ],
    ids=lambda how: how[:12],
)
def test_a_broken_calibration_is_refused(how: str, calibration: Path, tmp_path: Path) -> None:
    text = broken(calibration.read_text(encoding="utf-8"), how)
    (tmp_path / "broken.toml").write_text(text, encoding="utf-8")
    run(*BASE, "--calibration", tmp_path / "broken.toml").assert_refused("")


def test_a_calibration_of_another_model_is_refused(calibration: Path, tmp_path: Path) -> None:
    text = re.sub(r'\nmodel = ".*?"', '\nmodel = "llama-3.1-8b"', calibration.read_text(encoding="utf-8"), count=1)
    (tmp_path / "other.toml").write_text(text, encoding="utf-8")
    run(*BASE, "--calibration", tmp_path / "other.toml").assert_refused("is of llama-3.1-8b", "qwen3-8b")


def test_a_calibration_of_another_device_is_told(simulated: Path) -> None:
    path = simulated.parent / "device.toml"
    assert run("calibrate", simulated, "-o", path, "--model", "qwen3-8b", "--hardware", "h200").code == 0
    told = run("simulate", "qwen3-8b", "--hardware", "h100", *LOAD, "--calibration", path)
    assert "fitted on h200 and is carried over to h100: extrapolated" in " ".join(told.out.split())


def test_a_calibration_takes_no_devices_place(simulated: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "device")
    run("calibrate", simulated, "-o", tmp_path / "device").assert_refused("cannot be written", "is no file")
    assert (tmp_path / "device").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["device"]


@pytest.mark.parametrize(
    "text",
    [
        "my thesis, without a line's end",
        "my thesis\n",
        "{nope\n",
        '{"a": 1}\n',
        '{"key": [1]}\n',
        '{"key": "a", "figures": null}\n',
        "[1]\n",
        "[" * 100_000 + "\n",
        "\udcff\udcfe\n",
    ],
    ids=range(9),
)
def test_a_search_leaves_a_foreign_file_as_it_is(text: str, tmp_path: Path) -> None:
    keep = tmp_path / "mine.txt"
    keep.write_bytes(text.encode("utf-8", "surrogateescape"))
    before = keep.read_bytes()
    run(*GRID, "--keep", keep).assert_refused(str(keep), "something else", "Name another file")
    assert keep.read_bytes() == before


def test_a_search_takes_a_cut_line_up_again(tmp_path: Path) -> None:
    keep = tmp_path / "points.jsonl"
    whole = run(*GRID, "--keep", keep, "-f", "json")
    kept = keep.read_bytes()
    for length in (0, 5, 40, len(kept) - 1, len(kept)):
        keep.write_bytes(kept[:length])
        assert run(*GRID, "--keep", keep, "-f", "json").out == whole.out
        assert keep.read_bytes() == kept


def test_a_changed_kept_figure_is_not_shown_as_infinity(tmp_path: Path) -> None:
    keep = tmp_path / "points.jsonl"
    run(*GRID, "--keep", keep)
    keep.write_text(keep.read_text().replace('"ttft p50": ', '"ttft p50": NaN, "x": ', 1))
    run(*GRID, "--keep", keep, "-f", "json").assert_refused("NaN")


def test_a_grid_beyond_memory_is_refused() -> None:
    values = ",".join(map(str, range(1, 1001)))
    over = [part for name in ("chunk", "max_num_seqs", "num_blocks") for part in ("--over", f"{name}={values}")]
    run("search", "qwen3-8b", "--hardware", "h200", *LOAD, *over).assert_refused("1,000,000,000 points", "100,000")


@pytest.mark.parametrize("within", ["nan", "inf", "0", "-1"])
def test_a_tolerance_is_a_number_above_0(within: str, simulated: Path) -> None:
    run("whatif", simulated, "--within", within).assert_refused("--within")


@pytest.mark.parametrize(
    "scale", ["", "=", "kv=", "kv=nan", "kv=inf", "kv=-1", "kv=1e300", "family:=1", "name:=1", "family:gemm", "é=1"]
)
def test_a_factor_that_is_none_is_refused(scale: str) -> None:
    run("retime", EXAMPLE, "--scale", scale).assert_refused("")


def test_a_simulated_run_is_retimed_by_what_it_holds(simulated: Path) -> None:
    run("retime", simulated, "--scale", "kv=0.5").assert_refused("no category 'kv'", "compute")
    ranks = strict(run("retime", simulated, "--scale", "compute=0.5", "-f", "json").out)["ranks"]
    assert all(rank["saving_ns"] >= 0 for rank in ranks)


@pytest.mark.parametrize("path", sorted(ROBUST.iterdir()), ids=lambda path: path.name[:3])
def test_no_command_breaks_on_a_broken_trace(path: Path, tmp_path: Path) -> None:
    for command in (
        ("retime", path, "--host", "0.5", "-f", "json"),
        ("hypotheses", path, "-f", "json"),
        ("calibrate", path, "-o", tmp_path / "made.toml"),
        ("whatif", path),
    ):
        outcome = run(*command)
        assert_accounted(outcome)
        if outcome.code == 0 and "json" in command:
            strict(outcome.out)
    assert list(tmp_path.iterdir()) == []


LEDGERS = ("", "[]", "null", "{", "\udcff", "[" * 100_000, '{"schema": "x"}', '{"entries": [{}]}', '{"entries": null}')


@pytest.mark.parametrize("text", LEDGERS, ids=range(len(LEDGERS)))
def test_a_ledger_that_is_none_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    ledger.write_bytes(text.encode("utf-8", "surrogateescape"))
    before = ledger.read_bytes()
    run("hypotheses", "--ledger", ledger).assert_refused(str(ledger))
    run("hypotheses", EXAMPLE, "--ledger", ledger).assert_refused(str(ledger))
    assert ledger.read_bytes() == before


def test_an_output_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine", encoding="utf-8")
    for output in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt", tmp_path / "mine" / "thesis.txt" / "run"):
        run(*BASE, "-o", output).assert_refused("thesis.txt" if output.name != "mine" else "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "thesis.txt"]


def heed_interrupts() -> None:
    """A job in the background inherits that they are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_search_keeps_whole_lines(tmp_path: Path) -> None:
    keep = tmp_path / "points.jsonl"
    values = ",".join(str(value) for value in range(256, 1256))
    process = subprocess.Popen(
        [sys.executable, "-m", "stepscope.cli.main", *GRID[:-1], f"chunk={values}", "--keep", str(keep)],
        cwd=ROOT,
        preexec_fn=heed_interrupts,  # noqa: PLW1509  # this process has no threads
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not (keep.exists() and keep.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err == b"stepscope: interrupted; nothing was left half-written\n"
    for line in keep.read_text(encoding="utf-8").splitlines():
        strict(line)
