"""Kept answers: the same report without reading the run again, and never one that rests on something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import stepscope
from stepscope.cli import report
from stepscope.cli.main import app
from stepscope.report.answers import find_answer
from stepscope.store.run import import_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "glm52-prefill"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return import_run(stepscope.open_trace(EXAMPLE).stores, tmp_path / "run")


def explain(run: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["explain", str(run), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def kept(run: Path) -> list[Path]:
    return sorted((run / "answers").glob("*")) if (run / "answers").exists() else []


@pytest.mark.parametrize("options", [(), ("-f", "json"), ("-f", "md"), ("--lang", "zh")], ids=" ".join)
def test_a_kept_answer_is_the_answer(run: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    first = explain(run, *options)
    assert len(kept(run)) == 1
    monkeypatch.setattr(report, "read_account", None)  # reading again would fail
    assert explain(run, *options) == first


def test_without_the_cache_nothing_is_read_from_it_or_put_there(run: Path) -> None:
    first = explain(run, "--no-cache")
    assert kept(run) == []
    (run / "answers").mkdir()
    find_answer(run, (), None).path.write_text("{}", encoding="utf-8")
    assert explain(run, "--no-cache") == first


def test_a_broken_answer_is_made_again(run: Path) -> None:
    first = explain(run)
    kept(run)[0].write_text('{"schema": ', encoding="utf-8")
    assert explain(run) == first


def test_another_content_catalog_or_device_is_another_answer(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("", encoding="utf-8")
    places = {find_answer(run, catalogs, device).path for catalogs in ((), (own,)) for device in (None, "1")}
    assert len(places) == 4
    before = find_answer(run, (own,), None)
    own.write_text("# changed", encoding="utf-8")
    assert find_answer(run, (own,), None) != before
    old = find_answer(run, (), None)
    import_run(stepscope.open_trace(EXAMPLE).stores, run)
    assert find_answer(run, (), None) == old  # the same content
    assert kept(run) == []  # but a new folder
    import_run([], run)
    assert find_answer(run, (), None) != old


def test_tables_and_csv_are_made_from_the_run_itself(run: Path, tmp_path: Path) -> None:
    explain(run)
    assert explain(run, "-f", "csv") == explain(run, "-f", "csv", "--no-cache")
    explain(run, "--tables", str(tmp_path / "tables"))
    assert (tmp_path / "tables" / "steps.csv").exists()


def test_few_answers_are_kept(run: Path) -> None:
    for number in range(12):
        find_answer(run, (), str(number)).write({"number": number})
    assert len(kept(run)) == 8
    assert find_answer(run, (), "11").read() == {"number": 11}
    assert find_answer(run, (), "0").read() is None


def test_a_folder_that_cannot_be_written_keeps_nothing(run: Path) -> None:
    (run / "answers").write_text("in the way", encoding="utf-8")
    assert explain(run) == explain(run, "--no-cache")
