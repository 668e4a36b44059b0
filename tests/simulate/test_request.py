from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.simulate.request import Request, Segment, block_keys

SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 40)), max_size=6)


def tokens_of(spans: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(source, start + place) for source, start, length in spans for place in range(length)]


@given(SPANS, SPANS, st.integers(1, 20))
def test_keys_are_equal_exactly_where_all_tokens_up_to_there_are(
    a: list[tuple[int, int, int]], b: list[tuple[int, int, int]], block_size: int
) -> None:
    keys = block_keys(a, block_size), block_keys(b, block_size)
    tokens = tokens_of(a), tokens_of(b)
    assert [len(each) for each in keys] == [len(each) // block_size for each in tokens]
    for index, (left, right) in enumerate(zip(*keys, strict=False)):
        end = (index + 1) * block_size
        assert (left == right) == (tokens[0][:end] == tokens[1][:end])


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60))
def test_a_text_of_single_tokens_needs_nothing_but_the_tokens(tokens: list[int]) -> None:
    keys = block_keys([(token, 0, 1) for token in tokens], 2)
    longer = block_keys([(token, 0, 1) for token in [*tokens, 0, 0]], 2)
    assert longer[: len(keys)] == keys
    assert all(a != b for a, b in pairwise(longer))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"arrival_s": -1.0}, "0 or more"),
        ({"arrival_s": float("nan")}, "0 or more"),
        ({"prompt_len": 0}, "1 or more"),
        ({"output_len": 0}, "1 or more"),
        ({"max_tokens": 3}, "raise the former"),
        ({"text": (Segment(source=1, length=103),)}, "103 tokens for 104"),
    ],
)
def test_an_impossible_request_is_refused_and_said_why(changed: dict[str, object], words: str) -> None:
    good: dict[str, object] = {"request_id": "a", "arrival_s": 0.0, "prompt_len": 100, "output_len": 4}
    Request(**good)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=words):
        Request(**{**good, **changed})  # type: ignore[arg-type]


def test_a_negative_source_is_refused() -> None:
    with pytest.raises(BadInput, match="0 or more"):
        Segment(source=-1, length=1)
