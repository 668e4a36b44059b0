"""Each request's way: prefix first, then chunk; what is computed twice; stages; prefill and decode apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.chunks import ChunkRule, plan_chunks
from stepscope.join.clients import link_requests
from stepscope.join.disaggregated import find_transfers, stage_requests
from stepscope.join.limits import StepSpan, find_starvation
from stepscope.join.requests import RequestAccount, account_requests, total_prefill
from stepscope.readers.clients.record import ClientRequest
from stepscope.readers.server_log.reader import parse_server_log
from stepscope.readers.step_log import read_step_log
from tests.join.evidence import MS, START_NS, row, step, write_step_log
from tests.readers.test_server_log import STAGES, TRANSFER

if TYPE_CHECKING:
    from collections.abc import Sequence


def accounts(folder: Path, records: Sequence[dict[str, Any]]) -> dict[str, RequestAccount]:
    stream = read_step_log(write_step_log(folder, records)).schedulers[0]
    found = {request.request_id: request for request in account_requests(stream)}
    for request in found.values():
        request.check()
    return found


def event(name: str, request_id: str, at_ms: int, **more: Any) -> dict[str, Any]:
    return {"kind": "request", "event": name, "request_id": request_id, "time_ns": START_NS + at_ms * MS} | more


CHUNKED = [
    event("added", "a", -30, arrival_ns=START_NS - 40 * MS, prompt_len=100),
    step(0, [row("a", 40, 56, prompt_len=100, prefix_hit_tokens=16, chunk_index=0), row("z", 1, 9, "decode")]),
    step(1, [row("a", 44, 100, prompt_len=100, prefix_hit_tokens=16, chunk_index=1), row("b", 20, 20, prompt_len=90)]),
    step(2, [row("a", 1, 101, "decode", prompt_len=100), row("b", 70, 90, prompt_len=90, chunk_index=1)]),
    step(3, [], finished=["a"]),
]


def test_a_chunked_prompt_with_a_hit(tmp_path: Path) -> None:
    a = accounts(tmp_path, CHUNKED)["a"]
    assert (a.prompt_len, a.prefix_hit_tokens, a.effective_prefill_tokens) == (100, 16, 84)
    assert [(c.query_len, c.kv_len) for c in a.chunks] == [(40, 56), (44, 100)]
    assert [(c.num_decodes, c.num_other_prefills, c.other_prefill_tokens) for c in a.chunks] == [(1, 0, 0), (0, 1, 20)]


def test_stages_share_their_ends(tmp_path: Path) -> None:
    a = accounts(tmp_path, CHUNKED)["a"]
    # a step ends when the next schedule() begins: 1 ms before its record
    assert a.stages.spans() == {"front": 10 * MS, "queue": 30 * MS, "prefill": 19 * MS, "decode": 10 * MS}
    assert a.stages.end_ns is not None
    assert a.stages.arrival_ns is not None
    assert sum(span or 0 for span in a.stages.spans().values()) == a.stages.end_ns - a.stages.arrival_ns


def test_a_request_from_before_the_log_has_no_hit(tmp_path: Path) -> None:
    found = accounts(tmp_path, CHUNKED)
    assert found["z"].began_before
    assert found["z"].effective_prefill_tokens is None
    assert found["z"].stages.spans()["prefill"] is None
    totals = total_prefill(list(found.values()))
    assert totals is not None
    assert (totals.num_requests, totals.effective_tokens) == (1, 84)  # of b the hit is not recorded


def test_recomputation_after_a_preemption_is_not_reuse(tmp_path: Path) -> None:
    # 100 tokens, none found; preempted after 64; back with 48 of its own blocks: 16 computed again, then 36 new
    a = accounts(
        tmp_path,
        [
            step(0, [row("a", 64, 64, prompt_len=100, prefix_hit_tokens=0, chunk_index=0, num_preemptions=0)]),
            step(1, [], preempted=["a"]),
            step(2, [row("a", 52, 100, prompt_len=100, prefix_hit_tokens=48, chunk_index=0, num_preemptions=1)]),
            step(3, []),
        ],
    )["a"]
    assert (a.prefix_hit_tokens, a.effective_prefill_tokens) == (0, 100)
    assert (a.recovered_tokens, a.recomputed_tokens, a.num_preemptions) == (48, 16, 1)


def test_decodes_that_a_big_step_summed_are_computed_again_too(tmp_path: Path) -> None:
    # 64 tokens, then 4 outputs in steps that list no decodes, then a preemption: 64 + 4 - 1 had been computed
    again = row("a", 68, 68, prompt_len=64, prefix_hit_tokens=0, chunk_index=0, num_preemptions=1, num_output_tokens=4)
    first = row("a", 64, 64, prompt_len=64, prefix_hit_tokens=0, chunk_index=0, num_preemptions=0, num_output_tokens=0)
    a = accounts(tmp_path, [step(0, [first]), step(1, [], preempted=["a"]), step(2, [again])])["a"]
    assert a.recomputed_tokens == 67


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.integers(1, 3_000), found=st.integers(0, 3_000), budget=st.integers(16, 2_048), shared=st.integers(0, 15)
)
def test_a_recorded_plan_is_the_planned_one(
    prompt: int, found: int, budget: int, shared: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = plan_chunks(prompt, ChunkRule(token_budget=budget), found_tokens=min(found, prompt), shared_tokens=shared)
    records = [
        step(
            chunk.chunk_index,
            [
                row("a", chunk.query_len, chunk.kv_len, prompt_len=prompt, prefix_hit_tokens=plan.prefix_hit_tokens,
                    chunk_index=chunk.chunk_index),
                *(row(f"d{i}", 1, 50, "decode") for i in range(shared)),
            ],
        )
        for chunk in plan.chunks
    ]  # fmt: skip
    a = accounts(tmp_path_factory.mktemp("log"), records)["a"]
    assert [(c.query_len, c.kv_len, c.decode_tokens) for c in a.chunks] == [
        (c.query_len, c.kv_len, c.shared_tokens) for c in plan.chunks
    ]
    assert a.effective_prefill_tokens == plan.effective_prefill_tokens


DECODE_SIDE = (
    "[2026-10-12 14:04:02 TP0] Req Time Stats(rid=def, bootstrap_room=77, input len=100, output len=9, type=Decode): "
    "prealloc_queue_duration=4.00ms, transfer_duration=6.00ms, queue_duration=1.00ms, forward_duration=90.00ms"
)


def test_both_halves_of_a_request_are_one_by_their_room() -> None:
    staged = stage_requests(parse_server_log([STAGES, DECODE_SIDE]).records)
    assert len(staged) == 1
    one = staged[0]
    assert (one.request_id, one.prompt_len, one.output_len, one.sides) == ("def", 100, 9, ("prefill", "decode"))
    assert one.stages_ns == {
        "router": None,
        "bootstrap": 2 * MS,
        "queue": 3 * MS,
        "prefill": 5 * MS,
        "preallocation": 4 * MS,
        "transfer": 6 * MS,
        "decode_queue": 1 * MS,
        "decode": 90 * MS,
    }
    assert one.transfer_bytes_per_s == 2.5e9
    assert one.missing == ("router",)


def test_a_half_that_is_not_there_is_named_stage_by_stage() -> None:
    one = stage_requests(parse_server_log([STAGES]).records)[0]
    assert one.missing == ("router", "preallocation", "transfer", "decode_queue", "decode")


def test_vllm_prints_transfers_as_means() -> None:
    found = find_transfers(parse_server_log([TRANSFER]).records)[0]
    assert (found.num_transfers, found.mean_ns, found.mean_bytes) == (4, 1_381_000, 2.25 * 2**20)


def test_prefill_only_steps_starve_decodes_only_if_there_are_any() -> None:
    prefill = StepSpan(phase="prefill", duration_ns=5, num_prefill_tokens=10, num_running_decodes=2)
    alone = StepSpan(phase="prefill", duration_ns=5, num_prefill_tokens=10)
    decode = StepSpan(phase="decode", duration_ns=1, num_running_decodes=2)
    assert find_starvation([alone, alone, decode]) is None
    assert find_starvation([prefill, decode, prefill]) is None
    found = find_starvation([prefill, decode, prefill, prefill, prefill])
    assert found is not None
    assert (found.num_steps, found.duration_ns, found.num_prefill_tokens) == (3, 15, 30)


def client(start_ms: float, prompt_len: int, request_id: str | None = None) -> ClientRequest:
    return ClientRequest(
        request_id=request_id, start_s=START_NS * 1e-9 + start_ms * 1e-3, prompt_len=prompt_len, e2el_s=0.1
    )


def test_a_clients_request_is_found_by_its_id(tmp_path: Path) -> None:
    rows = [
        row("cmpl-abc-def-0-99", 8, 8, prompt_len=8, chunk_index=0),
        row("other", 8, 8, prompt_len=8, chunk_index=0),
    ]
    servers = list(accounts(tmp_path, [step(0, rows), step(1, [])]).values())
    links = link_requests([client(0, 8, "abc-def"), client(0, 8, "0")], servers)
    assert [(link.method, link.server.request_id) for link in links] == [("request id", "cmpl-abc-def-0-99")]


def test_without_ids_time_and_prompt_length_tell_requests_apart(tmp_path: Path) -> None:
    servers = list(
        accounts(
            tmp_path,
            [
                step(0, [row("a", 8, 8, prompt_len=8, chunk_index=0)]),
                step(1, [row("b", 8, 8, prompt_len=8, chunk_index=0), row("c", 5, 5, prompt_len=5, chunk_index=0)]),
                step(2, [], finished=["a", "b", "c"]),
            ],
        ).values()
    )
    links = link_requests([client(9, 8), client(-1, 8), client(9.5, 5), client(9.9, 77)], servers)
    assert [link.server.request_id for link in links] == ["b", "a", "c"]
    assert {link.method for link in links} == {"clock"}
    assert links[1].residual_ns == 100 * MS - 19 * MS
