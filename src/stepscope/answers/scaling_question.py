"""The fourth question: how time follows tokens, kv_len and rows per expert, as far as the steps can carry a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.answers import recipes
from stepscope.answers.scaling import ScalingFit, fit_scaling
from stepscope.evidence import Refusal
from stepscope.messages import Message, say
from stepscope.units import show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import Account
    from stepscope.answers.scaling import NoFit, Slope
    from stepscope.evidence import Grade
    from stepscope.steps.step import Step

MORE_STEPS = say("record 30 steps or more of each phase, of different sizes, after a warm-up")


def ask_scaling(account: Account) -> tuple[list[Message], Grade, list[Refusal]]:
    """What the first rank with steps says: ranks of one engine run the same steps."""
    rank = next((rank for rank in account.ranks if rank.table.counted), None)
    steps = rank.table.counted if rank is not None else ()
    if rank is None or not any(step.boundary.shape.num_scheduled_tokens and step.window for step in steps):
        return [], "refused", [Refusal(missing=say("scheduled tokens per step"), record_with=recipes.DETAILED)]
    said = [_paired(steps)]
    refusals: list[Refusal] = []
    for found in fit_scaling(rank):
        if isinstance(found, ScalingFit):
            said += _sentences(found)
        else:
            refusals.append(_refuse(found))
    if "experts" in {family for _, family in rank.budget.step_families}:
        refusals.append(
            Refusal(missing=say("rows per expert, to set expert time against"), record_with=recipes.EXPERTS)
        )
    shapes = [step.boundary.shape for step in steps]
    if not any(shape.decode.kv_sum is not None and shape.prefill.kv_sum is not None for shape in shapes):
        refusals.append(
            Refusal(missing=say("kv_len sums, to set attention time against"), record_with=recipes.DETAILED)
        )
    return said, "derived", refusals


def _paired(steps: Sequence[Step]) -> Message:
    known = [step.boundary.shape.num_scheduled_tokens or 0 for step in steps if step.window is not None]
    counts = sorted(count for count in known if count)
    return say(
        "{steps} steps pair a window with scheduled tokens ({least} to {most}); the steps table holds them, with "
        "attention and expert time per step.",
        steps=len(counts),
        least=counts[0],
        most=counts[-1],
    )


def _sentences(fit: ScalingFit) -> list[Message]:
    said = [
        say(
            "{quantity} time of {count} warm steps: {terms}. Steps that the fit had not seen: off by {p50} in the "
            "median, {p90} at the 90th percentile.",
            quantity=fit.quantity,
            count=fit.num_steps,
            terms="; ".join(_term(slope, fit.bend) for slope in fit.slopes),
            p50=show_fraction(fit.error_p50),
            p90=show_fraction(fit.error_p90),
        )
    ]
    if fit.tied:
        said.append(
            say(
                "{quantity} time: {tied} did not vary on its own; its time is in the other terms.",
                quantity=fit.quantity,
                tied=", ".join(fit.tied),
            )
        )
    return said


def _term(slope: Slope, bend: int | None) -> str:
    """The column by its name in the JSON, with its interval; a bend by its tokens."""
    name = slope.column.replace("bend", str(bend)) if bend is not None else slope.column
    value, low, high = (_show(ns) for ns in (slope.value_ns, slope.low_ns, slope.high_ns))
    return f"{name} {value} ({low} to {high})"


def _show(ns: float) -> str:
    return f"{ns:.3g} ns" if ns < 1000 else show_ns(round(ns))


def _refuse(found: NoFit) -> Refusal:
    missing = say("a fit of {quantity} time: {reason}", quantity=found.quantity, reason=found.reason)
    return Refusal(missing=missing, record_with=MORE_STEPS)
