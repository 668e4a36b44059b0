"""The tree of exceptions is the one that the docstring draws; messages say what to do."""

from __future__ import annotations

import re

import stepscope.errors
from stepscope.errors import AmbiguousInput, BadInput, CatalogError, StepscopeError, UnreadableTrace


def _drawn() -> dict[str, str]:
    """Exception -> its parent, from the drawing."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (stepscope.errors.__doc__ or "").splitlines():
        match = re.match(r"^ {4}([│├└─ ]*)(\w+)", line)
        if not match:
            continue
        depth = len(match[1])
        above = [(d, name) for d, name in above if d < depth]
        if above:
            parents[match[2]] = above[-1][1]
        above.append((depth, match[2]))
    return parents


def _written(root: type[BaseException]) -> dict[str, str]:
    found = {}
    for child in root.__subclasses__():
        if child.__module__ == stepscope.errors.__name__:
            found[child.__name__] = root.__name__
            found.update(_written(child))
    return found


def test_the_drawn_tree_is_complete() -> None:
    assert _drawn() == _written(StepscopeError)
    assert len(_drawn()) >= 7


def test_every_exception_has_a_line_of_its_own() -> None:
    for name in (*_drawn(), "StepscopeError"):
        assert (getattr(stepscope.errors, name).__doc__ or "").strip()


def test_one_root_catches_all_and_nothing_else() -> None:
    assert StepscopeError.__bases__ == (Exception,)
    for name in _drawn():
        assert issubclass(getattr(stepscope.errors, name), StepscopeError)


def test_an_unreadable_trace_says_what_where_and_what_to_do() -> None:
    error = UnreadableTrace("a.json", "the file is empty", "Record again")
    assert str(error) == "a.json: the file is empty. Record again"
    assert error.path == "a.json"
    assert isinstance(error, BadInput)


def test_an_ambiguous_input_names_the_candidates() -> None:
    error = AmbiguousInput("dir: rank 0 is there 2 times", ("a.json", "b.json"), "Pass one of them")
    assert str(error) == "dir: rank 0 is there 2 times: a.json, b.json. Pass one of them"
    assert error.candidates == ("a.json", "b.json")


def test_a_catalog_error_carries_its_file() -> None:
    assert CatalogError("x.toml", "no category").path == "x.toml"
