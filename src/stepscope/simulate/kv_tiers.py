"""KV tiers: what the device's cache has lost may be loaded from the host or further away, if that beats computing it.

A tier keeps blocks by their text, the least recently used go first. A request that is admitted finds the longest run:
first on the device, then block by block in the first tier that has it. A load takes latency + bytes / bandwidth after
what its tier is loading already; tiers load side by side. As with vLLM 0.32's asynchronous KV connectors the request
holds its blocks meanwhile and no seat, others go on, and blocks that prefills under way will need are left free.
Writing to a tier takes no time and a block is there at once: both flatter it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from typing import TYPE_CHECKING, Literal

from stepscope.batch import BatchShape, Row
from stepscope.errors import BadInput
from stepscope.simulate.admission import first_query
from stepscope.simulate.clock import to_seconds, to_ticks
from stepscope.simulate.kv_cache import KvCache
from stepscope.simulate.vllm_scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepscope.simulate.admission import Room
    from stepscope.simulate.policy import LiveRequest, StepPlan
    from stepscope.simulate.request import Request
    from stepscope.simulate.scheduler import SchedulerRules

LoadRule = Literal["always", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place of KV beyond the device.

    Attributes:
        name: "host", "remote" or whatever it is called.
        num_blocks: what it holds.
        bytes_per_s: of loading from it.
        latency_s: before the first byte.
        write_on: a block comes here when the device fills it, or when the tier before (or the device) drops it.
    """

    name: str
    num_blocks: int
    bytes_per_s: float
    latency_s: float = 0.0
    write_on: Literal["fill", "eviction"] = "fill"

    def __post_init__(self) -> None:
        if self.num_blocks < 0 or not self.bytes_per_s > 0:
            raise BadInput(f"KV tier {self.name!r}: {self}: give 0 or more blocks, and bytes_per_s above 0.")
        to_ticks(self.latency_s, f"latency_s of KV tier {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredRules:
    """vLLM's rules with KV tiers, nearest first.

    Attributes:
        base: the scheduler's own rules.
        tiers: where to look after the device.
        block_bytes: of one block, all layers.
        rule: load whatever is found, or only as far as that is faster than computing it.
        recompute_s: seconds to compute (tokens, after so many) with nothing beside; "faster" needs it, see prefill_s.
    """

    base: SchedulerRules
    tiers: tuple[Tier, ...]
    block_bytes: float
    rule: LoadRule = "faster"
    recompute_s: Callable[[int, int], float] | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.block_bytes) and self.block_bytes > 0):
            raise BadInput(f"block_bytes is {self.block_bytes}: give the bytes of one block of KV, above 0.")
        if len({tier.name for tier in self.tiers}) < len(self.tiers):
            raise BadInput(f"KV tiers {[tier.name for tier in self.tiers]}: give each a name of its own.")
        if self.rule == "faster" and self.recompute_s is None:
            raise BadInput('rule "faster" compares a load with computing: give recompute_s, or take the rule "always".')

    @property
    def async_scheduling(self) -> bool:
        """Of the base rules."""
        return self.base.async_scheduling

    @property
    def max_model_len(self) -> int:
        """Of the base rules."""
        return self.base.max_model_len

    def check_request(self, request: Request) -> None:
        """Raise BadInput for a request that would wait for ever."""
        self.base.check_request(request)

    def build(self) -> TieredScheduler:
        """A new scheduler that follows these rules, all tiers empty."""
        return TieredScheduler(self)


def prefill_s(cost: Callable[[BatchShape], float]) -> Callable[[int, int], float]:
    """Seconds of computing (tokens, after so many) in one step of its own, by a step's cost."""

    def seconds(num_tokens: int, context_len: int) -> float:
        row = Row(query_len=num_tokens, context_len=context_len, phase="prefill")
        return cost(BatchShape.from_rows((row,)))

    return seconds


class _Stores:
    """What each tier holds, by key, least recently used first."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tiers
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in tiers]

    def find(self, keys: Sequence[int]) -> list[int]:
        """For the longest run of keys from the first on, the nearest tier that has each."""
        found: list[int] = []
        for key in keys:
            place = next((place for place, held in enumerate(self._held) if key in held), None)
            if place is None:
                break
            found.append(place)
        return found

    def touch(self, place: int, key: int) -> None:
        """A block was loaded."""
        if key in self._held[place]:
            self._held[place].move_to_end(key)

    def fill(self, keys: Iterable[int]) -> None:
        """The device filled these."""
        for key in keys:
            for place, tier in enumerate(self.tiers):
                if tier.write_on == "fill":
                    self._put(place, key)

    def evict(self, key: int, after: int = -1) -> None:
        """The tier `after`, -1 for the device, dropped this."""
        place = after + 1
        if place < len(self.tiers) and self.tiers[place].write_on == "eviction":
            self._put(place, key)

    def _put(self, place: int, key: int) -> None:
        held = self._held[place]
        held[key] = None
        held.move_to_end(key)
        if len(held) > self.tiers[place].num_blocks:
            dropped, _ = held.popitem(last=False)
            self.evict(dropped, place)


class _WatchedCache(KvCache):
    """A device's cache that tells the tiers what it fills and forgets."""

    def __init__(self, rules: SchedulerRules, stores: _Stores) -> None:
        super().__init__(num_blocks=rules.num_blocks, block_size=rules.block_size)
        self._stores = stores

    def enter(self, table: Sequence[int], keys: Sequence[int], first: int, end: int) -> None:
        super().enter(table, keys, first, end)
        self._stores.fill(keys[first:end])

    def _forget(self, block: int, key: int) -> None:
        super()._forget(block, key)
        if key not in self._holder:
            self._stores.evict(key)


class TieredScheduler(Scheduler):
    """A scheduler whose requests may wait for KV: those in `loading`, in the order in which their loads began."""

    def __init__(self, rules: TieredRules) -> None:
        super().__init__(rules.base)
        self.tiered = rules
        self.stores = _Stores(rules.tiers)
        self.cache = _WatchedCache(rules.base, self.stores)
        self.now = 0
        self.loading: dict[LiveRequest, int] = {}  # and when it is there, or since when
        self._ready: deque[LiveRequest] = deque()  # of them, in this step
        self._ending: list[LiveRequest] = []  # prefills whose last row may be of this step
        self._free_at = [0] * len(rules.tiers)  # when a tier has loaded what it was asked for

    @property
    def can_stretch(self) -> bool:
        """Never: which block is dropped first decides what a tier keeps."""
        return False

    @property
    def has_work(self) -> bool:
        """Requests are in it, or one more empty step is needed."""
        return bool(self.loading) or super().has_work

    @property
    def num_waiting(self) -> int:
        """Requests without a seat, those whose KV is coming among them."""
        return len(self.waiting) + len(self.loading)

    @property
    def has_candidate(self) -> bool:
        """Whether a request could be admitted if it fits."""
        return bool(self._ready or self.waiting)

    @property
    def holding(self) -> tuple[LiveRequest, ...]:
        """Requests that hold blocks and have no seat."""
        return tuple(self.loading)

    @property
    def next_event(self) -> int | None:
        """When the next load ends."""
        return min((end for end in self.loading.values() if end > self.now), default=None)

    def _admit_waiting(self, plan: StepPlan, budget: int, cap: int) -> None:
        """Those whose KV has come first, then the others."""
        self._ending = [live for live, _, context, _, _ in plan.rows if context < live.prefill_end]
        self._ready = deque(live for live, end in self.loading.items() if end <= self.now)
        super()._admit_waiting(plan, budget, cap)

    def _admit_next(self, plan: StepPlan, room: Room) -> int | None:
        if self._ready:
            return self._admit_loaded(plan, room)
        live = self.waiting[0]
        hits = self._find_hits(live)
        found = self._worth_loading(live, len(hits))
        if not found:
            return super()._admit_next(plan, room)
        return 0 if self._load(live, hits, found) else None

    def _admit_loaded(self, plan: StepPlan, room: Room) -> int | None:
        live = self._ready[0]
        self.enter_full_blocks(live, live.num_computed)
        query = first_query(live, live.num_computed, room, self.rules)
        if not query or not self._has_room(live, live.table, query):
            return None
        del self.loading[self._ready.popleft()]
        self._ending.append(live)
        self._admit(live, query, plan)
        return query + self._num_slots

    def _worth_loading(self, live: LiveRequest, num_hits: int) -> list[int]:
        """The tier of each block to load after the device's hits; never the block of the last token."""
        size = self.rules.block_size
        last = (live.num_known - 1) // size
        if not self.rules.enable_prefix_caching or num_hits >= last:
            return []
        found = self.stores.find(self._keys(live)[num_hits:last])
        recompute_s = self.tiered.recompute_s
        if self.tiered.rule == "always" or recompute_s is None:
            return found
        cuts = [0]
        for _, run in groupby(found):
            cuts.append(cuts[-1] + len(list(run)))

        def seconds(cut: int) -> float:
            rest = live.num_known - (num_hits + cut) * size
            waits = (self._end_of_load(place, found[:cut].count(place)) for place in set(found[:cut]))
            return max(waits, default=0.0) + recompute_s(rest, (num_hits + cut) * size)

        return found[: min(cuts, key=lambda cut: (seconds(cut), cut))]

    def _end_of_load(self, place: int, count: int) -> float:
        """Seconds from now until a tier would have loaded so many blocks."""
        tier = self.tiered.tiers[place]
        wait = to_seconds(max(self._free_at[place] - self.now, 0))
        return wait + tier.latency_s + count * self.tiered.block_bytes / tier.bytes_per_s

    def _load(self, live: LiveRequest, hits: list[int], found: list[int]) -> bool:
        """Give a request its blocks and start the load; False where they do not fit."""
        size = self.rules.block_size
        if not self._has_room_to_load(live, hits, len(found)):
            return False
        self.waiting.popleft()
        self.cache.adopt(live.table, hits)
        self.cache.take(live.table, len(found))
        is_first = live.first_hit_tokens is None
        self._note_hits(live, len(hits) * size)
        live.num_entered = len(hits)
        keys, end = self._keys(live), self.now + 1  # not in this step, however quick
        for place in sorted(set(found)):
            count = found.count(place)
            name = self.tiered.tiers[place].name
            if is_first:
                live.loaded_tokens[name] = count * size
            else:
                live.resumed_hit_tokens += count * size
            end = max(end, self._occupy(place, count))
        for key, place in zip(keys[len(hits) :], found, strict=False):
            self.stores.touch(place, key)
        live.num_computed = live.prefix_hit_tokens = (len(hits) + len(found)) * size
        self.loading[live] = end
        return True

    def _occupy(self, place: int, count: int) -> int:
        """Put a load into a tier's queue; when it ends. The latency of one overlaps with the bytes of another."""
        tier = self.tiered.tiers[place]
        start = max(self.now, self._free_at[place])
        self._free_at[place] = start + to_ticks(count * self.tiered.block_bytes / tier.bytes_per_s)
        return self._free_at[place] + to_ticks(tier.latency_s)

    def _has_room_to_load(self, live: LiveRequest, hits: list[int], count: int) -> bool:
        """As for an admission, and besides it must leave what prefills under way still need."""
        spare = self._watermark_blocks if self.running else 0
        idle = self.cache.num_idle(hits) + spare
        if self.rules.scheduler_reserve_full_isl:
            whole = -(-live.num_known // self.rules.block_size) - len(hits)
            if whole + idle > self.cache.num_free:
                return False
        return count + idle <= self.cache.num_free - self._num_reserved()

    def _num_reserved(self) -> int:
        """Blocks that prefills and loads under way will need, and the drafts of one more row."""
        size, drafts = self.rules.block_size, self._num_drafts
        more = 1 + drafts + self._num_lookahead if drafts else 0
        under_way = {live for live in self.running if live.num_computed < live.prefill_end}
        under_way.update(self._ending, self.loading)
        needed = (-(-(live.num_known + more) // size) - len(live.table) for live in under_way)
        return sum(max(blocks, 0) for blocks in needed) + -(-more // size)
