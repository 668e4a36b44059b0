"""KV sources: where each prompt's tokens came from, and what a test with these counts can show.

local + loaded + computed = prompt, at a request's first admission. What it found when it came back after a preemption
is apart: that is its own work again, and no reuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.simulate.engine import SimulatedRequest

LEAST_SHARE = 0.05  # of the prompt tokens: what loads less than this cannot move a mean by more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Prompt tokens by source: the device's own cache, loaded by tier; the rest was computed."""

    prompt_len: int
    local: int = 0
    loaded: Mapping[str, int] = field(default_factory=dict)
    resumed: int = 0

    def __post_init__(self) -> None:
        if min(self.prompt_len, self.local, self.resumed, self.computed, *self.loaded.values()) < 0:
            raise BadInput(f"{self}: counts of tokens are 0 or more, and no more are found than the prompt has.")

    @property
    def computed(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_len - self.local - self.external

    @property
    def external(self) -> int:
        """Tokens loaded from any tier."""
        return sum(self.loaded.values())

    @property
    def reused(self) -> int:
        """Tokens that somebody else's work saved."""
        return self.local + self.external


def sources_of(request: SimulatedRequest) -> Sources:
    """Of one simulated request."""
    return Sources(
        prompt_len=request.prompt_len,
        local=request.prefix_hit_tokens,
        loaded=dict(request.loaded_tokens),
        resumed=request.resumed_hit_tokens,
    )


def sum_sources(parts: Iterable[Sources]) -> Sources:
    """Of several requests together.

    >>> one = Sources(prompt_len=10, local=4, loaded={"host": 2})
    >>> sum_sources([one, one]).computed
    8
    """
    loaded: dict[str, int] = {}
    prompt_len = local = resumed = 0
    for part in parts:
        prompt_len, local, resumed = prompt_len + part.prompt_len, local + part.local, resumed + part.resumed
        for name, tokens in part.loaded.items():
            loaded[name] = loaded.get(name, 0) + tokens
    return Sources(prompt_len=prompt_len, local=local, loaded=loaded, resumed=resumed)


def why_no_external_benefit(total: Sources) -> str | None:
    """Why a test with these counts cannot show what external KV brings; None where it can."""
    if total.external >= LEAST_SHARE * total.prompt_len:
        return None
    table = f"local {total.local:,}, external {total.external:,}, computed {total.computed:,} of {total.prompt_len:,}"
    if total.local > total.external:
        return (
            f"{table} prompt tokens: this test cannot show external-cache benefit, the device's own cache had nearly "
            "all that was found. Empty it before the second run, or send more text than it holds."
        )
    return f"{table} prompt tokens: this test cannot show external-cache benefit, next to nothing was loaded."


def why_no_reuse(total: Sources) -> str | None:
    """Why hits of these counts save no first token any time; None where they do, or where there are none."""
    if total.reused or not total.resumed:
        return None
    return (
        f"{total.resumed:,} tokens were found in the cache, all of them by requests that came back after a preemption: "
        "not reuse, and no time to first token is gained. Preempt less (more blocks, fewer seats) to lose these hits."
    )
