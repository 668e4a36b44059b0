"""What users get wrong: exit code 2 and one line that says what, where and what to do; never a traceback."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from tests.cli.program import GLM as EXAMPLE
from tests.cli.program import ROBUST, Outcome, run

COMMANDS = ("explain", "check", "steps")


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", EXAMPLE, "--nonsense"),
        ("explain", EXAMPLE, "-f", "yaml"),
        ("explain", EXAMPLE, "-f", "parquet"),
        ("steps", EXAMPLE, "--format", "xml"),
        ("explain",),
        ("explain", EXAMPLE, "extra"),
        ("query", EXAMPLE),
        ("import", EXAMPLE),
        ("nonsense",),
    ],
    ids=lambda arguments: " ".join(str(a) for a in arguments if a != EXAMPLE),
)
def test_a_wrong_call_is_exit_code_2(arguments: tuple[str | Path, ...]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Usage: stepscope" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_path_is_named(command: str, tmp_path: Path) -> None:
    run(command, tmp_path / "nowhere.json").assert_refused(str(tmp_path / "nowhere.json"), "no such file", "Check")
    run(command, tmp_path / "*.json").assert_refused(str(tmp_path / "*.json"), "pattern")
    run(command, "x" * 5000).assert_refused("Check the path")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_file_and_an_empty_directory_are_named(command: str, tmp_path: Path) -> None:
    run(command, ROBUST / "23_empty.json").assert_refused("23_empty.json", "empty", "let the profiler finish")
    run(command, tmp_path).assert_refused(str(tmp_path), "no trace files", "torch_profiler_dir")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("notes.md", b"# Notes\n\nno trace\n"),
        ("config.json", b'{"model_type": "qwen3", "hidden_size": 256}'),
        ("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(64)),
        ("notes.json.gz", gzip.compress(b"no trace at all", mtime=0)),
        ("zeros.json", bytes(4096)),
    ],
)
def test_a_file_that_is_no_trace_is_refused(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    run("explain", tmp_path / name).assert_refused(
        str(tmp_path / name), "kineto" if name != "config.json" else "Kineto"
    )


def test_one_rank_twice_is_refused(tmp_path: Path) -> None:
    for name in ("68a_rank0.json", "68b_rank0_again.json"):
        shutil.copy(ROBUST / name, tmp_path)
    for source in (tmp_path, tmp_path / "68*"):
        run("explain", source).assert_refused(str(source), "rank 0", "68a_rank0.json, 68b_rank0_again.json", "pass one")


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ((), ("--steps", "--time")),
        (("--steps", "1", "--time", "1ms-2ms"), ("--steps", "--time")),
        (("--steps", "x"), ("'x'", "3-7")),
        (("--steps", "1-2-3"), ("'1-2-3'", "3-7")),
        (("--steps", "-1"), ("'-1'", "3-7")),
        (("--steps", "99"), ("99", "0-5")),
        (("--steps", "7-3"), ("7-3", "0-5")),
        (("--time", "5-7"), ("'5-7'", "10ms-40ms")),
        (("--time", "1.2.3ms-4ms"), ("'1.2.3ms-4ms'", "10ms-40ms")),
        (("--time", "4ms-1ms"), ("4ms-1ms", "not after")),
        (("--time", "90s-100s"), ("90s-100s", "2.91 s")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_range_that_is_none_is_refused(options: tuple[str, ...], fragments: tuple[str, ...], tmp_path: Path) -> None:
    run("cut", EXAMPLE, "-o", tmp_path / "cut", *options).assert_refused(*fragments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "fragment"),
    [
        ("SELECT", "Tables: events, tracks, steps"),
        ("SELECT nonsense FROM steps", "docs/reference.md"),
        ("SELECT * FROM nonsense", "Tables: events, tracks, steps"),
        ("SELECT error('two\nlines')", "two"),
        ("", "Write a SELECT"),
        ("SELECT 1 AS a, 2 AS a", "several columns are named a"),
    ],
)
def test_bad_sql_is_refused_in_one_line(sql: str, fragment: str) -> None:
    run("query", EXAMPLE, sql).assert_refused(fragment)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_parquet('{file}')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY steps TO '{folder}/out.csv'",
        "ATTACH '{folder}/other.db'",
        "EXPORT DATABASE '{folder}/dump'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET enable_external_access = true; SELECT * FROM read_text('{file}')",
    ],
)
def test_sql_touches_no_file(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("word\nopensesame\n", encoding="utf-8")
    outcome = run("query", EXAMPLE, sql.format(file=file, folder=tmp_path))
    outcome.assert_refused("the query was refused")
    assert "opensesame" not in outcome.err
    assert list(tmp_path.iterdir()) == [file]


def test_sql_sees_no_variable_of_the_program() -> None:
    for name in ("account", "sql", "connection", "table", "TABLES"):
        run("query", EXAMPLE, f"SELECT * FROM {name}").assert_refused("the query was refused")


@pytest.mark.parametrize(
    "arguments", [("explain", "-f", "json"), ("check",), ("steps", "-f", "csv"), ("steps", "-f", "parquet")]
)
def test_an_output_that_cannot_be_written_is_named(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    command, *options = arguments
    for output in (tmp_path / "nowhere" / "x", tmp_path / "file" / "x", tmp_path / "folder", Path("/dev/null")):
        run(command, EXAMPLE, *options, "-o", output).assert_refused(str(output), "cannot be written", "Choose another")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert Path("/dev/null").is_char_device()


def test_parquet_needs_a_file() -> None:
    run("steps", EXAMPLE, "-f", "parquet").assert_refused("binary", "--output")
    run("query", EXAMPLE, "SELECT 1 AS a", "-f", "parquet").assert_refused("binary", "--output")


def test_import_replaces_no_folder_of_yours(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine", encoding="utf-8")
    run("import", EXAMPLE, "-o", tmp_path / "mine").assert_refused(str(tmp_path / "mine"), "no run", "Choose another")
    run("import", EXAMPLE, "-o", tmp_path / "mine" / "thesis.txt").assert_refused("thesis.txt", "no run")
    run("import", EXAMPLE, "-o", tmp_path / "mine" / "thesis.txt" / "run").assert_refused("thesis.txt")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "thesis.txt"]


def test_cut_overwrites_no_capture(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "capture")
    before = {path: path.read_bytes() for path in (tmp_path / "capture").iterdir()}
    run("cut", tmp_path / "capture", "-o", tmp_path / "capture", "--steps", "3").assert_refused("the capture itself")
    single = next(path for path in before if "rank0" in path.name)
    run("cut", single, "-o", single, "--steps", "3").assert_refused(str(single), "the capture itself")
    run("cut", single, "-o", tmp_path / "capture", "--steps", "3").assert_refused("cannot be written")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    run("cut", EXAMPLE, "-o", tmp_path / "file", "--steps", "3").assert_refused(str(tmp_path / "file"))
    assert {path: path.read_bytes() for path in (tmp_path / "capture").iterdir()} == before


def test_cut_writes_no_two_ranks_into_one_file(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        shutil.copy(next(EXAMPLE.glob(f"*_rank{rank}.*")), tmp_path / str(rank) / "trace.json.gz")
    outcome = run("cut", f"{tmp_path}/*/trace.json.gz", "-o", tmp_path / "cut", "--steps", "3")
    outcome.assert_refused("trace.json.gz", "one at a time")
    assert not (tmp_path / "cut").exists()


def test_cut_leaves_out_a_process_without_steps(tmp_path: Path) -> None:
    for path in EXAMPLE.glob("*rank0.*"):
        shutil.copy(path, tmp_path)
    frontend = '{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]}'
    (tmp_path / "frontend.json").write_text(frontend, encoding="utf-8")
    outcome = run("cut", tmp_path, "-o", tmp_path / "cut", "--steps", "3")
    assert outcome.code == 0
    assert "frontend.json" in outcome.err
    assert ["rank0" in path.name for path in (tmp_path / "cut").iterdir()] == [True]


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("x = [", ("is not TOML",)),
        ("[[rule]]\nnonsense = 1\n", ("unknown field 'nonsense'",)),
        (
            "[[rule]]\nfamily = 'gemm'\non = ['kernel']\nmatch = '('\nsource = 's'\nexample = 'e'\n",
            ("rule 1", "'match'"),
        ),
    ],
    ids=["not TOML", "unknown field", "bad pattern"],
)
def test_a_broken_catalog_is_a_clear_error(text: str, fragments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    run("explain", EXAMPLE, "--catalog", tmp_path / "my.toml").assert_refused(str(tmp_path / "my.toml"), *fragments)
    run("explain", EXAMPLE, "--catalog", tmp_path / "none.toml").assert_refused("none.toml", "cannot be read")


@pytest.mark.parametrize("path", sorted(ROBUST.iterdir()), ids=lambda path: path.name[:3])
def test_no_command_breaks_on_a_broken_file(path: Path, tmp_path: Path) -> None:
    def accept(outcome: Outcome) -> None:
        assert outcome.code in (0, 1, 2), outcome
        assert "Traceback" not in outcome.err
        if outcome.code:
            assert outcome.err.startswith("stepscope: ")
            assert len(outcome.err.splitlines()) == 1

    codes = []
    for command in (
        ("explain", path, "-f", "json"),
        ("explain", path),
        ("check", path, "-f", "csv"),
        ("steps", path, "-f", "csv"),
        ("query", path, "SELECT * FROM events", "-f", "json"),
        ("import", path, "-o", tmp_path / "run"),
    ):
        outcome = run(*command)
        accept(outcome)
        codes.append(outcome.code)
    assert len({code == 2 for code in codes}) == 1  # readable for all commands, or for none
    assert (tmp_path / "run").exists() == (2 not in codes)
