"""Headed sections with sentences and a table -> lines for a terminal, or Markdown. Knows nothing of what they say."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Columns and rows of text; a column whose name starts with `>` holds numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def number_width(self) -> int:
        """What the table needs, if all its columns but the first few are numbers; else 0, and text wraps."""
        if not all(name.startswith(">") for name in self.columns[3:]):
            return 0
        return self.width

    @property
    def width(self) -> int:
        """What the table needs to show every cell on one line."""
        widths = [max([len(name), *(len(row[i]) for row in self.rows)]) for i, name in enumerate(self.columns)]
        return sum(widths) + 3 * len(widths) + 2

    def to_rich(self) -> Table:
        """For a terminal."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in self.columns:
            is_number = name.startswith(">")
            table.add_column(
                name.lstrip(">"), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """As a pipe table."""
        head = "| " + " | ".join(name.lstrip(">") for name in self.columns) + " |"
        rule = "|" + "|".join("---:" if name.startswith(">") else "---" for name in self.columns) + "|"
        body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join([head, rule, *body])


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, sentences (leading spaces indent), and a table."""

    title: str
    lines: tuple[str, ...] = ()
    grid: Grid | None = None

    def to_markdown(self) -> str:
        """With a second-level heading."""
        parts = [f"## {self.title}", ""]
        parts += [f"- {line.strip()}" for line in self.lines]
        if self.grid is not None:
            parts += ["", self.grid.to_markdown()]
        return "\n".join(parts) + "\n"

    def _print(self, console: Console) -> None:
        if self.title:
            console.print(self.title)
        for line in self.lines:
            console.print(Padding(line.strip(), (0, 0, 0, 2 + len(line) - len(line.lstrip()))))
        if self.grid is not None:
            width = console.width
            console.width = max(width, self.grid.number_width)  # never squeezed: a cut digit is a wrong digit
            console.print(Padding(self.grid.to_rich(), (0, 0, 0, 2)))
            console.width = width
        console.print()


def print_sections(sections: Sequence[Section], width: int) -> str:
    """Plain text of a width, without trailing spaces."""
    out = StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    for section in sections:
        section._print(console)  # noqa: SLF001  # of this module
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
