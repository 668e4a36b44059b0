"""Stepscope: where an LLM engine step's time went, as far as the evidence goes.

The public names are loaded on first use, so that `import stepscope` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stepscope.answers.account import explain
    from stepscope.readers.registry import open_trace
    from stepscope.steps.step import find_steps
    from stepscope.store.run import import_run, open_run

__all__ = ["__version__", "explain", "find_steps", "import_run", "open_run", "open_trace"]

_HOMES = {
    "explain": "stepscope.answers.account",
    "find_steps": "stepscope.steps.step",
    "import_run": "stepscope.store.run",
    "open_run": "stepscope.store.run",
    "open_trace": "stepscope.readers.registry",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stepscope' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
