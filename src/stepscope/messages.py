"""A sentence as data: an English template and its values, so that another language can say it with the same numbers.

English is the source. A value may itself be a message; numbers come with their unit, already as text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Message:
    """`str(message)` is the English sentence."""

    template: str
    values: Mapping[str, str | Message] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.template.format(**{name: str(value) for name, value in self.values.items()})

    def walk(self) -> Iterator[Message]:
        """This message and those inside it."""
        yield self
        for value in self.values.values():
            if isinstance(value, Message):
                yield from value.walk()


def say(template: str, **values: object) -> Message:
    """A message; values are shown as text, messages stay messages.

    >>> str(say("{count} steps have no kernel", count=9))
    '9 steps have no kernel'
    """
    return Message(template, {name: v if isinstance(v, Message) else str(v) for name, v in values.items()})
