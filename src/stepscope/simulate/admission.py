"""Admission: how many tokens a waiting request's first row gets from what a step has left.

By vLLM 0.32's rules. A row that would be one token alone (all else was found in the cache, or it is the whole prompt)
is padded with drafts to 1 + k, which are all rejected, so that a step of decodes keeps rows of one length for its
captured graph. Neither such a row nor, without chunked prefill, a prompt is cut by the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.chunks import chunk_len

if TYPE_CHECKING:
    from stepscope.simulate.policy import LiveRequest, PlannedRow
    from stepscope.simulate.scheduler import SchedulerRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a step has left for admissions: tokens, the cap of each, and (where drafts make it matter) its rows."""

    budget: int
    cap: int
    running: tuple[PlannedRow, ...]


def first_query(live: LiveRequest, computed: int, room: Room, rules: SchedulerRules) -> int:
    """Tokens of an admission's row after `computed` ones; 0 where the budget is too short for what it may not cut."""
    left = live.num_known - computed
    asked = _padded(left, computed, room, rules) if left == 1 and rules.num_speculative_tokens else left
    query = chunk_len(asked, budget_left=room.budget, cap=room.cap)
    is_cut = query < min(asked, room.cap or asked)
    return 0 if is_cut and (asked > left or not rules.enable_chunked_prefill) else query


def _padded(left: int, computed: int, room: Room, rules: SchedulerRules) -> int:
    has_prefill = any(context < other.prefill_end for other, _, context, _, _ in room.running)
    if has_prefill or not (room.running or computed):
        return left
    padded = 1 + rules.num_speculative_tokens
    return padded if computed + padded < rules.max_model_len else left
