"""Simulation: what a simulated run tells: its steps, its requests, and what of both was asked to be kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.errors import BadInput
from stepscope.simulate.clock import to_ticks

if TYPE_CHECKING:
    from stepscope.batch import BatchShape
    from stepscope.latency import RequestTimes

Detail = Literal["none", "sums", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to keep, and the host's share.

    Attributes:
        steps: keep no steps, their sums, or their rows. The cost function sees rows only with "rows".
        with_gaps: keep every request's times between outputs (memory grows with the tokens).
        host_s: host work per step: between steps, or in async scheduling beside the step in flight.
        is_exact: schedule every single step.
        dp_sync_interval: of several ranks: steps between the looks at whether all are idle, vLLM 0.32's default.
        compiled: where nothing but requests' times is kept, run compiled (extra `fast`); None: where it pays.
    """

    steps: Detail = "sums"
    with_gaps: bool = False
    host_s: float = 0.0
    is_exact: bool = False
    dp_sync_interval: int = 16
    compiled: bool | None = None

    def __post_init__(self) -> None:
        to_ticks(self.host_s, "host_s")
        if self.dp_sync_interval < 1:
            raise BadInput(f"dp_sync_interval is {self.dp_sync_interval}: give 1 or more steps.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """One step: what it computed and when. Free blocks and waiting requests are those after scheduling it.

    Of several ranks: `rank` computed it, and `num_dummy` ranks of its group had no row then. Ranks of one group start
    and end a step together.
    """

    start_s: float
    end_s: float
    shape: BatchShape
    num_free_blocks: int
    num_waiting: int
    num_preempted: int
    rank: int = 0
    num_dummy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A request's way from prefill to decode: `wait_s` from its prompt's end until its KV began to be sent."""

    prefill_rank: int
    decode_rank: int
    wait_s: float
    transfer_s: float
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """One request that has ended.

    Attributes:
        prefix_hit_tokens: found in the device's cache at its first admission.
        resumed_hit_tokens: found anywhere when it came back after preemptions; mostly its own: no reuse.
        loaded_tokens: loaded at its first admission, by KV tier.
        rank: the one that ended it.
        handover: where it was decoded on another engine than its prompt.
    """

    request_id: str
    prompt_len: int
    prefix_hit_tokens: int
    num_preemptions: int
    times: RequestTimes
    resumed_hit_tokens: int = 0
    loaded_tokens: tuple[tuple[str, int], ...] = ()
    rank: int = 0
    handover: Handover | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """A pipeline's stage: how long it computed, of the time in which any step was in the pipeline."""

    busy_s: float
    filled_s: float

    @property
    def bubble_fraction(self) -> float | None:
        """Share of that time in which it had nothing to compute; None where no step ran."""
        return 1 - self.busy_s / self.filled_s if self.filled_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The result: requests in the order of the workload, steps in order (none where none were kept).

    `num_steps` counts what ran together on several ranks once, and only where one of them had a row; a step in which
    all ranks ran dummies is one of `num_dummy_steps`. `stages`: of a pipeline with more than one.
    """

    requests: tuple[SimulatedRequest, ...]
    steps: tuple[SimulatedStep, ...]
    num_steps: int
    num_scheduled_tokens: int
    end_s: float
    num_dummy_steps: int = 0
    stages: tuple[StageTime, ...] = ()
