"""Stages: the devices of a pipeline; a step passes them in turn, and each holds one step at a time.

Stage s of step k begins when stage s - 1 of k has handed over and stage s of k - 1 has ended. Each takes its share of
the step's ticks; the shares' ticks add up to the step's. One stage is a plain device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import fsum, isclose
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.simulate.clock import to_seconds, to_ticks
from stepscope.simulate.simulation import StageTime

if TYPE_CHECKING:
    from stepscope.simulate.policy import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Each stage's share of a step's time (they sum to 1) and the time of a hand-over between two, `hop_s`."""

    shares: tuple[float, ...] = (1.0,)
    hop_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) <= 0 or not isclose(fsum(self.shares), 1.0, abs_tol=1e-9):
            raise BadInput(f"the stages' shares are {self.shares}: give numbers above 0 that add up to 1.")
        to_ticks(self.hop_s, "hop_s")

    @classmethod
    def even(cls, count: int, *, hop_s: float = 0.0) -> Stages:
        """Equal shares.

        Raises:
            BadInput: no stage.
        """
        if count < 1:
            raise BadInput(f"a pipeline of {count} stages: give 1 or more.")
        return cls(shares=(1 / count,) * count, hop_s=hop_s)


def check_stages(rules: Rules, count: int) -> None:
    """Whether the scheduler's rules are for so many stages.

    Raises:
        BadInput: they say another number.
    """
    told = getattr(rules, "pipeline_parallel_size", 1)
    if told != count:
        raise BadInput(
            f"the scheduler's rules are for {told} pipeline stages, and {count} are simulated. simulate_pipeline sets "
            "pipeline_parallel_size of vLLM's rules; leave it at 1 elsewhere. Other engines' rules know no pipeline."
        )


class Pipeline:
    """The stages of one engine at work; times are ticks."""

    def __init__(self, stages: Stages) -> None:
        self._bounds = list(accumulate(stages.shares))[:-1]
        self._hop = to_ticks(stages.hop_s)
        self._free = [0] * len(stages.shares)
        self._busy = [0] * len(stages.shares)
        self._filled = 0  # while at least one step was inside
        self._end = 0

    @property
    def free(self) -> int:
        """When the first stage can take the next step."""
        return self._free[0]

    def run(self, ready: int, ticks: int) -> tuple[int, int]:
        """Give it a step that is ready from then on; when that begins, and when it has left the last stage."""
        at = start = max(ready, self._free[0])
        if not self._bounds:  # a plain device
            self._free[0] = start + ticks
            return start, start + ticks
        ends = [round(ticks * bound) for bound in self._bounds] + [ticks]
        done = 0
        for stage, end in enumerate(ends):
            at = max(at if stage == 0 else at + self._hop, self._free[stage])
            self._busy[stage] += end - done
            at += end - done
            self._free[stage] = at
            done = end
        self._filled += max(0, at - max(start, self._end))
        self._end = max(self._end, at)
        return start, at

    def times(self) -> tuple[StageTime, ...]:
        """Each stage's; none where there is only one."""
        if len(self._busy) == 1:
            return ()
        filled = to_seconds(self._filled)
        return tuple(StageTime(busy_s=to_seconds(busy), filled_s=filled) for busy in self._busy)
