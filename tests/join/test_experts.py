"""Expert counts by step and layer: the law, imbalance per layer, and no guess where counts do not fit."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import numpy as np
import pytest

from stepscope.join.evidence import join_sources
from stepscope.join.experts import LayerLoad
from stepscope.join.sources import Paths, Sources, read_sources
from stepscope.readers.kineto import reader
from stepscope.record.step_log import encode
from stepscope.steps.step import find_steps
from tests.join.evidence import START_NS
from tests.readers.test_experts import save, tensor


def worker_log(folder: Path, rows: list[list[int]], *, num_tokens: int = 4, layers: list[int] | None = None) -> Sources:
    header = {
        "kind": "header",
        "format": "stepscope-step-log",
        "version": 1,
        "role": "worker",
        "stream_id": "w",
        "file_index": 0,
        "first_seq": 0,
        "num_removed_files": 0,
        "rank": 1,
    }
    record = {
        "seq": 0,
        "kind": "experts",
        "step_id": 9,
        "is_stamped": True,
        "num_tokens": num_tokens,
        "top_k": 2,
        "num_experts": len(rows[0]),
        "layers": layers or list(range(len(rows))),
        "rows_per_expert": base64.b64encode(np.array(rows, "<i4").tobytes()).decode(),
    }
    (folder / "worker-w-0.steplog").write_bytes(encode(header) + encode(record))
    return read_sources(Paths(step_log=folder))


def loads(sources: Sources) -> tuple[LayerLoad, ...]:
    return join_sources(sources).expert_loads


def test_counts_of_a_layer_worked_by_hand(tmp_path: Path) -> None:
    # 4 tokens to 2 of 4 experts each: 8 rows a layer
    found = loads(worker_log(tmp_path, [[8, 0, 0, 0], [2, 2, 2, 2]], layers=[3, 7]))
    assert [(one.layer, one.num_rows, one.max_rows, one.num_empty) for one in found] == [(3, 8, 8, 3), (7, 8, 2, 0)]
    assert [one.imbalance for one in found] == [4.0, 1.0]  # a mean over layers would say 1.25
    assert {one.adds_up for one in found} == {True}
    assert {(one.rank, one.source_step, one.step_id) for one in found} == {(1, 9, None)}


def test_counts_that_break_the_law_are_shown_as_such(tmp_path: Path) -> None:
    found = loads(worker_log(tmp_path, [[3, 1]], num_tokens=4))
    assert [one.adds_up for one in found] == [False]


def test_markers_and_forward_ids_find_their_step(tmp_path: Path) -> None:
    names = ["step[EXTEND bs=1 toks=4 forward_id=70]", "step[EXTEND bs=1 toks=2 forward_id=71]"]
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": 10 + 100 * i, "dur": 50}
        for i, name in enumerate(names)
    ]
    path = tmp_path / "rank0.1.pt.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": START_NS, "traceEvents": events}), encoding="utf-8")
    store = reader.read(path)
    record = {"forward_pass_id": 71, "rank": 0, "global_physical_count": tensor("0", [[3, 1]])}
    save(tmp_path / "a.pt", {"records": [record]})
    found = loads(read_sources(Paths(experts=tmp_path / "a.pt"), [(store, find_steps(store))]))
    assert [(one.source, one.step_id, one.source_step, one.num_rows) for one in found] == [
        ("expert recorder", 1, 71, 4)
    ]
    assert found[0].adds_up is None


@pytest.mark.shared
def test_a_recorded_moe_step_adds_up(tmp_path: Path) -> None:
    traces = Path(os.environ.get("STEPSCOPE_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
    folder = traces / "vllm-cpu" / "moe-tp1-experts"
    if not folder.is_dir():
        pytest.skip("the larger captures are not here")
    store = reader.read(next(folder.glob("*.pt.trace.json.gz")))
    table = find_steps(store)
    found = loads(Sources(ranks=((store, table),)))
    assert len({one.source_step for one in found}) > 5
    tokens = {i: step.boundary.shape.num_scheduled_tokens for i, step in enumerate(table.steps)}
    placed = [one for one in found if one.step_id is not None]
    assert placed
    for one in placed:
        assert one.num_rows == 4 * (tokens[one.step_id or 0] or 0)  # top 4 of 16 experts
