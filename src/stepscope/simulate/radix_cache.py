"""RadixCache: which texts one SGLang engine's KV cache holds, as a tree of token runs, and which leaf is given up next.

Semantics of SGLang 0.5.23's UnifiedRadixCache with full attention only (docs/simulate.md). A node is a run of whole
pages, its path from the root the text. A node that requests use (with all above it) is kept; of the others the leaf
used longest ago goes first, then its parent if that is left childless and unused. Looking up makes a path recent, from
its head to its tail; where it ends within a node the node is cut in two, and the tail that was not asked for counts as
used just before.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from stepscope.errors import InvariantBroken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# a text: (source, start, length) spans, none of which continues the one before it
Text: TypeAlias = tuple[tuple[int, int, int], ...]


def joined(spans: Iterable[tuple[int, int, int]]) -> Text:
    """A text of spans; those that continue each other become one.

    >>> joined([(7, 0, 10), (7, 10, 30), (8, 0, 0), (9, 0, 1)])
    ((7, 0, 40), (9, 0, 1))
    """
    text: list[tuple[int, int, int]] = []
    for span in spans:
        last = text[-1] if text else None
        if last is not None and (span[0], span[1]) == (last[0], last[1] + last[2]):
            text[-1] = (last[0], last[1], last[2] + span[2])
        elif span[2]:
            text.append(span)
    return tuple(text)


def cut(text: Text, start: int, end: int) -> Text:
    """Its tokens from `start` to `end`.

    >>> cut(((7, 0, 40), (9, 0, 5)), 30, 42)
    ((7, 30, 10), (9, 0, 2))
    """
    found: list[tuple[int, int, int]] = []
    for source, first, length in text:
        low, high = max(start, 0), min(end, length)
        if low < high:
            found.append((source, first + low, high - low))
        start, end = start - length, end - length
        if end <= 0:
            break
    return tuple(found)


def common_len(one: Text, other: Text) -> int:
    """How many tokens both begin with.

    >>> common_len(((7, 0, 40),), ((7, 0, 30), (8, 0, 5)))
    30
    """
    same = 0
    for (source, start, length), (its_source, its_start, its_length) in zip(one, other, strict=False):
        if source != its_source or start != its_start:
            break
        same += min(length, its_length)
        if length != its_length:
            break
    return same


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A run of tokens below its parent. `time` says when it was last used, `users` how many requests hold it."""

    text: Text
    length: int
    parent: Node | None
    time: int = 0
    users: int = 0
    is_queued: bool = False
    children: dict[Text, Node] = field(default_factory=dict)


class RadixCache:
    """The tree; lengths are tokens. `num_idle` of them no request holds."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.root = Node(text=(), length=0, parent=None)
        self.num_tokens = 0
        self.num_idle = 0
        self._clock = 0
        self._queue: list[tuple[int, int, Node]] = []  # unused leaves by a time that may have passed
        self._num_queued = 0

    def find(self, text: Text, length: int) -> tuple[Node, int]:
        """The end of the longest cached head of the first `length` tokens, and its length; whole pages."""
        node, found, path = self.root, 0, []
        length = length // self.page_size * self.page_size
        while found < length:
            rest = cut(text, found, length)
            child = node.children.get(cut(rest, 0, self.page_size))
            if child is None:
                break
            same = self._same_pages(child, rest)
            found += same
            node = child if same == child.length else self._split(child, same)
            path.append(node)
            if node is not child:
                break
        for each in path:
            each.time = self._tick()
        return node, found

    def enter(self, text: Text, length: int) -> tuple[Node, int]:
        """Add the first `length` tokens (whole pages of them); the node where they end, and how many were there."""
        node, found = self.root, 0
        length = length // self.page_size * self.page_size
        while found < length:
            rest = cut(text, found, length)
            head = cut(rest, 0, self.page_size)
            child = node.children.get(head)
            if child is None:
                leaf = Node(text=rest, length=length - found, parent=node, time=self._tick())
                node.children[head] = leaf
                self.num_tokens += leaf.length
                self.num_idle += leaf.length
                self._offer(leaf)
                return leaf, found
            child.time = self._tick()
            same = self._same_pages(child, rest)
            found += same
            node = child if same == child.length else self._split(child, same)
        return node, found

    def lock(self, node: Node) -> Node:
        """Keep it and all above it; the node."""
        each: Node | None = node
        while each is not None and each is not self.root:
            if not each.users:
                self.num_idle -= each.length
            each.users += 1
            each = each.parent
        return node

    def unlock(self, node: Node) -> None:
        """Take one lock back."""
        each: Node | None = node
        while each is not None and each is not self.root:
            each.users -= 1
            if not each.users:
                self.num_idle += each.length
                self._offer(each)
            each = each.parent

    def evict(self, wanted: int) -> int:
        """Give up unused leaves, oldest first, until `wanted` tokens or more are gone or no leaf is left; how many."""
        gone = 0
        while gone < wanted and self._queue:
            time, _, node = heapq.heappop(self._queue)
            node.is_queued = False
            if node.users or node.children:
                continue
            if node.time != time:
                self._offer(node)
                continue
            parent = node.parent
            assert parent is not None
            del parent.children[cut(node.text, 0, self.page_size)]
            self.num_tokens -= node.length
            self.num_idle -= node.length
            gone += node.length
            self._offer(parent)
        return gone

    def check(self, locked: Iterable[Node]) -> None:
        """Sums are those of the nodes, each node has the users whose paths lead through it, runs are whole pages.

        Raises:
            InvariantBroken: one of them does not hold.
        """
        users: dict[int, int] = {}
        for node in locked:
            each: Node | None = node
            while each is not None and each is not self.root:
                users[id(each)] = users.get(id(each), 0) + 1
                each = each.parent
        total = idle = 0
        for node in self.nodes():
            total += node.length
            idle += 0 if node.users else node.length
            if node.users != users.get(id(node), 0):
                raise InvariantBroken(
                    f"a node has {node.users} users, {users.get(id(node), 0)} requests lead through it"
                )
            if node.length % self.page_size or node.length != sum(length for _, _, length in node.text):
                raise InvariantBroken(f"a node of {node.length} tokens holds {node.text}, pages of {self.page_size}")
        if (total, idle) != (self.num_tokens, self.num_idle):
            raise InvariantBroken(f"{total} tokens, {idle} unused, but {self.num_tokens} and {self.num_idle} counted")

    def nodes(self) -> Iterator[Node]:
        """All but the root, each parent before its children."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node is not self.root:
                yield node
            stack += node.children.values()

    def _same_pages(self, node: Node, rest: Text) -> int:
        return common_len(node.text, rest) // self.page_size * self.page_size

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node after `length` tokens; the new head. The tail stays the node that requests hold."""
        parent = node.parent
        assert parent is not None
        head = Node(text=cut(node.text, 0, length), length=length, parent=parent, time=self._tick(), users=node.users)
        parent.children[cut(head.text, 0, self.page_size)] = head
        node.text = cut(node.text, length, node.length)
        node.length -= length
        node.parent = head
        node.time = self._tick()
        head.children[cut(node.text, 0, self.page_size)] = node
        return head

    def _offer(self, node: Node) -> None:
        """Queue an unused leaf, once."""
        if node.users or node.children or node.is_queued or node is self.root:
            return
        node.is_queued = True
        self._num_queued += 1
        heapq.heappush(self._queue, (node.time, self._num_queued, node))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
