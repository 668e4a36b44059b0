"""KvCache: the blocks of one engine's KV cache, which text each holds, and the order in which free ones are reused.

Semantics of vLLM 0.32 with one group of full attention (docs/simulate.md). Block 0 is never handed out: vLLM keeps it
as a null block and counts it, so `num_blocks` is what its log reports and one less can be used. A block that is freed
keeps its text until it is handed out again, so a hit may take it back from the middle of the free list. Blocks without
a key go to the front of the free list, blocks with one to its back, each request's last block first.
"""

from __future__ import annotations

from collections import OrderedDict
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
        self._holders: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no request uses, whether they still hold a text or not."""
        return len(self.free)

    def find(self, keys: Sequence[int], at_most: int) -> list[int]:
        """The longest run of blocks, from the first on, whose text is cached; of equal ones the oldest entry."""
        found: list[int] = []
        holders = self._holders
        for index in range(min(at_most, len(keys))):
            blocks = holders.get(keys[index])
            if blocks is None:
                break
            found.append(blocks[0])
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
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            key = self._keys[block]
            if key is not None:
                self._forget(block, key)
            self._users[block] = 1
            table.append(block)

    def enter(self, table: Sequence[int], keys: Sequence[int], first: int, end: int) -> None:
        """Make the blocks first..end of a table findable. Equal texts are kept twice, as in the engine."""
        for index in range(first, end):
            block, key = table[index], keys[index]
            self._keys[block] = key
            self._holders.setdefault(key, []).append(block)

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
        held = {block: key for key, blocks in self._holders.items() for block in blocks}
        if held != {block: key for block, key in enumerate(self._keys) if key is not None}:
            raise InvariantBroken(f"{len(held)} blocks are findable, not those that hold a full block's text")

    def _forget(self, block: int, key: int) -> None:
        self._keys[block] = None
        blocks = self._holders[key]
        blocks.remove(block)
        if not blocks:
            del self._holders[key]
