"""KvCache: the blocks of one engine's KV cache, which text each holds, and the order in which free ones are reused.

Semantics of vLLM 0.32 with one group of full attention (docs/simulate.md). Block 0 is never handed out: vLLM keeps it
as a null block and counts it, so `num_blocks` is what its log reports and one less can be used. A block that is freed
keeps its text until it is handed out again, so a hit may take it back from the middle of the free list. Blocks without
a key go to the front of the free list, blocks with one to its back, each request's last block first.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

from stepscope.errors import InvariantBroken

if TYPE_CHECKING:
    from collections.abc import Sequence


class KvCache:
    """Blocks by number; a request's own blocks are its `table`, changed in place by `adopt`, `take` and `release`."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._users = [0] * num_blocks
        self._keys: list[int | None] = [None] * num_blocks
        self._holder: dict[int, int] = {}  # of each text the block that holds it longest
        self._others: dict[int, list[int]] = {}  # and further ones, where there are any

    @property
    def num_free(self) -> int:
        """Blocks that no request uses, whether they still hold a text or not."""
        return len(self.free)

    def find(self, keys: Sequence[int], at_most: int) -> list[int]:
        """The longest run of blocks, from the first on, whose text is cached; of equal ones the oldest entry."""
        found: list[int] = []
        for key in islice(keys, at_most):
            block = self._holder.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of them are in the free list."""
        users = self._users
        return sum(not users[block] for block in blocks)

    def adopt(self, table: list[int], hits: Sequence[int]) -> None:
        """Put blocks that were found in the cache into a table."""
        for block in hits:
            if not self._users[block]:
                del self.free[block]
            self._users[block] += 1
        table.extend(hits)

    def take(self, table: list[int], count: int) -> None:
        """Put `count` blocks from the front of the free list into a table; their texts are forgotten."""
        users, keys, pop = self._users, self._keys, self.free.popitem
        for _ in range(count):
            block, _ = pop(last=False)
            key = keys[block]
            if key is not None:
                self._forget(block, key)
            users[block] = 1
            table.append(block)

    def enter(self, table: Sequence[int], keys: Sequence[int], first: int, end: int) -> None:
        """Make the blocks first..end of a table findable. Equal texts are kept twice, as in the engine."""
        for index in range(first, end):
            block, key = table[index], keys[index]
            self._keys[block] = key
            if key in self._holder:
                self._others.setdefault(key, []).append(block)
            else:
                self._holder[key] = block

    def release(self, table: list[int]) -> None:
        """Give all blocks of a table back and empty it."""
        without: list[int] = []
        users, keys, free = self._users, self._keys, self.free
        for block in reversed(table):
            users[block] -= 1
            if users[block]:
                continue
            if keys[block] is None:
                without.append(block)
            else:
                free[block] = None
        for block in reversed(without):
            free[block] = None
            free.move_to_end(block, last=False)
        table.clear()

    def check(self, tables: Sequence[Sequence[int]]) -> None:
        """Free + used blocks = all blocks; each block has as many users as tables name it; each key is where it says.

        Raises:
            InvariantBroken: one of them does not hold.
        """
        named = [0] * self.num_blocks
        for table in tables:
            for block in table:
                named[block] += 1
        used = sum(count > 0 for count in named)
        if named != self._users or used + len(self.free) != self.num_blocks - 1:
            raise InvariantBroken(f"{used} used + {len(self.free)} free blocks, of {self.num_blocks - 1}")
        held = {block: key for key, block in self._holder.items()}
        held |= {block: key for key, blocks in self._others.items() for block in blocks}
        if held != {block: key for block, key in enumerate(self._keys) if key is not None}:
            raise InvariantBroken(f"{len(held)} blocks are findable, not those that hold a full block's text")

    def _forget(self, block: int, key: int) -> None:
        self._keys[block] = None
        others = self._others.get(key) if self._others else None
        if others is None:
            del self._holder[key]
            return
        if self._holder[key] == block:
            self._holder[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others[key]
