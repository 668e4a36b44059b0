from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stepscope.cli.main import app
from stepscope.cost.crossover_document import CrossoverPlan, crossover_document
from stepscope.cost.hardware import load_hardware
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.models.parallel import ParallelPlan
from stepscope.operators.deployment import Deployment
from stepscope.report.chart_spec import Chart, to_standalone
from stepscope.report.model_charts import crossover_charts, history_charts, write_model_charts

PLAN = CrossoverPlan(batches=(1, 64), context_lens=(1024, 8192), tokens=(64, 2048))
HISTORY = {
    "model": "toy",
    "layout": "bf16",
    "contexts": [
        {
            "context": context,
            "branches": [
                {"branch": "sliding_window", "total_bytes": 2**20, "bytes_fraction": 1 / (1 + share)},
                {"branch": "c128", "total_bytes": share * 2**20, "bytes_fraction": share / (1 + share)},
            ],
        }
        for context, share in ((100, 0), (8192, 1), (131072, 16))
    ],
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    deployment = Deployment(plan=ParallelPlan(tp=8, ep=8))
    return crossover_document(read_model("deepseek-v4-flash-0731"), load_hardware("h200"), deployment, PLAN)


def values(chart: Chart, kind: str | None = None) -> list[dict[str, Any]]:
    assert chart.spec is not None
    found: list[dict[str, Any]] = chart.spec["data"]["values"]
    return found if kind is None else [row for row in found if row["kind"] == kind]


def by_id(charts: list[Chart], name: str) -> Chart:
    return next(chart for chart in charts if chart.id == name)


def test_there_is_a_chart_of_each_crossover(document: dict[str, Any]) -> None:
    names = [chart.id for chart in crossover_charts(document)]
    assert names == ["crossover-dense", "crossover-experts-w13", "crossover-experts-w2", "crossover-decode"]


def test_dense_panels_hold_the_documents_numbers(document: dict[str, Any]) -> None:
    chart = by_id(crossover_charts(document), "crossover-dense")
    entries = document["dense"]
    exact = [e["crossover_tokens"] for e in entries if e["crossover_tokens"] is not None]
    assert [row["m"] for row in values(chart, "crossover")] == exact
    assert [row["m"] for row in values(chart, "approximation")] == [e["approximation"] for e in entries]
    assert [row["intensity"] for row in values(chart, "ridge")] == [e["ridge"] for e in entries]
    points = [(p["m"], p["intensity"]) for e in entries for p in e["points"]]
    assert [(row["m"], row["intensity"]) for row in values(chart, "curve")] == points
    never = next(e for e in entries if e["crossover_tokens"] is None)
    assert any(row["gemm"].startswith(f"{never['name']} ") and "never" in row["gemm"] for row in values(chart, "ridge"))


def test_expert_charts_show_the_distribution_and_not_its_mean_alone(document: dict[str, Any]) -> None:
    chart, entry = by_id(crossover_charts(document), "crossover-experts-w13"), document["experts"][0]
    shown = {(row["tokens"], row["statistic"]): row["rows"] for row in values(chart, "rows")}
    for point in entry["points"]:
        for name, label in (("mean", "mean"), ("median", "median"), ("p90", "p90"), ("max", "most")):
            assert shown[point["tokens"], label] == point[name]
    shares = [row["copies_percent"] for row in values(chart, "share")]
    assert shares == [100 * p["compute_bound_copies_fraction"] for p in entry["points"]]
    assert [row["rows"] for row in values(chart, "crossover")] == [entry["crossover_rows"]]
    assert [row["tokens"] for row in values(chart, "crossover_tokens")] == [entry["crossover_tokens"]]


def test_the_heat_map_holds_every_cell(document: dict[str, Any]) -> None:
    chart, cells = by_id(crossover_charts(document), "crossover-decode"), document["decode"]["cells"]
    shown = [(row["batch"], row["context"], row["bound"], row["ms"]) for row in values(chart)]
    assert shown == [(c["batch"], c["context_len"], c["bound"], 1e3 * c["time_s"]) for c in cells]


def test_a_cell_without_a_prediction_is_called_a_bound() -> None:
    deployment = Deployment(weights="int8", experts="int8")
    found = crossover_document(read_model("qwen3-8b"), load_hardware("ascend-910c"), deployment, PLAN)
    charts = crossover_charts(found)
    assert [chart.id for chart in charts] == ["crossover-dense", "crossover-decode"]
    assert all(">= " in row["label"] for row in values(charts[-1]))


def test_history_charts_hold_the_documents_numbers() -> None:
    sizes, shares = history_charts(HISTORY)
    assert [(r["context"], r["branch"], r["mib"]) for r in values(sizes)] == [
        (100, "sliding_window", 1.0),
        (8192, "sliding_window", 1.0),
        (8192, "c128", 1.0),
        (131072, "sliding_window", 1.0),
        (131072, "c128", 16.0),
    ]
    assert sum(row["percent"] for row in values(shares) if row["context"] == 131072) == pytest.approx(100)


def test_every_axis_names_its_unit(document: dict[str, Any]) -> None:
    pytest.importorskip("vl_convert")
    import vl_convert  # noqa: PLC0415

    units = ("flop per byte", "rows", "tokens", "%", "MiB")
    for chart in (*crossover_charts(document), *history_charts(HISTORY)):
        svg = vl_convert.vegalite_to_svg(to_standalone(chart))
        assert svg.count("role-axis-title") >= 2
        assert any(unit in svg for unit in units)


def test_specs_compile_to_marks(document: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    charts = [*crossover_charts(document), *history_charts(HISTORY)]
    files = write_model_charts(charts, tmp_path / "charts")
    assert [path.name for path in files] == [f"{chart.id}.{end}" for chart in charts for end in ("svg", "png")]
    for path in files:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
            continue
        text = path.read_text(encoding="utf-8")
        assert text.count('aria-roledescription="') > 4
        assert "NaN" not in text
    dense = (tmp_path / "charts" / "crossover-dense.svg").read_text(encoding="utf-8")
    assert dense.count('aria-roledescription="line mark"') >= len(document["dense"])
    heat = (tmp_path / "charts" / "crossover-decode.svg").read_text(encoding="utf-8")
    assert heat.count('aria-roledescription="rect mark"') == len(document["decode"]["cells"])


def test_the_commands_write_them(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    small = ["--batches", "1,8", "--contexts", "1k", "--tokens", "64"]
    for arguments, name in (
        (["crossover", "qwen3-8b", "--hardware", "h200", *small], "crossover-decode.png"),
        (["history", "deepseek-v4-flash", "--context", "8k,32k"], "history-bytes.svg"),
    ):
        result = CliRunner().invoke(app, [*arguments, "--charts", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).stat().st_size > 1000


def test_without_the_extra_it_says_what_to_install(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def blocked(name: str, *rest: Any, **named: Any) -> Any:
        if name == "vl_convert":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(BadInput, match=r"pip install 'stepscope\[html\]'"):
        write_model_charts(crossover_charts(document), tmp_path)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    place = tmp_path / "file"
    place.write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match="charts cannot be written"):
        write_model_charts(history_charts(HISTORY), place)
