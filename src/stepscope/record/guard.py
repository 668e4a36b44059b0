"""The one rule inside an engine: no error of ours reaches it, and each kind of error is said once."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = logging.getLogger("vllm.plugins.stepscope")
_MOST_ERRORS = 20


class Guard:
    """Catches what goes wrong while recording. After many errors the recorder is off."""

    def __init__(self) -> None:
        self.num_errors = 0
        self._said: set[str] = set()

    @property
    def is_off(self) -> bool:
        """Whether recording has failed too often to go on."""
        return self.num_errors >= _MOST_ERRORS

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Run a piece of recording."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is, the engine goes on
            self.num_errors += 1
            self.say(f"{what} failed ({type(error).__name__}: {error}); the engine is not affected")
            if self.is_off:
                self.say("recording failed too often and is off until the engine starts again")

    def say(self, text: str) -> None:
        """A warning in the engine's log, once."""
        if text not in self._said:
            self._said.add(text)
            with suppress(Exception):
                LOG.warning("stepscope record: %s", text)
