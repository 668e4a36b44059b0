from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.batch import BatchShape, Row
from stepscope.errors import BadInput
from stepscope.simulate.engine import simulate
from stepscope.simulate.lockstep import simulate_ranks
from stepscope.simulate.overlap import DualBatch, Overlapped, StepParts
from tests.simulate.test_engine import RULES, request

seconds = st.floats(0, 10)


def decodes(count: int) -> BatchShape:
    return BatchShape.from_rows(tuple(Row(query_len=1, context_len=9, phase="decode") for _ in range(count)))


def prompt(length: int) -> BatchShape:
    return BatchShape.from_rows((Row(query_len=length, context_len=0, phase="prefill"),))


def test_the_shorter_of_compute_and_communication_is_hidden() -> None:
    dual = DualBatch()
    assert dual.time_s(StepParts(compute_s=3.0, comm_s=2.0)) == 3.0
    assert dual.time_s(StepParts(compute_s=1.0, comm_s=2.0)) == 2.0
    lossy = DualBatch(loss_fraction=0.5, num_layers=10)
    assert lossy.time_s(StepParts(compute_s=2.0, comm_s=1.0)) == pytest.approx(3.05)  # 1/20 of 1 s has nothing beside


def test_steps_are_split_from_the_thresholds_on() -> None:
    dual = DualBatch()
    assert [dual.splits((decodes(count),)) for count in (31, 32)] == [False, True]
    assert [dual.splits((prompt(length),)) for length in (511, 512)] == [False, True]


def test_all_ranks_must_want_it_and_have_two_halves() -> None:
    dual = DualBatch()
    assert dual.splits((decodes(40), decodes(32)))
    assert not dual.splits((decodes(40), decodes(31)))
    assert not dual.splits((decodes(40), None))
    assert not dual.splits((decodes(100), decodes(50)))


@given(seconds, seconds, st.floats(0, 2), st.none() | st.integers(1, 100))
def test_a_split_step_keeps_within_its_bounds(compute: float, comm: float, loss: float, layers: int | None) -> None:
    dual = DualBatch(loss_fraction=loss, num_layers=layers)
    found = dual.time_s(StepParts(compute_s=compute, comm_s=comm))
    bounds = dual.bounds_s(compute + comm)
    assert bounds.low_s - 1e-12 <= found <= bounds.high_s + 1e-12
    assert found >= max(compute, comm)


def test_unknown_shares_give_bounds() -> None:
    bounds = DualBatch(loss_fraction=1.0).bounds_s(3.0)
    assert (bounds.low_s, bounds.high_s) == (2.0, 6.0)


def test_as_an_engines_cost_and_as_a_groups() -> None:
    def parts(shape: BatchShape) -> StepParts:
        return StepParts(compute_s=2.0, comm_s=1.0 if (shape.num_scheduled_tokens or 0) > 1 else 0.5)

    cost = Overlapped(parts=parts, dual=DualBatch(decode_threshold=2, prefill_threshold=20))
    asked = [request("a", 20, 2), request("b", 20, 2)]
    assert simulate(asked, RULES, cost).end_s == 4.0  # both steps are split
    assert simulate_ranks(asked, RULES, cost, 2).end_s == 4.5  # a decode on each: too few
    assert simulate_ranks(asked[:1], RULES, cost, 2).end_s == 5.5  # a dummy beside


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput, match="loss_fraction"):
        DualBatch(loss_fraction=-0.1)
    with pytest.raises(BadInput, match="num_layers"):
        DualBatch(num_layers=0)
