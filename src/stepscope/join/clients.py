"""A client's requests and the server's, one by one: by request id, else by order in time and prompt length.

Server ids hold the client's (`cmpl-<id>-0-<hash>`). Without ids, a client's request is the first server request that
was scheduled after it was sent and has its prompt length; the clocks must agree (one host, or synchronised hosts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.join.requests import RequestAccount
    from stepscope.readers.clients.record import ClientRequest

_MIN_ID = 6  # shorter ids are numbers of a list, and stand inside any other
_LATEST_NS = 600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLink:
    """One request on both sides. `residual_ns`: end to end at the client, minus from first scheduling at the server."""

    client: ClientRequest
    server: RequestAccount
    method: Literal["request id", "clock"]

    @property
    def residual_ns(self) -> int | None:
        """What the client saw and the engine core did not: queue, front end, network, the client itself."""
        stages = self.server.stages
        if self.client.e2el_s is None or stages.end_ns is None or stages.scheduled_ns is None:
            return None
        return round(self.client.e2el_s * 1e9) - (stages.end_ns - stages.scheduled_ns)


def link_requests(clients: Sequence[ClientRequest], servers: Sequence[RequestAccount]) -> tuple[ClientLink, ...]:
    """Pairs in the order of the client's file; a request without a partner is left out."""
    by_id = _by_id(clients, servers)
    if by_id:
        return by_id
    free = sorted(
        (s for s in servers if s.stages.scheduled_ns is not None), key=lambda s: (s.stages.scheduled_ns, s.request_id)
    )
    links: dict[int, ClientLink] = {}
    for place, client in sorted(enumerate(clients), key=lambda pair: (pair[1].start_s or 0.0, pair[0])):
        partner = next((s for s in free if _fits(client, s)), None)
        if partner is not None:
            free.remove(partner)
            links[place] = ClientLink(client=client, server=partner, method="clock")
    return tuple(links[place] for place in sorted(links))


def _by_id(clients: Sequence[ClientRequest], servers: Sequence[RequestAccount]) -> tuple[ClientLink, ...]:
    whole = {server.request_id: server for server in servers}
    found = []
    for client in clients:
        name = client.request_id
        if name is None or len(name) < _MIN_ID:
            continue
        partner = whole.get(name) or next((s for key, s in whole.items() if f"-{name}-" in f"-{key}-"), None)
        if partner is not None:
            found.append(ClientLink(client=client, server=partner, method="request id"))
    return tuple(found)


def _fits(client: ClientRequest, server: RequestAccount) -> bool:
    scheduled = server.stages.scheduled_ns
    if client.start_s is None or scheduled is None or client.prompt_len is None:
        return False
    wait = scheduled - round(client.start_s * 1e9)
    return client.prompt_len == server.prompt_len and 0 <= wait < _LATEST_NS
