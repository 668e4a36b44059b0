"""Two captures -> what caused the change: the families whose time per matched step changed beyond noise, largest first.

d_f = b_f - r a_f for each pair of matched steps: family f's time in B less its time in A, after the ratio r that most
families share (a clock, a busy machine) is taken off. A family stands out where all of these hold, and none is tuned:
its median d_f differs from zero at 5 % over all families tested together (exact binomial interval, Bonferroni); its
ratio lies beyond three robust standard deviations of the families' ratios; the window's d, which is the sum of theirs,
differs from zero in the same direction; and d_f is larger than half the width of the window's 95 % interval, so that it
is not lost in how steps of one shape differ anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.host_functions import find_functions, measure_functions, split_by_code
from stepscope.answers.noise import estimate
from stepscope.budget.breakdown import WITHHELD
from stepscope.intervals import overlaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import RankAccount
    from stepscope.answers.host_functions import Functions
    from stepscope.answers.kernels import KernelChange
    from stepscope.answers.noise import Estimate
    from stepscope.answers.paths import Matched
    from stepscope.budget.placement import Account
    from stepscope.intervals import Int64, Spans

MISSED = 20  # one in so many, over all families together
DEVIATIONS = 3.0
_MAD = 1.4826  # of a normal distribution, standard deviations per median absolute deviation
_NOTABLE = 0.01  # of a window: smaller families say little of the common ratio
_LEAST_FAMILIES = 3  # with fewer there is no common ratio
_MOST = 0.5  # of a change: less of it does not tell where it is
_WAITS = ("supply", "comm")  # in which function a thread waits is no cause
_DEVICE = ("compute", "kv", "comm", "unmatched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The operation or kernel that changed most inside a family: total per step, and how often a step runs it."""

    name: str
    a_ns: int
    b_ns: int
    count_a: float
    count_b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A family of one rank whose time per matched step stands out. Medians of a step in ns; `change`: d_f.

    `share`: of the window's own unexplained change. `function`: where the host's Python changed most inside.
    """

    rank: int | None
    phase: str
    account: Account
    a_ns: int
    b_ns: int
    change: Estimate
    share: float
    function: str | None
    work: Work | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The matched steps of one rank and phase: the common ratio, how far the window moved, and what stands out.

    `window`: of the window's d. `least_ns`: a smaller change is not told from noise; None: too few pairs for a bound
    over all families.
    """

    rank: int | None
    phase: str
    num_pairs: int
    ratio: float
    window: Estimate
    least_ns: int | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """One rank of one capture: its parts by code, and each one's ns in each counted step.

    `functions` has one element once they were asked for: they take as long to find as all the rest.
    """

    rank: RankAccount
    parts: dict[Account, Spans]
    times: dict[Account, Int64]
    windows: Int64
    functions: list[Functions]

    def functions_in(self, account: Account) -> dict[str, Int64]:
        """Each function's own ns in each counted step, within one account."""
        if account not in self.parts:
            return {}
        if not self.functions:
            self.functions.append(find_functions(self.rank))
        return measure_functions(self.rank, self.functions[0], self.parts[account])


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The matched steps of one phase; `times`: of each family, in A and in B, pair by pair."""

    phase: str
    places: tuple[Int64, Int64]
    kernels: Sequence[KernelChange]
    times: dict[Account, tuple[Int64, Int64]]
    windows: tuple[Int64, Int64]


@dataclass(frozen=True, slots=True)
class _Common:
    """A ratio that several families share, and the robust standard deviation of its logarithm; None: not known."""

    ratio: float
    deviation: float | None


def find_changes(matched: Matched, *, with_host: bool = True) -> tuple[Group, ...]:
    """What stands out on one rank, phase by phase. `with_host` false: host and idle times do not compare."""
    a, b = _side(matched.a), _side(matched.b)
    claimable = all(side.rank.budget.coverage.idle_claimable for side in (a, b))
    left_out = ("unknown",) if claimable and with_host else ("unknown", *WITHHELD)
    phases: dict[str, tuple[list[tuple[int, int]], list[KernelChange]]] = {}
    for workload, kernels in matched.groups:
        pairs, changes = phases.setdefault(workload.phase, ([], []))
        pairs.extend(workload.pairs)
        changes.extend(kernels)
    groups = []
    for phase, (pairs, changes) in phases.items():
        places = np.array(pairs, np.int64).T
        accounts = [account for account in sorted(a.times.keys() | b.times.keys()) if account[0] not in left_out]
        times = {account: (_at(a, account, places[0]), _at(b, account, places[1])) for account in accounts}
        windows = (a.windows[places[0]], b.windows[places[1]])
        groups.append(_group(a, b, _Pairs(phase, (places[0], places[1]), changes, times, windows)))
    return tuple(groups)


def _side(rank: RankAccount) -> _Side:
    parts = split_by_code(rank)
    windows = [step.window or (0, 0) for step in rank.table.counted]
    starts, ends = (np.array([window[i] for window in windows], np.int64) for i in (0, 1))
    times = {account: overlaps(part, starts, ends) for account, part in parts.items()}
    return _Side(rank, parts, times, ends - starts, [])


def _at(side: _Side, account: Account, places: Int64) -> Int64:
    return side.times[account][places] if account in side.times else np.zeros(len(places), np.int64)


def _group(a: _Side, b: _Side, pairs: _Pairs) -> Group:
    common = _common_ratios(pairs, is_split=a.rank.table.windows.lane == "device")
    rests = {
        account: _rest(*times, common.get(_clock(account), common["all"]).ratio)
        for account, times in pairs.times.items()
    }
    window = estimate(sum(rests.values(), np.zeros(len(pairs.windows[0]), np.int64)).tolist())
    one_in = MISSED * max(len(rests), 1)
    least = None
    if None not in (window.low_ns, window.high_ns) and estimate(pairs.windows[0].tolist(), one_in).low_ns is not None:
        least = ((window.high_ns or 0) - (window.low_ns or 0)) // 2
    found: list[tuple[Account, Estimate]] = []
    for account, rest in rests.items() if least is not None else ():
        change = estimate(rest.tolist(), one_in)
        own = common.get(_clock(account), common["all"])
        if _is_beyond(change, window, least or 0) and _is_apart(*pairs.times[account], own):
            found.append((account, change))
    found.sort(key=lambda item: (-abs(item[1].median_ns), item[0]))
    return Group(
        rank=a.rank.rank if b.rank.rank is None else b.rank.rank,
        phase=pairs.phase,
        num_pairs=len(pairs.windows[0]),
        ratio=common.get("device", common["all"]).ratio,
        window=window,
        least_ns=least,
        changes=tuple(_change(a, b, pairs, account, change, window) for account, change in found),
    )


def _clock(account: Account) -> str:
    if account[0] == "supply":
        return "none"  # a wait follows no clock
    return "device" if account[0] in _DEVICE else "host"


def _common_ratios(pairs: _Pairs, *, is_split: bool) -> dict[str, _Common]:
    """Of all families; beside a device lane of the device's and the host's apart, since they have two clocks."""
    logs: dict[str, list[float]] = {}
    for account, (a, b) in pairs.times.items():
        before, after = float(np.median(a)), float(np.median(b))
        if after > 0 and before > _NOTABLE * float(np.median(pairs.windows[0])):
            logs.setdefault(_clock(account) if is_split or account[0] == "supply" else "all", []).append(
                log(after / before)
            )
    found = {clock: _common(own) for clock, own in logs.items() if clock != "none"}
    return {"all": _Common(1.0, None), "none": _Common(1.0, None), **found}


def _common(logs: list[float]) -> _Common:
    if len(logs) < _LEAST_FAMILIES:
        return _Common(1.0, None)
    middle = float(np.median(logs))
    return _Common(exp(middle), _MAD * float(np.median(np.abs(np.array(logs) - middle))))


def _rest(a: Int64, b: Int64, ratio: float) -> Int64:
    """What is left of B pair by pair, r times A taken off."""
    return np.rint(b - ratio * a).astype(np.int64)


def _is_beyond(change: Estimate, window: Estimate, least_ns: int) -> bool:
    """Beyond noise, beyond what the window tells apart, and in the direction in which the window moved beyond noise."""
    signs = {_sign(change), _sign(window)}
    return len(signs) == 1 and 0 not in signs and abs(change.median_ns) > least_ns


def _sign(change: Estimate) -> int:
    """1 or -1 where the interval leaves out zero."""
    if change.low_ns is None or change.high_ns is None:
        return 0
    return int(change.low_ns > 0) - int(change.high_ns < 0)


def _is_apart(a: Int64, b: Int64, common: _Common) -> bool:
    """Whether a family's ratio lies outside those of the others."""
    before, after = float(np.median(a)), float(np.median(b))
    if common.deviation is None or not before or not after:
        return True
    return abs(log(after / before / common.ratio)) > DEVIATIONS * common.deviation


def _change(a: _Side, b: _Side, pairs: _Pairs, account: Account, change: Estimate, window: Estimate) -> Change:
    before, after = pairs.times[account]
    return Change(
        rank=a.rank.rank if b.rank.rank is None else b.rank.rank,
        phase=pairs.phase,
        account=account,
        a_ns=int(np.median(before)),
        b_ns=int(np.median(after)),
        change=change,
        share=change.median_ns / window.median_ns,
        function=None if account[0] in _WAITS else _function(a, b, pairs, account, change),
        work=_work(pairs, account, change),
    )


def _function(a: _Side, b: _Side, pairs: _Pairs, account: Account, change: Estimate) -> str | None:
    """The Python function whose own time inside the family changed most, if that is half of the change or more."""
    before, after = (side.functions_in(account) for side in (a, b))
    zero = np.zeros(max(len(a.windows), len(b.windows)), np.int64)
    moved = {
        name: float(
            np.median(after.get(name, zero)[pairs.places[1]]) - np.median(before.get(name, zero)[pairs.places[0]])
        )
        for name in before.keys() | after.keys()
    }
    largest = max(moved, key=lambda name: (abs(moved[name]), name), default=None)
    if largest is None or moved[largest] / change.median_ns < _MOST:
        return None
    return largest


def _work(pairs: _Pairs, account: Account, change: Estimate) -> Work | None:
    """The operation or kernel that changed most in the change's direction, if that is half of the change or more."""
    totals: dict[str, list[int]] = {}
    for kernel in pairs.kernels:
        if kernel.account == account:
            own = totals.setdefault(kernel.name, [0, 0, 0, 0])
            for i, value in enumerate((kernel.a_ns, kernel.b_ns, kernel.count_a, kernel.count_b)):
                own[i] += value
    along = {name: own for name, own in totals.items() if (own[1] - own[0]) * change.median_ns > 0}
    if not along:
        return None
    name = max(along, key=lambda each: (abs(along[each][1] - along[each][0]), each))
    n = len(pairs.windows[0])
    a_ns, b_ns, count_a, count_b = along[name]
    if abs(b_ns - a_ns) < _MOST * n * abs(change.median_ns):
        return None
    return Work(name=name, a_ns=a_ns // n, b_ns=b_ns // n, count_a=count_a / n, count_b=count_b / n)
