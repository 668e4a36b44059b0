"""Forward-pass metrics: msgpack payloads or JSON lines; gaps and damage are counted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import BadInput, StepscopeError
from stepscope.readers.forward_metrics import _Msgpack, read_forward_metrics
from tests.readers.test_fuzz import mutate


def message(counter: int, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "worker_id": "w",
        "dp_rank": 0,
        "counter_id": counter,
        "wall_time": 0.025,
        "scheduled_requests": {
            "num_prefill_requests": 1,
            "sum_prefill_tokens": 512,
            "var_prefill_length": 0.5,
            "sum_prefill_kv_tokens": 1024,
            "num_decode_requests": 3,
            "sum_decode_kv_tokens": 70_000,
        },
        "queued_requests": {"num_prefill_requests": 7, "sum_prefill_tokens": 9_000, "num_decode_requests": 1},
    } | more


def write(folder: Path, messages: list[dict[str, Any]], *, packed: bool = True) -> Path:
    path = folder / "fpm"
    lines = [msgspec.msgpack.encode(m) if packed else json.dumps(m).encode() + b"\n" for m in messages]
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_both_ways_to_save_say_the_same(packed: bool, tmp_path: Path) -> None:
    log = read_forward_metrics(write(tmp_path, [message(4), message(5)], packed=packed))
    one = log.iterations[0]
    assert (one.counter, one.wall_ns, one.num_prefill_tokens, one.prefill_context_sum) == (4, 25_000_000, 512, 1024)
    assert (one.num_waiting, one.queued_prefill_tokens) == (8, 9_000)
    assert log.reading.health == ()


def test_a_jump_of_the_counter_is_a_loss(tmp_path: Path) -> None:
    log = read_forward_metrics(write(tmp_path, [message(4), message(9), message(2, worker_id="other")]))
    assert {row.code: row.count for row in log.reading.health} == {"forward_message_lost": 4}


def test_another_schema_version_is_not_guessed(tmp_path: Path) -> None:
    log = read_forward_metrics(write(tmp_path, [message(1), message(2, version=2), message(3, wall_time=-1.0)]))
    assert len(log.iterations) == 1
    assert {row.code: row.count for row in log.reading.health}["forward_message_unparsed"] == 2


def test_what_is_cut_off_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path, [message(1), message(2)])
    path.write_bytes(path.read_bytes()[:-5])
    log = read_forward_metrics(path)
    assert len(log.iterations) == 1
    assert [row.code for row in log.reading.health] == ["forward_message_unparsed"]


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"hello", b"{}\n", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 100):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(BadInput):
            read_forward_metrics(tmp_path / "a")
    with pytest.raises(BadInput):
        read_forward_metrics(tmp_path / "nowhere")


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=30,
)


@given(VALUES)
def test_what_another_library_packs_is_read_back(value: Any) -> None:
    packed = msgspec.msgpack.encode(value)
    reader = _Msgpack(packed)
    try:
        assert reader.value(0) == value
    except ValueError as error:
        assert str(error) == "too deep"
        return
    assert reader.place == len(packed)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_files_are_read_or_refused(seed: int, packed: bool, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    data = write(tmp_path, [message(i) for i in range(4)], packed=packed).read_bytes()
    for _ in range(60):
        (tmp_path / "a").write_bytes(mutate(data, random_))
        try:
            log = read_forward_metrics(tmp_path / "a")
        except StepscopeError:
            continue
        assert all(one.wall_ns >= 0 for one in log.iterations)
