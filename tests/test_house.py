"""House rules that a machine can hold: sizes, names, documentation, what may be imported and what only `cli` may do."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import stepscope

SOURCE = Path(stepscope.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
MAX_LINES = 400
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager"}
HEAVY = ("torch", "vllm", "ray", "pyarrow", "duckdb", "numpy", "pandas", "rich", "typer", "starlette", "uvicorn")


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_the_package_is_found() -> None:
    assert len(MODULES) > 30
    assert "store/schema.py" in {name_of(path) for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_is_too_long_to_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_named_for_its_noun(path: Path) -> None:
    assert not FORBIDDEN_NAMES & {*path.relative_to(SOURCE).parts, path.stem}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_in_its_first_line(path: Path) -> None:
    text = ast.get_docstring(parsed(path))
    assert text
    first = text.splitlines()[0]
    assert first.endswith((".", "?"))
    assert len(first.split()) >= 3
    assert not first[0].islower() or "." in first.split()[0]  # a sentence may begin with the name of a file


def _used(tree: ast.Module) -> set[str]:
    """Dotted names that a module uses, and what it imports from other modules."""
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
    return used


PROGRAMS = {"sweep/vllm_driver.py"}  # run by its path, in the engine's interpreter
ONLY_CLI = {
    "print",
    "exit",
    "quit",
    "SystemExit",
    "breakpoint",
    "input",
    "sys.exit",
    "sys.argv",
    "sys.stdout",
    "sys.stderr",
    "sys.stdin",
    "os._exit",
    "os.environ",
    "os.getenv",
    "os.putenv",
}


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if p.relative_to(SOURCE).parts[0] not in ("cli", "record") and name_of(p) not in PROGRAMS],
    ids=name_of,
)
def test_the_library_never_prints_exits_or_reads_the_environment(path: Path) -> None:
    # the recorder runs inside an engine, where the environment is the only switch
    assert not ONLY_CLI & _used(parsed(path))


def test_importing_stepscope_loads_nothing_heavy() -> None:
    program = f"import sys, stepscope; print([name for name in {HEAVY!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "[]\n"


def test_importing_the_commands_loads_no_engine_and_no_cluster() -> None:
    heavy = ("torch", "vllm", "ray")
    program = f"import sys, stepscope.cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize("name", stepscope.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(stepscope, name)
    assert not isinstance(value, ModuleType)
    if callable(value):
        text = inspect.getdoc(value)
        assert text
        assert text.splitlines()[0].endswith(".")
    else:
        assert isinstance(value, str)


def test_public_names_are_sorted_and_an_unknown_one_names_them() -> None:
    assert list(stepscope.__all__) == sorted(stepscope.__all__)
    with pytest.raises(AttributeError, match="open_trace"):
        _ = stepscope.nonsense
