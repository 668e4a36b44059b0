from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.batch import BatchShape, PhaseSums, Row
from stepscope.errors import BadInput
from stepscope.operators.rows import StepRows, equal_rows
from tests.operators.steps import decode_step, mixed_step, prefill_step

lengths = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 700)), min_size=1, max_size=5)


def shape_of(rows: list[tuple[int, int]]) -> BatchShape:
    return BatchShape.from_rows(tuple(Row(query_len=q, context_len=c, phase="prefill") for q, c in rows))


@settings(max_examples=60, deadline=None)
@given(rows=lengths, window=st.integers(1, 200), ratio=st.sampled_from([4, 128]), cap=st.integers(1, 60))
def test_closed_forms_equal_counting_every_query(
    rows: list[tuple[int, int]], window: int, ratio: int, cap: int
) -> None:
    part = StepRows.from_shapes([shape_of(rows)]).prefill
    seen = [t for q, c in rows for t in range(c + 1, c + q + 1)]
    assert part.num_tokens == len(seen)
    assert part.pairs() == sum(seen)
    assert part.pairs(window) == sum(min(t, window) for t in seen)
    assert part.closed_pairs(ratio) == sum(t // ratio for t in seen)
    assert part.closed_pairs(ratio, cap) == sum(min(t // ratio, cap) for t in seen)
    assert part.num_kv == sum(q + c for q, c in rows)
    assert part.new_windows(ratio) == sum(1 for t in seen if t % ratio == 0)
    assert part.padded_tokens(64) == sum(-(-q // 64) * 64 for q, _ in rows)
    distinct = sum(
        len({k for t in range(c + 1, c + q + 1) for k in range(max(1, t - window + 1), t + 1)}) for q, c in rows
    )
    assert part.window_rows(window) == distinct


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(lengths, min_size=1, max_size=4))
def test_many_steps_at_once_equal_each_alone(steps: list[list[tuple[int, int]]]) -> None:
    shapes = [shape_of(rows) for rows in steps]
    together = StepRows.from_shapes(shapes).prefill
    alone = [StepRows.from_shapes([shape]).prefill for shape in shapes]
    for name in ("pairs", "num_kv", "num_rows", "max_kv_len"):
        value = getattr(together, name)
        value = value() if callable(value) else value
        own = [getattr(part, name) for part in alone]
        assert np.atleast_1d(value).tolist() == [x() if callable(x) else x for x in own]
    assert np.atleast_1d(together.closed_pairs(4, 9)).tolist() == [part.closed_pairs(4, 9) for part in alone]


def test_empty_steps_keep_their_place() -> None:
    rows = StepRows.from_shapes([decode_step(2, 10), BatchShape(rows=()), prefill_step(5), BatchShape(rows=())])
    assert rows.num_steps == 4
    assert np.asarray(rows.num_tokens).tolist() == [2, 0, 5, 0]


def test_phases_are_kept_apart() -> None:
    rows = StepRows.from_shapes([mixed_step(prefill_step(100, 20), decode_step(3, 50, 4))])
    assert (rows.prefill.num_tokens, rows.decode.num_tokens) == (100, 12)
    assert rows.num_logits == 1 + 12  # the prefill row's last token; every token that is verified


def test_sums_stand_in_for_unknown_rows() -> None:
    """Σq, Σk and the number of rows hold exactly; vLLM's and SGLang's annotations give no more."""
    sums = BatchShape.from_sums(
        PhaseSums(num_requests=0, query_sum=0), PhaseSums(num_requests=3, query_sum=3, kv_sum=100)
    )
    rows = equal_rows(sums)
    assert [row.context_len for row in rows] == [33, 32, 32]
    assert StepRows.from_shapes([sums]).decode.num_kv == 100
    with pytest.raises(BadInput, match="the step's prefill rows are unknown"):
        equal_rows(BatchShape())


def test_impossible_rows_are_refused() -> None:
    with pytest.raises(BadInput, match="at least 1 token"):
        StepRows.from_shapes([prefill_step(0, 5)])
