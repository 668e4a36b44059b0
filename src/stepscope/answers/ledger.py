"""Ledger: the hypotheses of a deployment, what was tried and what came of it, in one JSON file that people keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stepscope.answers.hypotheses import Hypothesis, Judged

SCHEMA = "stepscope.hypotheses/1"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One test: the two runs, and what the comparison of them said. Ns of a step; negative is shorter."""

    before: str
    after: str
    status: str
    delta_per_step_ns: int | None
    num_pairs: int
    reason: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One hypothesis of one capture, and its trials in order."""

    id: str
    source: str
    finding: str
    rank: int | None
    statement: str
    basis: str
    bound_ns: int
    span_ns: int
    num_steps: int
    tests: tuple[str, ...]
    trials: tuple[Trial, ...] = ()

    @property
    def bound_per_step_ns(self) -> int | None:
        """None where no step was marked."""
        return self.bound_ns // self.num_steps if self.num_steps else None

    @property
    def status(self) -> str:
        """Of the last trial; open without one."""
        return self.trials[-1].status if self.trials else "open"


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Entries by source and id, in the order in which they came."""

    schema: str = SCHEMA
    entries: tuple[Entry, ...] = ()

    def with_hypotheses(self, source: str, hypotheses: Iterable[Hypothesis]) -> Ledger:
        """With the hypotheses of a capture; those that are there keep their trials, with today's bounds."""
        entries = {(entry.source, entry.id): entry for entry in self.entries}
        for found in hypotheses:
            before = entries.get((source, found.id))
            entries[source, found.id] = Entry(
                id=found.id,
                source=source,
                finding=found.finding,
                rank=found.rank,
                statement=found.statement,
                basis=found.basis,
                bound_ns=found.bound_ns,
                span_ns=found.span_ns,
                num_steps=found.num_steps,
                tests=found.tests,
                trials=before.trials if before else (),
            )
        return Ledger(entries=tuple(entries.values()))

    def find(self, name: str) -> Entry:
        """The entry with this id, or SOURCE#id where several captures have it.

        Raises:
            BadInput: there is none, or several.
        """
        found = [entry for entry in self.entries if name in (entry.id, f"{entry.source}#{entry.id}")]
        if len(found) != 1:
            known = ", ".join(f"{entry.source}#{entry.id}" for entry in self.entries) or "none"
            raise BadInput(f"{len(found)} hypotheses are called '{name}'. In this ledger: {known}.")
        return found[0]

    def with_trial(self, entry: Entry, trial: Trial) -> Ledger:
        """With one more trial of an entry."""
        tried = msgspec.structs.replace(entry, trials=(*entry.trials, trial))
        return Ledger(entries=tuple(tried if each is entry else each for each in self.entries))

    def to_document(self) -> dict[str, Any]:
        """JSON-able."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        for told, entry in zip(document["entries"], self.entries, strict=True):
            told["status"] = entry.status
        return document


def read_ledger(path: Path) -> Ledger:
    """The ledger of a file; an empty one where there is none yet.

    Raises:
        BadInput: the file is no ledger.
    """
    if not path.exists():
        return Ledger()
    if not path.is_file():
        raise BadInput(f"{path}: is no file. Name another one, or a new one.")
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Ledger)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{path}: no ledger of hypotheses ({error}). Name another file, or a new one.") from error
    if found.schema != SCHEMA:
        raise BadInput(f"{path}: is of schema {found.schema}; this version reads {SCHEMA}.")
    return found


def to_trial(before: str, after: str, judged: Judged) -> Trial:
    """A verdict as the ledger keeps it."""
    return Trial(
        before=before,
        after=after,
        status=judged.status,
        delta_per_step_ns=judged.delta_per_step_ns,
        num_pairs=judged.num_pairs,
        reason=judged.reason,
    )
