"""Damaged bytes: whatever is in a file, it is read with its losses counted, or refused in our own words."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from tests.readers.traces import Written, document, read

ROBUST = Path(__file__).parent / "robust"
_SNIPPETS = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\0",
    b"\xff",
    b"},{",
    b"]}",
    b'"ts":',
    b'"ph":"B",',
    b"NaN",
    b"1e999",
)


def mutate(data: bytes, random_: random.Random) -> bytes:
    """A few bytes overwritten, cut out, doubled, or put in."""
    for _ in range(random_.choice((1, 1, 2, 5))):
        at, length = random_.randrange(len(data) + 1), random_.choice((1, 1, 3, 20, 200))
        change = random_.choice(("overwrite", "cut out", "double", "put in", "cut off"))
        middle = {
            "overwrite": random_.randbytes(length),
            "cut out": b"",
            "double": 2 * data[at : at + length],
            "put in": random_.choice(_SNIPPETS) + data[at : at + length],
            "cut off": data[at : at + length],
        }[change]
        data = data[:at] + middle + (b"" if change == "cut off" else data[at + length :])
    return data


def seeds() -> tuple[bytes, ...]:
    one = [
        Written(name=f"k{i}", start_ns=1_000 + i, duration_ns=10, cat="kernel", args={"correlation": i})
        for i in range(20)
    ]
    two = [
        Written(name='vllm {"a": [1]}', start_ns=10**18 + i, duration_ns=7, args={"x": {"y": [i]}}) for i in range(8)
    ]
    return (
        document([e.text("compact") for e in one], "compact"),
        document([e.text("pretty") for e in two], "pretty"),
        (ROBUST / "50_BE_unfinished.json").read_bytes(),
    )


@pytest.mark.parametrize("seed", range(6))
def test_damaged_text_is_read_or_refused(seed: int) -> None:
    random_ = random.Random(seed)
    for data in seeds():
        for _ in range(30):
            try_to_read(mutate(data, random_), "a.json")


@pytest.mark.parametrize("seed", range(6))
def test_damaged_gzip_is_read_or_refused(seed: int) -> None:
    random_ = random.Random(seed)
    for data in seeds():
        half = len(data) // 2
        for packed in (gzip.compress(data), gzip.compress(data[:half]) + gzip.compress(data[half:])):
            for _ in range(20):
                try_to_read(mutate(packed, random_), "a.json.gz")


def try_to_read(data: bytes, name: str) -> None:
    """`read` holds the store to its laws; only our own errors may come out."""
    try:
        store = read(data, name)
    except StepscopeError as error:
        assert str(error).endswith(".") or ". " in str(error)  # what is wrong, and what to do
        return
    lost = sum(row.count for row in store.health if row.code == "event_lost")
    assert lost == store.counts.lost
