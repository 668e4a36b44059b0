"""Capture recipes: an engine, its version and how much evidence -> flags, environment and calls.

The recipes are data (`vllm.toml`, `sglang.toml`), each with its source. In a text `{folder}` and `{steps}` stand
for the capture's own.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

ENGINES = ("vllm", "sglang")
EVIDENCE = ("full", "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to capture from one range of versions; `start` and `stop` are calls: a path and a body."""

    engine: str
    since: str
    evidence: str
    about: str
    environment: dict[str, str]
    install: str
    command: str
    flags: tuple[str, ...]
    start: dict[str, Any]
    stop: dict[str, Any]
    before: tuple[str, ...]
    after: tuple[str, ...]
    ends_by_itself: bool
    trace: str
    notes: tuple[str, ...]


def load_recipes(engine: str, *, folder: str = "./capture", steps: int = 40) -> list[Recipe]:
    """All recipes of an engine, newest first."""
    data = tomllib.loads(files(__name__).joinpath(f"{engine}.toml").read_text(encoding="utf-8"))
    made = [_recipe(engine, _fill(item, folder, steps)) for item in data["recipe"]]
    return sorted(made, key=lambda recipe: parse_version(recipe.since), reverse=True)


def find_recipe(
    engine: str, version: str, evidence: str, *, folder: str = "./capture", steps: int = 40
) -> Recipe | None:
    """The newest recipe that is not newer than the version; None where all are newer."""
    for recipe in load_recipes(engine, folder=folder, steps=steps):
        if recipe.evidence == evidence and parse_version(recipe.since) <= parse_version(version):
            return recipe
    return None


def parse_version(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> parse_version("0.32.0+cpu"), parse_version("0.5.21.post1")
    ((0, 32, 0), (0, 5, 21))
    """
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]|\.(?!\d)", version)[0]))


def call_line(server: str, path: str, body: dict[str, Any] | None) -> str:
    """The curl call of a start or stop."""
    line = f"curl -X POST {server}{path}"
    return line if not body else f"{line} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def render_recipe(recipe: Recipe, server: str) -> str:
    """The recipe as a shell script with comments."""
    lines = [f"# {recipe.engine} {recipe.since} and newer, {recipe.evidence} evidence: {recipe.about}"]
    if recipe.install:
        lines += ["", "# once, in the engine's environment", recipe.install]
    lines += ["", "# start the server"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in recipe.environment.items()]
    lines += [" \\\n  ".join([recipe.command, *recipe.flags])]
    lines += ["", "# under the load that you care about, warmed up"]
    lines += [call_line(server, path, None) for path in recipe.before]
    lines.append(call_line(server, recipe.start["path"], recipe.start.get("body")))
    if recipe.ends_by_itself:
        lines.append("# it ends by itself; earlier with:")
    lines.append(("# " if recipe.ends_by_itself else "") + call_line(server, recipe.stop["path"], None))
    lines += [call_line(server, path, None) for path in recipe.after]
    lines += ["", f"stepscope explain {recipe.trace}", *[f"# {note}" for note in recipe.notes]]
    return "\n".join(lines) + "\n"


def _recipe(engine: str, item: dict[str, Any]) -> Recipe:
    lists = ("flags", "before", "after", "notes")
    return Recipe(engine=engine, **{**dict.fromkeys(lists, ()), **item, **{n: tuple(item.get(n, ())) for n in lists}})


def _fill(value: Any, folder: str, steps: int) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, folder, steps) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, folder, steps) for item in value]
    if not isinstance(value, str):
        return value
    if value == "{steps}":
        return steps
    return value.format(folder=folder, steps=steps) if "{" in value else value
