from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.answers.retime import Retimed, retime
from stepscope.answers.walk import Changes
from stepscope.errors import BadInput
from tests.traces import (
    ACQUIRE,
    ALL_REDUCE,
    EXECUTE,
    GEMM,
    MS,
    NORM,
    US,
    ZERO_KV,
    call,
    decode,
    frame,
    launched,
    scope,
    to_account,
)

if TYPE_CHECKING:
    from tests.traces import Event


def one(events: list[Event], **changes: object) -> Retimed:
    (rank,) = retime(to_account(events), Changes(**changes)).ranks  # type: ignore[arg-type]  # a test's shorthand
    return rank


def host_bound(step: int, *, at: int) -> list[Event]:
    """A decode step of 14.3 ms: 7.1 ms of device work in 10 kernels that the host launches one by one, then reads."""
    events: list[Event] = [scope(decode(1), at, 14_200 * US), frame(EXECUTE, at, 14_200 * US)]
    for place in range(10):
        called = at + 100 * US + place * 1_200 * US
        events += launched(GEMM, called, called + 10 * US, 710 * US, of=100 * step + place + 1)
    last = at + 100 * US + 9 * 1_200 * US + 720 * US
    events.append(call("cudaStreamSynchronize", at + 11_000 * US, last + 5 * US - (at + 11_000 * US)))
    return events


def test_where_the_host_is_the_longest_chain_a_faster_device_saves_nothing() -> None:
    """A public case: 7.1 of 14.3 ms are device time, and 0.34 to 0.9 ms less of it moved nothing."""
    events = [event for step in range(5) for event in host_bound(step, at=step * 14_300 * US)]
    busy_ns = 5 * 10 * 710 * US
    quicker = one(events, families={"gemm": 1 - 0.9 / 7.1})
    assert quicker.refusal is None
    assert abs(quicker.error) < 0.01
    # the last kernel is the only one that is waited for
    assert 0 <= (quicker.saving_ns or 0) < 0.02 * busy_ns
    assert quicker.critical_ns["host"] > 0.9 * quicker.recorded_ns
    host = one(events, host=0.7)
    assert (host.saving_ns or 0) > 0.25 * host.recorded_ns


def test_where_the_device_is_the_longest_chain_a_faster_host_saves_nothing() -> None:
    events: list[Event] = [scope(decode(1), 0, 1 * MS), frame(EXECUTE, 0, 1 * MS)]
    for place in range(20):  # launched within 1 ms, run for 10
        events += launched(GEMM, 10 * US + 40 * US * place, 20 * US + 500 * US * place, 500 * US, of=place + 1)
    slow_host = one(events, host=0.5)
    assert slow_host.refusal is None
    assert (slow_host.saving_ns or 0) < 0.01 * slow_host.recorded_ns
    half = one(events, categories={"compute": 0.5})
    assert half.retimed_ns == pytest.approx(half.recorded_ns / 2, rel=0.01)


def test_a_wait_for_work_is_no_host_work() -> None:
    events: list[Event] = [frame(ACQUIRE, 0, 5 * MS), scope(decode(1), 5 * MS, 1 * MS), frame(EXECUTE, 5 * MS, 1 * MS)]
    events += launched(NORM, 1 * US, 5 * US, 100 * US, of=1)
    events += launched(GEMM, 5_100 * US, 5_110 * US, 800 * US, of=2)
    assert (one(events, host=0.0).saving_ns or 0) < 0.2 * MS
    assert (one(events, categories={"supply": 0.0}).saving_ns or 0) > 4.5 * MS


def test_a_collective_ends_when_the_last_rank_has_come() -> None:
    def rank(late: int) -> list[Event]:
        start = 1 * MS + late
        events: list[Event] = [scope(decode(1), 0, 4 * MS), frame(EXECUTE, 0, 4 * MS)]
        events += launched(GEMM, 10 * US, 20 * US, start - 20 * US, of=1)
        end = 2 * MS + 100 * US  # 1 ms late + 100 us of transfer
        events += launched(ALL_REDUCE, 30 * US, start, end - start, of=2)
        events += launched(NORM, 40 * US, end, 50 * US, of=3)
        return events

    account = to_account(rank(0), rank(1 * MS))
    early, late = retime(account, Changes(families={"gemm": 0.0})).ranks
    # both wait only for the transfer then: 0.1 ms and the norm; the early rank's 1.1 ms in the kernel were waiting
    for each in (early, late):
        assert each.refusal is None
        assert each.retimed_ns == pytest.approx(150 * US, abs=40 * US)
    early, late = retime(account, Changes(families={"collective": 0.0})).ranks
    assert (early.saving_ns, late.saving_ns) == (100 * US, 100 * US)


def test_a_wait_that_nothing_explains_is_refused() -> None:
    events: list[Event] = [scope(decode(1), 0, 1 * MS), frame(EXECUTE, 0, 1 * MS)]
    events += launched(GEMM, 10 * US, 20 * US, 100 * US, of=1)
    events += launched(GEMM, 30 * US, 5 * MS, 100 * US, of=2)  # launched at once, run 5 ms later
    found = one(events, categories={"compute": 0.5})
    assert found.refusal is not None
    assert "do not explain" in found.refusal
    assert found.retimed_ns is None
    assert found.saving_ns is None
    assert found.steps == ()
    assert found.unexplained_ns > 4 * MS


def test_kernels_that_were_not_recorded_refuse_it() -> None:
    events: list[Event] = [scope(decode(1), 0, 1 * MS)]
    events += [call("cudaLaunchKernel", 10 * US * place, 2 * US) for place in range(30)]
    events += launched(GEMM, 400 * US, 410 * US, 100 * US, of=1)
    found = one(events)
    assert found.refusal is not None
    assert "does not hold all work" in found.refusal


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"categories": {"kv": 0.5}}, "no category 'kv' to change"),
        ({"families": {"experts": 0.5}}, "no family 'experts' to change"),
        ({"names": {"flash": 0.5}}, "no work with 'flash' in its name"),
    ],
)
def test_what_is_not_there_cannot_be_changed(changes: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        one(host_bound(0, at=0), **changes)


@pytest.mark.parametrize("factor", [-0.1, float("nan"), float("inf")])
def test_factors_are_numbers_of_0_or_more(factor: float) -> None:
    with pytest.raises(BadInput, match="give a factor of 0 to"):
        Changes(host=factor)


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """Steps whose kernels queue up or wait for the host, on one or two streams, with blocking calls."""
    events: list[Event] = []
    now, free, number = 0, {7: 0, 8: 0}, 0
    for _ in range(draw(st.integers(1, 4))):
        begin = now
        for _ in range(draw(st.integers(1, 8))):
            number += 1
            now += draw(st.integers(1, 300)) * US
            stream = draw(st.sampled_from([7, 7, 7, 8]))
            start = max(now + draw(st.integers(2, 15)) * US, free[stream] + draw(st.integers(0, 3)) * US)
            length = draw(st.integers(1, 500)) * US
            name = draw(st.sampled_from([GEMM, NORM, ZERO_KV]))
            events += launched(name, now, start, length, of=number, stream=stream)
            free[stream] = start + length
            now += 2 * US
        if draw(st.booleans()):
            back = max(*free.values(), now + 1 * US) + 4 * US
            events.append(call("cudaStreamSynchronize", now, back - now))
            now = back
        events.append(scope(decode(1), begin, now - begin))
        events.append(frame(EXECUTE, begin, now - begin))
    return events


@settings(max_examples=40, deadline=None)
@given(runs(), st.floats(0, 1), st.floats(0, 1))
def test_laws_of_retiming(events: list[Event], factor: float, host: float) -> None:
    same = one(events)
    assert abs(same.error) < 0.01
    if same.refusal is not None:
        return
    assert same.saving_ns == 0
    assert sum(same.critical_ns.values()) == same.retimed_ns
    shorter = one(events, host=host)
    both = one(events, host=host, names={"rms_norm": factor} if any("rms" in e["name"] for e in events) else {})
    # less of anything never takes longer, and more of it taken away saves at least as much
    assert 0 <= (shorter.saving_ns or 0) <= (both.saving_ns or 0)
    assert sum(both.critical_ns.values()) == both.retimed_ns
    assert [step.step_id for step in both.steps] == [step.step_id for step in same.steps]
