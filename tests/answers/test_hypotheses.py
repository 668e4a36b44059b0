"""Hypotheses: a bound that the recording carries, and a verdict that the comparison carries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepscope.answers.compare import compare
from stepscope.answers.findings import find_findings
from stepscope.answers.hypotheses import REMEDIES, STATUS_MEANING, find_hypotheses, judge
from stepscope.answers.ledger import Ledger, read_ledger, to_trial
from stepscope.answers.retime import retime
from stepscope.answers.walk import Changes
from stepscope.errors import BadInput
from tests.traces import EXECUTE, GEMM, MS, US, ZERO_KV, decode, frame, launched, scope, to_account

if TYPE_CHECKING:
    from stepscope.answers.account import Account
    from tests.traces import Event


def steps(*, host: int = 1 * MS, kv: int = 300 * US, count: int = 12) -> Account:
    """Decode steps whose kernels wait for `host` of launching, with `kv` of writing the cache."""
    events: list[Event] = []
    now = 0
    for number in range(count):
        begin = now
        events += launched(GEMM, begin + host, begin + host + 5 * US, 500 * US + number * US, of=2 * number + 1)
        end = begin + host + 505 * US + number * US
        events += launched(ZERO_KV, begin + host + 2 * US, end, kv, of=2 * number + 2)
        now = end + kv
        events += [scope(decode(4), begin, host + 100 * US), frame(EXECUTE, begin, host + 100 * US)]
    return to_account(events)


def test_each_finding_that_can_be_mended_has_one_with_its_bound() -> None:
    account = steps()
    found = find_hypotheses(account)
    findings = {(f.id, f.rank): f for f in find_findings(account)}
    assert [h.finding for h in found] == [f.id for f in findings.values() if f.id in REMEDIES]
    assert {"host_share", "kv_share"} <= {h.finding for h in found}
    for each in found:
        assert each.bound_ns == findings[each.finding, each.rank].value_ns
        assert each.bound_fraction == each.bound_ns / each.span_ns
        assert "at most" in each.statement
        assert each.tests


def test_no_bound_is_below_what_retiming_finds() -> None:
    """The bound is of all of a part; the recorded order lets less of it go."""
    account = steps()
    bounds = {h.finding: h.bound_ns for h in find_hypotheses(account)}
    for finding, changes in (("host_share", Changes(host=0.0)), ("kv_share", Changes(categories={"kv": 0.0}))):
        (rank,) = retime(account, changes).ranks
        assert rank.saving_ns is not None
        assert 0 < rank.saving_ns <= bounds[finding] + 12 * 10 * US  # launch latency stands under host


@pytest.mark.parametrize(
    ("after", "status"),
    [
        (steps(), "no change"),
        (steps(host=400 * US), "confirmed"),
        (steps(host=1500 * US), "worse"),
        (steps(host=100 * US, kv=10 * US), "beyond the bound"),
        (steps(host=400 * US, count=3), "refused"),
    ],
    ids=["same", "shorter", "longer", "too much", "too few"],
)
def test_the_verdict_follows_the_measured_change(after: Account, status: str) -> None:
    before = steps()
    found = next(h for h in find_hypotheses(before) if h.finding == "host_share")
    judged = judge(found, compare(before, after))
    assert judged.status == status
    assert (judged.delta_per_step_ns is None) == (status == "refused")
    if status == "confirmed":
        assert judged.delta_per_step_ns == pytest.approx(
            -600 * US * 11 / 12, rel=0.01
        )  # the first window begins with work
        assert judged.num_pairs == 12
        assert judged.reason.startswith(STATUS_MEANING["confirmed"])


def test_a_ledger_keeps_what_was_tried(tmp_path: Path) -> None:
    before, after = steps(), steps(host=400 * US)
    found = find_hypotheses(before)
    path = tmp_path / "ledger.json"
    kept = read_ledger(path).with_hypotheses("a", found)
    entry = kept.find("host_share@0")
    kept = kept.with_trial(entry, to_trial("a", "b", judge(found[0], compare(before, after))))
    path.write_text(json.dumps(kept.to_document()), encoding="utf-8")
    again = read_ledger(path)
    assert again == kept
    assert [e.status for e in again.entries if e.id == "host_share@0"] != ["open"]
    # the same capture once more: bounds are today's, trials stay
    renewed = again.with_hypotheses("a", found)
    assert renewed == again
    assert len(renewed.with_hypotheses("c", found).entries) == 2 * len(found)
    with pytest.raises(BadInput, match="2 hypotheses are called 'host_share@0'"):
        renewed.with_hypotheses("c", found).find("host_share@0")
    assert renewed.with_hypotheses("c", found).find("c#host_share@0").source == "c"


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": "other/1"}', '{"entries": [{"id": 5}]}'])
def test_a_file_that_is_no_ledger_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"ledger|schema"):
        read_ledger(path)
    assert read_ledger(tmp_path / "none.json") == Ledger()
