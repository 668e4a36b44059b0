"""Policy: what the engine asks of a scheduler, whichever engine's rules it follows, and what it gets back.

A policy is made by its rules (`Rules.build`), advances requests in `schedule` and delivers what a step sampled in
`update`. Its requests are `LiveRequest`s; a step is a `StepPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from stepscope.batch import BatchShape, PhaseSums, Row

if TYPE_CHECKING:
    from stepscope.simulate.request import Request


@dataclass(slots=True, eq=False, kw_only=True)
class LiveRequest:
    """A request in the scheduler. Known tokens: prompt and delivered outputs; `placeholders` count those on the way."""

    request: Request
    place: int  # in the order in which requests came
    num_known: int
    num_computed: int = 0
    placeholders: int = 0
    prefill_end: int = 0  # tokens known at admission: computing below it is prefill
    prefix_hit_tokens: int = 0  # at its latest admission
    first_hit_tokens: int | None = None  # at its first
    resumed_hit_tokens: int = 0  # at all later ones together
    loaded_tokens: dict[str, int] = field(default_factory=dict)  # at its first, by KV tier
    num_preemptions: int = 0
    num_entered: int = 0  # blocks of the table that are findable
    num_stale: int = 0  # steps in flight with a row of it that were scheduled before it was preempted
    next_decode_step: int = 0  # before this step of the scheduler it takes no further token
    remote_tokens: int = 0  # its first tokens, whose KV another engine has computed and sends
    num_drafts: int = 0  # proposed for its next row
    is_running: bool = False
    is_finished: bool = False
    table: list[int] = field(default_factory=list)
    keys: list[int] | None = None

    @property
    def output_len(self) -> int:
        """Tokens put out so far."""
        return self.num_known - self.request.prompt_len


# (request, query_len, context_len, whether a token is sampled, how often the request had been preempted by then)
PlannedRow: TypeAlias = tuple[LiveRequest, int, int, bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One scheduled step: rows in scheduling order, who lost its blocks for it, whose KV can be fetched, and drafts.

    `drafts`: how many a row verifies.
    """

    rows: list[PlannedRow] = field(default_factory=list)
    preempted: list[LiveRequest] = field(default_factory=list)
    loads: list[LiveRequest] = field(default_factory=list)
    drafts: dict[LiveRequest, int] = field(default_factory=dict)

    def to_shape(self, *, with_rows: bool = True) -> BatchShape:
        """The BatchShape; without rows only its sums, which is quicker. Valid until the plan is updated."""
        if with_rows:
            return BatchShape.from_rows(tuple(_row(planned) for planned in self.rows))
        prefill, decode = [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]
        for live, query, context, _, _ in self.rows:
            sums = prefill if context < live.prefill_end else decode
            kv = context + query
            sums[0] += 1
            sums[1] += query
            sums[2] += kv
            sums[3] += query * query
            sums[4] += query * kv
        return BatchShape.from_sums(_sums(prefill), _sums(decode))


def _row(planned: PlannedRow) -> Row:
    live, query, context, _, _ = planned
    return Row(
        query_len=query,
        context_len=context,
        phase="prefill" if context < live.prefill_end else "decode",
        request_id=live.request.request_id,
        prefix_hit_tokens=live.prefix_hit_tokens,
    )


def _sums(sums: list[int]) -> PhaseSums:
    return PhaseSums(
        num_requests=sums[0], query_sum=sums[1], kv_sum=sums[2], query_sq_sum=sums[3], query_kv_sum=sums[4]
    )


class Policy(Protocol):
    """A scheduler of one engine."""

    @property
    def has_work(self) -> bool:
        """Requests are in it, or something else needs one more (empty) step."""
        ...

    @property
    def num_running(self) -> int:
        """Requests that hold a seat."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait for one."""
        ...

    @property
    def num_free_blocks(self) -> int:
        """Blocks (or cache slots) that no request uses."""
        ...

    def add(self, request: Request) -> LiveRequest:
        """Queue a request; BadInput if it could never run."""
        ...

    def schedule(self) -> StepPlan:
        """The next step."""
        ...

    def update(self, plan: StepPlan) -> list[LiveRequest]:
        """Deliver a step's tokens; those requests that ended."""
        ...

    def check(self) -> None:
        """Raise InvariantBroken where a law between steps does not hold."""
        ...


@runtime_checkable
class TimedPolicy(Policy, Protocol):
    """A policy in which something ends by itself, as a load of KV does: it is told the time, in ticks."""

    now: int

    @property
    def next_event(self) -> int | None:
        """When the next such thing ends; None where nothing is under way."""
        ...


class Rules(Protocol):
    """Options of one engine's scheduler; they refuse what no engine would start with when they are made."""

    @property
    def async_scheduling(self) -> bool:
        """Whether the next step is scheduled while one is in flight."""
        ...

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        ...

    def check_request(self, request: Request) -> None:
        """Raise BadInput for a request that would wait for ever."""
        ...

    def build(self) -> Policy:
        """A new scheduler that follows these rules."""
        ...
