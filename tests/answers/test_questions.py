"""Each question is answered, answered in part or refused where the evidence says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.traces import (
    ACQUIRE,
    ALL_REDUCE,
    COPY,
    EXECUTE,
    GEMM,
    MS,
    REDUCE_OP,
    SWAP_OP,
    US,
    ZERO_KV,
    Event,
    copy,
    decode,
    frame,
    launch,
    launched,
    op,
    prefill,
    scope,
    to_report,
    to_store,
)

MARKER = "vllm_step v=1 s=4 n=2 r=a:16:48:32:c,b:1:65:0:g"
DETAILED = "execute_8192_context_1(sq16sk48sqsq256sqsk768)_generation_1(sq1sk65sqsq1sqsk65)"
QUESTIONS = ("supply", "effective_prefill", "chunk_shape", "scaling", "kv_path", "communication", "counters")


def gpu(name: str = DETAILED, *more: Event, kernel: str = GEMM) -> list[Event]:
    """Two steps of one kernel each, with a launch."""
    events: list[Event] = list(more)
    for i in range(2):
        at = MS * i
        events += [scope(name, at, 200 * US), *launched(kernel, at + US, at + 50 * US, 100 * US, of=i + 1)]
    return events


def cpu(name: str = DETAILED, *more: Event) -> list[Event]:
    """Two steps on a CPU backend."""
    events: list[Event] = list(more)
    for i in range(2):
        events += [scope(name, MS * i, 200 * US), op("aten::mm", MS * i + US, 100 * US)]
    return events


def ask(question: str, *given: list[Event]) -> dict[str, Any]:
    report = to_report(*given)
    return next(row for row in report["questions"] if row["id"] == question)


WAIT = frame(ACQUIRE, 250 * US, 600 * US)


@pytest.mark.parametrize(
    ("question", "events", "status", "said", "missing"),
    [
        ("supply", gpu(DETAILED, WAIT), "partial", "600 us", "whether requests were queued"),
        ("supply", gpu(), "refused", "", "no Python stacks"),
        ("supply", cpu(DETAILED, WAIT), "partial", "before step 1", "whether requests were queued"),
        ("effective_prefill", cpu(MARKER), "answered", "32 more were found in the prefix cache", ""),
        ("effective_prefill", cpu(), "partial", "32 prefill tokens were computed, in 2 of 2 steps", "prefix hits"),
        ("effective_prefill", cpu("ProfilerStep#1"), "refused", "", "tokens computed per step"),
        ("chunk_shape", cpu(), "answered", "2 chunks of 16 to 16 tokens", ""),
        ("chunk_shape", gpu(), "answered", "Graph mode: 2 eager", ""),
        ("chunk_shape", cpu("ProfilerStep#1"), "refused", "", "prefill tokens per step"),
        ("scaling", cpu(), "partial", "2 steps pair a window with scheduled tokens (17 to 17)", "warm steps"),
        ("scaling", cpu(prefill(9)), "partial", "(9 to 9)", "kv_len sums"),
        ("scaling", cpu("ProfilerStep#1"), "refused", "", "scheduled tokens per step"),
        ("kv_path", gpu(kernel=ZERO_KV), "partial", "kv_copy 200 us", "saved"),
        ("kv_path", gpu(), "refused", "", "a kernel of the KV data path"),
        ("communication", gpu(), "answered", "One rank, and no collective is recorded", ""),
        ("communication", gpu(kernel=ALL_REDUCE), "partial", "exposed communication is 200 us", "one rank only"),
        ("counters", gpu(), "refused", "", "hardware counters"),
    ],
)
def test_a_question_is_answered_as_far_as_the_evidence_goes(
    question: str, events: list[Event], status: str, said: str, missing: str
) -> None:
    row = ask(question, events)
    assert row["status"] == status
    assert said in row["answer"]
    assert (row["grade"] == "refused") == (status == "refused") == (row["answer"] == "")
    assert (row["missing"] == []) == (status == "answered")
    assert missing in " ".join(row["missing"])


def test_graphs_without_padding_in_the_name_refuse_the_padding() -> None:
    events = [scope(decode(3), 0, 100), launch(5, 1, name="cudaGraphLaunch")]
    events += [copy(20 + 10 * i, 5, of=1) for i in range(3)]
    row = ask("chunk_shape", events)
    assert row["status"] == "refused"  # no prefill in it at all
    padded = ask("chunk_shape", [scope(prefill(100), 200, 50), *launched(GEMM, 210, 220, 9, of=9), *events])
    assert "Graph mode: 1 eager, 1 full." in padded["answer"]
    assert padded["missing"] == ["padding to captured sizes"]


def test_padding_is_added_up_where_the_engine_names_it() -> None:
    row = ask("chunk_shape", [*cpu(), scope("decode[bs=117/128 ]", 5 * MS, US), op("aten::mm", 5 * MS, US)])
    assert "Padding added 11 tokens." in row["answer"]


def test_two_ranks_on_one_clock_are_answered_with_who_is_late() -> None:
    early = [scope(decode(1), 0, 100 * US), *launched(ALL_REDUCE, US, 10 * US, 100 * US, of=1)]
    late = [scope(decode(1), 0, 100 * US), *launched(ALL_REDUCE, US, 90 * US, 20 * US, of=1)]
    row = ask("communication", early, late)
    assert row["status"] == "answered"
    assert "the others wait for: rank 0 0 ns, rank 1 80.0 us" in row["answer"]


def test_two_ranks_within_the_clocks_residual_blame_nobody() -> None:
    ranks = [
        [scope(decode(1), 0, 100 * US), *launched(ALL_REDUCE, US, start, 100 * US, of=1)]
        for start in (10 * US, 15 * US)
    ]
    report = to_report(*ranks)
    row = next(row for row in report["questions"] if row["id"] == "communication")
    assert "no arrival skew stands out: at most 5.00 us, and the ends agree within 5.00 us" in row["answer"]
    assert [finding for finding in report["findings"] if finding["id"] == "late_rank"] == []


def test_a_rank_of_several_without_collectives_refuses_the_skew() -> None:
    report = to_report(to_store(gpu(), rank=0, world_size=2))
    row = next(row for row in report["questions"] if row["id"] == "communication")
    assert row["status"] == "refused"
    assert "profile all ranks" in row["record_with"][0]


def test_hidden_communication_is_told_from_exposed() -> None:
    events = [
        scope(decode(1), 0, 100 * US),
        *launched(GEMM, US, 10 * US, 100 * US, of=1),
        *launched(ALL_REDUCE, 2 * US, 60 * US, 80 * US, of=2, stream=9),
    ]
    assert "exposed communication is 30.0 us" in ask("communication", events)["answer"]
    assert "50.0 us more is hidden behind compute" in ask("communication", events)["answer"]


@pytest.mark.parametrize(
    "given",
    [
        gpu(),
        gpu(DETAILED, WAIT),
        cpu(),
        cpu("ProfilerStep#1"),
        cpu(MARKER),
        gpu(kernel=ZERO_KV),
        gpu(kernel=ALL_REDUCE),
        [scope(decode(1), 0, 10), launch(5, 1)],
        [],
    ],
)
def test_every_refusal_says_what_is_missing_and_what_would_record_it(given: list[Event]) -> None:
    report = to_report(given)
    assert tuple(row["id"] for row in report["questions"]) == QUESTIONS
    for row in report["questions"]:
        assert row["status"] in ("answered", "partial", "refused")
        assert len(row["missing"]) == len(row["record_with"])
        assert all(row["missing"])
        assert all(row["record_with"])
        assert (row["status"] == "answered") == (not row["missing"])
        assert row["answer"] == " ".join(row["sentences"])
        assert not any(letter in row["answer"] for letter in "{}")


# --- the document


def test_the_document_has_the_keys_that_its_readers_rely_on() -> None:
    report = to_report(gpu(DETAILED, WAIT))
    assert report["schema"] == "stepscope.report/1"
    assert report.keys() >= {"schema", "inputs", "coverage", "steps", "budget", "questions", "findings"}
    given = report["inputs"][0]
    assert given.keys() >= {"path", "reader", "rank", "events_read", "events_lost", "health"}
    assert (given["reader"], given["rank"], given["events_lost"]) == ("kineto", 0, 0)
    assert all(row.keys() == {"code", "severity", "count", "detail"} for row in given["health"])
    assert report["coverage"].keys() >= {
        "idle_claimable",
        "reasons",
        "kernels",
        "kernels_in_steps",
        "kernels_unassigned",
        "matched_fraction",
    }
    assert report["steps"].keys() >= {"count", "source", "grade", "rows"}
    assert (report["steps"]["count"], report["steps"]["source"]) == (2, "vllm")
    for row in report["budget"]:
        assert row.keys() >= {"rank", "step_id", "window_ns", "exclusive_ns", "busy_ns"}
    for row in report["questions"]:
        assert row.keys() >= {"id", "title", "status", "answer", "grade", "missing", "record_with"}


@pytest.mark.parametrize("given", [gpu(DETAILED, WAIT), cpu(MARKER), [], [scope(decode(1), 0, 10), launch(5, 1)]])
def test_the_document_is_plain_json(given: list[Event]) -> None:
    report = to_report(given)
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_kernels_in_steps_and_unassigned_are_all_that_were_read() -> None:
    events = gpu(DETAILED, *launched(GEMM, 3, 4, 5, of=90), *launched(COPY, MS // 2, MS // 2, 5, of=91))
    report = to_report([event for event in events if event["ts"] >= 0])
    coverage = report["coverage"]
    assert coverage["kernels_in_steps"] + coverage["kernels_unassigned"] == coverage["kernels"] == 4


def test_an_eager_step_keeps_its_event_order_in_the_budget() -> None:
    report = to_report(gpu(DETAILED, WAIT))
    assert [row["step_id"] for row in report["budget"]] == [0, 1, None]
    whole = report["budget"][-1]
    assert whole["window_ns"] == sum(row["window_ns"] for row in report["budget"][:-1])
    for category, ns in whole["exclusive_ns"].items():
        assert ns == sum(row["exclusive_ns"][category] for row in report["budget"][:-1])


# --- findings


def test_findings_carry_their_number_and_what_they_do_not_show() -> None:
    events = [
        scope(decode(1), 0, 300 * US),
        frame(EXECUTE, 0, 300 * US),
        *launched(GEMM, US, 10 * US, 200 * US, of=1),
        frame(ACQUIRE, 310 * US, 600 * US),
        scope(decode(1), 1000 * US, 300 * US),
        *launched(ZERO_KV, 1001 * US, 1010 * US, 150 * US, of=2),
        *launched(ALL_REDUCE, 1002 * US, 1160 * US, 200 * US, of=3),
    ]
    report = to_report(events)
    found = {finding["id"]: finding for finding in report["findings"]}
    assert list(found) == ["supply_share", "kv_share", "comm_share"]
    assert found["supply_share"]["value_ns"] == 600 * US
    assert found["kv_share"]["value_ns"] == 150 * US
    assert found["comm_share"]["value_ns"] == 200 * US
    for finding in report["findings"]:
        assert finding.keys() == {"id", "layer", "rank", "text", "value_ns", "grade", "not_shown"}
        assert any(letter.isdigit() for letter in finding["text"])
        assert finding["not_shown"]
        assert finding["value_ns"] > 0


def test_the_late_rank_is_a_finding_with_the_time_that_others_wait() -> None:
    early = [scope(decode(1), 0, 100 * US), *launched(ALL_REDUCE, US, 10 * US, 100 * US, of=1)]
    late = [scope(decode(1), 0, 100 * US), *launched(ALL_REDUCE, US, 90 * US, 20 * US, of=1)]
    (finding,) = (row for row in to_report(early, late)["findings"] if row["id"] == "late_rank")
    assert (finding["rank"], finding["value_ns"], finding["grade"]) == (1, 80 * US, "derived")


def test_compilation_in_a_step_is_called_cold() -> None:
    compiling = frame("torch/_inductor/compile_fx.py(900): compile_fx_inner", 20 * US, 150 * US)
    report = to_report(cpu(DETAILED, compiling))
    (finding,) = (row for row in report["findings"] if row["id"] == "compilation")
    assert "in step 0 (17 tokens): a cold step" in finding["text"]


def test_a_name_with_braces_does_no_harm() -> None:
    name = "void at::native::fmha<{lambda()#1}::operator()>(int)"
    events = launched(name, 0, 1, 1600 * MS, of=1)
    events += [*launched(GEMM, 5, 30 * US, 20 * US, of=2), *launched(SWAP_OP, 6, 55 * US, 20 * US, of=3)]
    reason, stacks = to_report(events)["coverage"]["reasons"]
    assert stacks["code"] == "no_stacks"
    assert "{lambda()#1}" in reason["text"]


def test_a_collective_on_the_cpu_backend_is_communication_too() -> None:
    row = ask("communication", cpu(DETAILED, op(REDUCE_OP, 120 * US, 50 * US)))
    assert "exposed communication is 50.0 us" in row["answer"]


def test_two_workers_of_unknown_rank_keep_figures_of_their_own() -> None:
    short = to_store([frame(ACQUIRE, 0, 100), op(SWAP_OP, 100, 50)], rank=None)
    long = to_store([frame(ACQUIRE, 0, 100), op(SWAP_OP, 100, 700)], rank=None)
    report = to_report(short, long)
    assert [item["rank"] for item in report["inputs"]] == [0, 1]
    assert {item["rank_source"] for item in report["inputs"]} == {"order of the captures (not recorded)"}
    copied = {row["rank"]: row["exclusive_ns"] for row in report["families"] if row["category"] == "kv"}
    assert copied == {0: 50, 1: 700}
