from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import BadInput
from stepscope.operators.shape import parse_count, read_rows_per_expert, read_shape, read_shape_file


def test_counts_are_written_short() -> None:
    assert [parse_count(text) for text in ("777", "8k", "1M", "1_000")] == [777, 8192, 1_048_576, 1000]
    for text in ("", "k", "-1", "1.5k", "8kb"):
        with pytest.raises(BadInput, match="is no whole number"):
            parse_count(text)


def test_prefill_rows_share_a_context_or_have_their_own() -> None:
    shape = read_shape(prefill=["512,256@1k"], context="64", decode=["2@8k"], draft_tokens=1, batch=None)
    assert shape.rows is not None
    assert [(r.query_len, r.context_len, r.phase) for r in shape.rows] == [
        (512, 64, "prefill"),
        (256, 1024, "prefill"),
        (2, 8192, "decode"),
        (2, 8192, "decode"),
    ]


def test_a_yaml_shape_file_is_read_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shape.yaml"
    path.write_text("rows: [{phase: decode, context_len: 8192, count: 64}]", encoding="utf-8")
    shape = read_shape(prefill=(), context="0", decode=(), draft_tokens=0, batch=path)
    assert shape.decode.kv_sum == 64 * 8193
    path.write_text("rows: [", encoding="utf-8")
    with pytest.raises(BadInput, match=r"no YAML 1\.2"):
        read_shape(prefill=(), context="0", decode=(), draft_tokens=0, batch=path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "shape.json"
    for text in ("{", "[]", '{"rows": 1}', '{"rows": [{"phase": "idle"}]}'):
        path.write_text(text)
        with pytest.raises(BadInput, match="no shape file"):
            read_shape_file(path)
    with pytest.raises(BadInput, match="no shape file"):
        read_shape_file(tmp_path / "none.json")
    with pytest.raises(BadInput, match="a JSON list of rows per expert"):
        read_rows_per_expert(f"@{path}")
    assert read_rows_per_expert("1,2,3") == (1, 2, 3)
