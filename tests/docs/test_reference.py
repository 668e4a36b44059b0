"""What the code declares is documented, and the generated page is the one that the tool writes."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stepscope
from stepscope import errors
from stepscope.answers.questions import QUESTIONS
from stepscope.budget import completeness, omissions
from stepscope.budget.catalog import load_catalog
from stepscope.budget.coverage import REASON_MEANING
from stepscope.budget.partition import OWN_FAMILIES
from stepscope.budget.signals import SIGNAL_KINDS
from stepscope.cli.main import app
from stepscope.evidence import GRADES
from stepscope.join.figures import DEFINITIONS
from stepscope.join.tables import JOIN_TABLES
from stepscope.join.traps import TRAPS
from stepscope.readers.losses import SIDE_CODES
from stepscope.store.counters import MISSING
from stepscope.store.health import HEALTH_CODES
from stepscope.store.schema import CATEGORIES, KINDS, TABLES
from tests.docs.pages import PAGES, ROOT, SOURCE, calls_of, code_of, text_of, tool

REFERENCE = text_of(ROOT / "docs" / "reference.md")
WITHHOLDING = ROOT / "docs" / "decisions" / "0007-withholding.md"
DECLARED: dict[str, Iterable[str]] = {
    "commands": [
        *(f"stepscope {command.name}" for command in app.registered_commands),
        *(f"stepscope {group.name}" for group in app.registered_groups),
    ],
    "tables": [*TABLES, *JOIN_TABLES],
    "columns": sorted({c.name for columns in [*TABLES.values(), *JOIN_TABLES.values()] for c in columns}),
    "kinds": KINDS,
    "categories": CATEGORIES,
    "families": [*(family.name for family in load_catalog().families), *(family for _, family in OWN_FAMILIES)],
    "questions": [question.id for question in QUESTIONS],
    "grades": GRADES,
    "reasons": REASON_MEANING,
    "health codes": [*HEALTH_CODES, *SIDE_CODES],
    "figures": DEFINITIONS,
    "traps": TRAPS,
    "missing counters": MISSING,
    "errors": [name for name, value in vars(errors).items() if inspect.isclass(value)],
}


def test_the_committed_pages_are_what_the_tool_writes() -> None:
    written = tool("write_reference.py")
    assert written["render"]() == REFERENCE, "run: make reference"
    assert written["render_decisions"]() == text_of(ROOT / "docs" / "decisions" / "README.md"), "run: make reference"


def test_every_command_stands_in_one_group() -> None:
    grouped = [name for names in tool("write_reference.py")["GROUPS"].values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert {str(command.name) for command in app.registered_commands} <= set(grouped)


@pytest.mark.parametrize("what", DECLARED)
def test_everything_declared_is_in_the_reference(what: str) -> None:
    missing = [name for name in DECLARED[what] if f"`{name}`" not in REFERENCE]
    assert missing == []


def test_every_signal_and_public_name_is_in_the_reference() -> None:
    assert [s.name for s in SIGNAL_KINDS if f"| {s.name} |" not in REFERENCE] == []
    assert [name for name in stepscope.__all__ if f"`{name}" not in REFERENCE] == []


def test_every_option_is_in_the_reference() -> None:
    for command in app.registered_commands:
        section = REFERENCE.split(f"### `stepscope {command.name}`")[1].split("\n#")[0]
        shown = CliRunner().invoke(app, [str(command.name), "--help"]).output
        options = set(re.findall(r"(?<!\S)--[a-z-]+", shown)) - {"--help"}
        assert options
        assert {option for option in options if option not in section} == set()


def test_every_option_of_a_group_of_commands_is_in_the_reference() -> None:
    for group in app.registered_groups:
        section = REFERENCE.split(f"### `stepscope {group.name}`")[1].split("\n#")[0]
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            shown = CliRunner().invoke(app, [str(group.name), str(command.name), "--help"]).output
            options = set(re.findall(r"(?<!\S)--[a-z-]+", shown)) - {"--help"}
            assert options
            assert {option for option in options if option not in section} == set()


def test_categories_and_grades_are_in_the_glossary() -> None:
    known = set(code_of(ROOT / "docs" / "glossary.md"))
    assert {*CATEGORIES, *GRADES} - known == set()


def test_commands_are_in_both_readmes() -> None:
    for page in ("README.md", "README.zh-CN.md"):
        missing = [name for name in DECLARED["commands"] if f"`{name} " not in text_of(ROOT / page)]
        assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_command_or_an_option_that_is_not_there(page: Path) -> None:
    for command, rest in calls_of(page):
        section = REFERENCE.partition(f"### `stepscope {command}`")[2].split("\n#")[0]
        assert section, f"stepscope {command}"
        options = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest))
        assert {option for option in options if not re.search(rf"{option}[`, ]", section)} == set(), command


def test_withholding_page_says_what_the_gate_does() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", text_of(WITHHOLDING), re.MULTILINE))
    source = inspect.getsource(omissions) + inspect.getsource(completeness)
    declared = re.findall(r'code="(\w+)",\s+withholds=(True|False)', source)
    assert rows == {code: "yes" if withholds == "True" else "no" for code, withholds in declared}
    assert set(rows) == set(REASON_MEANING)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("_TAIL", "launches_without_kernels"),
        ("_TAIL", "ids_missing"),
        ("_GRAPH_TAIL", "graph_launches_without_kernels"),
        ("_GRAPH_TAIL", "steps_without_kernels"),
        ("_REPLAY", "partial_replays"),
        ("_OUTSIDE", "kernels_outside_steps"),
        ("_OUTLIER", "duration_outlier"),
        ("_LOST", "device_times_lost"),
    ],
)
def test_withholding_page_gives_the_thresholds_of_the_code(name: str, code: str) -> None:
    row = next(line for line in text_of(WITHHOLDING).splitlines() if line.startswith(f"| `{code}`"))
    assert f"{getattr(omissions, name):.0%}".replace("%", " %") in row


def test_house_page_draws_the_import_contract() -> None:
    contract = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"][0]
    layers = []
    for layer in contract["layers"]:
        places = [place.strip("() ").removeprefix("stepscope.") for place in layer.split("|")]
        if there := [place for place in places if (SOURCE / place).exists() or (SOURCE / f"{place}.py").exists()]:
            layers.append(" | ".join(there))
    assert "\n".join(layers) in text_of(ROOT / "docs" / "how-it-works.md")


def test_house_page_lists_every_package_and_module() -> None:
    page = text_of(ROOT / "docs" / "how-it-works.md")
    places = [f"`{path.name}/`" for path in SOURCE.iterdir() if (path / "__init__.py").exists()]
    places += [f"`{path.name}`" for path in SOURCE.glob("*.py") if path.name != "__init__.py"]
    assert [place for place in places if place not in page] == []


def test_glossary_names_only_what_the_code_has() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    words = set(re.findall(r"\w+", source)) | {f"exclusive_{name}_ns" for name in CATEGORIES}
    for line in text_of(ROOT / "docs" / "glossary.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4:
            assert set(re.findall(r"`(\w+)`", cells[1])) <= words, line
