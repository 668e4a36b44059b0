"""The exceptions that Stepscope raises.

    StepscopeError
    ├── BadInput            the user can mend it: a path, an option, a file (exit code 2)
    │   ├── UnreadableTrace what is there is no trace that a reader knows
    │   ├── AmbiguousInput  there are several traces where one was asked for
    │   ├── CatalogError    a catalog file breaks its own format
    │   ├── BadQuery        the SQL was refused by the database
    │   └── TaskFailed      a worker process was ended from outside, mostly for want of memory
    ├── CheckFailed         a check said no: the evidence does not carry the conclusion (exit code 1)
    └── InvariantBroken     a law of the program does not hold: a defect of ours

A message says what, where, what was expected, and what to do.
"""

from __future__ import annotations


class StepscopeError(Exception):
    """The root: catching it catches every error that Stepscope raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """As its text and attributes, so that it travels between processes whatever its constructor asks for."""
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[StepscopeError], args: tuple[object, ...]) -> StepscopeError:
    error = kind.__new__(kind)
    error.args = args
    return error


class BadInput(StepscopeError):
    """Something that the user gave cannot be used as it is."""


class UnreadableTrace(BadInput):
    """A file is empty, of an unknown format, or holds no events.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str, problem: str, next_step: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}. {next_step}")


class AmbiguousInput(BadInput):
    """One trace was expected and several are there (one rank twice, or several documents in a file).

    Attributes:
        candidates: what can be chosen.
    """

    def __init__(self, problem: str, candidates: tuple[str, ...], next_step: str) -> None:
        self.candidates = candidates
        super().__init__(f"{problem}: {', '.join(candidates)}. {next_step}")


class CatalogError(BadInput):
    """A catalog file breaks the format that docs/reference.md gives.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


class BadQuery(BadInput):
    """The database refused a query."""


class TaskFailed(BadInput):
    """A worker process ended without an answer: fewer workers, or more memory, mend it."""


class CheckFailed(StepscopeError):
    """A capture does not carry the conclusion that was asked of it."""


class InvariantBroken(StepscopeError):
    """Both sides of a law that should be equal are not: please report it."""
