"""Broken text: no defect of one event reaches the next one, and nothing goes missing without being counted."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import AmbiguousInput, UnreadableTrace
from stepscope.readers import inflate
from stepscope.readers.kineto import resync
from tests.readers.traces import LAYOUTS, Layout, Written, content, document, read, rows, written_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.store.events import EventStore

LAYOUT = st.sampled_from(LAYOUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One way to break an event's text. `name` is the name that is still read; None: the name is not kept."""

    text: bytes
    name: str | None
    is_lost: bool = False


def _marker(event: Written) -> str:
    """As the engine's plugins wrote it: JSON, unescaped, inside a name."""
    return f'step {{"reqs": [{{"id": "a", "q": {event.duration_ns}}}, {{"id": "b", "q": [1, 2]}}], "n": {{"x": "y"}}}}'


def _unescaped_quotes(event: Written, layout: Layout) -> Break:
    name = _marker(event)
    return Break(text=replace(event, raw_name=name.encode()).text(layout), name=None if layout == "sorted" else name)


def _one_quote(event: Written, layout: Layout) -> Break:
    return Break(text=replace(event, raw_name=b'a"b').text(layout), name=None if layout == "sorted" else 'a"b')


def _control_characters(event: Written, layout: Layout) -> Break:
    return Break(text=replace(event, raw_name=b"cfg\x01\n\t}").text(layout), name="cfg\x01\n\t}")


def _not_utf8(event: Written, layout: Layout) -> Break:
    return Break(text=replace(event, raw_name=b"\xff\xfe],").text(layout), name="\ufffd\ufffd],")


def _bad_escape(event: Written, layout: Layout) -> Break:
    raw = rb"C:\cuda\\bin\_x\""
    return Break(text=replace(event, raw_name=raw).text(layout), name='C:\\cuda\\bin\\_x"')


def _lone_surrogate(event: Written, layout: Layout) -> Break:
    return Break(text=replace(event, raw_name=rb"k\ud800").text(layout), name="k\ufffd")


def _not_a_number(event: Written, layout: Layout) -> Break:
    text = replace(event, args={"flops": float("nan"), "bw": float("-inf")}).text(layout)
    return Break(text=text, name=event.name)


def _trailing_comma(event: Written, layout: Layout) -> Break:
    return Break(text=event.text(layout).rstrip()[:-1] + b",}", name=event.name)


def _no_opening_brace(event: Written, layout: Layout) -> Break:
    return Break(text=event.text(layout).lstrip()[1:], name=event.name)


def _quote_and_no_time(event: Written, layout: Layout) -> Break:
    text = replace(event, raw_name=b'a"b').text(layout).replace(b'"ts"', b'"at"')
    return Break(text=text, name=None, is_lost=True)


BREAKS: tuple[Callable[[Written, Layout], Break], ...] = (
    _unescaped_quotes,
    _one_quote,
    _control_characters,
    _not_utf8,
    _bad_escape,
    _lone_surrogate,
    _not_a_number,
    _trailing_comma,
    _no_opening_brace,
    _quote_and_no_time,
)


@st.composite
def broken_traces(draw: st.DrawFn) -> tuple[bytes, list[Written], list[Break], list[Written]]:
    """(file, the events left whole, how others were broken, those others)."""
    layout = draw(LAYOUT)
    texts, whole, breaks, broken = [], [], [], []
    for event in draw(written_events()):
        spoil = draw(st.none() | st.sampled_from(BREAKS))
        if spoil is None:
            texts.append(event.text(layout))
            whole.append(event)
            continue
        plain = replace(event, name=event.name.replace('"', "").replace("}", ""), args={"x": [1, {"y": "z"}]})
        made = spoil(plain, layout)
        texts.append(made.text)
        breaks.append(made)
        broken.append(plain)
    return document(texts, layout), whole, breaks, broken


def spans(events: list[Written]) -> list[tuple[int, int]]:
    return sorted((e.start_ns, e.duration_ns) for e in events)


@given(written_events(), LAYOUT)
def test_valid_events_are_read_exactly(events: list[Written], layout: Layout) -> None:
    store = read(document([e.text(layout) for e in events], layout))
    assert rows(store) == sorted((e.start_ns, e.duration_ns, e.name) for e in events)
    assert (store.counts.intact, store.counts.present) == (len(events), len(events))


@settings(max_examples=300)
@given(broken_traces())
def test_a_broken_event_leaves_the_others_alone(
    trace: tuple[bytes, list[Written], list[Break], list[Written]],
) -> None:
    data, whole, breaks, broken = trace
    store = read(data)
    kept = [event for event, how in zip(broken, breaks, strict=True) if not how.is_lost]
    assert store.counts.intact == len(whole)
    assert store.counts.recovered == len(kept)
    assert store.counts.lost == len(broken) - len(kept)
    assert [row[:2] for row in rows(store)] == spans(whole + kept)
    names = {how.name for how in breaks if how.name is not None} | {event.name for event in whole}
    assert names <= set(store.names)


@given(broken_traces(), st.sampled_from((64, 200, 1000, 4096)), st.sampled_from((64, 500, 4096)))
def test_block_size_does_not_matter(
    trace: tuple[bytes, list[Written], list[Break], list[Written]], block_bytes: int, piece_bytes: int
) -> None:
    data, *_ = trace
    expected = content(read(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "BLOCK_BYTES", block_bytes)
        patch.setattr(inflate, "_READ_BYTES", 48)
        patch.setattr(resync, "_PIECE_BYTES", piece_bytes)
        assert content(read(data)) == expected


@given(written_events(), LAYOUT, st.data())
def test_a_missing_comma_costs_no_event(events: list[Written], layout: Layout, data: st.DataObject) -> None:
    texts = [e.text(layout) for e in events]
    gaps = [data.draw(st.booleans()) for _ in events[1:]]
    joined = b"".join(text + (b"" if i == len(gaps) else b" " if gaps[i] else b", ") for i, text in enumerate(texts))
    store = read(document([joined], layout))
    assert [row[:2] for row in rows(store)] == spans(events)
    assert (store.counts.recovered, store.counts.present) == (sum(gaps), len(events))


@given(written_events(max_size=4), LAYOUT, st.data())
def test_a_file_cut_anywhere_gives_the_events_before_the_cut(
    events: list[Written], layout: Layout, data: st.DataObject
) -> None:
    texts = [e.text(layout) for e in events]
    whole = document(texts, layout)
    cut = data.draw(st.integers(0, len(whole)))
    ends, at = [], 0
    for text in texts:
        at = whole.index(text, at) + len(text)
        ends.append(at)
    complete = sum(end <= cut for end in ends)
    opened = whole.index(b"[") + 1
    if cut < opened:
        with pytest.raises(UnreadableTrace):
            read(whole[:cut])
        return
    store = read(whole[:cut])
    assert rows(store) == sorted((e.start_ns, e.duration_ns, e.name) for e in events[:complete])
    assert (store.counts.intact, store.counts.recovered) == (complete, 0)
    assert store.counts.lost <= 1
    is_open = b"]" not in whole[ends[-1] if ends else opened : cut]
    assert is_open == any(row.code == "truncated_file" for row in store.health)


@given(broken_traces(), st.data())
def test_a_broken_file_cut_anywhere_is_read_or_refused(
    trace: tuple[bytes, list[Written], list[Break], list[Written]], data: st.DataObject
) -> None:
    whole, events, _, broken = trace
    cut = data.draw(st.integers(0, len(whole)))
    try:
        store = read(whole[:cut])
    except (UnreadableTrace, AmbiguousInput):
        return
    assert {row[:2] for row in rows(store)} <= set(spans(events + broken))


@given(broken_traces(), st.lists(st.integers(0, 2000), max_size=4), st.sampled_from((7, 64, 1 << 16)))
def test_gzip_members_may_be_split_anywhere(
    trace: tuple[bytes, list[Written], list[Break], list[Written]], cuts: list[int], read_bytes: int
) -> None:
    data, *_ = trace
    expected = content(read(data))
    places = sorted({min(cut, len(data)) for cut in cuts})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_READ_BYTES", read_bytes)
        store = read(b"".join(gzip.compress(piece, 1) for piece in pieces), "trace.json.gz")
    health = {row.code: row.count for row in store.health}
    assert health.pop("gzip_several_members", 0) == int(len(pieces) > 1)
    assert content(store) | {"health": health} == expected


@given(written_events(max_size=4), LAYOUT, st.data())
def test_a_gzip_file_cut_anywhere_gives_the_events_before_the_cut(
    events: list[Written], layout: Layout, data: st.DataObject
) -> None:
    packed = gzip.compress(document([e.text(layout) for e in events], layout), 6)
    cut = data.draw(st.integers(3, len(packed)))
    try:
        store = read(packed[:cut], "trace.json.gz")
    except UnreadableTrace:
        return
    assert rows(store) == sorted((e.start_ns, e.duration_ns, e.name) for e in events[: store.counts.intact])
    assert store.counts.recovered == 0
    assert (cut < len(packed)) == any(row.code == "gzip_truncated" for row in store.health)


def broken(store: EventStore) -> tuple[int, int, int]:
    return store.counts.intact, store.counts.recovered, store.counts.lost


ONE = Written(name="a", start_ns=1_500, duration_ns=250)
TWO = Written(name="b", start_ns=4_000, duration_ns=2_000)


def test_a_marker_with_json_in_its_name_keeps_the_rest_of_the_file() -> None:
    # the list in the name ends as the list of events does: "]}" and "],"
    raw = b'vllm_step {"reqs": [{"id": "r0", "q": 5}], "all": {"x": [{"name": 1}]}}'
    for layout in LAYOUTS:
        texts = [ONE.text(layout), replace(ONE, raw_name=raw, start_ns=2_000).text(layout), TWO.text(layout)]
        store = read(document(texts, layout))
        assert broken(store) == (2, 1, 0)
        assert [row[:2] for row in rows(store)] == [(1_500, 250), (2_000, 250), (4_000, 2_000)]


def test_many_nested_arguments_do_not_make_an_event_broken() -> None:
    nested = replace(ONE, args={"levels": [{"a": {"b": i}} for i in range(40)]})
    bad = replace(TWO, raw_name=b'a"b')
    store = read(document([nested.text("compact"), bad.text("compact")], "compact"))
    assert broken(store) == (1, 1, 0)


def test_a_time_with_a_decimal_comma_is_not_read_as_a_whole_number() -> None:
    text = ONE.text("compact").replace(b'"ts":1.5', b'"ts":1,5')
    assert rows(read(document([text], "compact"))) == [(1_500, 250, "a")]
    worse = text.replace(b'"a"', b'"a"b"')
    assert broken(read(document([worse, TWO.text("compact")], "compact"))) == (1, 0, 1)


def test_a_time_in_scientific_form_is_read_whole() -> None:
    text = replace(ONE, raw_name=b'a"b').text("compact").replace(b'"ts":1.5', b'"ts":1.25e3')
    assert rows(read(document([text, TWO.text("compact")], "compact")))[-1] == (1_250_000, 250, 'a"b')


def test_a_second_document_after_a_cut_one_is_not_taken_for_its_events() -> None:
    first = document([ONE.text("stdlib"), TWO.text("stdlib")], "stdlib")
    second = document([ONE.text("stdlib")] * 3, "stdlib")
    for cut in (first.index(b'"b"'), first.index(b'"b"') - 40, len(first) - 2):
        with pytest.raises(AmbiguousInput, match="several trace documents"):
            read(first[:cut] + second)


def test_a_cut_inside_nested_arguments_is_not_taken_for_the_end_of_the_list() -> None:
    nested = replace(TWO, args={"id": [{"name": 1}], "x": None})
    whole = document([ONE.text("compact"), nested.text("compact")], "compact")
    for mark in (b"}]", b"null}"):
        store = read(whole[: whole.index(mark) + len(mark)])
        assert broken(store) == (1, 0, 1)
        assert "truncated_file" in [row.code for row in store.health]


def test_nesting_without_end_is_one_lost_event() -> None:
    deep = b'{"ph":"X","name":"deep","args":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    assert broken(read(document([ONE.text("compact"), deep, TWO.text("compact")], "compact"))) == (2, 0, 1)


def test_an_event_of_wrong_types_is_still_one_event() -> None:
    odd = json.dumps({"ph": "X", "name": None, "pid": 1.5, "tid": [], "ts": 1.5, "dur": 0.25, "args": [{"name": 1}]})
    store = read(document([odd.encode(), TWO.text("compact")], "compact"))
    assert broken(store) == (1, 1, 0)
    assert [row[:2] for row in rows(store)] == [(1_500, 250), (4_000, 2_000)]
