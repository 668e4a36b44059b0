"""Hypotheses: what a finding would gain if it were mended, at most, and how to find out; and the verdict afterwards.

A hypothesis names one change, the part of a step's time that it would take away, and an upper bound that follows from
the recording alone: all of that part (Amdahl), or what even work among ranks would save (maximum less mean). A bound is
no prediction: what takes its place is not in it. `judge` holds a comparison of two runs against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from stepscope.answers.findings import find_findings
from stepscope.answers.lateness import total_balance_ns
from stepscope.steps.ranks import ArrivalSkew
from stepscope.units import show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.answers.compare import Comparison
    from stepscope.answers.finding import Finding

Status = Literal["open", "confirmed", "no change", "worse", "beyond the bound", "refused"]
STATUS_MEANING: dict[Status, str] = {
    "open": "not tested",
    "confirmed": "steps became shorter beyond noise, by no more than the bound",
    "no change": "no difference beyond noise",
    "worse": "steps became longer beyond noise",
    "beyond the bound": "steps became shorter by more than this cause can give: something else changed too",
    "refused": "the two runs cannot be compared: the comparison says why",
}
_SLACK = 0.05  # of the bound: the bound is of another run than the one that is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What would take a finding away: the change, what makes the bound, and commands that would test it."""

    change: str
    basis: str
    retime: str | None
    record: str


# finding -> what to try; the commands' TRACE is the capture's
REMEDIES: dict[str, Remedy] = {
    "supply_share": Remedy(
        change="the worker never waited for its next work",
        basis="all of the wait for work",
        retime="--scale supply=0",
        record="raise the load or max_num_seqs, record with --log and --metrics beside, and compare",
    ),
    "host_share": Remedy(
        change="the host prepared and launched in no time (captured graphs, async scheduling, less Python)",
        basis="all device idle time under host work",
        retime="--host 0",
        record="record with graphs on (no --enforce-eager) or async scheduling, stacks off, and compare",
    ),
    "kv_share": Remedy(
        change="the KV data path cost nothing (another layout, fused writes)",
        basis="all exclusive time of the KV data path",
        retime="--scale kv=0",
        record="record with another attention backend or KV layout, and compare",
    ),
    "comm_share": Remedy(
        change="communication cost nothing (overlap, another parallel plan)",
        basis="all exposed communication, the wait for late ranks included",
        retime="--scale comm=0",
        record="record all ranks with another plan or with overlap, and compare",
    ),
    "idle_share": Remedy(
        change="the worker did nothing but steps",
        basis="all idle time with the worker elsewhere",
        retime=None,
        record="move that work off the worker's thread, record again, and compare",
    ),
    "sync_serialises": Remedy(
        change="the host launched what needs no result before it waits for one",
        basis="all device idle time that began in a blocking call",
        retime=None,
        record="take the read-back or the synchronisation out of the step (async scheduling), record, and compare",
    ),
    "compilation": Remedy(
        change="nothing were compiled while serving (warm-up of every size)",
        basis="all recorded compilation",
        retime="--scale family:compile=0",
        record="warm up every size first, record again, and compare",
    ),
    "late_rank": Remedy(
        change="every rank came to its collectives at the mean time (balanced work)",
        basis="the last arrival less the mean one, over all matched collectives",
        retime=None,
        record="balance experts or requests among the ranks (EPLB, router), record all ranks, and compare",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """If `change`, then a step's window shrinks, by no more than `bound_ns` / `num_steps`. `tests`: commands."""

    id: str
    finding: str
    rank: int | None
    change: str
    basis: str
    bound_ns: int
    span_ns: int
    num_steps: int
    tests: tuple[str, ...]

    @property
    def bound_fraction(self) -> float | None:
        """Of the span."""
        return self.bound_ns / self.span_ns if self.span_ns else None

    @property
    def bound_per_step_ns(self) -> int | None:
        """None where no step is marked."""
        return self.bound_ns // self.num_steps if self.num_steps else None

    @property
    def statement(self) -> str:
        """If, then, by at most."""
        share = "" if self.bound_fraction is None else f" ({show_fraction(self.bound_fraction)} of the span)"
        return f"If {self.change}, the run would be shorter by at most {show_ns(self.bound_ns)}{share}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on a hypothesis. Ns are of a step, B minus A: negative is shorter; None where nothing matched."""

    status: Status
    delta_per_step_ns: int | None
    bound_per_step_ns: int | None
    num_pairs: int
    reason: str


def find_hypotheses(account: Account) -> tuple[Hypothesis, ...]:
    """One for each finding that something could be done about, in the findings' order."""
    return tuple(_to_hypothesis(account, finding) for finding in find_findings(account) if finding.id in REMEDIES)


def _to_hypothesis(account: Account, finding: Finding) -> Hypothesis:
    remedy = REMEDIES[finding.id]
    rank = _rank_of(account, finding)
    bound = finding.value_ns
    if finding.id == "late_rank" and isinstance(account.skew, ArrivalSkew):
        bound = total_balance_ns(account.skew)
    tests = [remedy.record]
    if remedy.retime is not None:
        tests.insert(0, f"stepscope retime {account.source} {remedy.retime}")
    return Hypothesis(
        id=finding.id if finding.rank is None else f"{finding.id}@{finding.rank}",
        finding=finding.id,
        rank=finding.rank,
        change=remedy.change,
        basis=remedy.basis,
        bound_ns=bound,
        span_ns=rank.budget.total.window_ns,
        num_steps=len(rank.table.counted),
        tests=tuple(tests),
    )


def _rank_of(account: Account, finding: Finding) -> RankAccount:
    return next((rank for rank in account.ranks if rank.rank == finding.rank), account.ranks[0])


class Bounded(Protocol):
    """What a comparison is held against: a hypothesis of today, or one that a ledger keeps."""

    @property
    def rank(self) -> int | None:
        """The rank that it is of; None: all."""
        ...

    @property
    def bound_per_step_ns(self) -> int | None:
        """The most that a step can become shorter."""
        ...


def judge(hypothesis: Bounded, comparison: Comparison) -> Judged:
    """Hold the measured change against the bound, over all workloads that both runs have.

    A test changes something on purpose, so that the runs' paths may differ: that alone refuses nothing here.
    """
    bound = hypothesis.bound_per_step_ns
    mine = [c for c in comparison.workloads if hypothesis.rank is None or c.workload.rank in (None, hypothesis.rank)]
    told = [c.wall.beyond_noise for c in mine]
    pairs = sum(len(c.workload.pairs) for c in mine)
    if all(each is None for each in told):
        why = " ".join(str(sentence) for sentence in comparison.verdict.sentences)
        return Judged(status="refused", delta_per_step_ns=None, bound_per_step_ns=bound, num_pairs=pairs, reason=why)
    delta = sum(c.wall.delta_ns for c in mine) // pairs
    status = _status(delta, bound, told)
    differing = "; ".join(str(difference.text) for difference in comparison.differences)
    reason = STATUS_MEANING[status] + (f" (the runs differ: {differing})" if differing else "")
    return Judged(status=status, delta_per_step_ns=delta, bound_per_step_ns=bound, num_pairs=pairs, reason=reason)


def _status(delta: int, bound: int | None, beyond_noise: Sequence[bool | None]) -> Status:
    if not any(beyond_noise):
        return "no change"
    if delta >= 0:
        return "worse"
    if bound is not None and -delta > (1 + _SLACK) * bound:
        return "beyond the bound"
    return "confirmed"
