"""RemoteKv: the requests of one scheduler whose KV comes from another engine or goes to one.

Receiving, as with vLLM's NIXL connector (0.32): a waiting request gets blocks for its whole prompt when it would be
admitted, holds no seat while its KV comes, and runs before those that wait. Sending: a request that has ended keeps
its blocks until they were read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.simulate.policy import LiveRequest


@dataclass(slots=True, eq=False)
class RemoteKv:
    """`is_sender`: ended requests are kept until they were sent."""

    is_sender: bool = False
    kept: list[LiveRequest] = field(default_factory=list)
    loading: list[LiveRequest] = field(default_factory=list)
    loaded: deque[LiveRequest] = field(default_factory=deque)

    def keep(self, live: LiveRequest) -> bool:
        """A request ended; whether its blocks stay."""
        if self.is_sender:
            self.kept.append(live)
        return self.is_sender

    def receive(self, live: LiveRequest) -> None:
        """A request's KV is there."""
        self.loading.remove(live)
        self.loaded.append(live)

    def admit(self, running: list[LiveRequest], max_num_seqs: int) -> None:
        """Seats for those whose KV is there, in that order."""
        while self.loaded and len(running) < max_num_seqs:
            live = self.loaded.popleft()
            live.is_running = True
            running.append(live)
