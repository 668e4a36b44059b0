"""Arrivals: the requests of a workload that have not come yet, in order of time; turns wait for the one before.

Events are ordered by (time, priority, sequence): follow-ups before arrivals of the same time, each in the order of the
workload.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.simulate.clock import to_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.simulate.policy import Rules
    from stepscope.simulate.request import Request

_FOLLOWS, _ARRIVES = 0, 1


def check_workload(requests: Sequence[Request], rules: Rules) -> None:
    """Whether every request can run and every turn follows one that ends.

    Raises:
        BadInput: a name twice, a request that can never fit, a turn after an unknown request or after itself.
    """
    after = {request.request_id: request.after for request in requests}
    if len(after) < len(requests):
        raise BadInput(f"{len(requests)} requests have {len(after)} names between them: give each its own.")
    for request in requests:
        rules.check_request(request)
        if request.after is not None and request.after not in after:
            raise BadInput(f"request {request.request_id!r} follows {request.after!r}, which is not in the workload.")
    ends: set[str] = set()
    for name, leader in after.items():
        if leader is None:
            continue
        path: dict[str, None] = {}
        step: str | None = name
        while step is not None and step not in ends:
            if step in path:
                raise BadInput(f"requests follow each other in a circle: {' after '.join([*path, step])}.")
            path[step] = None
            step = after[step]
        ends.update(path)


class Arrivals:
    """Requests that have not come yet; those that follow another one come into it when that one ends."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._events: list[tuple[int, int, int]] = []
        self._requests = requests
        self._followers: dict[str, list[int]] = {}
        for sequence, request in enumerate(requests):
            if request.after is None:
                self._events.append((to_ticks(request.arrival_s, "an arrival"), _ARRIVES, sequence))
            else:
                self._followers.setdefault(request.after, []).append(sequence)
        heapq.heapify(self._events)

    @property
    def next(self) -> int | None:
        """When the next one comes; None where none is known to."""
        return self._events[0][0] if self._events else None

    def take(self, now: int) -> tuple[int, Request] | None:
        """The next one that has come by now, and when; None where there is none."""
        if not self._events or self._events[0][0] > now:
            return None
        time, _, sequence = heapq.heappop(self._events)
        return time, self._requests[sequence]

    def release(self, request_id: str, end: int) -> None:
        """A request ended: set the time of those that follow it."""
        for sequence in self._followers.pop(request_id, ()):
            heapq.heappush(self._events, (end + to_ticks(self._requests[sequence].arrival_s), _FOLLOWS, sequence))
