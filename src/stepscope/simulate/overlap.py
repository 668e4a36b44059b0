"""Overlap: a step run as two half batches, so that one communicates while the other computes.

c: compute, m: communication of the step run whole (t = c + m), a: what halves lose in compute (half the rows read the
weights twice), n: layers. Run as halves: max(C, m) + min(C, m) / 2n with C = c (1 + a): the first half's first layer
has nothing beside it. m unknown: between the best split, t (1 + a) / (2 + a), and nothing to hide, t (1 + a).
Assumed: a layer's compute and communication alternate evenly, halves are equal, and computing kernels lose nothing to
those that communicate (vLLM reserves them VLLM_DBO_COMM_SMS multiprocessors): an optimistic point.
Sources: vLLM 0.32 --enable-dbo, --dbo-decode-token-threshold 32 (steps of decodes alone), --dbo-prefill-token-threshold
512 (others), ubatch_utils.check_ubatch_thresholds; all data-parallel ranks must want it, and none have an empty second
half where the largest is cut (dp_utils). SGLang's --enable-two-batch-overlap names no least number: thresholds 2 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from stepscope.errors import BadInput
from stepscope.simulate.lockstep import DUMMY
from stepscope.simulate.step_time import checked_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.batch import BatchShape


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """A step run whole: seconds of compute and of communication."""

    compute_s: float
    comm_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least and the most that a step may take."""

    low_s: float
    high_s: float


def beside(parts: StepParts) -> Bounds:
    """Two independent parts on two streams (shared experts beside dispatch, copies beside compute).

    At best the shorter is hidden whole; at worst both want the same resource, and nothing is gained.
    """
    longer, shorter = max(parts.compute_s, parts.comm_s), min(parts.compute_s, parts.comm_s)
    return Bounds(low_s=longer, high_s=longer + shorter)


@dataclass(frozen=True, slots=True, kw_only=True)
class DualBatch:
    """When a step is split and what that costs. `loss_fraction`: further compute of two halves (0.1: 10 %)."""

    decode_threshold: int = 32
    prefill_threshold: int = 512
    loss_fraction: float = 0.0
    num_layers: int | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.loss_fraction) and self.loss_fraction >= 0):
            raise BadInput(f"loss_fraction is {self.loss_fraction}: give 0 or more.")
        if self.num_layers is not None and self.num_layers < 1:
            raise BadInput(f"num_layers is {self.num_layers}: give 1 or more, or leave it out.")

    def splits(self, shapes: Sequence[BatchShape | None]) -> bool:
        """Whether a group's step is split: each rank's is large enough, and has tokens beyond half of the largest."""
        ran = [shape or DUMMY for shape in shapes]
        tokens = [shape.num_scheduled_tokens or 0 for shape in ran]
        return min(tokens) > max(tokens) // 2 and all(self._is_large(shape) for shape in ran)

    def time_s(self, parts: StepParts) -> float:
        """Of a step that is split."""
        compute = parts.compute_s * (1 + self.loss_fraction)
        fill = min(compute, parts.comm_s) / (2 * self.num_layers) if self.num_layers else 0.0
        return max(compute, parts.comm_s) + fill

    def bounds_s(self, total_s: float) -> Bounds:
        """Of a step that is split, where only its whole time is known."""
        grown = 1 + self.loss_fraction
        return Bounds(low_s=total_s * grown / (1 + grown), high_s=total_s * grown)

    def _is_large(self, shape: BatchShape) -> bool:
        tokens = shape.num_scheduled_tokens or 0
        is_decode = shape.phase == "decode"
        return tokens >= max(self.decode_threshold if is_decode else self.prefill_threshold, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped:
    """A group's cost, or with one rank an engine's, whose large steps run as two half batches."""

    parts: Callable[[BatchShape], StepParts]
    dual: DualBatch

    def group_ticks(self, shapes: Sequence[BatchShape | None]) -> int:
        """Of the slowest rank."""
        is_split = self.dual.splits(shapes)
        return max(checked_ticks(self._time_s(shape or DUMMY, is_split=is_split), shape) for shape in shapes)

    def __call__(self, shape: BatchShape) -> float:
        """Seconds of one engine's step."""
        return self._time_s(shape, is_split=self.dual.splits((shape,)))

    def _time_s(self, shape: BatchShape, *, is_split: bool) -> float:
        parts = self.parts(shape)
        return self.dual.time_s(parts) if is_split else parts.compute_s + parts.comm_s
