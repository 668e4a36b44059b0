from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import InvariantBroken
from stepscope.simulate.kv_cache import KvCache


def cache_with(tables: list[tuple[int, list[int]]]) -> tuple[KvCache, list[list[int]]]:
    """Seven usable blocks; per table: how many blocks, and the keys of the first ones."""
    cache = KvCache(num_blocks=8, block_size=16)
    made: list[list[int]] = []
    for count, keys in tables:
        table: list[int] = []
        cache.take(table, count)
        cache.enter(table, keys, 0, len(keys))
        made.append(table)
    return cache, made


def test_block_zero_is_never_handed_out() -> None:
    cache, tables = cache_with([(7, [])])
    assert tables == [[1, 2, 3, 4, 5, 6, 7]]
    assert cache.num_free == 0


def test_freed_blocks_without_text_are_reused_first_and_the_tail_before_the_head() -> None:
    cache, (table, _) = cache_with([(4, [101, 102]), (1, [])])
    cache.release(table)
    assert list(cache.free) == [4, 3, 6, 7, 2, 1]
    assert table == []


def test_a_freed_block_is_found_until_it_is_handed_out_again() -> None:
    cache, (table,) = cache_with([(2, [101, 102])])
    cache.release(table)
    assert cache.find([101, 102, 103], 3) == [1, 2]
    cache.take([], 5)  # 3 to 7, which never held a text
    assert cache.find([101, 102], 2) == [1, 2]
    cache.take([], 1)  # block 2 went back first, so it goes first
    assert cache.find([101, 102], 2) == [1]


def test_a_hit_takes_a_block_back_from_the_middle_of_the_free_list() -> None:
    cache, (table,) = cache_with([(3, [101, 102, 103])])
    cache.release(table)
    hits = cache.find([101, 102], 2)
    assert cache.num_idle(hits) == 2
    other: list[int] = []
    cache.adopt(other, hits)
    assert list(cache.free) == [4, 5, 6, 7, 3]
    cache.check([other])


def test_equal_texts_are_kept_twice_and_the_oldest_is_found() -> None:
    cache, (first, second, third) = cache_with([(1, [101])] * 3)
    assert cache.find([101], 1) == first == [1]
    cache.release(first)
    other: list[int] = []
    cache.take(other, 5)  # block 1 is reused last
    assert cache.find([101], 1) == second == [2]
    cache.check([second, third, other])


def test_a_block_of_two_requests_is_free_when_both_gave_it_back() -> None:
    cache, (table,) = cache_with([(1, [101])])
    other: list[int] = []
    cache.adopt(other, cache.find([101], 1))
    cache.release(table)
    assert cache.num_free == 6
    cache.release(other)
    assert cache.num_free == 7


@given(st.lists(st.tuples(st.sampled_from(["take", "adopt", "release"]), st.integers(0, 5)), max_size=60))
def test_free_and_used_blocks_are_all_blocks_whatever_happens(moves: list[tuple[str, int]]) -> None:
    cache = KvCache(num_blocks=12, block_size=16)
    tables: list[list[int]] = [[] for _ in range(6)]
    for verb, which in moves:
        table = tables[which]
        if verb == "release":
            cache.release(table)
        elif verb == "take" and cache.num_free:
            place = len(table)
            cache.take(table, 1)
            if which % 2:
                cache.enter(table, list(range(place + 1)), place, place + 1)
        elif verb == "adopt" and not table:
            cache.adopt(table, cache.find(list(range(8)), 8))
        cache.check(tables)


def test_a_lost_block_is_noticed() -> None:
    cache, (table,) = cache_with([(2, [])])
    with pytest.raises(InvariantBroken, match="free blocks, of 7"):
        cache.check([table[:1]])
