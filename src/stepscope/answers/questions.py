"""The seven questions, in the founding notes' reading order: each answered, answered in part, or refused.

A refusal names what is missing and the setting that would record it. Numbers in an answer carry their unit; the grade
is the weakest of what the answer rests on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from stepscope.answers import recipes
from stepscope.answers.branches import branch_sentences
from stepscope.answers.counters import ask_counters
from stepscope.answers.overlap import overlap_sentences
from stepscope.answers.prefill import chunk_sizes, prefix_hits
from stepscope.answers.scaling_question import ask_scaling
from stepscope.answers.skew import skew_sentences
from stepscope.budget.reason import STACKS
from stepscope.evidence import Refusal
from stepscope.messages import Message, say
from stepscope.steps.ranks import ArrivalSkew
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.evidence import Grade
    from stepscope.steps.step import Step

Status = Literal["answered", "partial", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question's answer: what can be said, sentence by sentence, and what cannot."""

    id: str
    title: str
    status: Status
    sentences: tuple[Message, ...]
    grade: Grade
    refusals: tuple[Refusal, ...] = ()


def answer_questions(account: Account, kv_saved: Sequence[Message] | None = None) -> tuple[Answer, ...]:
    """All seven, in reading order. `kv_saved`: what a model says that compressed or sparse reading saved."""
    answers = tuple(_ask(question, account) for question in QUESTIONS)
    if not kv_saved:
        return answers
    return tuple(_with_savings(answer, kv_saved) if answer.id == "kv_path" else answer for answer in answers)


def _with_savings(answer: Answer, kv_saved: Sequence[Message]) -> Answer:
    """The answer on the KV path with the model's part of it in place of that refusal."""
    left = tuple(refusal for refusal in answer.refusals if refusal.record_with is not recipes.MODEL)
    return replace(
        answer,
        sentences=(*answer.sentences, *kv_saved),
        refusals=left,
        status="partial" if left else "answered",
        grade="simulated" if answer.grade == "simulated" else "modelled",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, what it needs, and how it is answered."""

    id: str
    title: str
    needs: str
    ask: Callable[[Account], tuple[list[Message], Grade, list[Refusal]]]


def _ask(question: Question, account: Account) -> Answer:
    said, grade, refusals = question.ask(account)
    status: Status = "refused" if not said else "partial" if refusals else "answered"
    return Answer(
        id=question.id,
        title=question.title,
        status=status,
        sentences=tuple(said),
        grade="refused" if not said else "simulated" if account.is_simulated else grade,
        refusals=tuple(refusals),
    )


def _refuse(missing: Message | str, record_with: Message) -> Refusal:
    return Refusal(missing=say(missing) if isinstance(missing, str) else missing, record_with=record_with)


def _supply(account: Account) -> tuple[list[Message], Grade, list[Refusal]]:
    said, refusals = [], []
    for rank in account.ranks:
        if not rank.budget.coverage.idle_claimable:
            reason = next(r for r in rank.budget.coverage.reasons if r.withholds)
            refusals.append(
                _refuse(
                    say("{rank}: a device lane that is whole: {reason}", rank=_of(rank), reason=reason.text),
                    reason.record_with,
                )
            )
            continue
        waited = rank.budget.total.exclusive_ns["supply"]
        if waited is None:
            refusals.append(_refuse(say("{rank}: waits of the worker (no Python stacks)", rank=_of(rank)), STACKS))
            continue
        said.append(_waited(rank, waited))
        if rank.supply_causes:
            causes = ", ".join(f"{name} {show_ns(ns)}" for name, ns in rank.supply_causes.items())
            said.append(say("Meanwhile the engine: {causes}.", causes=causes))
    if said and not account.is_simulated and any(rank.store.has_frames for rank in account.ranks):
        said.append(say("Stacks slow the host down, so host and supply time are upper bounds."))
    refusals.append(
        _refuse(
            "whether requests were queued while the workers waited (queue length is a time average, no batch size)",
            recipes.QUEUE,
        )
    )
    return said, "classified", refusals


def _waited(rank: RankAccount, waited_ns: int) -> Message:
    share = _share(waited_ns, rank)
    budgets = [b for b in rank.budget.windows if b.exclusive_ns["supply"]]
    if not budgets:
        return say(
            "{rank}: {waited} ({share}) of the span is wait for the next work.",
            rank=_of(rank),
            waited=show_ns(waited_ns),
            share=share,
        )
    worst = max(budgets, key=lambda b: b.exclusive_ns["supply"] or 0)
    return say(
        "{rank}: {waited} ({share}) of the span is wait for the next work; the longest, {longest}, stands before step "
        "{step}.",
        rank=_of(rank),
        waited=show_ns(waited_ns),
        share=share,
        longest=show_ns(worst.exclusive_ns["supply"]),
        step=worst.step_id,
    )


def _effective_prefill(account: Account) -> tuple[list[Message], Grade, list[Refusal]]:
    steps = _first_rank_steps(account)
    with_prefill = [s for s in steps if s.boundary.shape.prefill.query_sum]
    if not any(s.boundary.shape.prefill.query_sum is not None for s in steps):
        return [], "refused", [_refuse("tokens computed per step", recipes.DETAILED)]
    computed = sum(s.boundary.shape.prefill.query_sum or 0 for s in steps)
    said = [
        say(
            "{tokens} prefill tokens were computed, in {some} of {all} steps.",
            tokens=show_count(computed),
            some=len(with_prefill),
            all=len(steps),
        )
    ]
    hits = prefix_hits(steps)
    if hits is None:
        refusals = [_refuse("prompt lengths and prefix hits (sk - sq mixes hits with earlier chunks)", recipes.ROWS)]
        return said, "recorded", refusals
    said.append(
        say(
            "{tokens} more were found in the prefix cache, by {some} of {all} requests seen; for a request that began "
            "before the capture, only what is in it is counted.",
            tokens=show_count(hits.hit_tokens),
            some=hits.num_hit,
            all=hits.num_requests,
        )
    )
    return said, "recorded", []


def _chunk_shape(account: Account) -> tuple[list[Message], Grade, list[Refusal]]:
    steps = _first_rank_steps(account)
    sizes = chunk_sizes(steps)
    if sizes is None:
        return [], "refused", [_refuse("prefill tokens per step", recipes.DETAILED)]
    said = [sizes.sentence]
    mixed = sum(s.phase == "mixed" for s in steps)
    if mixed:
        said.append(say("{count} steps mix prefill with decode.", count=mixed))
    modes = sorted({s.graph_mode for s in steps if s.graph_mode})
    has_device = any(rank.table.windows.lane == "device" for rank in account.ranks)
    refusals = []
    if modes:
        counts = ", ".join(f"{sum(s.graph_mode == m for s in steps)} {m}" for m in modes)
        said.append(say("Graph mode: {counts}.", counts=counts))
    elif has_device:
        refusals.append(_refuse("graph mode", recipes.LAUNCHES))
    padded = [s.boundary.num_padded_tokens for s in steps if s.boundary.num_padded_tokens is not None]
    if padded:
        said.append(say("Padding added {tokens} tokens.", tokens=show_count(sum(padded))))
    elif has_device and modes != ["eager"]:
        refusals.append(_refuse("padding to captured sizes", recipes.ROWS))
    return said, "recorded", refusals


def _kv_path(account: Account) -> tuple[list[Message], Grade, list[Refusal]]:
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
        said.append(
            say(
                "{rank}: the KV data path takes {total} ({share}): {families}.",
                rank=_of(rank),
                total=show_ns(total),
                share=_share(total, rank),
                families=listed,
            )
        )
        said += branch_sentences(rank, _of(rank))
    if said:
        said.append(
            say("Attention kernels read KV too and stand under compute; what fused kernels write is not seen apart.")
        )
    refusals = [_refuse("what compressed or sparse reading saved", recipes.MODEL)]
    if not said:
        refusals.insert(0, _refuse("a kernel of the KV data path: none is recognised here", STACKS))
    return said, "classified", refusals


def _communication(account: Account) -> tuple[list[Message], Grade, list[Refusal]]:
    said, refusals = [], []
    for rank in account.ranks:
        exposed, busy = rank.budget.total.exclusive_ns["comm"] or 0, rank.budget.total.busy_ns["comm"] or 0
        if not exposed and not busy:
            continue
        said.append(_exposed(rank, exposed, busy - exposed))
        said += overlap_sentences(rank, _of(rank))
    if not said and len(account.ranks) == 1:
        world = account.ranks[0].store.origin.world_size
        if world == 1:
            return [say("One rank, and no collective is recorded.")], "classified", []
    skew = account.skew
    if isinstance(skew, ArrivalSkew):
        said += skew_sentences(account)
    else:
        refusals.append(_refuse(say("arrival skew apart from transfer ({reason})", reason=skew), recipes.ALL_RANKS))
    return said, "classified", refusals


def _exposed(rank: RankAccount, exposed_ns: int, hidden_ns: int) -> Message:
    values = {"rank": _of(rank), "exposed": show_ns(exposed_ns), "share": _share(exposed_ns, rank)}
    if hidden_ns <= 0:
        return say("{rank}: exposed communication is {exposed} ({share}).", **values)
    return say(
        "{rank}: exposed communication is {exposed} ({share}), {hidden} more is hidden behind compute.",
        hidden=show_ns(hidden_ns),
        **values,
    )


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
        ask=ask_scaling,
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
    Question(id="counters", title="What bounds each kernel?", needs="hardware counters", ask=ask_counters),
)


def _of(rank: RankAccount) -> Message:
    return say("Rank ?") if rank.rank is None else say("Rank {rank}", rank=rank.rank)


def _share(ns: int, rank: RankAccount) -> Message:
    if not rank.budget.coverage.idle_claimable or not rank.budget.total.window_ns:
        return say("share withheld")
    return say("{share}", share=show_fraction(ns / rank.budget.total.window_ns))


def _first_rank_steps(account: Account) -> tuple[Step, ...]:
    """Ranks of one engine run the same steps; the first one that has steps speaks for all."""
    return next((rank.table.counted for rank in account.ranks if rank.table.counted), ())
