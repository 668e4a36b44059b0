"""A run held against a model: efficiency, work per launch, what sparse reading and quantisation gain, in sentences.

It stands above both wings: an account on one side, a priced step on the other. Measured times are as graded as the
catalog's (classified, or simulated); everything of the model is modelled or extrapolated, and bounds are bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from stepscope.answers.efficiency import FamilyEfficiency, Unexplained, find_efficiencies, find_unexplained
from stepscope.answers.kv_saving import KvSaving, find_kv_savings
from stepscope.answers.launch_work import LaunchWork, find_launch_work
from stepscope.answers.model_sentences import (
    about_run,
    family_sentences,
    gain_sentences,
    launch_sentences,
    saving_sentences,
)
from stepscope.answers.modelled_steps import ModelChoice, ModelledSteps, model_steps
from stepscope.answers.product_shares import ProductShare, find_products
from stepscope.answers.quantisation import QuantisationGain, find_quantisation
from stepscope.answers.recipes import DETAILED, EXPERTS, SHAPES
from stepscope.evidence import Refusal
from stepscope.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.account import Account, RankAccount
    from stepscope.evidence import Grade
    from stepscope.join.experts import LayerLoad

Row = TypeVar("Row", FamilyEfficiency, KvSaving, LaunchWork, QuantisationGain)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstModel:
    """All ranks' rows in rank order, and what is said of them; `steps`: rank -> priced and left out."""

    choice: ModelChoice
    steps: dict[str, tuple[int, int]]
    measured_grade: Grade
    efficiencies: tuple[FamilyEfficiency, ...]
    unexplained: tuple[Unexplained, ...]
    products: tuple[ProductShare, ...]
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


def compare_with_model(account: Account, choice: ModelChoice, loads: Sequence[LayerLoad] = ()) -> AgainstModel:
    """Hold every rank against the model; `loads`: rows per expert that were counted beside the capture.

    Raises:
        BadInput: an impossible deployment, a context beyond the model's limit, or hardware without a needed figure.
    """
    pairs = [
        (rank, steps)
        for rank in account.ranks
        if (steps := model_steps(rank, choice, _active(rank, loads))) is not None
    ]
    priced = {id(rank): steps for rank, steps in pairs}
    efficiencies = tuple(row for rank, steps in pairs for row in find_efficiencies(rank, steps))
    launches = tuple(row for rank, steps in pairs for row in find_launch_work(rank, steps))
    products = tuple(row for rank in account.ranks for row in find_products(rank, choice.hardware))
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
        products=products,
        launches=launches,
        kv_savings=savings,
        quantisation=gains,
        sentences=(
            *about_run(account, choice, pairs),
            *family_sentences(choice, _firsts(efficiencies)),
            *launch_sentences(_firsts(launches)),
            *gain_sentences(_firsts(gains)),
        ),
        kv_sentences=tuple(saving_sentences(choice, _firsts(savings), pairs)),
        refusals=(*_refusals(account, pairs), *_unknown_products(account, products)),
    )


def _active(rank: RankAccount, loads: Sequence[LayerLoad]) -> dict[int, float]:
    """step_id -> experts with rows, mean over the layers that were counted (of this rank, or of all together)."""
    found: dict[int, list[int]] = {}
    for load in loads:
        if load.step_id is not None and load.rank in (None, rank.rank):
            found.setdefault(load.step_id, []).append(load.num_experts - load.num_empty)
    return {step_id: sum(layers) / len(layers) for step_id, layers in found.items()}


def _firsts(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Rows of the first rank: ranks of one engine run the same steps, and the document has all."""
    return tuple(row for row in rows if row.rank == rows[0].rank)


def _num_left_out(rank: RankAccount, priced: dict[int, ModelledSteps]) -> int:
    return priced[id(rank)].num_left_out if id(rank) in priced else len(rank.table.counted)


def _refusals(account: Account, pairs: list[tuple[RankAccount, ModelledSteps]]) -> list[Refusal]:
    found = []
    if len(pairs) < len(account.ranks):
        found.append(
            Refusal(
                missing=say("what any step of some ranks should take: no step's rows or sums"), record_with=DETAILED
            )
        )
    if any("experts" in steps.families and not steps.is_counted for _, steps in pairs):
        found.append(
            Refusal(
                missing=say(
                    "one number for the experts: which of them the tokens reached, so a least and a most is given"
                ),
                record_with=EXPERTS,
            )
        )
    return found


def _unknown_products(account: Account, products: tuple[ProductShare, ...]) -> list[Refusal]:
    if products or not account.ranks:
        return []
    if all(rank.store.op_inputs is None for rank in account.ranks):
        missing = say("the shape and the share of the ceiling of each matrix product: its input dims are not recorded")
    else:
        missing = say("the time of each matrix product: its kernels have no operation (graphs replay them)")
    return [Refusal(missing=missing, record_with=SHAPES)]
