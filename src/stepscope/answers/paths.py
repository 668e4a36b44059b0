"""Two captures -> what differs before any time is compared: configuration, recording, graph modes, kernels.

Each difference has an effect. `path`: the runs did not run the same path, so no verdict on their times. `overhead`:
they were not recorded alike, so host and idle time do not compare. `evidence`: a side's idle time cannot be claimed.
`caveat`: the verdict is given with this said. `note`: worth knowing, and no reason against a verdict.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from stepscope.answers.kernels import compare_path, infer_layers
from stepscope.messages import say
from stepscope.units import show_count, show_fraction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.answers.kernels import KernelChange, KernelPath
    from stepscope.answers.matching import Matching, Unmatched, Workload
    from stepscope.budget.placement import Account as Place
    from stepscope.evidence import Grade
    from stepscope.messages import Message
    from stepscope.steps.step import Step

Effect = Literal["path", "overhead", "evidence", "caveat", "note"]
FOREIGN_TIME = 0.05  # of a side's kernel time in kernels that the other side never ran: beyond, another path
FOREIGN_COUNT = 0.05  # of the launches that the other side has not: beyond, another path
_NAMED = 3  # kernels named in a sentence
_NAME_CHARS = 60

DIFFERENCE_MEANING: dict[str, str] = {
    "engine_version": "the engine's version in the capture's metadata",
    "device": "the device's name",
    "vendor": "CUDA or HIP, by the profiler's own metadata",
    "runtime_version": "versions of the device's runtime, driver and profiler",
    "world_size": "how many ranks the engine has",
    "parallel_layout": "the parallel axes of the recorded ranks",
    "ranks": "ranks that only one side recorded",
    "lane": "a device lane, or a CPU backend",
    "marker": "what marked the steps",
    "stacks": "Python stacks: they slow the host down",
    "shapes": "recorded shapes: they slow the host down",
    "memory": "recorded memory: it slows the host down",
    "coverage": "the gate: idle time cannot be claimed",
    "kv_len": "kv_len per step, to match by",
    "graph_mode": "how the steps of a phase were launched",
    "padding": "tokens added to reach a captured size",
    "layers": "layers, inferred from how often kernels repeat in a step",
    "families": "kernel families that one side alone ran",
    "kernels": "kernel names and launches of the same shape",
    "cold_steps": "steps that compile; they are set aside",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference. `a` and `b` are the values; `text` names both."""

    id: str
    effect: Effect
    a: str | None
    b: str | None
    text: Message
    grade: Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One rank of both captures with its matching, and each workload's kernels."""

    a: RankAccount
    b: RankAccount
    matching: Matching
    kernels: tuple[tuple[KernelChange, ...], ...]

    @property
    def groups(self) -> Iterator[tuple[Workload, tuple[KernelChange, ...]]]:
        """Workloads with their kernels."""
        return zip(self.matching.workloads, self.kernels, strict=True)


def find_differences(a: Account, b: Account, matched: Sequence[Matched]) -> tuple[Difference, ...]:
    """Everything that differs, in the order in which it is to be read; the same sentence is said once."""
    found = [*_configuration(a, b), *_recording(a, b, matched), *_graph_modes(matched), *_by_workload(matched)]
    return tuple({(d.id, str(d.text)): d for d in found}.values())


def _differ(id_: str, effect: Effect, a: object, b: object, grade: Grade = "recorded") -> Iterator[Difference]:
    """A difference of two values, if they differ; None: not recorded, which is no other path, only less known."""
    if a == b:
        return
    if effect == "path" and None in (a, b):
        effect = "caveat"
    first, second = (None if value is None else str(value) for value in (a, b))
    text = say(
        "{what}: A {a}, B {b}",
        what=say(DIFFERENCE_MEANING[id_].replace("{", "{{")),
        a=say("not recorded") if first is None else first,
        b=say("not recorded") if second is None else second,
    )
    yield Difference(id=id_, effect=effect, a=first, b=second, text=text, grade=grade)


def _configuration(a: Account, b: Account) -> Iterator[Difference]:
    yield from _differ("engine_version", "note", _recorded(a, "vllm_version"), _recorded(b, "vllm_version"))
    yield from _differ("device", "note", _devices(a), _devices(b))
    yield from _differ("vendor", "path", _vendor(a), _vendor(b))
    yield from _differ("runtime_version", "note", _versions(a), _versions(b))
    yield from _differ("world_size", "path", _world_size(a), _world_size(b))
    yield from _differ("ranks", "note", _ranks(a), _ranks(b))
    if _ranks(a) == _ranks(b):  # the axes are read from the ranks' names: one rank more shows one index more
        yield from _differ("parallel_layout", "path", _layout(a), _layout(b))
    yield from _differ("lane", "path", _lanes(a), _lanes(b), "derived")
    yield from _differ("marker", "note", _markers(a), _markers(b))


def _recorded(account: Account, *keys: str) -> str | None:
    found = {f"{r.store.origin.metadata[k]}" for r in account.ranks for k in keys if k in r.store.origin.metadata}
    return ", ".join(sorted(found)) or None


def _devices(account: Account) -> str | None:
    properties = [rank.store.origin.metadata.get("deviceProperties") for rank in account.ranks]
    lists = [p for p in properties if isinstance(p, list)]
    names = {str(d["name"]) for devices in lists for d in devices if isinstance(d, dict) and "name" in d}
    return ", ".join(sorted(names)) or None


def _vendor(account: Account) -> str | None:
    keys = {key for rank in account.ranks for key in rank.store.origin.metadata}
    found = [name for name, start in (("CUDA", "cuda_"), ("HIP", "hip_")) if any(k.startswith(start) for k in keys)]
    return ", ".join(found) or None


def _versions(account: Account) -> str | None:
    starts = ("cuda_", "hip_", "cupti_", "roctracer_")
    keys = sorted({k for rank in account.ranks for k in rank.store.origin.metadata if k.startswith(starts)})
    return ", ".join(f"{key} {_recorded(account, key)}" for key in keys) or None


def _world_size(account: Account) -> str | None:
    found = {str(r.store.origin.world_size) for r in account.ranks if r.store.origin.world_size is not None}
    return ", ".join(sorted(found)) or None


def _layout(account: Account) -> str | None:
    """Per axis, how many indices of it were recorded."""
    indices: dict[str, set[int]] = defaultdict(set)
    for rank in account.ranks:
        for axis, index in rank.store.origin.parallel.items():
            indices[axis].add(index)
    return ", ".join(f"{axis} {len(found)}" for axis, found in sorted(indices.items()) if len(found) > 1) or None


def _ranks(account: Account) -> str:
    return ", ".join("?" if rank.rank is None else str(rank.rank) for rank in account.ranks)


def _lanes(account: Account) -> str:
    return ", ".join(sorted({rank.table.windows.lane for rank in account.ranks}))


def _markers(account: Account) -> str | None:
    return ", ".join(sorted({s.boundary.source for rank in account.ranks for s in rank.table.counted})) or None


def _recording(a: Account, b: Account, matched: Sequence[Matched]) -> Iterator[Difference]:
    # on a CPU backend the profiler's cost is inside every operation; beside a device lane it is on the host alone
    effect: Effect = "overhead" if _lanes(a) == _lanes(b) == "device" else "evidence"
    stacks = [any(r.store.has_frames for r in account.ranks) for account in (a, b)]
    yield from _differ("stacks", effect, _on(stacks[0]), _on(stacks[1]), "derived")
    for id_, key in (("shapes", "record_shapes"), ("memory", "profile_memory")):
        options = [any(r.store.origin.metadata.get(key) for r in account.ranks) for account in (a, b)]
        yield from _differ(id_, effect, _on(options[0]), _on(options[1]))
    reasons = [_withheld(account) for account in (a, b)]
    for name, reason in zip(("A", "B"), reasons, strict=True):
        if reason is not None:
            text = say("{side}: idle time cannot be claimed: {reason}", side=name, reason=reason)
            held = [str(reason) if name == side else None for side in ("A", "B")]
            yield Difference(id="coverage", effect="evidence", a=held[0], b=held[1], text=text, grade="derived")
    if any(m.matching.workloads and not m.matching.has_kv for m in matched):
        text = say("kv_len is not recorded on both sides: steps are matched by requests and tokens alone")
        yield Difference(id="kv_len", effect="caveat", a=None, b=None, text=text, grade="inferred")
    cold = [sum(len(u.step_ids) for m in matched for u in _cold(m, side)) for side in ("a", "b")]
    yield from _differ("cold_steps", "caveat", cold[0], cold[1], "classified")


def _on(on: bool) -> str:  # noqa: FBT001  # the one value that it words
    return "on" if on else "off"


def _cold(matched: Matched, side: str) -> Iterator[Unmatched]:
    return (u for u in matched.matching.unmatched if u.side == side and u.is_cold)


def _withheld(account: Account) -> Message | None:
    if not account.ranks:
        return say("no worker was recorded")
    reasons = (r for rank in account.ranks for r in rank.budget.coverage.reasons if r.withholds)
    return next((reason.text for reason in reasons), None)


def _graph_modes(matched: Sequence[Matched]) -> Iterator[Difference]:
    """Per phase: the modes of all counted steps, then those of paired steps."""
    steps = [[s for m in matched for s in m.a.table.counted], [s for m in matched for s in m.b.table.counted]]
    for phase in ("prefill", "decode", "mixed"):
        sides = [[s for s in side if s.phase == phase and s.graph_mode] for side in steps]
        modes = [{s.graph_mode for s in side} for side in sides]
        if not all(sides) or modes[0] == modes[1]:
            continue
        a, b = (_modes(side) for side in sides)
        text = say("graph mode in {phase} steps: A {a}; B {b}", phase=phase, a=a, b=b)
        cliff = _cliff([*sides[0], *sides[1]])
        if cliff is not None:
            text = say("{text}; {cliff}", text=text, cliff=cliff)
        yield Difference(id="graph_mode", effect="path", a=a, b=b, text=text, grade="derived")
    for m in matched:
        for workload, _ in m.groups:
            modes = [{s.graph_mode for s in side} for side in _paired(m, workload)]
            if modes[0] != modes[1]:
                a, b = (", ".join(sorted(str(mode) for mode in side)) for side in modes)
                text = say("graph mode of {workload}: A {a}, B {b}", workload=workload.label, a=a, b=b)
                yield Difference(id="graph_mode", effect="path", a=a, b=b, text=text, grade="derived")


def _paired(matched: Matched, workload: Workload) -> tuple[list[Step], list[Step]]:
    a, b = matched.a.table.counted, matched.b.table.counted
    return [a[i] for i, _ in workload.pairs], [b[j] for _, j in workload.pairs]


def _modes(steps: Sequence[Step]) -> str:
    """Each mode with its number of steps and the sizes of its batches."""
    said = []
    for mode in sorted({str(s.graph_mode) for s in steps}):
        own = [s for s in steps if s.graph_mode == mode]
        sizes = [n for s in own if (n := s.boundary.shape.num_requests) is not None]
        spread = "" if not sizes else f" of {min(sizes)}" if min(sizes) == max(sizes) else f" of {_range(sizes)}"
        said.append(f"{mode} in {len(own)} steps{spread}{' requests' if sizes else ''}")
    return ", ".join(said)


def _range(sizes: Sequence[int]) -> str:
    return f"{min(sizes)} to {max(sizes)}"


def _cliff(steps: Sequence[Step]) -> Message | None:
    """Where every batch up to a size replays a full graph, and none above it does."""
    sizes = [(s.boundary.shape.num_requests, s.graph_mode == "full") for s in steps]
    full = [n for n, is_full in sizes if n is not None and is_full]
    rest = [n for n, is_full in sizes if n is not None and not is_full]
    if not full or not rest or max(full) >= min(rest) or len(full) + len(rest) != len(sizes):
        return None
    return say(
        "no batch above {largest} requests replays a full graph: it has left the sizes that were captured, and an "
        "empty queue does not show that",
        largest=max(full),
    )


def _by_workload(matched: Sequence[Matched]) -> Iterator[Difference]:
    kernels: list[tuple[float, Difference]] = []
    for m in matched:
        for workload, changes in m.groups:
            padded = [{s.boundary.num_padded_tokens for s in side} for side in _paired(m, workload)]
            if padded[0] != padded[1]:
                a, b = (", ".join(sorted(show_count(n) for n in side)) for side in padded)
                text = say("padding of {workload}: A {a} tokens, B {b}", workload=workload.label, a=a, b=b)
                yield Difference(id="padding", effect="path", a=a, b=b, text=text, grade="recorded")
            if m.a.table.windows.lane == m.b.table.windows.lane == "device":
                layers = infer_layers(changes, len(workload.pairs))
                if None not in layers:
                    yield from _differ("layers", "path", *layers, grade="inferred")
            path = compare_path(changes)
            a, b = _families(path.families_a), _families(path.families_b)
            yield from _differ("families", "note", a or "none", b or "none", "classified")
            kernels += [(_apart(path), d) for d in _kernel_path(workload, changes, path)]
    yield from _worst(kernels)


def _apart(path: KernelPath) -> float:
    return max(path.foreign_time_fraction, path.foreign_count_fraction)


def _worst(kernels: Sequence[tuple[float, Difference]]) -> Iterator[Difference]:
    """Of the workloads' kernel differences the largest of each effect, and how many others there are."""
    for effect in ("path", "note"):
        own = [(apart, d) for apart, d in kernels if d.effect == effect]
        if not own:
            continue
        _, worst = max(own, key=lambda item: item[0])
        more = say("{text}; kernels differ in {n} other workloads too", text=worst.text, n=len(own) - 1)
        yield worst if len(own) == 1 else replace(worst, text=more)


def _kernel_path(workload: Workload, changes: tuple[KernelChange, ...], path: KernelPath) -> Iterator[Difference]:
    n = len(workload.pairs)
    foreign = [c for c in changes if not c.count_a or not c.count_b or c.count_a != c.count_b]
    if not foreign:
        return
    is_path = path.foreign_time_fraction > FOREIGN_TIME or path.foreign_count_fraction > FOREIGN_COUNT
    counts = [sum(c.count_a for c in changes) / n, sum(c.count_b for c in changes) / n]
    text = say(
        "kernels of {workload}: A {a} a step, B {b}; up to {time} of a side's kernel time is in kernels that the other "
        "did not run: {names}",
        workload=workload.label,
        a=_per_step(counts[0]),
        b=_per_step(counts[1]),
        time=show_fraction(path.foreign_time_fraction),
        names=_named(foreign),
    )
    effect: Effect = "path" if is_path else "note"
    a, b = (_per_step(count) for count in counts)
    yield Difference(id="kernels", effect=effect, a=a, b=b, text=text, grade="recorded")


def _families(families: Iterable[Place]) -> str:
    return ", ".join(f"{category}/{family}" for category, family in families)


def _per_step(count: float) -> str:
    return show_count(int(count)) if count == int(count) else f"{count:,.1f}"


def _named(changes: Sequence[KernelChange]) -> str:
    """The largest ones by time, shortened, each with what happened to it."""
    largest = sorted(changes, key=lambda c: (-max(c.a_ns, c.b_ns), c.name))
    said = [f"{c.account[1]} `{c.name[:_NAME_CHARS]}` {_happened(c)}" for c in largest[:_NAMED]]
    more = len(largest) - len(said)
    return ", ".join(said) + (f", and {more} more" if more else "")


def _happened(change: KernelChange) -> str:
    if not change.count_a or not change.count_b:
        return "in B only" if not change.count_a else "in A only"
    return f"{change.count_a} and {change.count_b} times"
