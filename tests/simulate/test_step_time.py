from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.batch import BatchShape, Row
from stepscope.errors import BadInput
from stepscope.simulate.engine import Options, simulate
from stepscope.simulate.request import Request
from stepscope.simulate.scheduler import SchedulerRules
from stepscope.simulate.step_time import DecodeBins, DecodeGrid, PrefillBins, StepTime, nearest_root

BINS = DecodeBins(bin_len=64, ticks=tuple(tuple(1000 * rows + b for b in range(10)) for rows in range(1, 9)))
SIDES = PrefillBins(bin_len=64, ticks=tuple(tuple(100 * c + x for x in range(65)) for c in range(4)))
COST = StepTime(by_tokens=tuple(range(0, 700, 7)), decode=BINS, prefill=SIDES)


def decodes(kv_lens: list[int]) -> BatchShape:
    return BatchShape.from_rows(tuple(Row(query_len=1, context_len=each - 1, phase="decode") for each in kv_lens))


@given(st.lists(st.integers(1, 576), min_size=1, max_size=8))
def test_decode_bins_are_looked_up_by_the_whole_mean(kv_lens: list[int]) -> None:
    mean = sum(kv_lens) // len(kv_lens)
    rounded_up = (mean + 63) // 64
    assert COST.ticks(decodes(kv_lens)) == 7 * len(kv_lens) + 1000 * len(kv_lens) + rounded_up


def test_beyond_the_last_bin_its_ticks_stay() -> None:
    assert COST.ticks(decodes([10_000])) == 7 + 1000 + 9


def test_prefill_bins_are_looked_up_by_context_and_side() -> None:
    rows = (
        Row(query_len=30, context_len=65, phase="prefill"),  # two bins
        Row(query_len=40, context_len=0, phase="prefill"),
    )
    assert COST.ticks(BatchShape.from_rows(rows)) == 7 * 70 + 200 + 50  # 30, 40, 50: a right angle


@given(st.integers(0, 10**10))
def test_nearest_root_is_what_rounding_a_root_gives(number: int) -> None:
    assert nearest_root(number) == round(sqrt(number)) == int(sqrt(number) + 0.5)


def test_a_table_by_bins_needs_rows_and_a_simulation_gives_them() -> None:
    shape = BatchShape.from_rows((Row(query_len=3, context_len=0, phase="prefill"),))
    sums = BatchShape.from_sums(shape.prefill, shape.decode)
    with pytest.raises(BadInput, match="needs the rows of a step"):
        COST.ticks(sums)
    rules = SchedulerRules(max_num_batched_tokens=8, max_num_seqs=2, max_model_len=100, num_blocks=20)
    asked = [Request(request_id="a", arrival_s=0.0, prompt_len=12, output_len=3)]
    told = [simulate(asked, rules, COST, Options(steps=kept, is_exact=True)).end_s for kept in ("none", "sums", "rows")]
    assert len(set(told)) == 1


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (decodes([5] * 9), "9 decode rows have no time"),
        (BatchShape.from_rows((Row(query_len=99, context_len=0, phase="prefill"),)), "prefill of 99 tokens on 0 bins"),
        (BatchShape.from_rows((Row(query_len=9, context_len=900, phase="prefill"),)), "on 15 bins of 64"),
        (BatchShape.from_rows((Row(query_len=100, context_len=0, phase="prefill"),)), "the table ends at 99"),
    ],
)
def test_what_a_table_does_not_hold_is_refused(shape: BatchShape, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        COST.ticks(shape)


@pytest.mark.parametrize("cost", [COST, StepTime(by_tokens=(0, 5, 9)), StepTime(by_tokens=(1,), decode=BINS)])
def test_columns_hold_every_line(cost: StepTime) -> None:
    columns = cost.columns(20)
    held = 8 if cost.decode else 20
    assert len(columns.begin) == held + 2
    for rows in range(1, held + 1):
        pieces = slice(columns.begin[rows], columns.begin[rows + 1])
        line = zip(columns.start[pieces], columns.ticks[pieces], columns.slope[pieces], strict=True)
        assert tuple(line) == cost.decode_line(rows)


def test_a_grid_is_met_at_its_points_and_straight_between() -> None:
    grid = DecodeGrid(rows=(1, 4), kv_lens=(0, 100), ticks=((0, 1000), (400, 4400)))
    cost = StepTime(by_tokens=(0,) * 9, decode=grid)
    assert [cost.ticks(decodes([k] * 4)) for k in (50, 100, 200)] == [2400, 4400, 8400]
    assert cost.ticks(decodes([100, 100])) == pytest.approx(1000 + 3400 / 3, abs=1)
