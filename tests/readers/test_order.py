"""The order of a file's events, and how its numbers are written, change nothing in the store."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.readers.traces import Written, content, document, microseconds, read, rows, written_events

if TYPE_CHECKING:
    from collections.abc import Sequence

META = (
    b'{"ph":"M","name":"thread_name","pid":1,"tid":1,"ts":0,"args":{"name":"main"}}',
    b'{"ph":"s","cat":"ac2g","name":"ac2g","id":1,"pid":1,"tid":1,"ts":5}',
    b'{"ph":"B","cat":"cpu_op","name":"outer","pid":1,"tid":1,"ts":10}',
    b'{"ph":"E","pid":1,"tid":1,"ts":30}',
)


def shuffled(events: Sequence[bytes], seed: int) -> bytes:
    order = list(events)
    random.Random(seed).shuffle(order)
    return document(order, "compact")


@given(written_events(), st.integers(0, 1_000))
def test_shuffled_events_give_the_same_store(events: list[Written], seed: int) -> None:
    # ids as arguments: launches and their kernels, and two events that differ in nothing else
    linked = [replace(e, args={"correlation": i // 2}) for i, e in enumerate(events)]
    twins = [replace(e, args={"correlation": 7}) for e in linked[:2]]
    texts = [e.text("compact") for e in (*linked, *twins)] + list(META)
    assert content(read(shuffled(texts, seed))) == content(read(document(texts, "compact")))


# beyond 2^43 us a float is coarser than 1 ns; a date is about 1.8e15 us
NANOSECONDS = (
    st.integers(1, 10**12) | st.integers(2**43 * 1000 - 5_000, 2**43 * 1000 + 5_000) | st.integers(10**18, 2 * 10**18)
)


@given(NANOSECONDS, st.integers(0, 10**10), st.integers(0, 3), st.booleans())
def test_decimal_microseconds_are_exact_nanoseconds(
    start_ns: int, duration_ns: int, decimals: int, quoted: bool
) -> None:
    # so many decimals, no more: the rest of the digits is not written, and is not expected
    unit = 10 ** (3 - decimals)
    start_ns, duration_ns = start_ns // unit * unit, duration_ns // unit * unit
    event = Written(name="a", start_ns=start_ns, duration_ns=duration_ns)
    text = event.text("compact")
    for key, value in ((b"ts", start_ns), (b"dur", duration_ns)):
        text = text.replace(
            b'"%s":%s' % (key, microseconds(value)),
            b'"%s":%s' % (key, microseconds(value, quoted=quoted, decimals=decimals)),
        )
    assert rows(read(document([text], "compact"))) == [(start_ns, duration_ns, "a")]


@given(st.lists(NANOSECONDS, min_size=1, max_size=2))
def test_a_number_and_its_text_are_the_same_time(starts: list[int]) -> None:
    def store(*, quoted: bool) -> dict[str, object]:
        events = [Written(name="a", start_ns=ns, duration_ns=1, quoted_times=quoted) for ns in starts]
        found = content(read(document([e.text("compact") for e in events], "compact")))
        found.pop("health")  # that they are texts is said there
        return found

    assert store(quoted=True) == store(quoted=False)


def test_one_event_beyond_float_precision_does_not_change_its_neighbours() -> None:
    near, far = Written(name="a", start_ns=1_001, duration_ns=3), Written(name="b", start_ns=2**53 + 1, duration_ns=5)
    assert rows(read(document([near.text("stdlib"), far.text("stdlib")], "stdlib"))) == [
        (1_001, 3, "a"),
        (2**53 + 1, 5, "b"),
    ]


def test_times_that_no_clock_reads_are_left_out_and_counted() -> None:
    cases = (b"1e400", b'"1e999999"', b"18446744073709551615", b"-1e300", b"9e15")
    for number in cases:
        for key in (b'"ts":1', b'"dur":1'):
            bad = Written(name="a", start_ns=1_000, duration_ns=1_000).text("compact")
            bad = bad.replace(key, key.split(b":")[0] + b":" + number)
            store = read(document([bad, Written(name="b", start_ns=5, duration_ns=7).text("compact")], "compact"))
            assert rows(store) == [(5, 7, "b")], (number, key)
            assert store.counts.present == 2


def test_ranges_without_a_time_do_not_upset_the_others() -> None:
    texts = (
        b'{"ph":"B","cat":"cpu_op","name":"outer","pid":1,"tid":1}',
        b'{"ph":"B","cat":"cpu_op","name":"far","pid":1,"tid":2,"ts":18446744073709551.615}',
        b'{"ph":"E","pid":1,"tid":1,"ts":30}',
        b'{"ph":"B","cat":"kernel","name":"k","pid":0,"tid":7,"ts":20}',
        b'{"ph":"E","pid":0,"tid":7,"ts":25}',
    )
    store = read(document(texts, "compact"))
    assert rows(store) == [(20_000, 5_000, "k")]
    assert {"missing_start": 1, "end_without_begin": 1}.items() <= {r.code: r.count for r in store.health}.items()
