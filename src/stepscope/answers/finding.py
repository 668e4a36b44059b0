"""A finding: a fact of a capture in a sentence that stands alone, with its numbers, grade and what it does not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.evidence import Grade
    from stepscope.messages import Message

# the founding notes' reading order, with the host's part after what it was given to do
READING_ORDER = ("supply", "prefill", "chunk", "host", "compute", "kv", "comm", "idle", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence with its evidence. `value_ns` is what it rests on."""

    id: str
    layer: str
    rank: int | None
    text: Message
    value_ns: int
    grade: Grade
    not_shown: Message
