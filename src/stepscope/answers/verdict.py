"""A comparison's numbers -> what may be concluded from them: one conclusion a workload, one verdict on the whole.

`given`: both sides ran and were recorded alike. `qualified`: given with a caveat; where one side's host was slowed by
its profiler, only kernel time is judged. `refused`: the paths differ, the evidence does not carry it, or no workload
has enough pairs for a noise bound. A conclusion names no cause: it says which part of the time changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.answers.kernels import find_uniform
from stepscope.answers.noise import MIN_VALUES
from stepscope.messages import say
from stepscope.units import show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stepscope.answers.kernels import KernelChange
    from stepscope.answers.matching import Workload
    from stepscope.answers.noise import Delta
    from stepscope.answers.paths import Difference
    from stepscope.budget.placement import Account as Place
    from stepscope.messages import Message

VerdictStatus = Literal["given", "qualified", "refused"]
Outcome = Literal["slower", "faster", "within noise", "no bound", "not judged"]
_PART_NAMES = {
    "kernel": say("kernel time"),
    "comm": say("exposed communication"),
    "idle": say("idle time"),
    "unknown": say("unknown"),
}
_STANDS_APART = 5  # times the median absolute deviation
CLOCKS = say(
    "record clocks beside both runs (nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv -lms 100, "
    "rocm-smi --showclocks --showtemp, npu-smi info)"
)
MORE_STEPS = say("record at least {count} steps of each shape on both sides", count=MIN_VALUES)
SAME_PATH = say(
    "record both sides with the same graph mode, kernels, layout and load, or take the differences above as the answer"
)
SAME_PROFILER = say("record both sides with the same profiler options (stacks, shapes and memory off for timing)")
WHOLE = say("record the side that is withheld again, as `stepscope check` on it says")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """One workload's outcome; `shares`: what part of the wall delta lies where, only beyond noise."""

    outcome: Outcome
    judged: Literal["wall", "kernel"]
    shares: dict[str, float]
    sentences: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may be said of B against A."""

    status: VerdictStatus
    sentences: tuple[Message, ...]
    record_with: tuple[Message, ...]


def conclude(
    workload: Workload,
    wall: Delta,
    parts: Mapping[str, Delta | None],
    families: Mapping[Place, Delta],
    kernels: Sequence[KernelChange],
    differences: Sequence[Difference],
) -> Conclusion:
    """What one workload's numbers say. Where no verdict may be given, nothing but limits and what is uniform."""
    effects = {d.effect for d in differences}
    judged: Literal["wall", "kernel"] = "kernel" if "overhead" in effects else "wall"
    kernel = parts["kernel"]
    delta = kernel if judged == "kernel" and kernel is not None else wall
    hints = tuple(_hints(wall, kernels))
    if _is_refused(differences):
        return Conclusion(outcome="not judged", judged=judged, shares={}, sentences=hints)
    name = workload.label if workload.rank is None else say("rank {n}, {w}", n=workload.rank, w=workload.label)
    if delta.beyond_noise is None:
        text = say(
            "{name}: {delta} a step over {n} pairs, too few for a noise bound.",
            name=name,
            delta=_signed(delta.delta_ns // len(workload.pairs)),
            n=len(workload.pairs),
        )
        return Conclusion(outcome="no bound", judged=judged, shares={}, sentences=(text, *hints))
    if not delta.beyond_noise:
        text = say("{name}: no difference beyond noise ({bound}).", name=name, bound=_bound(delta))
        return Conclusion(
            outcome="within noise", judged=judged, shares={}, sentences=(text, *_tail(delta), *hints)
        )
    shares = _shares(delta, parts) if judged == "wall" else {}
    return Conclusion(
        outcome="slower" if delta.pairs.median_ns > 0 else "faster",
        judged=judged,
        shares=shares,
        sentences=(_change(name, delta, judged, shares, families), *hints),
    )
