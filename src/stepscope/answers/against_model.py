"""A run held against a model: efficiency, work per launch, what sparse reading and quantisation gain, in sentences.

It stands above both wings: an account on one side, a priced step on the other. Measured times are as graded as the
catalog's (classified, or simulated); everything of the model is modelled or extrapolated, and bounds are bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from stepscope.answers.efficiency import FamilyEfficiency, Unexplained, find_efficiencies, find_unexplained
from stepscope.answers.kv_saving import KvSaving, find_kv_savings, other_ways
from stepscope.answers.launch_work import LaunchWork, find_launch_work
from stepscope.answers.modelled_steps import ModelChoice, ModelledSteps, model_steps
from stepscope.answers.quantisation import QuantisationGain, find_quantisation
from stepscope.answers.recipes import DETAILED, EXPERTS
from stepscope.evidence import Refusal
from stepscope.messages import Message, say
from stepscope.models.architecture import GatedDeltaNet, GroupedQueryAttention
from stepscope.units import show_bytes, show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from stepscope.answers.account import Account, RankAccount
    from stepscope.answers.alternative import Alternative
    from stepscope.evidence import Grade

Row = TypeVar("Row", FamilyEfficiency, KvSaving, QuantisationGain)
MINOR = 0.5  # of a step's time: below, what products can gain is bounded by all the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstModel:
    """All ranks' rows in rank order, and what is said of them; `steps`: rank -> priced and left out."""

    choice: ModelChoice
    steps: dict[str, tuple[int, int]]
    measured_grade: Grade
    efficiencies: tuple[FamilyEfficiency, ...]
    unexplained: tuple[Unexplained, ...]
    launches: tuple[LaunchWork, ...]
    kv_savings: tuple[KvSaving, ...]
    quantisation: tuple[QuantisationGain, ...]
    sentences: tuple[Message, ...]
    kv_sentences: tuple[Message, ...]
    refusals: tuple[Refusal, ...]

    @property
    def messages(self) -> list[Message]:
        """Everything that is said."""
        refused = [m for refusal in self.refusals for m in (refusal.missing, refusal.record_with)]
        return [*self.sentences, *self.kv_sentences, *refused]


def compare_with_model(account: Account, choice: ModelChoice) -> AgainstModel:
    """Hold every rank against the model.

    Raises:
        BadInput: an impossible deployment, a context beyond the model's limit, or hardware without a needed figure.
    """
    pairs = [(rank, steps) for rank in account.ranks if (steps := model_steps(rank, choice)) is not None]
    priced = {id(rank): steps for rank, steps in pairs}
    efficiencies = tuple(row for rank, steps in pairs for row in find_efficiencies(rank, steps))
    savings = tuple(row for rank, steps in pairs for row in find_kv_savings(rank, steps, choice))
    gains = tuple(row for rank, steps in pairs for row in find_quantisation(rank, steps, choice))
    return AgainstModel(
        choice=choice,
        steps={
            str(rank.rank): (priced[id(rank)].num_steps if id(rank) in priced else 0, _num_left_out(rank, priced))
            for rank in account.ranks
        },
        measured_grade="simulated" if account.is_simulated else "classified",
        efficiencies=efficiencies,
        unexplained=tuple(row for rank, steps in pairs for row in find_unexplained(rank, steps)),
        launches=tuple(row for rank, steps in pairs for row in find_launch_work(rank, steps)),
        kv_savings=savings,
        quantisation=gains,
        sentences=(
            *_about(account, choice, pairs),
            *_of_families(choice, _firsts(efficiencies)),
            *_of_gains(_firsts(gains)),
        ),
        kv_sentences=tuple(_of_savings(choice, _firsts(savings), pairs)),
        refusals=tuple(_refusals(account, pairs)),
    )


def _firsts(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Rows of the first rank: ranks of one engine run the same steps, and the document has all."""
    return tuple(row for row in rows if row.rank == rows[0].rank)


def _num_left_out(rank: RankAccount, priced: dict[int, ModelledSteps]) -> int:
    return priced[id(rank)].num_left_out if id(rank) in priced else len(rank.table.counted)


def rank_name(rank: int | None) -> Message:
    """A rank in a sentence."""
    return say("Rank ?") if rank is None else say("Rank {rank}", rank=rank)


def _about(account: Account, choice: ModelChoice, pairs: list[tuple[RankAccount, ModelledSteps]]) -> list[Message]:
    """How many steps are priced, with what, and what the options and the capture do not agree on."""
    said = []
    if len(pairs) > 1:
        said.append(
            say(
                "Shown is {rank}; the JSON document holds all {count} ranks.",
                rank=rank_name(pairs[0][0].rank),
                count=len(pairs),
            )
        )
    for rank, steps in pairs[:1]:
        said.append(
            say(
                "{rank}: {priced} steps are priced, {left_out} are left out, their rows or sums are not known.",
                rank=rank_name(rank.rank),
                priced=show_count(steps.num_steps),
                left_out=show_count(steps.num_left_out),
            )
        )
        if steps.num_even:
            said.append(
                say(
                    "{rank}: of {count} steps only sums are known: even rows stand in for theirs.",
                    rank=rank_name(rank.rank),
                    count=show_count(steps.num_even),
                )
            )
    plan = choice.deployment.plan
    world = max([rank.store.origin.world_size or 0 for rank in account.ranks] or [0]) or len(account.ranks)
    if world != plan.world_size:
        said.append(
            say(
                "The capture is of {world} ranks, the model was split over tp {tp} x dp {dp}: state the run's own "
                "(--tp, --dp, --ep), or the bounds are of another run.",
                world=world,
                tp=plan.tp,
                dp=plan.dp,
            )
        )
    if any(not steps.has_links for _, steps in pairs):
        said.append(
            say(
                "{hardware} has no rate of its links: collectives are measured, and not priced.",
                hardware=choice.hardware.name,
            )
        )
    if choice.hardware.unchecked:
        said.append(
            say(
                "{hardware}: figures from general knowledge, not verified: {names}.",
                hardware=choice.hardware.name,
                names=", ".join(dict.fromkeys(choice.hardware.unchecked)),
            )
        )
    if choice.calibration is not None and choice.calibration.model != choice.architecture.name:
        said.append(
            say(
                "The calibration is of {fitted}, the model is {model}.",
                fitted=choice.calibration.model,
                model=choice.architecture.name,
            )
        )
    return said


def _of_families(choice: ModelChoice, rows: tuple[FamilyEfficiency, ...]) -> list[Message]:
    said, deployment = [], choice.deployment
    dtype = deployment.experts or deployment.weights or choice.architecture.checkpoint.experts
    if any((row.efficiency or 0) > 1 for row in rows):
        said.append(
            say(
                "An efficiency above 1 is shown as it is: the capture ran fewer layers or ranks than the model and its "
                "options say, the formats or the peak are wrong, operands stayed in a cache, or time was placed in "
                "another family."
            )
        )
    said += [
        say(
            "{rank}, {phase}: all experts in {dtype} take at least {bound}, measured are {measured}: not every one was "
            "hit, or their weights are smaller.",
            rank=rank_name(row.rank),
            phase=say(row.phase),
            dtype=dtype,
            bound=show_ns(row.bound_most_ns),
            measured=show_ns(row.measured_ns),
        )
        for row in rows
        if row.family == "experts" and row.bound_ns <= row.measured_ns < row.bound_most_ns
    ]
    collective = [row for row in rows if row.family == "collective" and row.bound_ns]
    if collective:
        said.append(say("Of collectives only exposed time is measured; what hides behind compute is not in it."))
    missing = sorted({row.family for row in rows if row.bound_ns and not row.measured_ns})
    if missing:
        said.append(
            say(
                "Modelled without measured time: {families}. Their kernels are fused into others, placed in another "
                "family, or not in the capture.",
                families=", ".join(missing),
            )
        )
    return said


def _of_savings(
    choice: ModelChoice, rows: tuple[KvSaving, ...], pairs: list[tuple[RankAccount, ModelledSteps]]
) -> list[Message]:
    """For the question of the KV path: what reading this way saved, and whether it pays."""
    if not other_ways(choice.architecture):
        return [_nothing_compressed(choice)]
    said = [_saving(row) for row in rows]
    mixed = sum(int(steps.of_phase("mixed").sum()) for _, steps in pairs)
    if mixed:
        said.append(say("{count} mixed steps are in neither: their time is of both phases.", count=show_count(mixed)))
    return said


def _nothing_compressed(choice: ModelChoice) -> Message:
    kinds = {type(layer.attention) for layer in choice.architecture.layers}
    name = choice.architecture.name
    if kinds <= {GroupedQueryAttention}:
        return say("{model} keeps keys and values of its KV heads as they are: nothing is compressed.", model=name)
    assert kinds <= {GroupedQueryAttention, GatedDeltaNet}
    return say("{model} keeps keys and values, or one state, as they are: nothing is compressed.", model=name)


def _saving(row: KvSaving) -> Message:
    costs = {name: ns for name, ns in row.cost_ns.items() if ns}
    listed = ", ".join(f"{name} {show_ns(ns)}" for name, ns in costs.items())
    return say(
        "{rank}, {phase} ({steps} steps), against {other}: {ours} of history are read instead of {theirs}, {saved} at "
        "the device's {rate} GB/s; its price, measured: {costs}. Attention with it takes {measured}, the other way "
        "{bound}: {verdict}",
        rank=rank_name(row.rank),
        phase=say(row.phase),
        steps=show_count(row.steps),
        other=say(row.against),
        ours=show_bytes(row.read_bytes),
        theirs=show_bytes(row.other_read_bytes),
        saved=show_ns(row.saved_bytes_ns),
        rate=f"{row.bytes_per_s / 1e9:.0f}",
        costs=listed or say("no kernel of its own is recognised"),
        measured=show_ns(row.measured_ns),
        bound=_told(row.other),
        verdict=_verdict(row.verdict),
    )


def _told(other: Alternative) -> Message:
    if other.low_ns is None or other.high_ns is None:
        return say("at least {bound}", bound=show_ns(other.bound_ns))
    return say(
        "at least {bound}, {low} to {high} predicted ({grade})",
        bound=show_ns(other.bound_ns),
        low=show_ns(other.low_ns),
        high=show_ns(other.high_ns),
        grade=say(other.grade),
    )


def _verdict(verdict: str) -> Message:
    if verdict == "pays":
        return say("it pays at this shape.")
    if verdict == "no verdict":
        return say("no verdict, for the measured time is below this way's own bound: the model is not the run's.")
    if verdict == "does not pay":
        return say("it does not pay at this shape.")
    return say("open, the evidence does not separate the two.")


def _of_gains(rows: tuple[QuantisationGain, ...]) -> list[Message]:
    said = []
    if rows and not rows[0].formats:
        said.append(say("No weight is quantised in the model as it is deployed (--weights, --expert-weights)."))
    for row in rows:
        if row.other is not None:
            said.append(_gain(row, row.other))
        if row.fraction is not None and row.best_case is not None and row.fraction < MINOR and row.largest:
            said.append(_reach(row, row.fraction, row.best_case, row.largest))
    return said


def _gain(row: QuantisationGain, other: Alternative) -> Message:
    return say(
        "{rank}, {phase}: {formats} weights read are {ours} instead of {theirs} in bf16, {saved} less at the device's "
        "rate; quantising takes {own} in {kernels} kernels. Products with it take {measured}, in bf16 {bound}: "
        "{verdict}",
        rank=rank_name(row.rank),
        phase=say(row.phase),
        formats=", ".join(row.formats),
        ours=show_bytes(row.weight_bytes),
        theirs=show_bytes(row.bf16_weight_bytes),
        saved=show_ns(row.saved_bytes_ns),
        own=show_ns(row.quantisation_ns),
        kernels=show_count(row.quantisation_kernels),
        measured=show_ns(row.products_ns + row.quantisation_ns),
        bound=_told(other),
        verdict=_verdict(row.verdict or "open"),
    )


def _reach(row: QuantisationGain, fraction: float, best_case: float, largest: tuple[str, int]) -> Message:
    values = {
        "rank": rank_name(row.rank),
        "phase": say(row.phase),
        "share": show_fraction(fraction),
        "gain": f"{best_case:.2f}",
        "family": largest[0],
        "rest": show_fraction(largest[1] / row.whole_ns),
    }
    if row.is_wall:
        return say(
            "{rank}, {phase}: products are {share} of the steps' time, so twice as fast ones (fp8 for bf16) make it at "
            "best {gain}x faster; look at {family} first ({rest}).",
            **values,
        )
    return say(
        "{rank}, {phase}: products are {share} of the device's work (idle time is withheld), so twice as fast ones "
        "(fp8 for bf16) make that work at best {gain}x faster; look at {family} first ({rest}).",
        **values,
    )


def _refusals(account: Account, pairs: list[tuple[RankAccount, ModelledSteps]]) -> list[Refusal]:
    found = []
    if len(pairs) < len(account.ranks):
        found.append(
            Refusal(
                missing=say("what any step of some ranks should take: no step's rows or sums"), record_with=DETAILED
            )
        )
    if any("experts" in steps.families for _, steps in pairs):
        found.append(
            Refusal(
                missing=say(
                    "one number for the experts: which of them the tokens reached, so a least and a most is given"
                ),
                record_with=EXPERTS,
            )
        )
    return found
