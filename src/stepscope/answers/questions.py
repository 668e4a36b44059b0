"""The seven questions, in the founding notes' reading order: each answered, answered in part, or refused.

A refusal names what is missing and the setting that would record it. Numbers in an answer carry their unit; the grade
is the weakest of what the answer rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.answers import recipes
from stepscope.answers.prefill import chunk_sizes, prefix_hits
from stepscope.steps.ranks import ArrivalSkew
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.answers.account import Account, RankAccount
    from stepscope.evidence import Grade, Refusal
    from stepscope.steps.step import Step

from stepscope.evidence import Refusal

Status = Literal["answered", "partial", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question's answer: what can be said, and what cannot."""

    id: str
    title: str
    status: Status
    answer: str
    grade: Grade
    refusals: tuple[Refusal, ...] = ()


def answer_questions(account: Account) -> tuple[Answer, ...]:
    """All seven, in reading order."""
    return tuple(_ask(question, account) for question in QUESTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, what it needs, and how it is answered."""

    id: str
    title: str
    needs: str
    ask: Callable[[Account], tuple[list[str], Grade, list[Refusal]]]


def _ask(question: Question, account: Account) -> Answer:
    said, grade, refusals = question.ask(account)
    status: Status = "refused" if not said else "partial" if refusals else "answered"
    return Answer(
        id=question.id,
        title=question.title,
        status=status,
        answer=" ".join(said),
        grade=grade if said else "refused",
        refusals=tuple(refusals),
    )


def _refuse(missing: str, record_with: str) -> Refusal:
    return Refusal(missing=missing, record_with=record_with)


def _supply(account: Account) -> tuple[list[str], Grade, list[Refusal]]:
    said, refusals = [], []
    for rank in account.ranks:
        if not rank.budget.coverage.idle_claimable:
            reason = next(r for r in rank.budget.coverage.reasons if r.withholds)
            refusals.append(_refuse(f"{_of(rank)}: a device lane that is whole: {reason.text}", reason.record_with))
            continue
        waited = rank.budget.total.exclusive_ns["supply"] or 0
        signal = next((s for s in rank.signals if s.layer == "supply"), None)
        if signal is None and not rank.store.has_frames:
            refusals.append(_refuse(f"{_of(rank)}: waits of the worker (no Python stacks)", recipes.STACKS))
            continue
        share = _share(waited, rank)
        said.append(f"{_of(rank)}: {show_ns(waited)} ({share}) of the span is wait for the next work{_longest(rank)}.")
        if rank.supply_causes:
            causes = ", ".join(f"{name} {show_ns(ns)}" for name, ns in rank.supply_causes.items())
            said.append(f"Meanwhile the engine: {causes}.")
    if said and any(rank.store.has_frames for rank in account.ranks):
        said.append("Stacks slow the host down, so host and supply time are upper bounds.")
    refusals.append(
        _refuse(
            "whether requests were queued while the workers waited (queue length is a time average, no batch size)",
            recipes.QUEUE,
        )
    )
    return said, "classified", refusals


def _longest(rank: RankAccount) -> str:
    budgets = [b for b in rank.budget.windows if b.exclusive_ns["supply"]]
    if not budgets:
        return ""
    worst = max(budgets, key=lambda b: b.exclusive_ns["supply"] or 0)
    return f"; the longest, {show_ns(worst.exclusive_ns['supply'])}, stands before step {worst.step_id}"


def _effective_prefill(account: Account) -> tuple[list[str], Grade, list[Refusal]]:
    steps = _first_rank_steps(account)
    with_prefill = [s for s in steps if s.boundary.shape.prefill.query_sum]
    if not any(s.boundary.shape.prefill.query_sum is not None for s in steps):
        return [], "refused", [_refuse("tokens computed per step", recipes.DETAILED)]
    computed = sum(s.boundary.shape.prefill.query_sum or 0 for s in steps)
    said = [f"{show_count(computed)} prefill tokens were computed, in {len(with_prefill)} of {len(steps)} steps."]
    hits = prefix_hits(steps)
    if hits is None:
        refusals = [_refuse("prompt lengths and prefix hits (sk - sq mixes hits with earlier chunks)", recipes.ROWS)]
        return said, "recorded", refusals
    said.append(
        f"{show_count(hits.hit_tokens)} more were found in the prefix cache, by {hits.num_hit} of "
        f"{hits.num_requests} requests seen; for a request that began before the capture, only what is in it "
        "is counted."
    )
    return said, "recorded", []


def _chunk_shape(account: Account) -> tuple[list[str], Grade, list[Refusal]]:
    steps = _first_rank_steps(account)
    sizes = chunk_sizes(steps)
    if sizes is None:
        return [], "refused", [_refuse("prefill tokens per step", recipes.DETAILED)]
    said = [sizes.sentence]
    mixed = sum(s.phase == "mixed" for s in steps)
    if mixed:
        said.append(f"{mixed} steps mix prefill with decode.")
    modes = sorted({s.graph_mode for s in steps if s.graph_mode})
    has_device = any(rank.table.windows.lane == "device" for rank in account.ranks)
    refusals = []
    if modes:
        said.append("Graph mode: " + ", ".join(f"{sum(s.graph_mode == m for s in steps)} {m}" for m in modes) + ".")
    elif has_device:
        refusals.append(_refuse("graph mode", recipes.LAUNCHES))
    padded = [s.boundary.num_padded_tokens for s in steps if s.boundary.num_padded_tokens is not None]
    if padded:
        said.append(f"Padding added {show_count(sum(padded))} tokens.")
    elif has_device and modes != ["eager"]:
        refusals.append(_refuse("padding to captured sizes", recipes.ROWS))
    return said, "recorded", refusals


def _scaling(account: Account) -> tuple[list[str], Grade, list[Refusal]]:
    said, refusals = [], []
    steps = _first_rank_steps(account)
    known = [s for s in steps if s.boundary.shape.num_scheduled_tokens and s.window]
    if known:
        counts = sorted(s.boundary.shape.num_scheduled_tokens or 0 for s in known)
        said.append(
            f"{len(known)} steps pair a window with scheduled tokens ({counts[0]} to {counts[-1]}); the steps table "
            "holds them, with attention and expert time per step."
        )
    else:
        refusals.append(_refuse("scheduled tokens per step", recipes.DETAILED))
    if not any(
        s.boundary.shape.decode.kv_sum is not None or s.boundary.shape.prefill.kv_sum is not None for s in steps
    ):
        refusals.append(_refuse("kv_len sums, to set attention time against", recipes.DETAILED))
    has_experts = any("experts" in {family for _, family in rank.budget.step_families} for rank in account.ranks)
    if has_experts:
        refusals.append(_refuse("rows per expert, to set expert time against", recipes.EXPERTS))
    refusals.append(
        _refuse("fits with intervals (they need many steps with spread)", "record 30 steps or more of each phase")
    )
    return said, "derived", refusals


def _kv_path(account: Account) -> tuple[list[str], Grade, list[Refusal]]:
    said = []
    for rank in account.ranks:
        families = {
            family: part.total_ns
            for (category, family), part in rank.budget.partition.parts.items()
            if category == "kv"
        }
        if not families:
            continue
        listed = ", ".join(f"{name} {show_ns(ns)}" for name, ns in sorted(families.items(), key=lambda x: -x[1]))
        total = sum(families.values())
        said.append(f"{_of(rank)}: the KV data path takes {show_ns(total)} ({_share(total, rank)}): {listed}.")
    if said:
        said.append(
            "Attention kernels read KV too and stand under compute; what fused kernels write is not seen apart."
        )
    refusals = [_refuse("what compressed or sparse reading saved", recipes.MODEL)]
    if not said:
        refusals.insert(0, _refuse("a kernel of the KV data path: none is recognised here", recipes.STACKS))
    return said, "classified", refusals


def _communication(account: Account) -> tuple[list[str], Grade, list[Refusal]]:
    said, refusals = [], []
    for rank in account.ranks:
        exposed, busy = rank.budget.total.exclusive_ns["comm"] or 0, rank.budget.total.busy_ns["comm"] or 0
        if not exposed and not busy:
            continue
        hidden = f", {show_ns(busy - exposed)} more is hidden behind compute" if busy > exposed else ""
        said.append(f"{_of(rank)}: exposed communication is {show_ns(exposed)} ({_share(exposed, rank)}){hidden}.")
    if not said and len(account.ranks) == 1:
        world = account.ranks[0].store.origin.world_size
        if world == 1:
            return ["One rank, and no collective is recorded."], "classified", []
    skew = account.skew
    if isinstance(skew, ArrivalSkew):
        said.append(_skew_sentence(skew))
    else:
        refusals.append(_refuse(f"arrival skew apart from transfer ({skew})", recipes.ALL_RANKS))
    return said, "classified", refusals


def _skew_sentence(skew: ArrivalSkew) -> str:
    clocks = f"ends agree within {show_ns(skew.residual_ns)}"
    if not skew.is_evidence:
        return (
            f"Over {skew.num_instances} matched collectives no arrival skew stands out: at most "
            f"{show_ns(skew.largest_skew_ns)}, {clocks}."
        )
    awaited = ", ".join(f"rank {rank} {show_ns(ns)}" for rank, ns in sorted(skew.awaited_ns.items()))
    return (
        f"Over {skew.num_instances} matched collectives ({clocks}) the others wait for: {awaited}; the largest "
        f"single wait, {show_ns(skew.largest_skew_ns)}, is for rank {skew.largest_late_rank}. Up to the last arrival a "
        "collective is waiting, not transfer."
    )


def _counters(account: Account) -> tuple[list[str], Grade, list[Refusal]]:
    del account  # a torch profile holds none
    return [], "refused", [_refuse("hardware counters per kernel (N/A, not zero)", recipes.COUNTERS)]


QUESTIONS: tuple[Question, ...] = (
    Question(
        id="supply",
        title="Is the worker starved while work is queued?",
        needs="worker waits; queue length",
        ask=_supply,
    ),
    Question(
        id="effective_prefill",
        title="How many prompt tokens were really computed?",
        needs="tokens per step; prefix hits per request",
        ask=_effective_prefill,
    ),
    Question(
        id="chunk_shape",
        title="What shape do the chunks have?",
        needs="prefill tokens per step; graph mode; padding",
        ask=_chunk_shape,
    ),
    Question(
        id="scaling",
        title="How does time follow tokens, kv_len and rows per expert?",
        needs="scheduled tokens; kv_len sums; expert counts; many steps",
        ask=_scaling,
    ),
    Question(
        id="kv_path",
        title="What does the KV data path cost, and what does it save?",
        needs="KV kernels; the model",
        ask=_kv_path,
    ),
    Question(
        id="communication",
        title="Who waits for whom in communication and sync?",
        needs="collectives of all ranks on one clock",
        ask=_communication,
    ),
    Question(id="counters", title="What bounds each kernel?", needs="hardware counters", ask=_counters),
)


def _of(rank: RankAccount) -> str:
    return "Rank ?" if rank.rank is None else f"Rank {rank.rank}"


def _share(ns: int, rank: RankAccount) -> str:
    if not rank.budget.coverage.idle_claimable or not rank.budget.total.window_ns:
        return "share withheld"
    return show_fraction(ns / rank.budget.total.window_ns)


def _first_rank_steps(account: Account) -> tuple[Step, ...]:
    """Ranks of one engine run the same steps; the first one that has steps speaks for all."""
    return next((rank.table.counted for rank in account.ranks if rank.table.counted), ())
