"""Request: what a client asks for, as lengths and as where its text comes from; block keys tell equal texts apart.

A simulator needs no token ids, only which blocks hold the same text. A text is a list of segments, each a stretch of
a source: two tokens are equal where source and place are. A block's key covers the block and all before it, as the
engines' hashes do; keys are Python's 64-bit hash of integers, the same in every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """`length` tokens of the text `source`, from its place `start` on."""

    source: int
    length: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.source < 0 or self.length < 0 or self.start < 0:
            raise BadInput(f"{self}: source, length and start must be 0 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; lengths in tokens.

    Attributes:
        request_id: its name, unique in a workload.
        arrival_s: when it arrives; with `after`, how long after that request's last token.
        prompt_len: tokens of the prompt.
        output_len: tokens that it will really put out.
        max_tokens: what the scheduler is told; None: output_len, an end that it can foresee. Where it is more, the
            request ends by a stop token, which an async scheduler learns of one step late.
        text: of prompt and output; empty: a text that no other request has.
        after: the request that must end first (a follow-up turn, or the next one of a closed-loop client).
    """

    request_id: str
    arrival_s: float
    prompt_len: int
    output_len: int
    max_tokens: int | None = None
    text: tuple[Segment, ...] = ()
    after: str | None = None

    def __post_init__(self) -> None:
        name = f"request {self.request_id!r}"
        if not (isfinite(self.arrival_s) and self.arrival_s >= 0):
            raise BadInput(f"{name} arrives at {self.arrival_s} s: give 0 or more.")
        if self.prompt_len < 1 or self.output_len < 1:
            raise BadInput(f"{name} has prompt {self.prompt_len} and output {self.output_len}: both must be 1 or more.")
        if self.max_tokens is not None and self.max_tokens < self.output_len:
            raise BadInput(f"{name} has max_tokens {self.max_tokens} and puts out {self.output_len}: raise the former.")
        told = sum(segment.length for segment in self.text)
        if self.text and told < self.num_tokens:
            raise BadInput(f"{name} has a text of {told} tokens for {self.num_tokens} of prompt and output.")

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return self.prompt_len + self.output_len

    @property
    def last_len(self) -> int:
        """Prompt and as many outputs as the scheduler is told to expect at most."""
        return self.prompt_len + (self.max_tokens or self.output_len)


def block_keys(spans: Iterable[tuple[int, int, int]], block_size: int) -> list[int]:
    """The key of each full block of a text, given as (source, start, length) spans.

    >>> a = block_keys([(7, 0, 40)], 16)
    >>> len(a), a == block_keys([(7, 0, 10), (7, 10, 30)], 16), a[0] == block_keys([(7, 0, 31), (8, 0, 1)], 16)[0]
    (2, True, True)
    """
    keys: list[int] = []
    parent, room = 0, block_size
    pieces: list[int] = []
    for source, begin, length in spans:
        start, left = begin, length
        while left > 0:
            if room == block_size and left >= block_size:  # a whole block from one source
                parent = hash((parent, source, start, block_size))
                keys.append(parent)
                start, left = start + block_size, left - block_size
                continue
            taken = min(left, room)
            if pieces and pieces[-3] == source and pieces[-2] + pieces[-1] == start:
                pieces[-1] += taken
            else:
                pieces += (source, start, taken)
            start, left, room = start + taken, left - taken, room - taken
            if room == 0:
                parent = hash((parent, *pieces))
                keys.append(parent)
                pieces, room = [], block_size
    return keys
