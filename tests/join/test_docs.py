"""docs/metrics.md says what the code declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.join.disaggregated import STAGES
from stepscope.join.figures import DEFINITIONS
from stepscope.join.traps import TRAPS
from stepscope.readers.losses import SIDE_CODES
from stepscope.readers.prometheus.aliases import FIGURES

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("figure", DEFINITIONS)
def test_every_figure_is_defined_as_in_the_code(figure: str) -> None:
    name, unit, definition = DEFINITIONS[figure]
    assert f"| {name} | `{figure}` | {unit or 'count'} | {definition} |" in PAGE


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_is_explained(trap: str) -> None:
    assert f"| `{trap}` | {TRAPS[trap]} |" in PAGE


@pytest.mark.parametrize("figure", FIGURES)
def test_every_series_is_listed(figure: str) -> None:
    assert f"| `{figure}` | {FIGURES[figure].kind} |" in PAGE
    assert all(f"`{alias.series}` ({alias.era}" in PAGE for alias in FIGURES[figure].aliases)


def test_every_stage_is_named() -> None:
    assert all(stage.replace("_", " ") in PAGE for stage in STAGES)


def test_every_code_of_the_side_files_says_what_to_do() -> None:
    assert all(code.meaning and code.remedy for code in SIDE_CODES.values())
