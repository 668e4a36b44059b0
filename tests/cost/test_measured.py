"""Measured tables: exact on their grid, log-linear between, silent outside; tables here are made up in the format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepscope.batch import BatchShape, Row
from stepscope.cost.measured import GEMM, find_table, find_tables, read_measured
from stepscope.cost.measured_cost import MeasuredCost
from stepscope.cost.step_cost import price_step
from stepscope.errors import BadInput
from stepscope.models.hf_config import read_model
from stepscope.operators.step import step_operators


def write_table(root: Path, *, version: str = "0.24.0", latency_ms: float = 1.0, scale: float = 1.0) -> Path:
    """A GEMM table whose time is latency_ms x m x n x k over a grid."""
    folder = root / "h200_sxm" / "gemm" / "vllm" / version
    folder.mkdir(parents=True)
    points = [(m, n, k) for m in (1, 8, 64) for n in (128, 8192, 131072) for k in (128, 8192, 16384)]
    points.remove((64, 131072, 16384))  # one that was not measured
    columns = {
        "gemm_dtype": ["bfloat16"] * len(points),
        "m": [p[0] for p in points],
        "n": [p[1] for p in points],
        "k": [p[2] for p in points],
        "latency": [latency_ms * scale * m * n * k for m, n, k in points],
    }
    path = folder / "gemm_perf.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_points_of_the_grid_come_back_in_seconds(tmp_path: Path) -> None:
    table = read_measured(write_table(tmp_path), GEMM)
    assert float(table.seconds(("bf16",), 8, 8192, 128)) == pytest.approx(8 * 8192 * 128 * 1e-3)


def test_between_points_logarithms_are_linear(tmp_path: Path) -> None:
    table = read_measured(write_table(tmp_path), GEMM)
    found = table.seconds(("bf16",), [2, 20], [300, 5000], [200, 9000])
    assert found.tolist() == pytest.approx([2 * 300 * 200 * 1e-3, 20 * 5000 * 9000 * 1e-3])


def test_outside_and_beside_what_was_measured_it_says_nothing(tmp_path: Path) -> None:
    table = read_measured(write_table(tmp_path), GEMM)
    assert np.isnan(table.seconds(("bf16",), [128, 0.5, 64], [8192, 8192, 131072], [128, 128, 16384])).all()
    assert np.isnan(table.seconds(("bf16",), 60, 130000, 16000))  # next to the missing point
    assert np.isnan(table.seconds(("fp8",), 8, 8192, 128))


def test_rows_of_one_point_become_their_median(tmp_path: Path) -> None:
    path = tmp_path / "gemm_perf.parquet"
    latency = [1.0, 9.0, 2.0]
    rows = {"gemm_dtype": ["fp8"] * 3, "m": [1] * 3, "n": [1] * 3, "k": [1] * 3, "latency": latency}
    pq.write_table(pa.table(rows), path)
    assert float(read_measured(path, GEMM).seconds(("fp8",), 1, 1, 1)) == pytest.approx(2e-3)


def test_the_newest_version_is_taken(tmp_path: Path) -> None:
    write_table(tmp_path, version="0.9.0")
    newest = write_table(tmp_path, version="0.24.0")
    assert find_table(tmp_path, "h200", GEMM) == newest
    with pytest.raises(BadInput, match="Known there: vllm"):
        find_table(tmp_path, "h200", GEMM, "sglang")


def test_missing_tables_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a folder"):
        find_tables(tmp_path / "nowhere")
    pq.write_table(pa.table({"m": [1]}), tmp_path / "x.parquet")
    with pytest.raises(BadInput, match="no column 'gemm_dtype'"):
        read_measured(tmp_path / "x.parquet", GEMM)
    (tmp_path / "y.parquet").write_bytes(b"no parquet")
    with pytest.raises(BadInput, match="not a readable"):
        read_measured(tmp_path / "y.parquet", GEMM)


def test_each_number_says_whether_a_table_or_the_bound_gave_it(tmp_path: Path) -> None:
    write_table(tmp_path, scale=1e-9)
    source = MeasuredCost.from_package("h200", root=tmp_path)
    shape = BatchShape.from_rows((Row(query_len=1, context_len=100, phase="decode"),) * 8)
    operators = step_operators(read_model("llama-3.1-8b"), shape)
    cost = price_step(operators, "h200", cost="measured", measured=source)
    by_name = {op.name: (op, found) for op, found in zip(operators, cost.operators, strict=True)}
    op, found = by_name["o_proj"]
    assert found.source == "measured: h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
    assert found.time_s == pytest.approx(1e-12 * 8 * (op.n or 0) * (op.k or 0))
    norm = by_name["attn_norm"][1]
    assert norm.source == "roofline bound"
    assert norm.time_s == norm.terms.lower_s
    assert cost.grade is None  # partly a bound: no prediction
