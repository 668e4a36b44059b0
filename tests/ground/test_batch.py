"""Rows and their sums: what a step computed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.batch import NO_ROWS, UNKNOWN_ROWS, BatchShape, PhaseSums, Row, StepPhase
from stepscope.errors import InvariantBroken

ROWS = st.lists(
    st.builds(
        Row,
        query_len=st.integers(1, 9_000),
        context_len=st.integers(0, 200_000),
        phase=st.sampled_from(("prefill", "decode")),
    ),
    max_size=6,
).map(tuple)


def test_sums_of_two_rows_worked_by_hand() -> None:
    # a chunk of 512 tokens behind 1,024, and a decode with one draft token behind 99
    chunk = Row(query_len=512, context_len=1_024, phase="prefill")
    decode = Row(query_len=2, context_len=99, phase="decode")
    shape = BatchShape.from_rows((chunk, decode))
    assert (chunk.kv_len, decode.kv_len) == (1_536, 101)
    assert shape.prefill == PhaseSums(
        num_requests=1, query_sum=512, kv_sum=1_536, query_sq_sum=262_144, query_kv_sum=786_432
    )
    assert shape.decode == PhaseSums(num_requests=1, query_sum=2, kv_sum=101, query_sq_sum=4, query_kv_sum=202)
    assert (shape.num_requests, shape.num_scheduled_tokens, shape.phase) == (2, 514, "mixed")


@given(ROWS)
def test_query_lengths_add_up_to_the_scheduled_tokens(rows: tuple[Row, ...]) -> None:
    shape = BatchShape.from_rows(rows)
    shape.check()
    assert shape.num_scheduled_tokens == sum(row.query_len for row in rows)
    assert shape.num_requests == len(rows)
    assert shape.rows == rows


@given(ROWS)
def test_known_rows_always_tell_the_phase(rows: tuple[Row, ...]) -> None:
    phases = {row.phase for row in rows}
    expected = "mixed" if len(phases) == 2 else next(iter(phases), "empty")
    assert BatchShape.from_rows(rows).phase == expected


@given(ROWS)
def test_a_row_attends_at_least_to_itself(rows: tuple[Row, ...]) -> None:
    for sums in (BatchShape.from_rows(rows).prefill, BatchShape.from_rows(rows).decode):
        assert (sums.query_sum or 0) <= (sums.kv_sum or 0)
        assert (sums.query_sum or 0) <= (sums.query_sq_sum or 0) <= (sums.query_kv_sum or 0)


SOME = PhaseSums(num_requests=2, query_sum=8)


@pytest.mark.parametrize(
    ("shape", "phase"),
    [
        (BatchShape(), None),
        (BatchShape(num_scheduled_tokens=0), "empty"),
        (BatchShape(num_scheduled_tokens=7), None),
        (BatchShape.from_sums(SOME, NO_ROWS), "prefill"),
        (BatchShape.from_sums(NO_ROWS, SOME), "decode"),
        (BatchShape.from_sums(SOME, SOME), "mixed"),
        (BatchShape.from_sums(NO_ROWS, NO_ROWS), "empty"),
        (BatchShape.from_sums(SOME, UNKNOWN_ROWS), None),
        (BatchShape.from_sums(PhaseSums(query_sum=8), NO_ROWS), "prefill"),
    ],
)
def test_the_phase_is_told_only_where_it_is_known(shape: BatchShape, phase: StepPhase | None) -> None:
    assert shape.phase == phase


def test_an_unknown_part_makes_the_total_unknown() -> None:
    shape = BatchShape.from_sums(SOME, UNKNOWN_ROWS)
    assert (shape.num_requests, shape.num_scheduled_tokens) == (None, None)


def test_a_total_that_is_not_the_sum_is_refused_with_both_sides() -> None:
    wrong = BatchShape(prefill=SOME, decode=NO_ROWS, num_scheduled_tokens=9)
    with pytest.raises(InvariantBroken, match="sum of query_len is 8, scheduled tokens are 9"):
        wrong.check()
    BatchShape(prefill=SOME, decode=UNKNOWN_ROWS, num_scheduled_tokens=9).check()
