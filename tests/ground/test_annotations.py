"""The name of a host range -> what the step ran, in every dialect that was met."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.annotations import AnnotationKind, parse_annotation
from stepscope.batch import NO_ROWS, UNKNOWN_ROWS, BatchShape, PhaseSums, Row, StepPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A name as an engine wrote it, and what it says."""

    name: str
    dialect: str
    kind: AnnotationKind = "step"
    phase: StepPhase | None
    prefill: PhaseSums = NO_ROWS
    decode: PhaseSums = NO_ROWS
    num_requests: int | None
    num_scheduled_tokens: int | None
    num_padded_tokens: int | None = None


def full(num_requests: int, query: int, kv: int, query_sq: int, query_kv: int) -> PhaseSums:
    return PhaseSums(
        num_requests=num_requests, query_sum=query, kv_sum=kv, query_sq_sum=query_sq, query_kv_sum=query_kv
    )


def plain(num_requests: int, query: int | None = None) -> PhaseSums:
    return PhaseSums(num_requests=num_requests, query_sum=query)


CASES = (
    Case(
        name="execute_context_1(512)_generation_3(3)",
        dialect="vllm",
        phase="mixed",
        prefill=plain(1, 512),
        decode=plain(3, 3),
        num_requests=4,
        num_scheduled_tokens=515,
    ),
    Case(
        name="execute_context_1(888_788544)_generation_0(0)",  # 888^2
        dialect="vllm",
        phase="prefill",
        prefill=PhaseSums(num_requests=1, query_sum=888, query_sq_sum=788_544),
        num_requests=1,
        num_scheduled_tokens=888,
    ),
    Case(
        name="execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
        dialect="vllm",
        phase="mixed",
        prefill=full(9, 8_155, 8_430, 7_475_785, 7_671_310),
        decode=full(37, 37, 34_489, 37, 34_489),
        num_requests=46,
        num_scheduled_tokens=8_192,
    ),
    Case(
        name="execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)",
        dialect="vllm",
        phase="empty",
        num_requests=0,
        num_scheduled_tokens=0,
    ),
    Case(
        name="execute_0_context_0(0)_generation_0(0)",
        dialect="vllm",
        phase="empty",
        num_requests=0,
        num_scheduled_tokens=0,
    ),
    Case(
        name="execute_new_1_cached_3",
        dialect="vllm-early",
        phase=None,
        prefill=UNKNOWN_ROWS,
        decode=UNKNOWN_ROWS,
        num_requests=4,
        num_scheduled_tokens=None,
    ),
    Case(
        name="vllm_step v=1 s=23 n=342 r=7-80b1:1:1125:1024:g,8-9265:40:64:0:c,9-8a0b:300:300:0:c",
        dialect="marker",
        kind="marker",
        phase="mixed",
        prefill=full(2, 340, 364, 91_600, 92_560),
        decode=full(1, 1, 1_125, 1, 1_125),
        num_requests=3,
        num_scheduled_tokens=341,
    ),
    Case(
        name="step[EXTEND bs=15 toks=15360]",
        dialect="sglang",
        phase="prefill",
        prefill=plain(15, 15_360),
        num_requests=15,
        num_scheduled_tokens=15_360,
    ),
    Case(
        name="step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]",  # queries of 4 and 8
        dialect="sglang",
        phase="prefill",
        prefill=full(2, 12, 20, 80, 120),
        num_requests=2,
        num_scheduled_tokens=12,
    ),
    Case(
        name="step[DECODE bs=16]",
        dialect="sglang",
        phase="decode",
        decode=plain(16, 16),
        num_requests=16,
        num_scheduled_tokens=16,
    ),
    Case(
        name="step[DECODE bs=1 g_sq=1 g_sqsq=1 g_sqsk=49183 g_sk=49183]",
        dialect="sglang",
        phase="decode",
        decode=full(1, 1, 49_183, 1, 49_183),
        num_requests=1,
        num_scheduled_tokens=1,
    ),
    Case(
        name="step[TARGET_VERIFY bs=2 g_sq=8 g_sqsq=32 g_sqsk=800 g_sk=200]",  # four tokens a row
        dialect="sglang",
        phase="decode",
        decode=full(2, 8, 200, 32, 800),
        num_requests=2,
        num_scheduled_tokens=8,
    ),
    Case(
        name="step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
        dialect="sglang",
        phase="mixed",
        prefill=full(1, 5, 8, 25, 40),
        decode=full(1, 1, 12, 1, 12),
        num_requests=2,
        num_scheduled_tokens=6,
    ),
    Case(
        name="step[MIXED bs=2]",  # which rows are which is not said
        dialect="sglang",
        phase="mixed",
        prefill=UNKNOWN_ROWS,
        decode=UNKNOWN_ROWS,
        num_requests=2,
        num_scheduled_tokens=None,
    ),
    Case(name="step[IDLE bs=0]", dialect="sglang", phase="empty", num_requests=0, num_scheduled_tokens=0),
    Case(
        name="decode[bs=117/128 tok=117 d=117]",  # real rows / rows of the graph
        dialect="atom",
        phase="decode",
        decode=plain(117, 117),
        num_requests=117,
        num_scheduled_tokens=117,
        num_padded_tokens=11,
    ),
    Case(
        name="decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]",  # 1 + 3 tokens a row
        dialect="atom",
        phase="decode",
        decode=full(32, 128, 65_536, 512, 262_144),
        num_requests=32,
        num_scheduled_tokens=128,
    ),
    Case(
        name="decode[bs=30/32 tok=120 d=30 spec=3]",  # two rows more, of four tokens
        dialect="atom",
        phase="decode",
        decode=plain(30, 120),
        num_requests=30,
        num_scheduled_tokens=120,
        num_padded_tokens=8,
    ),
    Case(
        name="prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
        dialect="atom",
        phase="prefill",
        prefill=plain(2, 14_721),
        num_requests=2,
        num_scheduled_tokens=14_721,
    ),
    Case(
        name="[Executor] _forward_step 7: 3 ctx reqs, 120 ctx tokens, 32 gen reqs",  # drafts of the 32 are not said
        dialect="tensorrt-llm",
        phase="mixed",
        prefill=plain(3, 120),
        decode=plain(32),
        num_requests=35,
        num_scheduled_tokens=None,
    ),
    Case(
        name="[Executor] _forward_step 8: 0 ctx reqs, 32 gen reqs",
        dialect="tensorrt-llm",
        phase="decode",
        decode=plain(32),
        num_requests=32,
        num_scheduled_tokens=None,
    ),
    Case(
        name="execute_diffusion_1_1024x1024",
        dialect="diffusion",
        phase=None,
        prefill=UNKNOWN_ROWS,
        decode=UNKNOWN_ROWS,
        num_requests=None,
        num_scheduled_tokens=None,
    ),
    *(
        Case(
            name=name,
            dialect="capture",
            kind="capture",
            phase=None,
            prefill=UNKNOWN_ROWS,
            decode=UNKNOWN_ROWS,
            num_requests=None,
            num_scheduled_tokens=None,
        )
        for name in ("capture_32_FULL", "capture_256_PIECEWISE", "capture_32_DECODE")
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_name_says_what_its_step_ran(case: Case) -> None:
    found = parse_annotation(case.name)
    assert found is not None
    assert (found.dialect, found.kind) == (case.dialect, case.kind)
    assert (found.shape.prefill, found.shape.decode) == (case.prefill, case.decode)
    assert (found.shape.num_requests, found.shape.num_scheduled_tokens) == (
        case.num_requests,
        case.num_scheduled_tokens,
    )
    assert found.shape.phase == case.phase
    assert found.num_padded_tokens == case.num_padded_tokens
    found.shape.check()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "aten::mm",
        "ProfilerStep#0",
        "execute_model",
        "execute_context_1(512)",
        "execute_context_1(512)_generation_3(3)_warmup",
        "gpu_model_runner: forward",
        "step",
        "my_step[EXTEND bs=2]",
        "prefill",
        "decode[bs=?]",
        "prefill[bs=]",
        "capture_32",
        'vllm_step {"v":1,"step":7}',
        "vllm_experts v=1 s=7",
    ],
)
def test_another_name_is_no_step(name: str) -> None:
    assert parse_annotation(name) is None


ROWS = st.lists(
    st.builds(
        Row,
        query_len=st.integers(1, 9_000),
        context_len=st.integers(0, 200_000),
        phase=st.sampled_from(("prefill", "decode")),
        request_id=st.sampled_from(("6-a70651a6", "7", "chatcmpl-x_1")),
        prefix_hit_tokens=st.sampled_from((0, 64)),
    ),
    max_size=6,
).map(tuple)


def sums_of(rows: tuple[Row, ...]) -> str:
    """The engine's own sums of one phase, computed as it does: over the rows."""
    query, kv = sum(r.query_len for r in rows), sum(r.context_len + r.query_len for r in rows)
    query_sq = sum(r.query_len * r.query_len for r in rows)
    query_kv = sum(r.query_len * (r.context_len + r.query_len) for r in rows)
    return f"sq{query}sk{kv}sqsq{query_sq}sqsk{query_kv}"


def by_phase(rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    return tuple(r for r in rows if r.phase == "prefill"), tuple(r for r in rows if r.phase == "decode")


@given(ROWS)
def test_a_detailed_annotation_gives_back_the_sums_of_its_rows(rows: tuple[Row, ...]) -> None:
    prefill, decode = by_phase(rows)
    total = sum(row.query_len for row in rows)
    name = f"execute_{total}_context_{len(prefill)}({sums_of(prefill)})_generation_{len(decode)}({sums_of(decode)})"
    found, expected = parse_annotation(name), BatchShape.from_rows(rows)
    assert found is not None
    assert (found.shape.prefill, found.shape.decode) == (expected.prefill, expected.decode)
    assert (found.shape.num_scheduled_tokens, found.shape.phase) == (total, expected.phase)


@given(ROWS.filter(bool))
def test_a_marker_gives_back_its_rows(rows: tuple[Row, ...]) -> None:
    written = ",".join(
        f"{r.request_id}:{r.query_len}:{r.kv_len}:{r.prefix_hit_tokens}:{'c' if r.phase == 'prefill' else 'g'}"
        for r in rows
    )
    found = parse_annotation(f"vllm_step v=1 s=1 n={sum(r.query_len for r in rows)} r={written}")
    assert found is not None
    assert found.shape == BatchShape.from_rows(rows)


@given(ROWS)
def test_the_dialects_agree_about_the_same_rows(rows: tuple[Row, ...]) -> None:
    prefill, decode = (tuple(part) for part in by_phase(rows))
    totals = [sum(r.query_len for r in part) for part in (prefill, decode)]
    vllm = parse_annotation(f"execute_context_{len(prefill)}({totals[0]})_generation_{len(decode)}({totals[1]})")
    sglang = parse_annotation(
        f"step[MIXED bs={len(rows)} c={len(prefill)} g={len(decode)} c_sq={totals[0]} g_sq={totals[1]}]"
    )
    assert vllm is not None
    assert sglang is not None
    if rows:  # a step of no rows is IDLE there
        assert vllm.shape.num_scheduled_tokens == sglang.shape.num_scheduled_tokens
        assert (vllm.shape.num_requests, vllm.shape.phase) == (sglang.shape.num_requests, sglang.shape.phase)


PARTS = st.sampled_from(
    ("execute_", "context_", "1(", "2)", "generation_", "sq", "sk", "step[", "DECODE", " bs=", "3", "/", "]", "decode[")
)


@given(st.lists(PARTS | st.text(max_size=3), max_size=8).map("".join))
def test_no_name_is_too_odd_to_be_looked_at(name: str) -> None:
    found = parse_annotation(name)
    if found is not None:
        found.shape.check()
