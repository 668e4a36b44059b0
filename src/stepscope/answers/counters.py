"""Question 7: what bounds each kernel, from hardware counters; per family, weighted by time.

Sums of mte2 x time over sums of compute x time, never a mean of quotients; kernels without a value are no zeros, their
share of the time is told with the reason. memory_bound says what a kernel does inside its own time: it stands beside
the family's exclusive time on the step's path and never replaces it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers import recipes
from stepscope.answers.pipes import CORES
from stepscope.budget.placement import NO_ACCOUNT, UNMATCHED
from stepscope.evidence import Refusal
from stepscope.messages import Message, say
from stepscope.store.counters import CODES, MISSING, RECORDED
from stepscope.units import show_fraction, show_ns

if TYPE_CHECKING:
    from stepscope.answers.account import Account as WholeAccount
    from stepscope.answers.account import RankAccount
    from stepscope.answers.pipes import Core
    from stepscope.budget.placement import Account
    from stepscope.evidence import Grade
    from stepscope.intervals import Int64
    from stepscope.store.counters import Codes, Counters, Float64

_SHOWN = 8  # families in the answer, the ones with the most time
_NAMES = tuple(MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreShare:
    """One family on one core. Times in ns; `memory_bound` is None where no kernel of it has a value.

    The times are disjoint and sum to the family's kernel time: moving data, computing, bound by the scalar pipe or by
    latency, not run on this core at all, and N/A.
    """

    core: str
    memory_bound: float | None
    memory_ns: int
    compute_ns: int
    scalar_ns: int
    latency_ns: int
    not_run_ns: int
    missing_ns: int
    reasons: dict[str, int]

    @property
    def ran_ns(self) -> int:
        """Time of kernels that ran on this core, as far as it is known."""
        return self.memory_ns + self.compute_ns + self.scalar_ns + self.latency_ns + self.missing_ns

    @property
    def missing_share(self) -> float:
        """The part of that time without a bound."""
        return self.missing_ns / self.ran_ns if self.ran_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyBounds:
    """One family of kernels: its summed kernel time, its exclusive time on the rank's span, its cores."""

    category: str
    family: str
    kernel_ns: int
    exclusive_ns: int
    num_kernels: int
    cores: tuple[CoreShare, ...]


def find_bounds(rank: RankAccount) -> tuple[FamilyBounds, ...]:
    """Families of a rank's kernels with counters, the one with the most exclusive time first."""
    counters = rank.store.counters
    if counters is None or not counters.columns or not len(counters):
        return ()
    placements = rank.budget.placements
    account = placements.account[counters.row]
    duration = rank.store.events.duration_ns[counters.row]
    shares = {core.name: _weigh(counters, core) for core in (CORES[c] for c in counters.cores if c in CORES)}
    found = []
    for label in np.unique(account).tolist():
        name: Account = UNMATCHED if label == NO_ACCOUNT else placements.accounts[label]
        own = account == label
        exclusive = rank.budget.partition.parts.get(name)
        found.append(
            FamilyBounds(
                category=name[0],
                family=name[1],
                kernel_ns=int(duration[own].sum()),
                exclusive_ns=exclusive.total_ns if exclusive is not None else 0,
                num_kernels=int(own.sum()),
                cores=tuple(_share(core, weighed, duration, own) for core, weighed in shares.items()),
            )
        )
    return tuple(sorted(found, key=lambda f: (-f.exclusive_ns, -f.kernel_ns, f.family)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """Per kernel on one core: ratios, and why there is no quotient (RECORDED: there is one)."""

    memory: Float64
    compute: Float64
    is_scalar: np.ndarray[tuple[int], np.dtype[np.bool_]]
    is_latency: np.ndarray[tuple[int], np.dtype[np.bool_]]
    missing: Codes


def _weigh(counters: Counters, core: Core) -> _Weighed:
    """`pipes.memory_bound` and `pipes.bound_of` for all kernels at once: the same rules in the same order."""
    memory = counters.column(core.name, core.memory)
    columns = [counters.column(core.name, name) for name in core.compute]
    missing = memory.missing.copy()
    for column in columns:
        missing = np.where(missing == RECORDED, column.missing, missing)
    compute = np.max([np.nan_to_num(column.value) for column in columns], axis=0)
    moved = np.nan_to_num(memory.value)
    is_scalar = np.zeros(len(counters), bool)
    if core.scalar is not None:
        scalar = np.nan_to_num(counters.column(core.name, core.scalar).value)
        is_scalar = (missing == RECORDED) & (scalar > np.maximum(moved, compute))
    with np.errstate(all="ignore"):
        quotient = moved / compute
    missing = np.where((missing == RECORDED) & (compute == 0), CODES["zero_denominator"], missing)
    missing = np.where((missing == RECORDED) & (moved == 0), CODES["rounded_to_zero"], missing)
    odd = (missing == RECORDED) & ~((quotient > 0) & np.isfinite(quotient))
    missing = np.where(odd, CODES["not_a_number"], missing).astype(np.int8)
    is_latency = (missing == RECORDED) & (np.maximum(moved, compute) < core.near_peak)
    return _Weighed(memory=moved, compute=compute, is_scalar=is_scalar, is_latency=is_latency, missing=missing)


def _share(core: str, weighed: _Weighed, duration: Int64, own: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> CoreShare:
    missing, ns = weighed.missing[own], duration[own]
    has = missing == RECORDED
    scalar = weighed.is_scalar[own]
    is_idle = missing == CODES["core_not_run"]
    lacks = ~has & ~is_idle & ~scalar
    latency = weighed.is_latency[own]
    told = has & ~scalar & ~latency
    bound = weighed.memory[own] > weighed.compute[own]
    above, below = float((weighed.memory[own] * ns)[has].sum()), float((weighed.compute[own] * ns)[has].sum())
    quotient = above / below if above > 0 and below > 0 else None
    reasons: Counter[str] = Counter()
    for code, value in zip(missing[lacks].tolist(), ns[lacks].tolist(), strict=True):
        reasons[_NAMES[code]] += value
    return CoreShare(
        core=core,
        memory_bound=quotient if quotient is not None and np.isfinite(quotient) else None,
        memory_ns=int(ns[told & bound].sum()),
        compute_ns=int(ns[told & ~bound].sum()),
        scalar_ns=int(ns[scalar].sum()),
        latency_ns=int(ns[latency].sum()),
        not_run_ns=int(ns[is_idle & ~scalar].sum()),
        missing_ns=int(ns[lacks].sum()),
        reasons=dict(sorted(reasons.items(), key=lambda item: -item[1])),
    )


# --- Sentences

_REASONS: dict[str, Message] = {
    "no_column": say("no such column was recorded"),
    "not_available": say("the recorder wrote N/A"),
    "not_available_na": say("the recorder wrote NA"),
    "empty": say("the cell is empty"),
    "no_record": say("no counter record of the kernel"),
    "not_a_number": say("no finite number was recorded"),
    "out_of_range": say("a value that cannot be was recorded"),
    "core_not_run": say("the core did not run"),
    "zero_denominator": say("the compute pipes counted no cycle"),
    "rounded_to_zero": say("mte2 was recorded as 0"),
}


def ask_counters(account: WholeAccount) -> tuple[list[Message], Grade, list[Refusal]]:
    """Question 7 over all ranks; a rank without counters is refused by name where another one has some."""
    said: list[Message] = []
    refusals: list[Refusal] = []
    for rank in account.ranks:
        of = say("Rank ?") if rank.rank is None else say("Rank {rank}", rank=rank.rank)
        families = find_bounds(rank)
        if _has_values(families):
            said += _rank_sentences(rank, families, of)
        refusals += _refusals(rank, families, of)
    if not account.ranks or all(rank.store.counters is None for rank in account.ranks):
        refusals = [Refusal(missing=say("hardware counters per kernel (N/A, not zero)"), record_with=recipes.COUNTERS)]
    if said:
        said.append(
            say(
                "memory_bound tells what a kernel does inside its own time; what the step waits for is its critical "
                "path, which the budget gives."
            )
        )
    return said, "derived", refusals


def _has_values(families: tuple[FamilyBounds, ...]) -> bool:
    return any(c.ran_ns > c.missing_ns for family in families for c in family.cores)


def _rank_sentences(rank: RankAccount, families: tuple[FamilyBounds, ...], of: Message) -> list[Message]:
    counters = rank.store.counters
    assert counters is not None
    said = [
        say(
            "{rank}: counters of {kernels} kernels ({setting}), weighted by time.",
            rank=of,
            kernels=len(counters),
            setting=counters.setting or say("set not recorded"),
        )
    ]
    for family in families[:_SHOWN]:
        on_path = say(
            "{family} has {exclusive} of {window} on the path",
            family=family.family,
            exclusive=show_ns(family.exclusive_ns),
            window=show_ns(rank.budget.total.window_ns),
        )
        if not _has_values((family,)):
            reasons = [reason for core in family.cores for reason in core.reasons] or ["core_not_run"]
            said.append(say("{family}; memory_bound N/A ({reason}).", family=on_path, reason=_REASONS[reasons[0]]))
            continue
        said += [_core_sentence(on_path, core) for core in family.cores if core.ran_ns]
    return said


def _core_sentence(on_path: Message, core: CoreShare) -> Message:
    values = {
        "family": on_path,
        "core": core.core,
        "value": "N/A" if core.memory_bound is None else f"{core.memory_bound:.2f}",
        "memory": show_fraction(core.memory_ns / core.ran_ns),
        "scalar": show_fraction(core.scalar_ns / core.ran_ns),
        "missing": show_fraction(core.missing_share),
    }
    if core.core == "SM":
        return say(
            "{family}; {core} memory to compute throughput {value}: memory-bound for {memory}, latency-bound for "
            "{latency}, N/A for {missing} of its time.",
            latency=show_fraction(core.latency_ns / core.ran_ns),
            **values,
        )
    if not core.reasons:
        return say(
            "{family}; {core} memory_bound {value}: memory-bound for {memory}, scalar-bound for {scalar}, N/A for "
            "{missing} of its time.",
            **values,
        )
    return say(
        "{family}; {core} memory_bound {value}: memory-bound for {memory}, scalar-bound for {scalar}, N/A for "
        "{missing} of its time ({reason}).",
        reason=_REASONS[next(iter(core.reasons))],
        **values,
    )


def _refusals(rank: RankAccount, families: tuple[FamilyBounds, ...], of: Message) -> list[Refusal]:
    counters = rank.store.counters
    if counters is None:
        missing = say("{rank}: hardware counters per kernel (N/A, not zero)", rank=of)
        return [Refusal(missing=missing, record_with=recipes.COUNTERS)]
    record = say("{setting}", setting=counters.record_with)
    if not _has_values(families):
        missing = say(
            "{rank}: what bounds its kernels: recorded with {setting}, which gives no such ratio (N/A, not zero)",
            rank=of,
            setting=counters.setting or say("no counter set"),
        )
        return [Refusal(missing=missing, record_with=record)]
    absent = [
        f"{core.name} {name}"
        for core in (CORES[c] for c in counters.cores if c in CORES)
        for name in (core.memory, *core.compute)
        if (counters.column(core.name, name).missing == CODES["no_column"]).all()
    ]
    if not absent:
        return []
    missing = say("{rank}: {columns}: no such column (N/A, not zero)", rank=of, columns=", ".join(absent))
    return [Refusal(missing=missing, record_with=record)]
