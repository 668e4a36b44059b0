"""A file that ends early withholds on any lane, and missing Python stacks are said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stepscope.answers.account import explain
from stepscope.report.document import to_document
from tests.traces import ACQUIRE, REDUCE_OP, frame, op

if TYPE_CHECKING:
    from pathlib import Path


def test_a_cut_file_withholds_whatever_its_lane(tmp_path: Path) -> None:
    events = [frame(ACQUIRE, 0, 100), op(REDUCE_OP, 100, 50), op(REDUCE_OP, 200, 50)]
    path = tmp_path / "cut.json"
    path.write_text(json.dumps({"traceEvents": events})[:-40], encoding="utf-8")
    coverage = to_document(explain(path))["coverage"]
    assert coverage["reasons"][0]["code"] == "capture_incomplete"
    assert not coverage["idle_claimable"]
