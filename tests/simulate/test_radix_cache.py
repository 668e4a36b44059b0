from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import InvariantBroken
from stepscope.simulate.radix_cache import Node, RadixCache, Text, common_len, cut, joined

SPANS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=4)
TEXTS = SPANS.map(joined)


def tokens(text: Text) -> list[tuple[int, int]]:
    return [(source, start + i) for source, start, length in text for i in range(length)]


def size(text: Text) -> int:
    return sum(length for _, _, length in text)


@given(TEXTS, TEXTS)
def test_spans_are_compared_as_their_tokens_are(one: Text, other: Text) -> None:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(tokens(one), tokens(other), strict=False))
    assert common_len(one, other) == len(list(same))


@given(TEXTS, st.integers(0, 30), st.integers(0, 30))
def test_a_cut_is_a_slice(text: Text, start: int, end: int) -> None:
    assert tokens(cut(text, start, end)) == tokens(text)[start:end]


def test_a_longer_text_shares_its_head_and_a_fork_cuts_the_node() -> None:
    cache = RadixCache()
    cache.enter(((1, 0, 10),), 10)
    assert cache.find(((1, 0, 6), (2, 0, 5)), 11)[1] == 6
    assert sorted(node.length for node in cache.nodes()) == [4, 6]
    _, known = cache.enter(((1, 0, 6), (2, 0, 5)), 11)
    assert (known, cache.num_tokens) == (6, 15)


def test_pages_are_whole() -> None:
    cache = RadixCache(page_size=4)
    cache.enter(((1, 0, 11),), 11)
    assert cache.num_tokens == 8
    assert cache.find(((1, 0, 7), (2, 0, 9)), 16)[1] == 4


def test_the_leaf_used_longest_ago_goes_first_and_a_parent_only_when_childless() -> None:
    cache = RadixCache()
    for tail in (2, 3):
        cache.enter(((1, 0, 6), (tail, 0, 4)), 10)
    cache.find(((1, 0, 6), (2, 0, 4)), 10)  # 2 is now the more recent one
    assert cache.evict(1) == 4
    assert cache.find(((1, 0, 6), (3, 0, 4)), 10)[1] == 6
    assert cache.find(((1, 0, 6), (2, 0, 4)), 10)[1] == 10
    assert cache.evict(5) == 10
    assert cache.num_tokens == 0


def test_what_a_request_holds_stays_with_all_above_it() -> None:
    cache = RadixCache()
    node, _ = cache.enter(((1, 0, 6),), 6)
    cache.enter(((1, 0, 6), (2, 0, 4)), 10)
    cache.lock(node)
    assert cache.evict(100) == 4
    cache.unlock(node)
    assert cache.evict(100) == 6


def test_a_wrong_count_of_users_is_noticed() -> None:
    cache = RadixCache()
    node, _ = cache.enter(((1, 0, 6),), 6)
    cache.lock(node)
    with pytest.raises(InvariantBroken, match="users"):
        cache.check([])


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["enter", "find", "evict", "lock", "unlock"]), TEXTS), max_size=25),
    st.sampled_from([1, 4]),
)
def test_laws_hold_and_only_what_was_entered_is_found(moves: list[tuple[str, Text]], page: int) -> None:
    cache = RadixCache(page)
    entered: list[list[tuple[int, int]]] = []
    locked: list[Node] = []
    has_evicted = False
    for move, text in moves:
        if move == "enter":
            cache.enter(text, size(text))
            entered.append(tokens(text)[: size(text) // page * page])
        elif move == "evict":
            has_evicted |= cache.evict(5) > 0
        elif move == "lock":
            locked.append(cache.lock(cache.find(text, size(text))[0]))
        elif move == "unlock" and locked:
            cache.unlock(locked.pop())
        cache.check(locked)
        _, found = cache.find(text, size(text))
        wanted = tokens(text)
        best = max((_shared(wanted, other) // page * page for other in entered), default=0)
        assert found <= best if has_evicted else found == best


def _shared(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
