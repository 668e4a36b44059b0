"""A Trace: the stores of one capture, one a process, as a reader or a Run folder gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.store.events import EventStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One capture: a store per process, those with a rank first, in rank order."""

    source: str
    stores: tuple[EventStore, ...]

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """Of the stores, in order."""
        return tuple(store.rank for store in self.stores)
