"""Charts: every spec compiles and has marks, bars add up to the window, and no chart grows beyond its marks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import BadInput
from stepscope.report.chart_rows import (
    MAX_MARKS,
    NS_PER_MS,
    anchor_of,
    budget_rows,
    chunk_rows,
    scatter_rows,
    time_measure,
    time_points,
)
from stepscope.report.chart_spec import CATEGORY_COLOURS, PHASE_COLOURS, Chart, to_standalone
from stepscope.report.charts import make_charts, write_charts
from stepscope.report.text import to_text
from stepscope.store.schema import CATEGORIES
from tests.report.documents import example, stretched, withheld
from tests.traces import ELSEWHERE, GEMM, MS, Event, decode, frame, launched, scope, to_report

vl_convert = pytest.importorskip("vl_convert", reason="needs the html extra")

NAMES = ("vllm-cpu-tp2", "glm52-prefill")
CHARTS = [(name, chart) for name in NAMES for chart in make_charts(example(name))]


def _chart(document: dict[str, Any], chart_id: str) -> Chart:
    return next(chart for chart in make_charts(document) if chart.id == chart_id)


def _values(chart: Chart) -> list[dict[str, Any]]:
    assert chart.spec is not None
    values: list[dict[str, Any]] = chart.spec["data"]["values"]
    return values


def _marks(svg: str) -> int:
    """Drawn bars and points: their paths carry the mark's role."""
    return svg.count('aria-roledescription="bar"') + svg.count('aria-roledescription="point"')


@pytest.mark.parametrize(("name", "chart"), CHARTS, ids=[f"{name}-{chart.id}" for name, chart in CHARTS])
def test_chart_is_drawn_with_its_marks_or_says_why_not(name: str, chart: Chart) -> None:
    if chart.spec is None:
        assert chart.refusal
        return
    svg = vl_convert.vegalite_to_svg(to_standalone(chart))
    assert _marks(svg) == chart.num_marks > 0
    assert chart.title.split()[0] in svg


@pytest.mark.parametrize("name", NAMES)
def test_bars_of_a_step_add_up_to_its_window(name: str) -> None:
    document = example(name)
    sums: dict[str, float] = {}
    for row in _values(_chart(document, "budget-steps")):
        sums[row["anchor"]] = sums.get(row["anchor"], 0.0) + row["ms"]
    for step in document["steps"]["rows"]:
        assert sums[anchor_of(step["rank"], step["step_id"])] == pytest.approx(step["window_ns"] / NS_PER_MS)


def test_bars_add_up_to_the_window_where_idle_is_withheld() -> None:
    values = _values(_chart(withheld(), "budget-steps"))
    assert {row["category"] for row in values if row["rank"] == "rank 0"} == {"compute", "kv", "comm", "unknown"}
    first = [row for row in values if row["anchor"] == "step-0-1"]
    assert sum(row["ms"] for row in first) == pytest.approx(first[0]["window_ms"])


def test_merged_bars_are_means_and_are_said_to_be() -> None:
    document = stretched("vllm-cpu-tp2", 5_000)
    rows = budget_rows(document)
    assert rows.merged > 1
    first = [row for row in rows.values if row["anchor"] == "step-0-0"]
    run = [row for row in document["steps"]["rows"] if row["rank"] == 0][: rows.merged]
    assert sum(row["ms"] for row in first) == pytest.approx(sum(s["window_ns"] for s in run) / len(run) / NS_PER_MS)
    assert str(rows.merged) in _chart(document, "budget-steps").note


def test_no_chart_of_5000_steps_has_more_marks_than_allowed() -> None:
    drawn = [chart for chart in make_charts(stretched("vllm-cpu-tp2", 5_000)) if chart.spec]
    assert len(drawn) >= 6
    assert all(0 < chart.num_marks <= MAX_MARKS for chart in drawn)
    assert all(chart.note for chart in drawn if chart.id in ("budget-steps", "timeline", "time-tokens", "attention-kv"))


def test_merged_points_count_every_step() -> None:
    phases = ("prefill", "decode", "mixed", "unknown")
    points = [{"x": i % 977, "y": float(i % 1013), "phase": phases[i % 4], "step": i} for i in range(20_000)]
    rows = scatter_rows(points)
    assert len(rows.values) <= MAX_MARKS
    assert sum(row["count"] for row in rows.values) == len(points)


def test_scatter_leaves_out_steps_whose_number_is_withheld() -> None:
    document = withheld()
    for row in document["steps"]["rows"]:
        row["device_busy_ns"] = None
    assert _chart(document, "time-tokens").spec is None


def test_chunks_split_two_rows_of_a_step_into_chunk_and_tail() -> None:
    chunks = chunk_rows(example("glm52-prefill"))
    assert chunks.are_rows
    assert {row["class"]: row["count"] for row in chunks.values} == {"large": 4, "tail": 3}


def test_chunks_that_are_not_recorded_are_refused_with_what_would_record_them() -> None:
    document = example("glm52-prefill")
    for row in document["steps"]["rows"]:
        row["prefill_query_sum"] = None
    question = next(q for q in document["questions"] if q["id"] == "chunk_shape")
    question |= {"missing": ["prefill tokens per step"], "record_with": ["record sums per step"]}
    chart = _chart(document, "chunks")
    assert chart.spec is None
    assert "record sums per step" in chart.refusal


def test_skew_of_one_rank_is_refused_with_the_reason() -> None:
    document = example("vllm-cpu-tp2") | {"skew": {"refused": "one rank only"}}
    chart = _chart(document, "skew")
    assert chart.spec is None
    assert "one rank only" in chart.refusal


def test_every_category_and_phase_has_its_own_colour() -> None:
    assert tuple(CATEGORY_COLOURS) == CATEGORIES
    assert len(set(CATEGORY_COLOURS.values())) == len(CATEGORIES)
    assert len(set(PHASE_COLOURS.values())) == len(PHASE_COLOURS)


def test_charts_are_written_as_svg_and_png(tmp_path: Path) -> None:
    written = write_charts(example("glm52-prefill"), tmp_path / "charts")
    assert {path.suffix for path in written} == {".svg", ".png"}
    assert len(written) == 2 * 8
    assert all(path.read_bytes()[:4] in (b"<svg", b"\x89PNG") for path in written)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(BadInput, match=r"stepscope\[html\]"):
        write_charts(example("glm52-prefill"), tmp_path)


def test_where_the_supply_wait_is_unknown_it_is_not_taken_off_as_zero() -> None:
    def step(i: int) -> list[Event]:
        return [scope(decode(4), i * MS, MS // 2), *launched(GEMM, i * MS + 1_000, i * MS + 2_000, 90_000, of=i + 1)]

    bare = to_report([event for i in range(3) for event in step(i)])
    stacked = to_report([event for i in range(3) for event in step(i)] + [frame(ELSEWHERE, 0, 3 * MS)])
    assert [time_measure(document) for document in (bare, stacked)] == ["device_busy", "less_supply"]
    assert [point["y"] for point in time_points(bare)] == [0.09] * 3


def test_a_family_of_a_category_that_a_rank_withholds_is_unknown_there_and_not_zero() -> None:
    events = [scope(decode(4), 0, MS), *launched(GEMM, 1_000, 2_000, 90_000, of=1), scope(decode(4), 2 * MS, MS)]
    events += launched(GEMM, 2 * MS + 1_000, 2 * MS + 2_000, 90_000, of=2)
    blind = [event for event in events if event["cat"] != "kernel"]
    text = to_text(to_report(events, blind))
    (line,) = (line for line in text.splitlines() if line.strip().startswith("host / launch_gap"))
    assert line.split()[-1] == "-"
