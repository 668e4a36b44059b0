"""SglangMemory: the KV slots of one SGLang engine: free ones, those of requests, and those that the radix cache owns.

A request owns its pages from `protected` on; what is before belongs to the cache and is locked by the request. Making a
request's text findable gives its pages to the cache, and those that the cache had already are free again. Slots are
counted, not numbered; semantics of SGLang 0.5.23 (allocation.py, common.py, unified_radix_cache.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import BadInput, InvariantBroken
from stepscope.simulate.radix_cache import Node, RadixCache, Text, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.simulate.policy import LiveRequest


@dataclass(slots=True, eq=False, kw_only=True)
class SglangRequest:
    """A request in SGLang's scheduler.

    Attributes:
        live: what the engine knows of it.
        text: of prompt and output.
        max_new: outputs that the scheduler counts on at most.
        context_len: tokens before the row that is being prefilled: a prefix hit, then the end of the chunk before.
        end: where that row ends.
        allocated: tokens that have a slot, those of the prefix hit included; 0: it holds none.
        protected: tokens whose slots the cache owns.
        hit_len: tokens found in the cache when the queue was last sorted.
        node: where its prefix hit ends.
        lock: the node it holds.
    """

    live: LiveRequest
    text: Text
    max_new: int
    context_len: int = 0
    end: int = 0
    allocated: int = 0
    protected: int = 0
    hit_len: int = 0
    node: Node | None = None
    lock: Node | None = None

    @property
    def outputs_left(self) -> int:
        """Outputs that may still come."""
        return self.max_new - self.live.output_len


def text_of(live: LiveRequest) -> Text:
    """The text of a request; one that says none has a text of its own."""
    spans = [(part.source, part.start, part.length) for part in live.request.text]
    return joined(spans or [(-1 - live.place, 0, live.request.num_tokens)])


class SglangMemory:
    """`num_slots` tokens in pages of `page_size`."""

    def __init__(self, *, num_slots: int, page_size: int, is_cached: bool) -> None:
        self.page_size = page_size
        self.num_slots = self.num_free = num_slots // page_size * page_size
        self.cache = RadixCache(page_size)
        self.is_cached = is_cached
        self.num_rows = 0  # requests that hold slots

    @property
    def num_available(self) -> int:
        """Slots that are free or would be if the cache gave up what nobody uses."""
        return self.num_free + self.cache.num_idle

    def paged(self, tokens: int) -> int:
        """Rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def find(self, asked: SglangRequest, length: int) -> None:
        """Look for the first `length` tokens of a waiting request in the cache."""
        if self.is_cached:
            asked.node, asked.context_len = self.cache.find(asked.text, length)
        else:
            asked.context_len = 0

    def extend(self, rows: Sequence[SglangRequest]) -> None:
        """Slots for the rows of a prefill step."""
        wanted = sum(row.end - row.context_len for row in rows)
        self._make_room(wanted if self.page_size == 1 else wanted + len(rows) * self.page_size)
        for row in rows:
            if not row.allocated:
                self.num_rows += 1
                row.protected = row.context_len
            self._take(row, row.context_len, row.end)

    def fits_decode(self, rows: Sequence[SglangRequest]) -> bool:
        """Whether each row can have its next slot; the cache gives up what it must for that."""
        wanted = sum(row.allocated % self.page_size == 0 for row in rows) * self.page_size
        self._make_room(wanted)
        return self.num_free >= wanted

    def decode(self, rows: Sequence[SglangRequest]) -> None:
        """The next slot of each row."""
        self._make_room(len(rows) * self.page_size)
        for row in rows:
            self._take(row, row.allocated, row.allocated + 1)

    def checkpoint(self, held: SglangRequest, length: int) -> None:
        """Make the first `length` tokens of a request findable, its prompt apart from its outputs."""
        if not self.is_cached or length <= 0:
            return
        length = length // self.page_size * self.page_size
        node, known = self.cache.enter(held.text, length)
        prompt = held.live.request.prompt_len // self.page_size * self.page_size
        if prompt < length:
            self.cache.enter(held.text, prompt)
        self.num_free += max(known - held.protected, 0)
        if held.lock is not None:
            self.cache.unlock(held.lock)
        held.lock = self.cache.lock(node)
        held.protected = length

    def release(self, held: SglangRequest, *, keeps: bool) -> None:
        """Take a request's slots back; with `keeps` what it computed becomes findable before."""
        if keeps:
            self.checkpoint(held, min(held.allocated, held.live.num_known))
        self.num_free += self.paged(held.allocated) - held.protected
        if held.lock is not None:
            self.cache.unlock(held.lock)
        held.node = held.lock = None
        held.allocated = held.protected = 0
        self.num_rows -= 1

    def retract(self, held: SglangRequest, spare: int) -> None:
        """Take back what a request owns, keep nothing of it, and free `spare` slots for the others."""
        self.release(held, keeps=False)
        self._make_room(spare)

    def check(self, held: Iterable[SglangRequest]) -> None:
        """Free slots + those of the cache + those of requests = all, and the cache's own laws.

        Raises:
            InvariantBroken: one of them does not hold.
        """
        holders = [each for each in held if each.allocated]
        owned = sum(self.paged(each.allocated) - each.protected for each in holders)
        if self.num_free + self.cache.num_tokens + owned != self.num_slots or self.num_free < 0:
            raise InvariantBroken(
                f"{self.num_free} free + {self.cache.num_tokens} cached + {owned} owned slots, of {self.num_slots}"
            )
        if self.num_rows != len(holders):
            raise InvariantBroken(f"{len(holders)} requests hold slots, {self.num_rows} are counted")
        self.cache.check([each.lock for each in holders if each.lock is not None])

    def _make_room(self, wanted: int) -> None:
        if wanted > self.num_free:
            self.num_free += self.cache.evict(wanted - self.num_free)

    def _take(self, row: SglangRequest, begin: int, end: int) -> None:
        needed = self.paged(end) - self.paged(begin)
        if needed > self.num_free:
            name = row.live.request.request_id
            raise BadInput(
                f"{self.num_slots} KV slots are too few: request {name!r} needs {needed} more and {self.num_free} are "
                "free, where SGLang itself would stop with 'out of memory'. Raise max_total_tokens or "
                "schedule_conservativeness, or lower max_running_requests."
            )
        self.num_free -= needed
        row.allocated = end
