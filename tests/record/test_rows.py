from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.annotations import parse_annotation
from stepscope.record.rows import CHUNK, HIT, KV, PHASE, PREEMPTIONS, QUERY, RowTracker, Step, render_marker
from stepscope.record.step_log import DECODE_FIELDS, ROW_FIELDS, sanitise_id
from tests.record.outputs import Cached, Job, New, Output, run

JOBS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 59), st.integers(0, 6)), min_size=1, max_size=60)


def jobs_of(spec: list[tuple[int, int, int]]) -> list[Job]:
    return [Job(f"r{i}", prompt, min(hit, prompt - 1), output) for i, (prompt, hit, output) in enumerate(spec)]


def sums(rows: list[list[int]]) -> list[int]:
    q, k = [row[QUERY] for row in rows], [row[KV] for row in rows]
    pairs = list(zip(q, k, strict=True))
    return [len(rows), sum(q), sum(k), sum(a * a for a in q), sum(a * b for a, b in pairs), max(k)]


@given(JOBS, st.integers(8, 200))
def test_summed_decodes_are_the_sums_of_the_listed_ones(spec: list[tuple[int, int, int]], budget: int) -> None:
    listing, summing = RowTracker(max_listed_decodes=10**6), RowTracker(max_listed_decodes=3)
    for output in run(jobs_of(spec), budget):
        whole, short = listing.observe(output), summing.observe(output)
        assert whole.decodes is None
        prefill = [row for row in whole.rows if row[PHASE] == "prefill"]
        decode = [row for row in whole.rows if row[PHASE] == "decode"]
        if short.decodes is None:
            assert short.rows == whole.rows
        else:
            assert sorted(short.rows) == sorted(prefill)
            assert len(short.decodes) == len(DECODE_FIELDS)
            assert short.decodes == (sums(decode) if decode else [0] * 6)


@given(JOBS, st.integers(8, 200))
def test_tokens_are_conserved_and_chunks_tile_the_prompt(spec: list[tuple[int, int, int]], budget: int) -> None:
    tracker, computed = RowTracker(max_listed_decodes=10**6), dict[str, int]()
    for output in run(jobs_of(spec), budget):
        step = tracker.observe(output)
        assert sum(row[QUERY] for row in step.rows) == step.num_scheduled_tokens
        for row in step.rows:
            assert len(row) == len(ROW_FIELDS)
            assert row[KV] - row[QUERY] == computed.get(row[0], row[HIT])
            assert (row[CHUNK] is None) == (row[PHASE] == "decode")
            computed[row[0]] = row[KV]


@given(JOBS, st.integers(8, 200), st.sampled_from([0, 3, 10**6]))
def test_a_marker_says_what_the_step_holds(spec: list[tuple[int, int, int]], budget: int, listed: int) -> None:
    tracker, exact = RowTracker(max_listed_decodes=listed), RowTracker(max_listed_decodes=10**6)
    for number, output in enumerate(run(jobs_of(spec), budget)):
        name, whole = render_marker(number, tracker.observe(output)), exact.observe(output)
        assert name is not None
        annotation = parse_annotation(name)
        assert annotation is not None
        assert annotation.kind == "marker"
        shape = annotation.shape
        assert shape.num_scheduled_tokens == whole.num_scheduled_tokens
        for phase, part in (("prefill", shape.prefill), ("decode", shape.decode)):
            rows = [row for row in whole.rows if row[PHASE] == phase]
            assert part.num_requests == len(rows)
            assert part.query_kv_sum == sum(row[QUERY] * row[KV] for row in rows)
            assert part.query_sq_sum == sum(row[QUERY] ** 2 for row in rows)


def test_many_prefills_are_summed_in_the_marker_and_listed_in_the_log() -> None:
    output = Output(
        num_scheduled_tokens={f"r{i}": 4 for i in range(400)},
        scheduled_new_reqs=[New(f"r{i}", [0] * 5, 1) for i in range(400)],
    )
    step = RowTracker().observe(output)
    name = render_marker(7, step)
    assert len(step.rows) == 400
    assert name == "vllm_step v=1 s=7 n=1600 c=400:1600:2000:6400:8000"
    annotation = parse_annotation(name)
    assert annotation is not None
    assert annotation.shape.prefill.kv_sum == 2000


def test_an_empty_step_has_a_marker() -> None:
    name = render_marker(3, RowTracker().observe(Output()))
    assert name == "vllm_step v=1 s=3 n=0"
    annotation = parse_annotation(name)
    assert annotation is not None
    assert annotation.shape.phase == "empty"


def resumed(request: str, hit: int, n_out: int) -> Output:
    return Output(
        num_scheduled_tokens={request: 5},
        scheduled_cached_reqs=Cached([request], {request}, [hit], [n_out]),
    )


def test_a_resumed_request_is_prefill_until_its_own_output_is_computed_again() -> None:
    tracker = RowTracker()
    tracker.observe(Output(num_scheduled_tokens={"a": 10}, scheduled_new_reqs=[New("a", [0] * 10, 0)]))
    first = tracker.observe(resumed("a", 8, 5)).rows[0]
    assert (first[PHASE], first[CHUNK], first[HIT], first[PREEMPTIONS]) == ("prefill", 0, 8, 1)
    after = Output(num_scheduled_tokens={"a": 2}, scheduled_cached_reqs=Cached(["a"], set(), [13], [5]))
    assert tracker.observe(after).rows[0][PHASE] == "prefill"
    last = Output(num_scheduled_tokens={"a": 1}, scheduled_cached_reqs=Cached(["a"], set(), [15], [6]))
    assert tracker.observe(last).rows[0][PHASE] == "decode"


def test_the_v2_runner_s_resumed_request_comes_as_a_new_one() -> None:
    tracker = RowTracker()
    tracker.observe(Output(num_scheduled_tokens={"a": 10}, scheduled_new_reqs=[New("a", [0] * 10, 0)]))
    again = Output(num_scheduled_tokens={"a": 5}, scheduled_new_reqs=[New("a", [0] * 10, 8, [0] * 15)])
    row = tracker.observe(again).rows[0]
    assert (row[PHASE], row[KV], row[PREEMPTIONS], row[7]) == ("prefill", 13, 1, 5)


def test_drafts_make_a_decode_row_longer() -> None:
    tracker = RowTracker(max_listed_decodes=0)
    tracker.observe(Output(num_scheduled_tokens={"a": 10}, scheduled_new_reqs=[New("a", [0] * 10, 0)]))
    output = Output(num_scheduled_tokens={"a": 4}, scheduled_cached_reqs=Cached(["a"], set(), [10], [1]))
    output.scheduled_spec_decode_tokens = {"a": [1, 2, 3]}
    assert tracker.observe(output).decodes == [1, 4, 14, 16, 56, 14]


@given(st.text())
def test_public_ids_are_plain_and_stable(text: str) -> None:
    public = sanitise_id(text)
    assert public.isascii()
    assert not set(public) & set('"\\:, \t\n')
    assert public
    assert sanitise_id(public) == public


def test_an_unseen_request_gives_no_marker_and_no_error() -> None:
    output = Output(num_scheduled_tokens={"a": 1}, scheduled_cached_reqs=Cached(["a"], set(), [10], [1]))
    step = RowTracker().observe(output)
    assert step.rows[0][PHASE] == "decode"
    assert step.rows[0][HIT] is None
    assert render_marker(0, step) is None


def test_ids_may_all_be_hashed() -> None:
    step: Step = RowTracker(is_hashing=True).observe(
        Output(num_scheduled_tokens={"a": 10}, scheduled_new_reqs=[New("a", [0] * 10, 0)])
    )
    assert step.rows[0][0].startswith("h")
    assert len(step.rows[0][0]) == 17
