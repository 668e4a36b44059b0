"""A run against a model: bounds add up, measured time is all accounted for, verdicts say no more than the numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stepscope.answers.against_model import AgainstModel, compare_with_model
from stepscope.answers.alternative import Alternative
from stepscope.answers.efficiency import COUNTERPART, WITHOUT_COUNTERPART, WORK, FamilyEfficiency
from stepscope.answers.kv_saving import FULL_HEADS, UNCOMPRESSED, WHOLE_LATENT, other_ways
from stepscope.answers.modelled_steps import ModelChoice, is_known, price_families
from stepscope.batch import BatchShape, PhaseSums, Row
from stepscope.cli.main import app
from stepscope.cost.calibration import Calibration, Factor, Source
from stepscope.cost.families import FAMILIES
from stepscope.cost.hardware import load_hardware
from stepscope.cost.step_cost import price_step
from stepscope.join.experts import LayerLoad
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.operators.step import step_operators
from stepscope.report.document import to_document
from stepscope.report.html import render_html
from stepscope.report.text import to_markdown, to_text
from stepscope.report.translate import make_translator
from tests.report.documents import EXAMPLES
from tests.traces import (
    GEMM,
    MS,
    MYSTERY,
    NORM,
    US,
    ZERO_KV,
    Event,
    catalog,
    kernel,
    launch,
    launched,
    op,
    scope,
    to_account,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLASH = "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)"
INDEX = "void deep_gemm::sm90_fp8_mqa_logits<32u, 128u, false>(unsigned int)"
QUANT = "void vllm::scaled_fp8_quant_kernel<c10::BFloat16>(float*)"


def prefilled(q: int, k: int) -> str:
    """vLLM's detailed annotation of one prefill row."""
    return f"execute_{q}_context_1(sq{q}sk{k}sqsq{q * q}sqsk{q * k})_generation_0(sq0sk0sqsq0sqsk0)"


def decoded(rows: int, k: int) -> str:
    """The same of decode rows with k tokens of KV in all."""
    return f"execute_{rows}_context_0(sq0sk0sqsq0sqsk0)_generation_{rows}(sq{rows}sk{k}sqsq{rows}sqsk{k})"


def choice(model: str = "qwen3-8b", hardware: str = "h100", tp: int = 1, **deployed: str) -> ModelChoice:
    deployment = Deployment(plan=ParallelPlan(tp=tp), kv=deployed.pop("kv", "bf16"), **deployed)  # type: ignore[arg-type]
    return ModelChoice(architecture=read_model(model), deployment=deployment, hardware=load_hardware(hardware))


def steps(*given: tuple[str, dict[str, int]]) -> list[Event]:
    """Steps one after another, each with kernels of these names and ns without gaps, launched ahead."""
    events: list[Event] = []
    at, number = MS, 0
    for name, kernels in given:
        events.append(scope(name, at - 500 * US if at == MS else at, 100 * US))
        end = at
        for kernel_name, ns in kernels.items():
            number += 1
            events += launched(kernel_name, at + number, end + 10 * US, ns, of=number)
            end += ns
        at = end + MS
    return events


def against(events: list[Event], chosen: ModelChoice) -> AgainstModel:
    return compare_with_model(to_account(events), chosen)


def lower_s(shape: BatchShape, chosen: ModelChoice) -> float:
    operators = step_operators(chosen.architecture, shape, chosen.deployment)
    return float(np.sum(price_step(operators, chosen.hardware, chosen.deployment.plan, cost="bound").lower_bound_s))


def shape(*rows: tuple[int, int]) -> BatchShape:
    return BatchShape.from_rows(
        tuple(Row(query_len=q, context_len=c, phase="decode" if q == 1 and c else "prefill") for q, c in rows)
    )


SHAPES = (shape((2048, 0)), shape((1, 4000), (1, 100)), shape((512, 512), (1, 900)), shape((16, 8000)))


# --- families


def test_every_family_of_device_work_has_a_counterpart_or_a_reason() -> None:
    device = {family.name for family in catalog().families if family.category in ("compute", "kv", "comm")}
    assert set(COUNTERPART) | set(WITHOUT_COUNTERPART) == device
    assert not set(COUNTERPART) & set(WITHOUT_COUNTERPART)
    assert set(COUNTERPART.values()) == set(FAMILIES)


@pytest.mark.parametrize("model", ["qwen3-8b", "deepseek-v3.2", "qwen3-30b-a3b"])
def test_bounds_of_all_steps_at_once_are_those_of_each_alone(model: str) -> None:
    chosen = choice(model, kv="bf16")
    _, families = price_families(SHAPES, chosen)
    low = sum(family.bound_s for family in families.values())
    most = sum(family.bound_most_s for family in families.values())
    alone = np.array([lower_s(each, chosen) for each in SHAPES])
    assert np.all(low <= alone * (1 + 1e-9))
    assert np.all(alone <= most * (1 + 1e-9))  # an even router lies between fewest and most
    if model == "qwen3-8b":
        assert low == pytest.approx(alone)


def test_one_token_reaches_exactly_top_k_experts_so_both_bounds_are_one() -> None:
    _, families = price_families([shape((1, 100))], choice("qwen3-30b-a3b"))
    assert families["experts"].bound_s == pytest.approx(families["experts"].bound_most_s)
    _, many = price_families([shape(*[(1, 100)] * 64)], choice("qwen3-30b-a3b"))
    assert many["experts"].bound_most_s[0] > 10 * many["experts"].bound_s[0]  # 128 experts against 8
    assert many["experts"].time_s is None
    assert many["experts"].low_s is not None
    assert many["experts"].high_s is not None
    assert many["experts"].low_s[0] < many["experts"].high_s[0]


def test_measured_time_is_all_of_it_explained_or_not() -> None:
    events = steps(
        (prefilled(2048, 2048), {GEMM: 30 * MS, FLASH: 3 * MS, NORM: MS, MYSTERY: 2 * MS, ZERO_KV: MS}),
        (decoded(2, 5000), {GEMM: 6 * MS, MYSTERY: MS}),
    )
    account = to_account(events)
    found = compare_with_model(account, choice())
    work = sum(sum(ns) for (category, _), ns in account.ranks[0].budget.step_families.items() if category in WORK)
    told = sum(row.measured_ns for row in found.efficiencies) + sum(row.measured_ns for row in found.unexplained)
    assert told == work == 44 * MS
    assert {(row.phase, row.family): row.measured_ns for row in found.unexplained} == {
        ("prefill", "unmatched"): 2 * MS,
        ("prefill", "kv_copy"): MS,
        ("decode", "unmatched"): MS,
    }


def test_efficiency_is_the_bound_over_the_measured_time() -> None:
    chosen = choice()
    found = against(steps((decoded(1, 4001), {GEMM: 6 * MS, FLASH: MS})), chosen)
    row = next(row for row in found.efficiencies if row.family == "dense_gemm")
    # bf16 weights of every matrix, read once from 3.35 TB/s; input and output add a little
    weights = sum(
        operator.count * operator.traffic.weight
        for operator in step_operators(chosen.architecture, shape((1, 4000)), chosen.deployment)
        if operator.kind == "gemm"
    )
    assert row.measured_ns == 6 * MS
    assert row.bound_ns == pytest.approx(1e9 * float(np.sum(weights)) / chosen.hardware.bytes_per_s(), rel=1e-3)
    assert row.efficiency == pytest.approx(row.bound_ns / (6 * MS))
    assert row.predicted_ns is not None
    assert row.low_ns is not None
    assert row.high_ns is not None
    assert row.low_ns <= row.predicted_ns <= row.high_ns
    assert found.measured_grade == "classified"


def test_an_efficiency_above_one_is_shown_and_explained() -> None:
    found = against(steps((decoded(1, 4001), {GEMM: MS, FLASH: MS})), choice())
    row = next(row for row in found.efficiencies if row.family == "dense_gemm")
    assert row.efficiency is not None
    assert row.efficiency > 1
    assert any("above 1 is shown as it is" in str(sentence) for sentence in found.sentences)
    assert any("Modelled without measured time: stream" in str(sentence) for sentence in found.sentences)


def test_steps_without_known_rows_are_left_out_and_counted() -> None:
    found = against(
        steps((decoded(1, 4001), {GEMM: 6 * MS}), ("execute_context_1(9)_generation_0(0)", {GEMM: 5 * MS})), choice()
    )
    assert found.steps == {"0": (1, 1)}
    assert sum(row.measured_ns for row in found.efficiencies) == 6 * MS
    nothing = against(steps(("execute_context_1(9)_generation_0(0)", {GEMM: 5 * MS})), choice())
    assert nothing.steps == {"0": (0, 1)}
    assert nothing.efficiencies == ()
    assert "detailed_trace_annotation" in str(nothing.refusals[0].record_with)


def test_sums_that_even_rows_cannot_stand_for_are_unknown() -> None:
    sums = PhaseSums(num_requests=1, query_sum=5, kv_sum=9)
    none = PhaseSums(num_requests=0, query_sum=0, kv_sum=0)
    assert is_known(BatchShape.from_sums(sums, none))
    assert not is_known(BatchShape.from_sums(replace(sums, kv_sum=None), none))
    assert not is_known(BatchShape.from_sums(replace(sums, kv_sum=4), none))  # less KV than queries


def test_a_calibration_scales_the_families_it_has() -> None:
    half = Factor(value=1.5, low=1.4, high=1.7)
    fitted = Calibration(
        name="c",
        model="qwen3-8b",
        hardware="h100",
        engine="vllm",
        engine_version="0",
        plan=ParallelPlan(),
        source=Source(files=(), content_hash="0", date="2026-11-29"),
        cost="bound",
        host_s=Factor(value=0.0, low=0.0, high=0.0),
        fixed={},
        families={"dense_gemm": half},
    )
    found = against(steps((decoded(1, 4001), {GEMM: 6 * MS, FLASH: MS})), replace(choice(), calibration=fitted))
    rows = {row.family: row for row in found.efficiencies}
    assert rows["dense_gemm"].predicted_ns == pytest.approx(1.5 * rows["dense_gemm"].bound_ns, rel=1e-6)
    assert rows["dense_gemm"].grade == "extrapolated"  # it was fitted on no decode step
    assert rows["attention"].predicted_ns is None


# --- launches


def test_work_per_launch_counts_a_graph_once() -> None:
    graph = [launch(MS + 2, 7, name="cudaGraphLaunch")]
    events = [
        scope(decoded(4, 400), 500 * US, MS),
        *graph,
        *(kernel(GEMM, 2 * MS + i * 10 * US, 10 * US, of=7) for i in range(5)),
        *launched(NORM, MS + 9, 3 * MS, 10 * US, of=8),
    ]
    row = against(events, choice()).launches[0]
    assert (row.phase, row.tokens, row.kernels, row.launches) == ("decode", 4, 6, 2)
    assert row.per_kernel(row.tokens) == pytest.approx(4 / 6)
    assert row.flop > 4 * 2 * 6e9  # two flop a parameter and token, of some seven thousand million in matrices


def test_prefill_stands_beside_decode() -> None:
    events = steps((prefilled(2000, 2000), {GEMM: 30 * MS, NORM: MS}), (decoded(4, 4000), {GEMM: 6 * MS, NORM: MS}))
    found = against(events, choice())
    assert [(row.phase, row.per_kernel(row.tokens)) for row in found.launches] == [("prefill", 1000), ("decode", 2)]
    told = next(str(sentence) for sentence in found.sentences if "A kernel carries" in str(sentence))
    assert "1e+03 tokens in prefill and 2 in decode: 500 times" in told


def test_a_cpu_backend_launches_nothing() -> None:
    events = [scope(decoded(1, 100), MS, 20 * MS), op("aten::mm", MS + US, 10 * MS)]
    row = against(events, choice()).launches[0]
    assert (row.kernels, row.launches, row.per_kernel(1)) == (None, None, None)


# --- what reading KV so saves


def test_mla_decode_reads_latent_rows_and_prefill_expands_them() -> None:
    chosen = choice("deepseek-v3", "h200")
    events = steps((decoded(1, 4000), {FLASH: 3 * MS}), (prefilled(1024, 1024), {FLASH: 30 * MS}))
    rows = {row.phase: row for row in against(events, chosen).kv_savings}
    assert {row.against for row in rows.values()} == {FULL_HEADS}
    decode = rows["decode"]
    assert decode.read_bytes == 61 * 4000 * (512 + 64) * 2
    assert decode.other_read_bytes == 61 * 4000 * 128 * (128 + 64 + 128) * 2
    assert decode.saved_bytes_ns == pytest.approx(
        1e9 * (decode.other_read_bytes - decode.read_bytes) / decode.bytes_per_s, rel=1e-6
    )
    # the whole prompt is new: nothing to gather, and the core reads expanded rows as the other way would
    assert rows["prefill"].read_bytes == rows["prefill"].other_read_bytes


def test_dsa_and_v4_have_their_own_other_ways_and_gqa_has_none() -> None:
    assert list(other_ways(read_model("deepseek-v3.2"))) == [FULL_HEADS, WHOLE_LATENT]
    assert list(other_ways(read_model("deepseek-v4-flash"))) == [UNCOMPRESSED]
    assert other_ways(read_model("qwen3-8b")) == {}
    assert other_ways(read_model("qwen3-next-80b-a3b")) == {}


def test_dsa_pays_where_reading_all_cannot_be_as_fast_and_is_not_told_of_mixed_steps() -> None:
    chosen = choice("deepseek-v3.2", "h200")
    context = 150_000
    mixed = (
        f"execute_1025_context_1(sq1024sk1024sqsq{1024 * 1024}sqsk{1024 * 1024})"
        f"_generation_1(sq1sk{context}sqsq1sqsk{context})"
    )
    rows = against(
        steps((decoded(64, 64 * context), {FLASH: 20 * MS, INDEX: 20 * MS}), (mixed, {FLASH: MS})), chosen
    ).kv_savings
    latent = next(row for row in rows if row.against == WHOLE_LATENT)
    assert {row.phase for row in rows} == {"decode"}
    assert latent.read_bytes < 0.3 * latent.other_read_bytes
    assert latent.other.bound_ns > latent.measured_ns >= latent.own_bound_ns
    assert latent.verdict == "pays"
    assert latent.measured_ns == 40 * MS


def test_no_verdict_where_the_measured_time_is_below_this_ways_own_bound() -> None:
    row = against(steps((decoded(64, 64 * 150_000), {FLASH: US, INDEX: US})), choice("deepseek-v3.2", "h200"))
    assert {saving.verdict for saving in row.kv_savings} == {"no verdict"}
    assert any("the model is not the run's" in str(sentence) for sentence in row.kv_sentences)


def test_the_question_of_the_kv_path_is_answered_by_the_model() -> None:
    account = to_account(steps((decoded(1, 4001), {GEMM: 6 * MS, ZERO_KV: MS})))
    asked = {q["id"]: q for q in to_document(account)["questions"]}["kv_path"]
    assert asked["missing"] == ["what compressed or sparse reading saved"]
    document = to_document(account, compare_with_model(account, choice()))
    told = {q["id"]: q for q in document["questions"]}["kv_path"]
    assert (told["status"], told["grade"], told["missing"]) == ("answered", "modelled", [])
    assert "nothing is compressed" in told["answer"]
    assert told["answer"].startswith(asked["answer"])


ns = st.integers(min_value=0, max_value=10**12)


@given(measured=ns, own=ns, bound=ns, ends=st.none() | st.tuples(ns, ns))
def test_a_verdict_never_says_more_than_the_numbers(
    measured: int, own: int, bound: int, ends: tuple[int, int] | None
) -> None:
    low, high = (None, None) if ends is None else (min(ends), max(ends))
    verdict = Alternative(bound_ns=bound, low_ns=low, high_ns=high, grade="modelled").against(measured, own)
    if verdict == "pays":
        assert max(bound, low or 0) > measured >= own
    elif verdict == "does not pay":
        assert high is not None
        assert max(bound, low or 0) <= measured
        assert high < measured
    elif verdict == "no verdict":
        assert measured < own
    else:
        assert measured == 0 or high is None or high >= measured


# --- quantisation


def test_fp8_weights_are_half_of_bf16_and_their_kernels_are_counted() -> None:
    chosen = choice("llama-3.1-8b", weights="fp8")
    row = against(steps((decoded(8, 8000), {GEMM: 4 * MS, QUANT: MS, FLASH: MS})), chosen).quantisation[0]
    assert row.formats == ("fp8",)
    assert row.bf16_weight_bytes / row.weight_bytes == pytest.approx(2, rel=0.08)  # embedding and head are kept
    assert (row.quantisation_ns, row.quantisation_kernels) == (MS, 1)
    assert row.fraction == pytest.approx(row.products_ns / row.whole_ns)
    assert row.verdict in ("pays", "open")


def test_nothing_quantised_has_no_verdict() -> None:
    found = against(steps((decoded(8, 8000), {GEMM: 9 * MS})), choice())
    assert found.quantisation[0].other is None
    assert found.quantisation[0].verdict is None
    assert any("No weight is quantised" in str(sentence) for sentence in found.sentences)


# --- views and options


def test_text_and_markdown_show_the_section_and_chinese_keeps_its_numbers() -> None:
    account = to_account(steps((decoded(2, 5000), {GEMM: 8 * MS, FLASH: MS, MYSTERY: MS})))
    found = compare_with_model(account, choice())
    document = to_document(account, found)
    assert "Against the model: qwen3-8b on h100" in to_text(document)
    assert "## Against the model: qwen3-8b on h100" in to_markdown(document)
    assert "Against the model" not in to_text(to_document(account))
    page = render_html(document)
    assert 'id="model"' in page
    assert "Against the model: qwen3-8b on h100" in page
    assert 'id="model"' not in render_html(to_document(account))
    shown = to_markdown(document, make_translator("zh", document))
    assert "Useful work per launch" not in shown
    assert re.findall(r"\d+\.\d+ ms", shown) == re.findall(r"\d+\.\d+ ms", to_markdown(document))


def cli(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["explain", str(EXAMPLES / "glm52-prefill"), *arguments])
    assert result.exit_code != 0
    return str(result.exception) + result.output


def arguments() -> Iterator[tuple[tuple[str, ...], str]]:
    yield ("--tp", "2"), "--tp is of a model, and none is named"
    yield ("--model", "glm-5.2"), "Name it with --hardware"
    yield ("--model", "glm-5.2", "--hardware", "h9000"), "unknown hardware 'h9000'"
    yield ("--model", "glm-5.2", "--hardware", "h200", "--kv", "fp7"), "unknown KV layout 'fp7'"


@pytest.mark.parametrize(("given", "said"), list(arguments()))
def test_options_that_do_not_go_together_are_refused(given: tuple[str, ...], said: str) -> None:
    assert said in " ".join(cli(*given).split())


# --- products whose input dims were recorded


def with_dims(event: Event, *dims: list[int], kind: str = "c10::BFloat16") -> Event:
    args = {**event["args"], "Input Dims": list(dims), "Input type": [kind] * len(dims)}
    return {**event, "args": args}


def eager(*ops: tuple[str, list[list[int]]]) -> list[Event]:
    """One decode step of products of 1 ms, each launched by its operation."""
    events = [scope(decoded(1, 100), MS // 2, MS)]
    for i, (name, dims) in enumerate(ops):
        at = MS + 10 * US * i
        events.append(with_dims(op(name, at, 5 * US), *dims))
        events += launched(GEMM, at + US, 2 * MS + MS * i, MS, of=i + 1)
    return events


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", [[8, 64], [64, 32]], (8, 32, 64, 1)),
        ("aten::addmm", [[32], [8, 64], [64, 32], [], []], (8, 32, 64, 1)),
        ("aten::linear", [[2, 4, 64], [32, 64], [32]], (8, 32, 64, 1)),
        ("aten::bmm", [[3, 8, 64], [3, 64, 32]], (8, 32, 64, 3)),
        ("_C::cutlass_scaled_mm", [[8, 32], [8, 64], [64, 32]], (8, 32, 64, 1)),
        ("_C::onednn_mm", [[8, 32], [8, 64]], (8, 32, 64, 1)),
    ],
)
def test_a_product_has_its_flop_bytes_and_share(
    name: str, dims: list[list[int]], expected: tuple[int, int, int, int]
) -> None:
    chosen = choice()
    row = against(eager((name, dims), (name, dims)), chosen).products[0]
    m, n, k, groups = expected
    assert (row.m, row.n, row.k, row.groups, row.calls, row.sum_ns) == (*expected, 2, 2 * MS)
    assert row.flop == 2 * 2 * m * n * k * groups
    assert row.moved_bytes == 2 * 2 * groups * (m * k + k * n + m * n)
    seconds = max(row.flop / chosen.hardware.flop_per_s("bf16"), row.moved_bytes / chosen.hardware.bytes_per_s())
    assert row.share == pytest.approx(seconds / 2e-3)


def test_a_product_inside_another_counts_once_and_all_of_the_family_is_theirs() -> None:
    dims = [[8, 64], [32, 64]]
    events = eager(("aten::linear", dims))
    events.append(with_dims(op("aten::mm", MS + US // 2, 3 * US), [8, 64], [64, 32]))
    found = against(events, choice())
    assert [(row.op, row.calls) for row in found.products] == [("aten::linear", 1)]
    measured = sum(row.measured_ns for row in found.efficiencies if row.family == "dense_gemm")
    assert sum(row.sum_ns for row in found.products) == measured


def test_dims_that_are_none_are_left_out_and_missing_ones_are_refused_by_name() -> None:
    odd = against(eager(("aten::mm", [[8, 64], [63, 32]]), ("aten::mm", [[8], []])), choice())
    assert odd.products == ()
    plain = against(steps((decoded(1, 4001), {GEMM: 6 * MS})), choice())
    assert plain.products == ()
    refusal = plain.refusals[-1]
    assert "input dims are not recorded" in str(refusal.missing)
    assert "torch_profiler_record_shapes" in str(refusal.record_with)


def test_products_are_shown_the_longest_first() -> None:
    many = [("aten::mm", [[8, 64 * (i + 1)], [64 * (i + 1), 32]]) for i in range(12)]
    account = to_account(eager(*many, many[5]))
    document = to_document(account, compare_with_model(account, choice()))
    rows = document["against_model"]["products"]
    assert len(rows) == 10
    assert rows[0]["k"] == 64 * 6
    assert [row["sum_ns"] for row in rows] == sorted((row["sum_ns"] for row in rows), reverse=True)
    assert "Matrix products with recorded input dims" in to_text(document)


# --- experts that were counted


def load_of(step_id: int, layer: int, hit: int, *, rank: int | None = None) -> LayerLoad:
    return LayerLoad(
        rank=rank,
        step_id=step_id,
        source="expert recorder",
        source_step=step_id,
        layer=layer,
        num_experts=128,
        num_rows=8 * 16,
        max_rows=16,
        num_empty=128 - hit,
        adds_up=True,
    )


def test_counted_experts_give_one_number_between_the_bounds() -> None:
    account = to_account(steps((decoded(16, 1600), {GEMM: 6 * MS})))
    chosen = choice("qwen3-30b-a3b")

    def experts(*loads: LayerLoad) -> FamilyEfficiency:
        found = compare_with_model(account, chosen, loads)
        is_refused = any("one number for the experts" in str(refusal.missing) for refusal in found.refusals)
        assert is_refused == (not loads)
        return next(row for row in found.efficiencies if row.family == "experts")

    unknown, counted = experts(), experts(load_of(0, 0, 40), load_of(0, 1, 60))
    assert counted.bound_ns == counted.bound_most_ns
    assert unknown.bound_ns < counted.bound_ns < unknown.bound_most_ns
    assert counted.predicted_ns is not None
    # 50 experts in the mean, against 8 and 128: weights are all but a little of the bytes
    assert counted.bound_ns == pytest.approx(50 / 128 * unknown.bound_most_ns, rel=0.01)
    assert unknown.bound_ns == pytest.approx(8 / 128 * unknown.bound_most_ns, rel=0.05)


def test_counts_of_other_steps_or_ranks_or_spread_experts_are_no_counts_of_this_one() -> None:
    account = to_account(steps((decoded(16, 1600), {GEMM: 6 * MS})))
    chosen = choice("qwen3-30b-a3b")
    spread = replace(chosen, deployment=Deployment(plan=ParallelPlan(tp=2, ep=2)))
    for loads, held in (
        ((load_of(1, 0, 40),), chosen),
        ((load_of(0, 0, 40, rank=3),), chosen),
        ((load_of(0, 0, 40),), spread),
    ):
        row = next(row for row in compare_with_model(account, held, loads).efficiencies if row.family == "experts")
        assert row.bound_ns < row.bound_most_ns
        assert row.predicted_ns is None


def test_the_recorded_engine_is_priced_in_every_step_and_its_collectives_are_not(tmp_path: Path) -> None:
    config = tmp_path / "tiny.json"
    meta = json.loads((EXAMPLES / "vllm-cpu-tp2" / "meta.json").read_text(encoding="utf-8"))
    config.write_text(json.dumps(meta["model_config"]), encoding="utf-8")
    target = tmp_path / "report.json"
    given = ["explain", str(EXAMPLES / "vllm-cpu-tp2"), "--model", str(config), "--hardware", "cpu", "--tp", "2"]
    result = CliRunner().invoke(app, [*given, "-o", str(target)])
    assert result.exit_code == 0, result.output
    document = json.loads(target.read_text(encoding="utf-8"))
    found = document["against_model"]
    assert found["steps"] == {rank: {"priced": 12, "left_out": 0} for rank in ("0", "1")}
    assert all(row["bound_ns"] == 0 for row in found["families"] if row["family"] == "collective")
    work = sum(row["exclusive_ns"] for row in document["families"] if row["category"] in WORK)
    in_steps = sum(row["measured_ns"] for part in ("families", "unexplained") for row in found[part])
    assert 0 < in_steps <= work
    assert {row["phase"] for row in found["launches"]} == {"prefill", "decode", "mixed"}


def test_where_idle_is_withheld_products_are_a_share_of_device_work_alone() -> None:
    events = steps((decoded(1, 4001), {GEMM: 2 * MS, FLASH: 6 * MS}))
    events += [launch(MS + 50 + i, 100 + i) for i in range(40)]  # their kernels are not in the capture
    account = to_account(events)
    assert not account.ranks[0].budget.coverage.idle_claimable
    found = compare_with_model(account, choice())
    row = found.quantisation[0]
    assert (row.is_wall, row.whole_ns, row.fraction) == (False, 8 * MS, 0.25)
    assert row.largest == ("attention", 6 * MS)
    assert found.launches[0].host_ns is None
    assert any("idle time is withheld" in str(sentence) for sentence in found.sentences)
