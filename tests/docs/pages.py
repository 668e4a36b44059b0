"""The project's Markdown: its pages, headings, links, code and quoted output."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stepscope"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/*.md")])

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"<!-- output: (?P<command>[^>]+?) -->\n```text\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"""(?:\]\(|src(?:set)?=")([^)\s"]+)[)"]""")
_CALL = re.compile(r"(?: {4})?(?:\.venv/bin/)?stepscope (?!rank 0)([a-z]+)(?![\w.])(.*)")
_CODE = re.compile(r"`([^`\n]+)`")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """Without fenced blocks."""
    return _FENCE.sub("", text_of(page))


def headings_of(page: Path) -> list[str]:
    return re.findall(r"^#+ .+$", prose_of(page), re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them: lower case, punctuation out, spaces to hyphens."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).strip().replace(" ", "-") for heading in headings_of(page)
    }


def links_of(page: Path) -> list[str]:
    return _LINK.findall(prose_of(page))


def code_of(page: Path) -> list[str]:
    """What stands in backquotes."""
    return _CODE.findall(prose_of(page))


def calls_of(page: Path) -> list[tuple[str, str]]:
    """(command, the rest of its line) of every call of the program: as a line of its own, or in backquotes."""
    lines = text_of(page).replace("\\\n", " ").splitlines()
    calls = (_CALL.match(code) for code in [*lines, *code_of(page)])
    return [(call[1], call[2].split("#")[0]) for call in calls if call]


def quoted_of(page: Path) -> list[tuple[str, list[str]]]:
    """(arguments of the program, lines of its output) that a page quotes; see `docs/why.md` for the notation."""
    return [(match["command"], match["text"].splitlines()) for match in _QUOTED.finditer(text_of(page))]


def tool(name: str) -> dict[str, Any]:
    """The names of a script in `tools/`."""
    return runpy.run_path(str(ROOT / "tools" / name))
