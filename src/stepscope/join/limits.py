"""Which of several budgets bound the prefill batches, and how long prefill kept decodes waiting.

A budget *binds* where requests waited and the next prompt would not have fit into it any more: the smallest such one.
Sources: vLLM `max_num_batched_tokens`; SGLang `chunked_prefill_size` (divided by `dp_size` under DP attention) and
`max_prefill_tokens` (16384 unless set).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.messages import Message, say
from stepscope.units import show_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.readers.server_log.reader import LogRecord, ServerLog

_DEFAULT_MAX_PREFILL = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingBudget:
    """The budget that bound, its tokens, the largest batch under it, and the others with what raising them changes."""

    name: str
    tokens: int
    largest_batch_tokens: int
    num_batches: int
    others: Mapping[str, int]
    text: Message


def find_budgets(arguments: Mapping[str, str]) -> dict[str, int]:
    """The token budgets per prefill batch that a server's arguments set, and SGLang's default."""
    numbers = {name: int(value) for name, value in arguments.items() if value.isdigit()}
    found = {}
    if "max_num_batched_tokens" in numbers:
        found["max_num_batched_tokens"] = numbers["max_num_batched_tokens"]
    if numbers.get("chunked_prefill_size", 0) > 0:
        dp = numbers.get("dp_size", 1) if arguments.get("enable_dp_attention") == "True" else 1
        found["chunked_prefill_size" + (" / dp_size" if dp > 1 else "")] = numbers["chunked_prefill_size"] // dp
        found["max_prefill_tokens"] = numbers.get("max_prefill_tokens", _DEFAULT_MAX_PREFILL)
    return found


def find_binding_budget(log: ServerLog) -> BindingBudget | None:
    """The budget that held the prefill batches back while requests waited; None where none did or none is known."""
    budgets = find_budgets(log.arguments)
    held = [_batch(r) for r in log.records if (r.number("num_waiting") or 0) > 0 and _batch(r)[0]]
    if not budgets or not held:
        return None
    largest, longest = max(held)
    binding = [(tokens, name) for name, tokens in budgets.items() if largest <= tokens < largest + max(longest, 1)]
    if not binding:
        return None
    tokens, name = min(binding)
    others = {other: value for other, value in budgets.items() if other != name}
    text = say(
        "While requests waited, prefill batches held {largest} tokens: {name} = {tokens} left no room for one more "
        "prompt of {longest}. Raising {others} alone changes nothing.",
        largest=show_count(largest),
        name=name,
        tokens=show_count(tokens),
        longest=show_count(longest),
        others=" or ".join(f"{n} ({show_count(v)})" for n, v in others.items() if v >= tokens) or "another budget",
    )
    return BindingBudget(
        name=name, tokens=tokens, largest_batch_tokens=largest, num_batches=len(held), others=others, text=text
    )


def _batch(record: LogRecord) -> tuple[int, int]:
    """Tokens of a prefill batch, and tokens of one prompt in it."""
    tokens = record.number("num_prefill_tokens") or 0
    requests = record.number("num_new_requests") or record.number("num_prefill_requests") or 0
    return int(tokens), int(tokens / requests) if requests else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """A step for the question of starvation: its phase, its time, its prefill tokens, and decodes that could run."""

    phase: str | None
    duration_ns: int
    num_prefill_tokens: int = 0
    num_running_decodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """The longest run of prefill-only steps while decodes could have run."""

    num_steps: int
    duration_ns: int
    num_prefill_tokens: int

    def wait_with_decodes_every(self, num_chunks: int) -> int:
        """The longest gap of a decode if one decode step stood after every so many chunks; its own time not counted."""
        return round(self.duration_ns * min(num_chunks, self.num_steps) / self.num_steps)


def find_starvation(steps: Sequence[StepSpan]) -> Starvation | None:
    """The longest such run by time; None where there is none of two steps or more."""
    best: Starvation | None = None
    run: list[StepSpan] = []
    for step in [*steps, StepSpan(phase=None, duration_ns=0)]:
        if step.phase == "prefill" and step.num_running_decodes > 0:
            run.append(step)
            continue
        if len(run) > 1:
            found = Starvation(
                num_steps=len(run),
                duration_ns=sum(s.duration_ns for s in run),
                num_prefill_tokens=sum(s.num_prefill_tokens for s in run),
            )
            best = found if best is None or found.duration_ns > best.duration_ns else best
        run = []
    return best
