"""kekzl/imp#1741: 30B-A3B, the busiest expert has 32 rows against a mean of 1.4; over layers 13 to 15 times, the worst
16 times, 14.28 times in the mean of the layers' own ratios. sgl-project/sglang#37741: 256 experts, EP 16: every second
rank gets 8 tokens, the others none.

Stated: maximum over mean of each layer first and only then of several; ranks without a token are flagged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.answers.load_findings import find_load_findings
from stepscope.join.evidence import Joined, join_sources
from stepscope.join.experts import LayerLoad
from tests.join.evidence import row, sources, step

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS, ROWS = 128, 180


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


def peaked(busiest: int) -> list[int]:
    """One expert with so many rows, the rest spread as evenly as they go."""
    rest = ROWS - busiest
    return [busiest] + [rest // (EXPERTS - 1) + (i < rest % (EXPERTS - 1)) for i in range(EXPERTS - 1)]


def joined(folder: Path, loads: list[LayerLoad]) -> Joined:
    made = join_sources(sources(folder, steps=[step(0, [row("a", 8, 8)])]))
    return replace(made, expert_loads=tuple(loads))


# every layer has another busiest expert: the counts of all layers together look even
LAYERS = [
    np.roll(peaked(busiest), 7 * layer).tolist() for layer, busiest in enumerate([18, 19, 20, 21, 22, 22, 20, 19])
]


def test_the_ratio_is_of_each_layer_first(tmp_path: Path) -> None:
    loads = [load(layer, rows) for layer, rows in enumerate(LAYERS)]
    ratios = [each.imbalance for each in loads]
    assert all(ratio is not None and 12 < ratio < 16 for ratio in ratios)
    together = load(0, np.sum(LAYERS, axis=0).tolist())
    assert together.imbalance is not None
    assert together.imbalance < 4  # the opposite order hides it
    (finding,) = find_load_findings(joined(tmp_path, loads))
    mean = sum(ratio or 0 for ratio in ratios) / len(ratios)
    assert (
        f"In 8 of 8 MoE layers the busiest expert has more rows than even routing gives by chance: {mean:.1f} times"
        in str(finding.text)
    )
    assert finding.grade == "joined"


def test_32_rows_against_a_mean_of_1_4_is_16_times_and_more() -> None:
    assert load(0, peaked(32)).imbalance == pytest.approx(32 / (ROWS / EXPERTS))


def test_experts_without_a_token_are_told(tmp_path: Path) -> None:
    rows = [8 if expert % 32 == 0 else 0 for expert in range(256)]  # 8 tokens, spacing 32
    (finding,) = find_load_findings(joined(tmp_path, [load(0, rows)]))
    assert "96.9 % of the experts have none" in str(finding.text)


def test_even_routing_is_no_finding(tmp_path: Path) -> None:
    counts = np.random.default_rng(5).multinomial(ROWS, [1 / EXPERTS] * EXPERTS, size=8).tolist()
    assert find_load_findings(joined(tmp_path, [load(i, rows) for i, rows in enumerate(counts)])) == ()
