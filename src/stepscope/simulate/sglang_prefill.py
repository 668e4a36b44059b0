"""PrefillBudget: what one prefill step of SGLang may still admit: KV slots, whole prompts, tokens of the step.

Semantics of SGLang 0.5.23's PrefillAdder and its memory budget. Three amounts fall with each row:
  slots    what is free or unused in the cache, less what is promised: for running requests a share (`ratio`) of the
           outputs they may still ask for, for rows of this step their tokens, a page, and all their outputs
  prompts  max_prefill_tokens; below 1 no further prompt is looked at (older versions: one must fit whole)
  chunk    chunked_prefill_size; the first prompt that does not fit is cut to what is left, at a page's end
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.simulate.sglang import SglangRules
    from stepscope.simulate.sglang_memory import SglangMemory, SglangRequest

MOST_NEW_TOKENS = 4096  # schedule_policy.py, CLIP_MAX_NEW_TOKENS: more is not counted on
SPARE_TOKENS = 1  # schedule_policy.py, IGNORE_EOS_RESERVE_TOKENS, of each request

# go on / no slots / one of the other budgets is spent
Verdict: TypeAlias = Literal["more", "slots", "spent"]


class PrefillBudget:
    """One step's; `rows` are those admitted so far, `chunked` the one that was cut, if any."""

    def __init__(
        self, rules: SglangRules, memory: SglangMemory, running: Sequence[SglangRequest], ratio: float
    ) -> None:
        self.rules = rules
        self.memory = memory
        self.rows: list[SglangRequest] = []
        self.chunked: SglangRequest | None = None
        self._running = running
        self._ratio = 1.0 if rules.ignore_eos else ratio
        is_mixed = rules.enable_mixed_chunk and rules.chunk_len is not None
        mixed = len(running) if is_mixed else 0
        self.prompts = rules.max_prefill_tokens - mixed
        self.chunk = None if rules.chunk_len is None else rules.chunk_len - mixed
        self._taken = mixed
        self._promised: float = mixed + sum([min(live.outputs_left, MOST_NEW_TOKENS) * self._ratio for live in running])
        self._ends: list[tuple[float, int]] | None = None

    @property
    def num_left(self) -> float:
        """Slots that are promised to nobody."""
        return self.memory.num_available - self._promised

    @property
    def verdict(self) -> Verdict:
        """Whether another prompt may be looked at."""
        if self.num_left <= 0 or self.memory.num_available - self._taken <= 0:
            return "slots"
        if self.prompts <= 0 or (self.chunk is not None and self.chunk <= 0):
            return "spent"
        return "more"

    def resume(self, held: SglangRequest) -> bool:
        """Add the next chunk of the request that was cut before; whether it is its last."""
        assert self.chunk is not None
        room = min(self.chunk, int(self.num_left))
        room = room if room > 0 else self.chunk  # it must go on, to give its slots back one day
        left = held.live.num_known - held.context_len
        held.end = held.context_len + min(left, room)
        is_last = left <= room
        self._add(held, held.end - held.context_len, min(held.max_new, MOST_NEW_TOKENS) if is_last else 0)
        return is_last

    def admit(self, asked: SglangRequest) -> Verdict:
        """Add a waiting request whose prefix hit is known, or say why not; then whether to go on."""
        most = self.rules.prefill_max_requests
        if most is not None and len(self.rows) >= most:
            return "spent"
        if self.rules.ignore_eos and self.rules.disable_radix_cache:
            return self._admit_by_ends(asked)
        left = asked.live.num_known - asked.context_len
        wanted = left + min(max(asked.outputs_left, 0), MOST_NEW_TOKENS) + self.rules.page_size
        lock = None if asked.node is None else self.memory.cache.lock(asked.node)
        refused = self._refuse(asked, left, wanted)
        if refused is not None:
            if lock is not None:
                self.memory.cache.unlock(lock)
            return refused
        asked.lock = lock
        outputs = 0 if asked is self.chunked else min(asked.max_new, MOST_NEW_TOKENS)
        self._add(asked, asked.end - asked.context_len, outputs)
        return self.verdict

    def _refuse(self, asked: SglangRequest, left: int, wanted: int) -> Verdict | None:
        """Why it is not admitted; None: its row is set."""
        if wanted >= self.num_left:
            return "slots"
        paged = self.memory.paged(left)
        is_whole = self.chunk is None or self.rules.holds_whole_prompts
        if is_whole and self.rows and paged >= self.prompts:
            return "spent"
        asked.end = asked.live.num_known
        if self.chunk is not None and paged > self.chunk:
            page = self.rules.page_size
            asked.end = (asked.context_len + self.chunk // page * page) // page * page
            if asked.end <= asked.context_len:
                return "spent"
            self.chunked = asked
        return None

    def _admit_by_ends(self, asked: SglangRequest) -> Verdict:
        """Without a cache and with ignore_eos it is known when each request ends: its slots serve those that stay."""
        left = asked.live.num_known - asked.context_len
        needed = self.memory.paged(left) + self.rules.page_size
        available = self.memory.num_available - self._taken
        if needed > min(available, self.num_left):
            return "slots"
        self._note_end(asked)
        freed = 0
        assert self._ends is not None
        for place, (outputs, tokens) in enumerate(self._ends):
            staying = len(self._ends) - place
            if available - needed + freed - outputs * staying <= SPARE_TOKENS * staying:
                return "slots"
            freed += tokens
        if self.chunk is None or left <= self.chunk:
            asked.end = asked.live.num_known
            self._add(asked, left, min(asked.max_new, MOST_NEW_TOKENS))
            return self.verdict
        if self.chunk <= 0:
            return "spent"
        asked.end = asked.context_len + self.chunk
        self.chunked = asked
        self._add(asked, self.chunk, 0)
        return self.verdict

    def _note_end(self, asked: SglangRequest) -> None:
        """Put a request among (outputs left, tokens held), the one that ends first in front."""
        if self._ends is None:
            everyone = [asked, *self._running, *self.rows]
            self._ends = sorted((end for each in everyone if (end := _end(each))[0] > 0), key=lambda end: end[0])
            return
        end = _end(asked)
        if end[0] <= 0:
            return
        place = next((i for i, other in enumerate(self._ends) if end[0] <= other[0]), max(len(self._ends) - 1, 0))
        self._ends.insert(place, end)

    def _add(self, held: SglangRequest, tokens: int, outputs: int) -> None:
        paged = self.memory.paged(tokens)
        self.rows.append(held)
        self._promised += paged + self.rules.page_size + outputs
        self._taken += paged + self.rules.page_size
        self.prompts -= paged
        if self.chunk is not None:
            self.chunk -= paged


def _end(held: SglangRequest) -> tuple[float, int]:
    return held.max_new * 1.0 - held.live.output_len, held.live.num_known
