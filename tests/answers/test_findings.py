"""Findings: each on a small capture that has it, and absent from one that has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepscope.answers.finding import READING_ORDER
from stepscope.answers.findings import find_findings
from stepscope.answers.modes import split_modes
from tests.answers.test_lateness import layers
from tests.traces import EXECUTE, GEMM, MS, US, Event, call, frame, kernel, launch, op, scope, to_account

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.answers.finding import Finding


def found(*ranks: Sequence[Event]) -> dict[str, Finding]:
    findings = find_findings(to_account(*ranks))
    assert [READING_ORDER.index(f.layer) for f in findings] == sorted(READING_ORDER.index(f.layer) for f in findings)
    return {finding.id: finding for finding in findings}


def marked(*steps: tuple[str, int]) -> list[Event]:
    """Steps of 1 ms by their rows (`request:query:kv:hit:c|g`) and scheduled tokens."""
    events = []
    for i, (rows, tokens) in enumerate(steps):
        start = i * MS
        label = f"vllm_step v=1 s={i} n={tokens} r={rows}"
        events += [scope(label, start, MS), frame(EXECUTE, start, MS), op("aten::mm", start, 900 * US)]
    return events


def test_a_prompt_that_was_mostly_found_is_told_by_what_was_computed() -> None:
    finding = found(marked(("a:100:900:800:c", 100), ("a:1:901:800:g", 1)))["mostly_hits"]
    assert "Of 900 prompt tokens 800 (88.9 %) were found in the prefix cache and 100 computed" in str(finding.text)
    assert (finding.grade, finding.value_ns) == ("recorded", MS)
    assert "mostly_hits" not in found(marked(("a:900:900:0:c", 900)))


def test_prompt_tokens_that_are_computed_again_are_told() -> None:
    again = marked(("a:600:600:0:c", 600), ("a:1:601:0:g", 1), ("a:402:602:200:c", 402))
    finding = found(again)["recomputed"]
    # kv 200 to 601 had been computed before, kv 602 had not
    assert "401 of 1,002 computed prompt tokens (40.0 %) were computed a second time" in str(finding.text)


def test_small_tails_are_told_with_the_time_of_their_steps() -> None:
    steps = [("a:512:512:0:c", 512), ("a:40:552:0:c", 40), ("b:512:512:0:c", 512), ("b:20:532:0:c", 20)]
    finding = found(marked(*steps))["small_tails"]
    assert "2 of 4 prefill chunks are small tails (at most 128 of up to 512 tokens)" in str(finding.text)
    assert finding.value_ns == 2 * MS
    assert "small_tails" not in found(marked(*steps[::2]))


def test_prefill_only_steps_between_decodes_of_one_request_starve_it() -> None:
    decode = ("v:1:101:0:g", 1)
    long = [(f"l:512:{512 * (i + 1)}:0:c", 512) for i in range(4)]
    finding = found(marked(decode, *long, ("v:1:102:0:g", 1)))["decodes_starved"]
    assert "4 prefill-only steps in a row (2,048 tokens) keep running decodes waiting for 4.00 ms" in str(finding.text)
    assert "decodes_starved" not in found(marked(decode, *long, ("w:1:102:0:g", 1)))  # v had ended


def synced(gap: int) -> list[Event]:
    """Six steps: a kernel, a call that waits for it, and `gap` until the next launch."""
    events, now = [], 0
    for i in range(6):
        end = now + 20 * US + 500 * US
        label = f"execute_context_0(0)_generation_1(sq1sk{100 + i}sqsq1sqsk{100 + i})"
        events += [
            scope(label, now, end + gap - now),
            launch(now, of=i),
            kernel(GEMM, now + 20 * US, 500 * US, of=i),
            call("cudaStreamSynchronize", now + 30 * US, end + 10 * US - now - 30 * US),
        ]
        now = end + gap
    return events


def test_a_device_that_runs_dry_inside_a_blocking_call_is_told() -> None:
    finding = found(synced(300 * US))["sync_serialises"]
    assert "runs out of work 5 times while the host stands in a blocking call (mostly cudaStreamSynchronize)" in str(
        finding.text
    )
    assert finding.value_ns == 5 * 320 * US  # the gap and the next launch's own 20 us
    assert "sync_serialises" not in found(synced(20 * US))


def test_a_late_rank_is_told_with_its_cause() -> None:
    finding = found(*(layers(ns) for ns in (63_000, 56_800, 56_400, 56_400)))["late_rank"]
    assert finding.rank == 0
    assert "before them it is longer than the mean rank in experts (compute)" in str(finding.text)


@pytest.mark.parametrize(
    ("values", "fast"),
    [
        ([100] * 33 + [146] * 3, 33),
        ([100] * 10 + [146] * 3, 10),
        ([100] * 33 + [146], None),  # one is no group
        ([100] * 6 + [146] * 6, None),  # neither is the rule
        (list(range(100, 136)), None),
        ([100] * 33 + [146, 250, 400], None),  # a tail
        ([100] * 8 + [146] * 3, None),  # too few
    ],
)
def test_two_modes_are_two_groups_with_a_gap_between(values: list[int], fast: int | None) -> None:
    assert split_modes(values) == fast
