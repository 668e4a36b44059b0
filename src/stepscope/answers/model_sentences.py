"""What is said of a run against a model: sentences on its steps, efficiencies, KV reading and quantisation.

Each is of the first rank; numbers come with their unit, and a verdict only where the numbers separate two ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.answers.kv_saving import other_ways
from stepscope.messages import Message, say
from stepscope.models.architecture import GatedDeltaNet, GroupedQueryAttention
from stepscope.units import show_bytes, show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from stepscope.answers.account import Account, RankAccount
    from stepscope.answers.alternative import Alternative
    from stepscope.answers.efficiency import FamilyEfficiency
    from stepscope.answers.kv_saving import KvSaving
    from stepscope.answers.launch_work import LaunchWork
    from stepscope.answers.modelled_steps import ModelChoice, ModelledSteps
    from stepscope.answers.quantisation import QuantisationGain

MINOR = 0.5  # of a step's time: below, what products can gain is bounded by all the rest


def _name(rank: int | None) -> Message:
    return say("Rank ?") if rank is None else say("Rank {rank}", rank=rank)


def about_run(account: Account, choice: ModelChoice, pairs: list[tuple[RankAccount, ModelledSteps]]) -> list[Message]:
    """How many steps are priced, with what, and what the options and the capture do not agree on."""
    said = []
    if len(pairs) > 1:
        said.append(
            say(
                "Shown is {rank}; the JSON document holds all {count} ranks.",
                rank=_name(pairs[0][0].rank),
                count=len(pairs),
            )
        )
    for rank, steps in pairs[:1]:
        said.append(
            say(
                "{rank}: {priced} steps are priced, {left_out} are left out, their rows or sums are not known.",
                rank=_name(rank.rank),
                priced=show_count(steps.num_steps),
                left_out=show_count(steps.num_left_out),
            )
        )
        if steps.num_even:
            said.append(
                say(
                    "{rank}: of {count} steps only sums are known: even rows stand in for theirs.",
                    rank=_name(rank.rank),
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


def family_sentences(choice: ModelChoice, rows: tuple[FamilyEfficiency, ...]) -> list[Message]:
    """What the efficiencies show beyond their numbers."""
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
            rank=_name(row.rank),
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


def saving_sentences(
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
        rank=_name(row.rank),
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


def launch_sentences(rows: tuple[LaunchWork, ...]) -> list[Message]:
    """Useful work a kernel, prefill beside decode; nothing where only one of them is there."""
    tokens = {row.phase: row.per_kernel(row.tokens) for row in rows}
    prefill, decode = tokens.get("prefill"), tokens.get("decode")
    if not prefill or not decode:
        return []
    return [
        say(
            "A kernel carries {prefill} tokens in prefill and {decode} in decode: {ratio} times as many. A step's "
            "launches and host time are paid in both.",
            prefill=f"{prefill:.3g}",
            decode=f"{decode:.3g}",
            ratio=f"{prefill / decode:.3g}",
        )
    ]


def gain_sentences(rows: tuple[QuantisationGain, ...]) -> list[Message]:
    """Whether quantisation pays, and how far faster products can reach."""
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
        rank=_name(row.rank),
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
        "rank": _name(row.rank),
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
