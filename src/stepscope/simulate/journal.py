"""Journal: what became of the requests and steps of a run so far, in ticks; at the end the Simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from stepscope.errors import InvariantBroken
from stepscope.latency import RequestTimes
from stepscope.simulate.clock import to_seconds
from stepscope.simulate.simulation import SimulatedRequest, SimulatedStep, Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.batch import BatchShape
    from stepscope.simulate.policy import LiveRequest, Policy, StepPlan
    from stepscope.simulate.request import Request
    from stepscope.simulate.simulation import Handover, Options, StageTime


@dataclass(slots=True, kw_only=True)
class Progress:
    """When a request came and put out tokens, and on which rank it is."""

    arrival: int
    rank: int = 0
    first_token: int | None = None
    outputs: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """When a step ran, where, and beside how many ranks without a row."""

    start: int
    end: int
    rank: int = 0
    num_dummy: int = 0


class Journal:
    """Requests inside, requests that ended and steps."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.progress: dict[LiveRequest, Progress] = {}
        self.done: dict[str, SimulatedRequest] = {}
        self.steps: list[SimulatedStep] = []
        self.num_steps = self.num_tokens = self.num_dummy_steps = 0
        self.end_of_run = 0  # the latest end of a step that was delivered, where several engines have clocks

    def arrive(self, live: LiveRequest, arrival: int, rank: int = 0) -> None:
        """A request came to a rank."""
        self.progress[live] = Progress(arrival=arrival, rank=rank)

    def add_step(self, shape: BatchShape, span: StepSpan, policy: Policy, num_preempted: int) -> None:
        """Keep a rank's step that was given to the device."""
        self.steps.append(
            SimulatedStep(
                start_s=to_seconds(span.start),
                end_s=to_seconds(span.end),
                shape=shape,
                num_free_blocks=policy.num_free_blocks,
                num_waiting=policy.num_waiting,
                num_preempted=num_preempted,
                rank=span.rank,
                num_dummy=span.num_dummy,
            )
        )

    def deliver(self, plan: StepPlan, now: int) -> None:
        """The tokens of a step's rows are there."""
        with_gaps = self.options.with_gaps
        for live, _, context, is_sampled, _ in plan.rows:
            if not is_sampled or (context >= live.prefill_end and not with_gaps):
                continue  # a first token comes of a prefill row
            progress = self.progress.get(live)
            if progress is None:
                continue  # it ended before, and this step was one too many
            if progress.first_token is None:
                progress.first_token = now
            if with_gaps:
                progress.outputs.append(now)

    def move(self, live: LiveRequest, successor: LiveRequest, rank: int, *, is_first_kept: bool) -> None:
        """A request goes on as another one, on another rank; its first token counts, or a later one will."""
        progress = self.progress[successor] = self.progress.pop(live)
        progress.rank = rank
        if not is_first_kept:
            progress.first_token = None
            progress.outputs.clear()

    def end(self, live: LiveRequest, now: int, handover: Handover | None = None) -> None:
        """A request ended with the tokens that were delivered now."""
        progress = self.progress.pop(live)
        outputs = progress.outputs
        times = RequestTimes(
            arrival_s=to_seconds(progress.arrival),
            first_token_s=None if progress.first_token is None else to_seconds(progress.first_token),
            last_token_s=to_seconds(now),
            output_len=live.output_len,
            gaps_s=tuple(to_seconds(after - before) for before, after in pairwise(outputs)) if outputs else None,
        )
        request = live.request
        self.done[request.request_id] = SimulatedRequest(
            request_id=request.request_id,
            prompt_len=request.prompt_len,
            prefix_hit_tokens=live.first_hit_tokens or 0,
            num_preemptions=live.num_preemptions,
            times=times,
            resumed_hit_tokens=live.resumed_hit_tokens,
            loaded_tokens=tuple(live.loaded_tokens.items()),
            rank=progress.rank,
            handover=handover,
        )

    def result(self, requests: Sequence[Request], now: int, stages: tuple[StageTime, ...] = ()) -> Simulation:
        """What is kept; every request has ended."""
        if len(self.done) != len(requests):
            raise InvariantBroken(f"{len(self.done)} requests ended of {len(requests)}")
        return Simulation(
            requests=tuple(self.done[request.request_id] for request in requests),
            steps=tuple(self.steps),
            num_steps=self.num_steps,
            num_scheduled_tokens=self.num_tokens,
            end_s=to_seconds(now),
            num_dummy_steps=self.num_dummy_steps,
            stages=stages,
        )
