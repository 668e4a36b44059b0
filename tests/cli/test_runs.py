"""A run folder answers as its capture does, and --catalog moves families."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.store.run import MANIFEST
from tests.cli.program import EXAMPLE, GLM, done, run

OWN_RULE = """
[[rule]]
family = "{family}"
on = ["kernel"]
match = '{match}'
source = "a test"
example = "{example}"
"""


def explained(source: Path, *options: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done("explain", source, "-f", "json", *options))
    return document


@pytest.mark.parametrize("trace", [EXAMPLE, GLM], ids=lambda path: path.name)
def test_a_run_gives_the_same_report_but_for_its_source(trace: Path, tmp_path: Path) -> None:
    assert done("import", trace, "-o", tmp_path / "run").startswith(f"{tmp_path / 'run'}: 2 stores, ")
    capture, run_ = done("explain", trace, "-f", "json"), done("explain", tmp_path / "run", "-f", "json")
    differing = [(a, b) for a, b in zip(capture.splitlines(), run_.splitlines(), strict=True) if a != b]
    assert differing == [(f' "source": "{trace}",', f' "source": "{tmp_path / "run"}",')]
    assert done("steps", trace, "-f", "csv") == done("steps", tmp_path / "run", "-f", "csv")
    sql = "SELECT * FROM kernels"
    assert done("query", trace, sql, "-f", "csv") == done("query", tmp_path / "run", sql, "-f", "csv")


def test_a_run_answers_without_its_capture(tmp_path: Path) -> None:
    shutil.copytree(GLM, tmp_path / "capture")
    done("import", tmp_path / "capture", "-o", tmp_path / "run")
    before = explained(tmp_path / "run")
    shutil.rmtree(tmp_path / "capture")
    assert explained(tmp_path / "run") == before


def test_importing_twice_gives_the_same_bytes_and_a_run_of_a_run_too(tmp_path: Path) -> None:
    for source, name in ((GLM, "a"), (GLM, "b"), (tmp_path / "a", "c"), (GLM, "a")):
        done("import", source, "-o", tmp_path / name)
    files = {name: sorted(p for p in (tmp_path / name).rglob("*") if p.is_file()) for name in "abc"}
    assert len(files["a"]) > 10
    for other in "bc":
        for path, twin in zip(files["a"], files[other], strict=True):
            assert path.relative_to(tmp_path / "a") == twin.relative_to(tmp_path / other)
            assert path.read_bytes() == twin.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_run_of_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    done("import", GLM, "-o", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / MANIFEST).read_text(encoding="utf-8"))
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(manifest | {"schema": "stepscope.run/99"}), encoding="utf-8")
    run("explain", tmp_path / "run").assert_refused(
        str(tmp_path / "run"), "stepscope.run/99", "Import the capture again"
    )


def test_an_own_catalog_moves_a_family(tmp_path: Path) -> None:
    before = explained(GLM)
    kernels = json.loads(
        done("query", GLM, "SELECT DISTINCT name, category, family FROM kernels ORDER BY 1", "-f", "json")
    )
    name = next(row["name"] for row in kernels if row["family"] == "gemm")
    moved = {row["name"] for row in kernels if row["name"].startswith(name[:12])}
    assert moved
    rule = OWN_RULE.format(family="cache_write", match=f"^{name[:12]}", example=name)
    (tmp_path / "my.toml").write_text(rule, encoding="utf-8")
    after = explained(GLM, "--catalog", tmp_path / "my.toml")
    for old, new in zip(before["budget"], after["budget"], strict=True):
        assert old["window_ns"] == new["window_ns"] == sum(new["exclusive_ns"].values())
    was, now = (next(row for row in doc["budget"] if row["step_id"] is None) for doc in (before, after))
    assert now["exclusive_ns"]["kv"] > was["exclusive_ns"]["kv"]
    assert now["exclusive_ns"]["compute"] < was["exclusive_ns"]["compute"]
    sql = "SELECT DISTINCT name, category, family FROM kernels ORDER BY 1"
    placed = json.loads(done("query", GLM, sql, "-f", "json", "--catalog", tmp_path / "my.toml"))
    assert {row["name"] for row in placed if row["family"] == "cache_write"} >= moved
    assert [row for row in placed if row["name"] not in moved] == [row for row in kernels if row["name"] not in moved]
