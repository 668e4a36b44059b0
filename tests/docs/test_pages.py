"""Links lead somewhere, named paths exist, quoted output is what the program prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stepscope
from stepscope.cli.main import app
from stepscope.report.document import to_document
from tests.docs.pages import PAGES, ROOT, SOURCE, anchors_of, code_of, headings_of, links_of, quoted_of, text_of, tool

READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
QUOTED = [(page, *quoted) for page in PAGES for quoted in quoted_of(page)]
_OURS = re.compile(r"^(?:src|docs|tests|tools|examples|benchmarks)/[\w./-]+$")
_PACKAGE = re.compile(rf"^(?:{'|'.join(path.parent.name for path in SOURCE.glob('*/__init__.py'))})/[\w./-]+$")
_IN_TEXT = re.compile(r"\bdocs/[\w./-]+\.(?:md|svg)\b")


def _id(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else ""


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in links_of(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors_of(path), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    outside = page.name == "capture.md"  # cites the engines' own documentation by path
    for name in code_of(page):
        if _PACKAGE.match(name):
            assert (SOURCE / name).exists(), name
        elif _OURS.match(name) and not outside:
            assert (ROOT / name).exists(), name


def test_every_page_that_the_code_names_exists() -> None:
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    named = {name for path in files for name in _IN_TEXT.findall(text_of(path))}
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_every_make_target_that_a_page_names_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", text_of(page), re.MULTILINE)}
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_no_page_cites_line_numbers_of_the_code(page: Path) -> None:
    assert re.findall(r"\w\.(?:py|toml):\d+", text_of(page)) == []


def test_both_readmes_quote_the_program() -> None:
    assert {page for page, _, _ in QUOTED} >= set(READMES)


@pytest.mark.parametrize(("page", "command", "lines"), QUOTED, ids=_id)
def test_quoted_output_is_what_the_program_prints(
    page: Path, command: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    printed = " ".join(CliRunner().invoke(app, command.split()).output.split())
    place = 0
    for line in lines:
        for piece in " ".join(line.split()).split("..."):
            wanted = piece.strip()
            found = printed.find(wanted, place)
            assert found >= 0, f"{page.name} quotes what `stepscope {command}` does not print (here): {wanted!r}"
            place = found + len(wanted)


def test_the_picture_is_the_demo() -> None:
    picture = tool("draw_budget.py")
    report = to_document(stepscope.explain(ROOT / picture["TRACE"]))
    report["source"] = picture["TRACE"]
    assert picture["draw"](report) == text_of(ROOT / "docs" / "budget.svg"), "run: python tools/draw_budget.py"


def test_the_python_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for page in READMES:
        example = re.search(r"^```python\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
        assert example is not None
        names: dict[str, object] = {}
        exec(example[1], names)
        assert {"trace", "steps", "account"} <= set(names)


def test_both_readmes_have_the_same_outline() -> None:
    levels = [[heading.split()[0] for heading in headings_of(page)] for page in READMES]
    assert levels[0] == levels[1]


def test_profiler_configurations_are_valid_json() -> None:
    found = re.findall(r"--profiler-config '([^']+)'", text_of(ROOT / "docs" / "capture.md"))
    assert found
    for text in found:
        assert json.loads(text)["profiler"] == "torch"


def test_the_catalog_example_is_a_catalog_file(tmp_path: Path) -> None:
    example = re.search(r"^```toml\n(.*?)^```", text_of(ROOT / "docs" / "reference.md"), re.MULTILINE | re.DOTALL)
    assert example is not None
    own = tmp_path / "own.toml"
    own.write_text(example[1], encoding="utf-8")
    result = CliRunner().invoke(app, ["check", str(ROOT / "examples" / "vllm-cpu-tp2"), "--catalog", str(own)])
    assert result.exit_code == 0


def test_decisions_are_numbered_short_and_complete() -> None:
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == sorted(set(numbers))
    for page in DECISIONS:
        assert headings_of(page)[0].startswith(f"# {page.name[:4]} ")
        assert headings_of(page)[1:] == ["## Context", "## Decision", "## Consequences"]
        assert len(text_of(page).splitlines()) <= 40


def test_every_decision_is_listed() -> None:
    listed = links_of(ROOT / "docs" / "decisions" / "README.md")
    assert listed == [page.name for page in DECISIONS], "run: make reference"


def test_every_page_in_docs_is_reached_from_the_readmes() -> None:
    for readme in READMES:
        reached = {(readme.parent / link.partition("#")[0]).resolve() for link in links_of(readme)}
        assert {page.name for page in (ROOT / "docs").glob("*.md") if page not in reached} == set(), readme.name
