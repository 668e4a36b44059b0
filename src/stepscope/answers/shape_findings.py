"""What the steps were given to compute: effective prefill, small tails, padding, decodes that prefill kept waiting.

A finding's time is that of the steps that it is about, not what mending it would save.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from stepscope.answers.finding import Finding
from stepscope.answers.prefill import chunk_sizes, count_prompts, is_tail
from stepscope.join.limits import StepSpan, find_starvation
from stepscope.messages import say
from stepscope.units import show_count, show_fraction, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.answers.account import Account
    from stepscope.steps.step import Step

_MOSTLY = 0.5  # of the prompt tokens
_NOTABLE = 0.10  # of the tokens
_MANY = 0.25  # of the chunks


def find_shape_findings(account: Account) -> Iterator[Finding]:
    """Of the first rank's steps: the scheduler's choices are the same for all."""
    steps = next((rank.table.counted for rank in account.ranks if rank.table.counted), ())
    yield from _prefill(steps)
    yield from _tails(steps)
    yield from _padding(steps)
    yield from _starvation(steps)


def _time(steps: Sequence[Step]) -> int:
    return sum(step.window[1] - step.window[0] for step in steps if step.window is not None)


def _prefill(steps: Sequence[Step]) -> Iterator[Finding]:
    found = count_prompts(steps)
    if found is None or not found.prompt_tokens:
        return
    with_prefill = _time([s for s in steps if s.boundary.shape.prefill.query_sum])
    if found.hit_tokens >= _MOSTLY * found.prompt_tokens:
        yield Finding(
            id="mostly_hits",
            layer="prefill",
            rank=None,
            text=say(
                "Of {prompt} prompt tokens {hits} ({share}) were found in the prefix cache and {computed} computed: "
                "prefill costs what the computed ones cost.",
                prompt=show_count(found.prompt_tokens),
                hits=show_count(found.hit_tokens),
                share=show_fraction(found.hit_tokens / found.prompt_tokens),
                computed=show_count(found.computed_tokens),
            ),
            value_ns=with_prefill,
            grade="recorded",
            not_shown=say("that attention still reads the tokens that were found"),
        )
    if found.again_tokens >= _NOTABLE * found.computed_tokens:
        yield Finding(
            id="recomputed",
            layer="prefill",
            rank=None,
            text=say(
                "{again} of {computed} computed prompt tokens ({share}) were computed a second time: their requests "
                "had lost their KV blocks.",
                again=show_count(found.again_tokens),
                computed=show_count(found.computed_tokens),
                share=show_fraction(found.again_tokens / found.computed_tokens),
            ),
            value_ns=with_prefill,
            grade="recorded",
            not_shown=say("why they were preempted: the KV cache's use beside it (--metrics or --step-log)"),
        )


def _tails(steps: Sequence[Step]) -> Iterator[Finding]:
    sizes = chunk_sizes(steps)
    if sizes is None or sizes.num_tails < 2 or sizes.num_tails < _MANY * len(sizes.sizes):
        return
    largest = sizes.sizes[-1]
    small = [
        s for s in steps if s.boundary.shape.prefill.query_sum and is_tail(s.boundary.shape.prefill.query_sum, largest)
    ]
    if len(small) < 2:  # tails that share their steps with other prefill cost little
        return
    yield Finding(
        id="small_tails",
        layer="chunk",
        rank=None,
        text=say(
            "{tails} of {count} prefill chunks are small tails (at most {quarter} of up to {largest} tokens); {small} "
            "steps with no more prefill than that take {time}: launches, copies, metadata and small expert groups for "
            "little work.",
            small=len(small),
            tails=sizes.num_tails,
            count=len(sizes.sizes),
            quarter=show_count(largest // 4),
            largest=show_count(largest),
            time=show_ns(_time(small)),
        ),
        value_ns=_time(small),
        grade="recorded" if sizes.are_rows else "derived",
        not_shown=say("what the same tokens would take in larger chunks: fit it (`stepscope calibrate`)"),
    )


def _padding(steps: Sequence[Step]) -> Iterator[Finding]:
    padded = [s for s in steps if s.boundary.num_padded_tokens]
    extra = sum(s.boundary.num_padded_tokens or 0 for s in padded)
    tokens = sum(s.boundary.shape.num_scheduled_tokens or 0 for s in padded)
    if extra and extra >= _NOTABLE * (tokens + extra):
        yield Finding(
            id="padding",
            layer="chunk",
            rank=None,
            text=say(
                "Padding to captured sizes adds {extra} tokens to {tokens} ({share} of what {count} steps compute).",
                extra=show_count(extra),
                tokens=show_count(tokens),
                share=show_fraction(extra / (tokens + extra)),
                count=len(padded),
            ),
            value_ns=_time(padded),
            grade="recorded",
            not_shown=say("what padding costs: small batches are bound by the weights, whatever their size"),
        )


def _starvation(steps: Sequence[Step]) -> Iterator[Finding]:
    waiting = _decodes_waiting(steps)
    spans = [
        StepSpan(
            phase=step.phase,
            duration_ns=_time([step]),
            num_prefill_tokens=step.boundary.shape.prefill.query_sum or 0,
            num_running_decodes=count,
        )
        for step, count in zip(steps, waiting, strict=True)
    ]
    found = find_starvation(spans)
    if found is not None:
        yield Finding(
            id="decodes_starved",
            layer="chunk",
            rank=None,
            text=say(
                "{steps} prefill-only steps in a row ({tokens} tokens) keep running decodes waiting for {time}.",
                steps=found.num_steps,
                tokens=show_count(found.num_prefill_tokens),
                time=show_ns(found.duration_ns),
            ),
            value_ns=found.duration_ns,
            grade="recorded",
            not_shown=say("why the scheduler let prefill pass first: its policy, or another pool's work"),
        )


def _decodes_waiting(steps: Sequence[Step]) -> list[int]:
    """Per step without decodes, the requests that decode in the steps with decodes before and after it."""
    decoding = [
        {r.request_id for r in s.boundary.shape.rows or () if r.phase == "decode" and r.request_id is not None}
        for s in steps
    ]
    places = [place for place, rows in enumerate(decoding) if rows]
    waiting = [0] * len(steps)
    for before, after in pairwise(places):
        for place in range(before + 1, after):
            waiting[place] = len(decoding[before] & decoding[after])
    return waiting
