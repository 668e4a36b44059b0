"""TOML tables that ship beside this package's code: hardware and coefficients, a file each."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_ENDING = ".toml"


def read_shipped(folder: str, parse: Callable[[str, str, str], T]) -> dict[str, T]:
    """Each file of a folder of this package by its name without the ending; `parse(text, name, where)` reads one."""
    found = {}
    for entry in files("stepscope.cost").joinpath(folder).iterdir():
        if entry.name.endswith(_ENDING):
            name = entry.name.removesuffix(_ENDING)
            found[name] = parse(entry.read_text(encoding="utf-8"), name, entry.name)
    return found


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The tables of a text.

    Raises:
        BadInput: it is not TOML; the message begins with `where`.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{where}: not TOML ({error}).") from error
    except ValueError as error:  # a number too long, a date that is none
        raise BadInput(f"{where}: not TOML ({error}).") from error
