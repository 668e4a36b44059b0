"""Decode attention split by branch, for models whose layers keep different histories (DeepSeek V4).

One attention kernel serves all branches under one name; what stands before it on the rank tells which one it is: with
an indexer it reads selected positions of a compressed history (C4), with a compressor alone a whole compressed one
(C128), with neither a sliding window (SWA). That is a pattern, graded `inferred`: order is recorded, branches are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.budget.placement import NO_ACCOUNT
from stepscope.messages import Message, say
from stepscope.store.schema import KERNEL
from stepscope.units import show_ns

if TYPE_CHECKING:
    from stepscope.answers.account import RankAccount

_ATTENTION = frozenset({"attention", "attention_mla", "attention_sparse"})
_INDEXER = frozenset({"indexer", "topk_selection"})
_COMPRESSOR = "compressor"
BRANCHES = ("SWA", "C4", "C128", "indexer", "compressor")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTime:
    """Kernels of one branch: how many, and their summed time in ns (branches can overlap)."""

    branch: str
    count: int
    sum_ns: int


def split_attention(rank: RankAccount) -> tuple[BranchTime, ...]:
    """Time per branch in the order of BRANCHES; nothing where no compressor runs, so that there are no branches."""
    e, placements = rank.store.events, rank.budget.placements
    rows = np.flatnonzero((e.kind == KERNEL) & (placements.account != NO_ACCOUNT))
    families = [placements.accounts[label][1] for label in placements.account[rows].tolist()]
    if _COMPRESSOR not in families or not _ATTENTION.intersection(families):
        return ()
    counts, times = dict.fromkeys(BRANCHES, 0), dict.fromkeys(BRANCHES, 0)
    before: set[str] = set()
    for family, ns in zip(families, e.duration_ns[rows].tolist(), strict=True):
        branch = None
        if family in _INDEXER:
            branch = "indexer"
        elif family == _COMPRESSOR:
            branch = "compressor"
        elif family in _ATTENTION:
            branch = "C4" if "indexer" in before else "C128" if "compressor" in before else "SWA"
            before = set()
        if branch is None:
            continue
        before |= {branch} & {"indexer", "compressor"}
        counts[branch] += 1
        times[branch] += ns
    return tuple(BranchTime(branch=name, count=counts[name], sum_ns=times[name]) for name in BRANCHES if counts[name])


def branch_sentences(rank: RankAccount, of: Message) -> list[Message]:
    """The split in one sentence, where there is one."""
    found = split_attention(rank)
    if not found:
        return []
    listed = ", ".join(f"{part.branch} {show_ns(part.sum_ns)} ({part.count})" for part in found)
    return [
        say(
            "{rank}: attention by branch, inferred from the kernels before each: {branches}; summed kernel time.",
            rank=of,
            branches=listed,
        )
    ]
