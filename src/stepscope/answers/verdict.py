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
_PARTS = {
    "kernel": say("kernel time"),
    "comm": say("exposed communication"),
    "idle": say("idle time"),
    "unknown": say("unknown"),
}
CLOCKS = say(
    "record clocks in both runs (nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv -lms "
    "100, rocm-smi --showclocks --showtemp, npu-smi info)"
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
            delta=_signed(_per_step(delta.delta_ns, len(workload.pairs))),
            n=len(workload.pairs),
        )
        return Conclusion(outcome="no bound", judged=judged, shares={}, sentences=(text, *hints))
    if not delta.beyond_noise:
        text = say("{name}: no difference beyond noise ({bound}).", name=name, bound=_bound(delta))
        return Conclusion(outcome="within noise", judged=judged, shares={}, sentences=(text, *_tail(delta), *hints))
    shares = _shares(delta, parts) if judged == "wall" else {}
    return Conclusion(
        outcome="slower" if delta.pairs.median_ns > 0 else "faster",
        judged=judged,
        shares=shares,
        sentences=(_change(name, delta, judged, shares, families), *hints),
    )


def _is_refused(differences: Iterable[Difference]) -> bool:
    return any(d.effect in ("path", "evidence") for d in differences)


def _signed(ns: int) -> str:
    return f"+{show_ns(ns)}" if ns > 0 else show_ns(ns)


def _bound(delta: Delta) -> Message:
    pairs = delta.pairs
    if pairs.low_ns is None or pairs.high_ns is None:
        return say("equal to the ns over {n} pairs", n=pairs.num_values)
    return say(
        "median of {n} pairs {median}, 95 % interval {low} to {high}",
        n=pairs.num_values,
        median=_signed(pairs.median_ns),
        low=_signed(pairs.low_ns),
        high=_signed(pairs.high_ns),
    )


def _shares(wall: Delta, parts: Mapping[str, Delta | None]) -> dict[str, float]:
    """Each part of the wall delta; none where its sum and its median point in different directions."""
    if wall.delta_ns * wall.pairs.median_ns <= 0:
        return {}
    return {name: part.delta_ns / wall.delta_ns for name, part in parts.items() if part is not None}


def _change(
    name: Message, delta: Delta, judged: str, shares: Mapping[str, float], families: Mapping[Place, Delta]
) -> Message:
    """Beyond noise: by how much, in which part, and the family that changed most in that direction."""
    n = delta.pairs.num_values
    text = say(
        "{name}: B takes {percent} {direction} {what}, {delta} a step ({bound}).",
        name=name,
        percent=show_fraction(abs(delta.delta_ns) / delta.a_ns if delta.a_ns else None),
        direction=say("more") if delta.delta_ns > 0 else say("less"),
        what=say("kernel time") if judged == "kernel" else say("wall time"),
        delta=_signed(_per_step(delta.delta_ns, n)),
        bound=_bound(delta),
    )
    if shares:
        for part, share in sorted(shares.items(), key=lambda item: -item[1]):
            if share:
                text = say("{text} {share} of it is {part}.", text=text, share=show_fraction(share), part=_PARTS[part])
    along = [(place, d) for place, d in families.items() if d.delta_ns * delta.delta_ns > 0]
    if judged == "kernel":
        along = [(place, d) for place, d in along if place[0] in ("compute", "kv", "unmatched")]
    if not along:
        return text
    place, largest = max(along, key=lambda item: abs(item[1].delta_ns))
    return say(
        "{text} The family that changed most: {category}/{family}, {delta} a step.",
        text=text,
        category=place[0],
        family=place[1],
        delta=_signed(_per_step(largest.delta_ns, n)),
    )


def _per_step(ns: int, n: int) -> int:
    """Cut towards zero, so that swapping the sides only flips the sign."""
    return ns // n if ns >= 0 else -(-ns // n)


def _tail(delta: Delta) -> Iterator[Message]:
    """Within noise at the median, and yet the sum says otherwise: a few pairs stand apart from the rest."""
    low, high, n = delta.pairs.low_ns, delta.pairs.high_ns, delta.pairs.num_values
    if low is not None and high is not None and not low * n <= delta.delta_ns <= high * n:
        yield say(
            "A few pairs stand apart: all pairs together differ by {total}, which their median does not show: a tail, "
            "not a shift. What caused it is not shown.",
            total=_signed(delta.delta_ns),
        )


def _hints(wall: Delta, kernels: Sequence[KernelChange]) -> Iterator[Message]:
    """All kernels by one ratio; the most that kernels on one side only can be worth."""
    uniform = find_uniform(kernels)
    if uniform is not None:
        yield say(
            "The {n} kernels that hold at least 90 % of the kernel time all take {ratio} times as long in B ({low} to "
            "{high}): one cause for all of them, such as clock, power or another card, not one kernel's code. To know "
            "it, {record}.",
            n=uniform.num_names,
            ratio=f"{uniform.ratio:.3f}",
            low=f"{uniform.smallest_ratio:.3f}",
            high=f"{uniform.largest_ratio:.3f}",
            record=CLOCKS,
        )
    replaced = sum(c.a_ns for c in kernels if not c.count_b)
    if replaced and wall.a_ns > replaced:
        share = replaced / wall.a_ns
        yield say(
            "Kernels that A alone ran take {share} of A's window at most: without them and at no cost in their place, "
            "a step would take {rest} of A's.",
            share=show_fraction(share),
            rest=show_fraction(1 - share),
        )


def find_verdict(differences: Sequence[Difference], conclusions: Sequence[Conclusion]) -> Verdict:
    """The verdict on the whole: refused, qualified or given."""
    stops = [d for d in differences if d.effect in ("path", "evidence")]
    if stops:
        return _refusal(stops)
    if not conclusions:
        text = say("No verdict: no step of A has the phase and shape of a step of B.")
        return Verdict(status="refused", sentences=(text,), record_with=(MORE_STEPS,))
    caveats = [
        say("Said with this caveat: {text}.", text=d.text) for d in differences if d.effect in ("overhead", "caveat")
    ]
    outcomes = [c.outcome for c in conclusions]
    said = [sentence for c in conclusions for sentence in c.sentences]
    missing = outcomes.count("no bound")
    if missing == len(outcomes):
        text = say("No verdict: no workload has enough pairs for a noise bound.")
        return Verdict(status="refused", sentences=(text, *caveats), record_with=(MORE_STEPS,))
    beyond = outcomes.count("slower") + outcomes.count("faster")
    judged = len(outcomes) - missing
    what = say("kernel time") if conclusions[0].judged == "kernel" else say("wall time")
    head = say("No difference beyond noise in the {what} of {n} workloads.", what=what, n=judged)
    if beyond:
        head = say("{what} differs beyond noise in {beyond} of {n} workloads.", what=what, beyond=beyond, n=judged)
    notes = list(caveats)
    if missing:
        notes.append(say("{n} workloads have too few pairs for a noise bound, and nothing is said of them.", n=missing))
    shown = said if beyond else []
    return Verdict(
        status="qualified" if notes else "given",
        sentences=(head, *notes, *shown),
        record_with=(
            *((SAME_PROFILER,) if conclusions[0].judged == "kernel" else ()),
            *((MORE_STEPS,) if missing else ()),
        ),
    )


def _refusal(stops: Sequence[Difference]) -> Verdict:
    """Every difference that stands in the way, in words."""
    paths = [d for d in stops if d.effect == "path"]
    head = (
        say("No verdict: the two runs did not run the same path.")
        if paths
        else say("No verdict: what was recorded does not carry one.")
    )
    records = []
    if paths:
        records.append(SAME_PATH)
    if any(d.id == "coverage" for d in stops):
        records.append(WHOLE)
    if any(d.effect == "evidence" and d.id != "coverage" for d in stops):
        records.append(SAME_PROFILER)
    return Verdict(status="refused", sentences=(head, *(d.text for d in stops)), record_with=tuple(records))
