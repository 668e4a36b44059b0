"""The admission limit that binds, and routing beyond chance, from what stands beside a trace."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import pytest

from stepscope.answers.load_findings import _tail, find_load_findings
from stepscope.join.evidence import join_sources
from stepscope.join.experts import LayerLoad
from tests.join.evidence import interval, row, sources, step

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

ARGUMENTS = (
    "(APIServer pid=1) INFO 01-01 00:00:00 [utils.py:233] non-default args: {'max_num_seqs': 4, "
    "'max_num_batched_tokens': 512}"
)


def decoding(number: int, rows: int, **more: Any) -> dict[str, Any]:
    return step(number, [row(f"r{i}", 1, 100 + number, "decode") for i in range(rows)], num_running=rows, **more)


def said(folder: Path, steps: list[dict[str, Any]]) -> str:
    (finding,) = find_load_findings(
        join_sources(sources(folder, steps=steps, log=[ARGUMENTS, interval("Running: 4 reqs")]))
    )
    assert finding.grade == "joined"
    return str(finding.text)


def test_full_batches_of_max_num_seqs_hold_the_queue_back(tmp_path: Path) -> None:
    text = said(tmp_path, [decoding(i, 4, num_waiting=23, kv_usage_fraction=0.2) for i in range(8)])
    assert "requests waiting (23.0 on average, 4.0 running) the running requests reach max_num_seqs in 8" in text
    assert "Queue length is a time average, no batch size." in text


def test_a_full_cache_holds_the_queue_back(tmp_path: Path) -> None:
    text = said(tmp_path, [decoding(i, 2, num_waiting=5, kv_usage_fraction=0.98) for i in range(8)])
    assert "the KV cache is full in 8: that limit holds the others back" in text


def test_no_limit_is_named_where_none_was_reached(tmp_path: Path) -> None:
    text = said(tmp_path, [decoding(i, 2, num_waiting=5, kv_usage_fraction=0.2) for i in range(8)])
    assert "no known limit is reached in most of them" in text


def test_without_a_queue_nothing_is_said(tmp_path: Path) -> None:
    made = sources(tmp_path, steps=[decoding(i, 4, num_waiting=0) for i in range(8)])
    assert find_load_findings(join_sources(made)) == ()


@pytest.mark.parametrize(("least", "n", "p"), [(3, 8, 0.125), (7, 40, 1 / 16), (32, 180, 1 / 128), (1, 5, 0.1)])
def test_the_tail_is_the_binomials(least: int, n: int, p: float) -> None:
    exact = sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(least, n + 1))
    assert _tail(least, n, p) == pytest.approx(exact)


def load(layer: int, rows: list[int]) -> LayerLoad:
    return LayerLoad(
        rank=0,
        step_id=0,
        source="step log",
        source_step=0,
        layer=layer,
        num_experts=len(rows),
        num_rows=sum(rows),
        max_rows=max(rows),
        num_empty=rows.count(0),
        adds_up=None,
    )


def test_a_busiest_expert_within_chance_is_no_skew() -> None:
    even = load(0, [3, 1, 2, 0, 1, 2, 4, 1])
    assert 8 * _tail(even.max_rows, even.num_rows, 1 / 8) > 0.05
