"""Useful work per launch: tokens and flop that a kernel, and a call that launches some, carries; prefill beside decode.

A graph's launch is one call for many kernels. What stands between is fixed: a step pays its launches and its host's
work whatever its tokens, so a decode step spreads the same cost over a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.answers.modelled_steps import PHASES, sum_amount
from stepscope.store.launches import NO_LAUNCH

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount
    from stepscope.answers.modelled_steps import ModelledSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWork:
    """The priced steps of a phase. `kernels`, `launches` None: no device lane. `host_ns` None: withheld."""

    rank: int | None
    phase: str
    steps: int
    tokens: int
    flop: float
    kernels: int | None
    launches: int | None
    host_ns: int | None

    def per_kernel(self, amount: float) -> float | None:
        """An amount a kernel."""
        return amount / self.kernels if self.kernels else None


def find_launch_work(rank: RankAccount, steps: ModelledSteps) -> tuple[LaunchWork, ...]:
    """One row a phase that has priced steps."""
    flop = sum_amount(steps.operators, lambda operator: operator.flop, steps.num_steps)
    counted, found = rank.table.counted, []
    for phase in PHASES:
        mask = steps.of_phase(phase)
        chosen = steps.places[mask].tolist()
        if not chosen:
            continue
        hosts = [_host_ns(rank, i) for i in chosen]
        kernels = [counted[i].num_kernels for i in chosen]
        is_known = None not in kernels
        found.append(
            LaunchWork(
                rank=rank.rank,
                phase=phase,
                steps=len(chosen),
                tokens=sum(counted[i].boundary.shape.num_scheduled_tokens or 0 for i in chosen),
                flop=float(np.sum(flop[mask])),
                kernels=sum(count or 0 for count in kernels) if is_known else None,
                launches=sum(_num_launches(rank, counted[i].step_id) for i in chosen) if is_known else None,
                host_ns=None if None in hosts else sum(ns or 0 for ns in hosts),
            )
        )
    return tuple(found)


def _host_ns(rank: RankAccount, place: int) -> int | None:
    return rank.budget.windows[place].exclusive_ns["host"]


def _num_launches(rank: RankAccount, step_id: int) -> int:
    """Host calls that launched a step's device work; a graph's is one for all its kernels."""
    work = rank.table.work
    launch = work.launch[work.boundary == step_id]
    known = launch[launch != NO_LAUNCH]
    return int(len(np.unique(known)) + (len(launch) - len(known)))
